"""Programs that `autotune export` hands out: each is put together from these files into one file
that stands alone. They import nothing of autotune's, apart from each other, and are run by others.
"""
