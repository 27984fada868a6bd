"""Starts the probe where a host is, and turns its lines into readings."""

import hashlib
import json
import subprocess
import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import closing, suppress
from datetime import UTC, datetime
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, Final

from cluster.adapters.docker_runtime import DockerRuntime
from cluster.core.resources import (
    CONTAINER_FIELDS,
    GPU_FIELDS,
    GPU_STATE_FIELDS,
    HOST_FIELDS,
    ContainerReading,
    GpuLink,
    GpuReading,
    GpuUuid,
    HostReading,
)
from cluster.errors import ClusterError, HostUnreachableError
from cluster.ports import HostEndpoint

PROBE: Final = Path(__file__).resolve().parent.parent / "probe"
LABEL_PROBE: Final = "starling.probe"
#: Version of the probe's lines that is understood here.
VERSION: Final = 2
_PATIENCE_S: Final = 1.0
#: The driver fails for reasons that may be the container's alone.
_CONTAINER_TROUBLES: Final = frozenset({"driver", "permission"})
_HOST_NUMBERS: Final = frozenset(HOST_FIELDS)
_CONTAINER_NUMBERS: Final = frozenset(CONTAINER_FIELDS)
_GPU_NUMBERS: Final = frozenset(GPU_FIELDS + GPU_STATE_FIELDS)


class LocalProbe:
    """Runs the probe as a process of this machine; for hosts without a container engine."""

    def __init__(self, endpoint: HostEndpoint, *, state_dir: Path, simulate: str = "") -> None:
        self._endpoint = endpoint
        self._state_dir = state_dir
        self._simulate = simulate

    def readings(self) -> Generator[HostReading | None, None, None]:
        """Yield readings; see :class:`cluster.ports.HostProbe`."""
        command = [sys.executable, "-m", "cluster.probe", "--disk", str(self._state_dir)]
        command += ["--processes", str(self._state_dir / "processes")]
        command += ["--simulate", self._simulate] if self._simulate else []
        with subprocess.Popen(  # noqa: S603 - our own program
            command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, cwd=PROBE.parent.parent
        ) as probe:
            # Without a bound: a reader that lags drops nothing, and the thread never waits.
            lines: SimpleQueue[bytes] = SimpleQueue()
            pump = Thread(target=_pump, args=(probe, lines), daemon=True, name="probe")
            pump.start()
            try:
                while True:
                    try:
                        line = lines.get(timeout=_PATIENCE_S)
                    except Empty:
                        yield None
                        continue
                    if not line:
                        raise HostUnreachableError(self._endpoint.name, detail="its probe ended")
                    yield reading_of(line.decode("utf-8", "replace"))
            finally:
                probe.kill()
                pump.join()


def _pump(probe: subprocess.Popen[bytes], lines: "SimpleQueue[bytes]") -> None:
    if probe.stdout is not None:
        for line in probe.stdout:
            lines.put(line)
    lines.put(b"")


class DockerProbe:
    """Runs the probe in a container of its own and follows its output."""

    def __init__(self, runtime: DockerRuntime, *, image: str, instance: str) -> None:
        self._runtime = runtime
        self._image = image
        self._instance = instance

    def readings(self) -> Generator[HostReading | None, None, None]:
        """Yield readings; see :class:`cluster.ports.HostProbe`."""
        name = f"starling-probe-{self._instance}"
        self._runtime.ensure_probe(
            name=name, image=self._image, folder=PROBE, version=version(), label=LABEL_PROBE
        )
        devices = DeviceWatch()
        with closing(self._runtime.follow_lines(name)) as lines:
            try:
                for line in lines:
                    reading = None if line is None else reading_of(line.text)
                    if reading is not None and devices.are_gone(reading):
                        self._runtime.remove(name)
                        break
                    yield reading
            except GeneratorExit:
                # Nobody listens any more: the host is to be left as it was found.
                with suppress(ClusterError):
                    self._runtime.remove(name)
                raise
        raise HostUnreachableError(self._runtime.endpoint.name, detail="its probe ended")


class DeviceWatch:
    """Notices that a probe's container has lost its GPUs though the host has not.

    That happens when the host's service manager is reloaded; only a new container has them again.
    """

    def __init__(self, *, patience: int = 30) -> None:
        self._patience = patience
        self._had = False
        self._without = 0

    def are_gone(self, reading: HostReading) -> bool:
        """Return whether a container that once read GPUs has failed at it for too long."""
        if not reading.gpu_trouble:
            self._had = self._had or bool(reading.gpus)
            self._without = 0
        elif reading.gpu_trouble in _CONTAINER_TROUBLES:
            self._without += 1
        return self._had and self._without >= self._patience


def version() -> str:
    """Return a sum over the probe's program: a probe of another sum is replaced."""
    digest = hashlib.sha256()
    for path in sorted(PROBE.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def reading_of(line: str) -> HostReading | None:
    """Return what a probe's line says; ``None`` for a line that is not one."""
    try:
        found = json.loads(line)
        return _reading(found) if found["v"] == VERSION else None
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
        return None


def _reading(found: Mapping[str, Any]) -> HostReading:
    return HostReading(
        observed_at=datetime.fromtimestamp(float(found["at"]), tz=UTC),
        gpus=tuple(_gpu(gpu) for gpu in found.get("gpus", ())),
        gpu_error=str(found.get("gpu_error", "")),
        gpu_trouble=str(found.get("trouble", "")),
        driver=str(found.get("driver", "")),
        boot=str(found.get("boot", "")),
        topology=_topology(found.get("topology")),
        pci_gpus=found.get("pci_gpus"),
        simulated=bool(found.get("simulated", False)),
        containers=tuple(
            ContainerReading(container_id=key, **_known(value, _CONTAINER_NUMBERS))
            for key, value in found.get("containers", {}).items()
        ),
        **_known(found.get("host", {}), _HOST_NUMBERS),
    )


def _gpu(found: Mapping[str, Any]) -> GpuReading:
    said = found.get
    return GpuReading(
        uuid=GpuUuid(str(found["uuid"])),
        model=str(said("model", "unknown GPU")),
        index=int(said("index", 0)),
        **{name: read(found[name]) for name, read in _SOMETIMES.items() if name in found},
        **_known(found, _GPU_NUMBERS),
    )


def _xids(found: Any) -> tuple[tuple[float, int], ...]:
    return tuple((float(at), int(code)) for at, code in found)


#: What most lines do not say of a GPU, and how it is read.
_SOMETIMES: Final[dict[str, Callable[[Any], Any]]] = {
    "why": dict,
    "processes": dict,
    "lost": bool,
    "parent": str,
    "divided": bool,
    "shares": dict,
    "strangers": tuple,
    "xids": _xids,
}


def _topology(found: Any) -> tuple[GpuLink, ...] | None:
    if found is None:
        return None
    return tuple(
        GpuLink(first=GpuUuid(first), second=GpuUuid(second), kind=str(kind), links=int(links))
        for first, second, kind, links in found
    )


def _known(found: Mapping[str, Any], names: frozenset[str]) -> dict[str, Any]:
    return {name: found[name] for name in found.keys() & names if found[name] is not None}
