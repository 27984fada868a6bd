"""REST for datasets, environments, templates and jobs."""
