"""What runs in the processes of a pipeline's ranks, and is imported there alone."""
