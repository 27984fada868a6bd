"""Adapters that keep the promises of :mod:`cluster.ports` on real runtimes."""
