"""Containers on a Docker engine, reached over its API; nothing of ours is installed there."""

from cluster.adapters.docker_runtime.runtime import DockerRuntime

__all__ = ["DockerRuntime"]
