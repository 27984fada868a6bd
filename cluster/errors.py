"""Errors of hosts and allocations; the text is for people, the fields are for code."""


class ClusterError(Exception):
    """Something about a host, its engine or its room."""

    code = "cluster_error"
    retryable = False


class HostUnreachableError(ClusterError):
    """The host's endpoint did not answer within its timeout."""

    code = "host_unreachable"
    retryable = True

    def __init__(self, host: str, *, detail: str = "") -> None:
        super().__init__(f"host {host!r} does not answer" + (f": {detail}" if detail else ""))
        self.host = host
        self.detail = detail


class HostRefusedError(ClusterError):
    """The host answers but refuses us, or is not fit for use; the text says what to do."""

    code = "host_refused"

    def __init__(self, host: str, *, detail: str) -> None:
        super().__init__(f"host {host!r}: {detail}")
        self.host = host
        self.detail = detail


class ImageMissingError(ClusterError):
    """The image or interpreter of an environment is not on the host."""

    code = "image_missing"

    def __init__(self, host: str, *, image: str) -> None:
        super().__init__(f"host {host!r} does not have {image!r}")
        self.host = host
        self.image = image


class GpuUnavailableError(ClusterError):
    """The engine cannot give a container the GPUs it was asked for."""

    code = "gpu_unavailable"

    def __init__(self, host: str, *, detail: str) -> None:
        super().__init__(f"host {host!r} cannot give GPUs to containers: {detail}")
        self.host = host
        self.detail = detail


class LaunchFailedError(ClusterError):
    """The engine refused to start a container."""

    code = "launch_failed"

    def __init__(self, host: str, *, detail: str) -> None:
        super().__init__(f"host {host!r} could not start the container: {detail}")
        self.host = host
        self.detail = detail


class NoRoomError(ClusterError):
    """A placement no longer fits; somebody else took the room meanwhile."""

    code = "no_room"
    retryable = True

    def __init__(self, host: str, *, resource: str) -> None:
        super().__init__(f"host {host!r} has no room left: {resource}")
        self.host = host
        self.resource = resource


class HostInUseError(ClusterError):
    """A host cannot be removed while something holds a part of it."""

    code = "host_in_use"

    def __init__(self, host: str, *, holders: int) -> None:
        super().__init__(
            f"host {host!r} still runs {holders} container(s); drain it and wait until it is empty"
        )
        self.host = host
        self.holders = holders


class StaleLeaseError(ClusterError):
    """A lease was lost to another holder; what it guarded must not be done."""

    code = "stale_lease"

    def __init__(self, name: str) -> None:
        super().__init__(f"lease {name!r} is held by another process")
        self.name = name
