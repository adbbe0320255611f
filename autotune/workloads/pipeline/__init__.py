"""Training and inference of one model over several ranks, in stages."""
