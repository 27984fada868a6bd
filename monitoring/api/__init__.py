"""REST for logs, metrics and samples."""
