"""Hosts, GPUs, allocations, runtimes and placement; knows nothing of jobs or users."""
