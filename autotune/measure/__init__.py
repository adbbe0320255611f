"""Load loops, statistics of latency and throughput, and the verdict."""
