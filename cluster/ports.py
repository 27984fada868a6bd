"""What the product promises itself about hosts; adapters keep the promises.

A container sees one fixed layout below :data:`JOB_ROOT`. A runtime that cannot mount translates
every path below it in ``command``, ``environment`` and ``working_dir`` to where the files are.
"""

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Final, Protocol

from cluster.core.resources import GpuUuid, HostReading

JOB_ROOT: Final = "/job"

LABEL_INSTANCE: Final = "starling.instance"
LABEL_JOB: Final = "starling.job"
LABEL_ATTEMPT: Final = "starling.attempt"
LABEL_REPLICA: Final = "starling.replica"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostEndpoint:
    """How to reach one host.

    Attributes:
        name: The host's name in the portal.
        url: ``process://local``, ``unix:///path/docker.sock`` or ``tcp://host:port``.
        tls_ca, tls_cert, tls_key: Paths of PEM files on the portal's machine; all or none.
        timeout_s: How long one call may take; following streams has no limit.
    """

    name: str
    url: str
    tls_ca: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    timeout_s: float = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineDescription:
    """What a host's engine says of itself.

    Attributes:
        kind: ``docker`` or ``process``.
        cgroup_version: 1 or 2; 0 where the runtime uses none.
        takes_gpus: Whether GPU requests can work at all.
        warnings: Sentences for the admin, each with what to do.
    """

    kind: str
    version: str
    operating_system: str
    cpu_millis: int
    memory_mib: int
    cgroup_version: int
    takes_gpus: bool
    clock_offset_s: float | None = None
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A file or folder of the host, seen at ``target`` in the container."""

    source: str
    target: str
    read_only: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerSpec:
    """Everything needed to start one container; equal specs start equal containers.

    Attributes:
        name: Deterministic and unique on the host: the second start of a name is the first's.
        image: Image reference for a container engine.
        python: Interpreter for the process runtime; also replaces a leading ``python`` there.
        command: Program and arguments; ``python`` first means the environment's interpreter.
        user: ``uid:gid`` that the program runs as; empty keeps the runtime's own.
        cpu_millis: Limit in thousandths of a core.
        memory_mib: Limit of memory and swap together, in MiB.
        gpus: UUIDs, in the order in which the program sees them.
        log_limit_mib: How much of its output the host keeps at least.
        network: Name of the network to join; empty for the runtime's default.
    """

    name: str
    image: str
    python: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()
    working_dir: str = JOB_ROOT + "/work"
    user: str = ""
    cpu_millis: int = 1000
    memory_mib: int = 1024
    shm_mib: int = 64
    pids_limit: int = 4096
    gpus: tuple[GpuUuid, ...] = ()
    log_limit_mib: int = 64
    network: str = ""


class ContainerState(StrEnum):
    """Where a container is in its life, whatever the runtime calls it."""

    CREATED = "created"
    RUNNING = "running"
    EXITED = "exited"


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerStatus:
    """One container as the runtime sees it.

    Attributes:
        exit_code: The program's, 128 + n when signal n ended it; ``None`` until it exited.
        oom_killed: Whether the memory limit ended it or one of its processes.
        error: What the runtime says when the program never started; empty otherwise.
    """

    name: str
    container_id: str
    state: ContainerState
    labels: Mapping[str, str] = field(default_factory=dict)
    exit_code: int | None = None
    oom_killed: bool = False
    started_at: datetime | None = None
    finished_at: datetime | None = None
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """One line of a container's output, without its line end.

    Attributes:
        stream: ``stdout`` or ``stderr``.
        cursor: Opaque; following on from it yields the very next line.
    """

    at: datetime
    stream: str
    text: str
    cursor: str


class ContainerRuntime(Protocol):
    """Starts, watches and stops containers on one host.

    Every call may raise :class:`cluster.errors.HostUnreachableError` after the endpoint's
    timeout. An implementation is safe to use from several threads.
    """

    def describe(self) -> EngineDescription:
        """Return what the engine says of itself.

        Raises:
            HostRefusedError: If it answers but will not be used: TLS, version, permission.
        """
        ...

    def start(self, spec: ContainerSpec) -> ContainerStatus:
        """Start a container, or return the one that already has this name, started if it was not.

        Raises:
            ImageMissingError: If the image (or interpreter) is not on the host.
            GpuUnavailableError: If the engine cannot give the GPUs asked for.
            LaunchFailedError: If the engine refuses the container for another reason.
        """
        ...

    def inspect(self, name: str) -> ContainerStatus | None:
        """Return the container's status, or ``None`` if there is none of this name."""
        ...

    def containers(self, labels: Mapping[str, str]) -> tuple[ContainerStatus, ...]:
        """Return all containers, running or exited, that carry every one of these labels."""
        ...

    def terminate(self, name: str) -> None:
        """Ask the program to end (SIGTERM) and return at once; no error if it is gone."""
        ...

    def kill(self, name: str) -> None:
        """End the whole process tree (SIGKILL); no error if it is gone."""
        ...

    def remove(self, name: str) -> None:
        """End and remove a container; removing an absent one is not an error."""
        ...

    def logs(self, name: str, *, after: str = "") -> Generator[LogLine | None, None, None]:
        """Follow the container's output from its first line, or from just after a cursor.

        Yields ``None`` at least once a second while nothing comes, so that the reader can look
        around; ends when the container has exited and its last line was yielded, or when the
        container does not exist. Closing the generator ends the following.

        Raises:
            HostUnreachableError: If the connection breaks; follow on from the last cursor.
        """
        ...


class HostProbe(Protocol):
    """Reads the running state of one host, once a second."""

    def readings(self) -> Generator[HostReading | None, None, None]:
        """Yield a reading a second, ``None`` when none came in that second.

        Closing the generator ends the probe's program if this object started it.

        Raises:
            HostUnreachableError: If the probe cannot be started or its stream broke.
        """
        ...
