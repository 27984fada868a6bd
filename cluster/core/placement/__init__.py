"""Placers: each maps requests and a snapshot of the cluster to a plan."""
