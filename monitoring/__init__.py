"""Samples, logs, metrics, charts and live streams; reads jobs and hosts, never decides."""
