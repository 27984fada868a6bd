"""REST for hosts and GPUs."""
