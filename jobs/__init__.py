"""Datasets, environments, templates and jobs: submission, scheduling, execution."""
