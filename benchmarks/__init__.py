"""Measurements: each module prints a table, and JSON with --json; run as ``python -m``."""
