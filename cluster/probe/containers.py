"""What each container uses: Docker's by cgroup (v1 and v2), the process runtime's by tree."""

import json
import os
import time
from pathlib import Path

from cluster.probe.host import Rates, network_bytes, text_of
from cluster.probe.processes import DockerIndex

MIB = 1024 * 1024
CGROUP = Path("/sys/fs/cgroup")
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


class ContainerMeter:
    """Reads every container once a second."""

    def __init__(self, *, docker: bool, processes: Path | None) -> None:
        self._docker = docker
        self._processes = processes
        self._index = DockerIndex()
        self._rates = Rates()

    def read(self) -> dict[str, dict[str, object]]:
        """Return the use of each container by its id."""
        now = time.monotonic()
        found: dict[str, dict[str, object]] = {}
        if self._docker:
            for container, pids in self._index.read().items():
                found[container] = self._docker_use(container, pids, now)
        running = {} if self._processes is None else shims(self._processes)
        children = children_by_parent() if running else {}
        for name, pid in running.items():
            found[name] = self._tree_use(name, pid, descendants(pid, children), now)
        names = {f"{key}/{what}" for key in found for what in ("cpu", "read", "write", "in", "out")}
        self._rates.forget_all_but(names)
        return found

    def _docker_use(self, container: str, pids: list[int], now: float) -> dict[str, object]:
        first = str(pids[0])
        v2 = cgroup_path(first, "")
        if (CGROUP / "cgroup.controllers").exists() and v2 is not None:
            cpu_s, memory_bytes, io = _usage_v2(v2)
        else:
            cpu_s, memory_bytes, io = _usage_v1(first)
        traffic = network_bytes(first) or (None, None)
        return self._use(container, cpu_s, memory_bytes, (*io, *traffic), len(pids), now)

    def _tree_use(self, name: str, shim: int, pids: list[int], now: float) -> dict[str, object]:
        memory_bytes = read = written = 0.0
        # The shim collects orphans; what they used would else be forgotten with them.
        own = text_of(f"/proc/{shim}/stat").rpartition(")")[2].split()
        cpu_s = sum(int(word) for word in own[13:15]) / _TICKS
        for pid in pids:
            stat = text_of(f"/proc/{pid}/stat").rpartition(")")[2].split()
            if len(stat) < 22:
                continue
            # A parent keeps the time of the children it has waited for.
            cpu_s += sum(int(word) for word in stat[11:15]) / _TICKS
            memory_bytes += int(stat[21]) * _PAGE
            for line in text_of(f"/proc/{pid}/io").splitlines():
                key, _, value = line.partition(": ")
                read += int(value) if key == "read_bytes" else 0
                written += int(value) if key == "write_bytes" else 0
        return self._use(name, cpu_s, memory_bytes, (read, written, None, None), len(pids), now)

    def _use(
        self,
        key: str,
        cpu_s: float | None,
        memory_bytes: float | None,
        counters: tuple[float | None, ...],
        processes: int,
        now: float,
    ) -> dict[str, object]:
        cpu = self._rates.rate(f"{key}/cpu", cpu_s, now)
        values: dict[str, object] = {
            "cpu_pct": None if cpu is None else round(100 * cpu, 1),
            "memory_mib": None if memory_bytes is None else round(memory_bytes / MIB, 1),
            "processes": processes,
        }
        fields = ("read_bytes_s", "write_bytes_s", "receive_bytes_s", "transmit_bytes_s")
        for name, what, counter in zip(
            fields, ("read", "write", "in", "out"), counters, strict=False
        ):
            values[name] = self._rates.rate(f"{key}/{what}", counter, now)
        return {name: value for name, value in values.items() if value is not None}


def cgroup_path(pid: str, controller: str) -> str | None:
    """Return a process's path in the v1 hierarchy of ``controller``, or in v2 where it is empty."""
    for line in text_of(f"/proc/{pid}/cgroup").splitlines():
        _, names, path = line.split(":", 2)
        if controller in names.split(","):
            return path.lstrip("/")
    return None


def _usage_v2(path: str) -> tuple[float | None, float | None, tuple[float, float]]:
    folder = CGROUP / path
    cpu = _keyed(folder / "cpu.stat").get("usage_usec")
    used = _number(folder / "memory.current")
    inactive = _keyed(folder / "memory.stat").get("inactive_file", 0)
    read = written = 0.0
    for line in text_of(str(folder / "io.stat")).splitlines():
        for word in line.split()[1:]:
            name, _, value = word.partition("=")
            read += int(value) if name == "rbytes" else 0
            written += int(value) if name == "wbytes" else 0
    memory = None if used is None else max(0.0, used - inactive)
    return (None if cpu is None else cpu / 1e6), memory, (read, written)


def _usage_v1(pid: str) -> tuple[float | None, float | None, tuple[float, float]]:
    cpu = _number(_v1(pid, "cpuacct") / "cpuacct.usage")
    folder = _v1(pid, "memory")
    used = _number(folder / "memory.usage_in_bytes")
    inactive = _keyed(folder / "memory.stat").get("total_inactive_file", 0)
    read = written = 0.0
    io = text_of(str(_v1(pid, "blkio") / "blkio.throttle.io_service_bytes"))
    for line in io.splitlines():
        words = line.split()
        if len(words) == 3:
            read += int(words[2]) if words[1] == "Read" else 0
            written += int(words[2]) if words[1] == "Write" else 0
    memory = None if used is None else max(0.0, used - inactive)
    return (None if cpu is None else cpu / 1e9), memory, (read, written)


def _v1(pid: str, controller: str) -> Path:
    path = cgroup_path(pid, controller)
    return CGROUP / controller / (path or "nowhere")


def _keyed(path: Path) -> dict[str, float]:
    found = {}
    for line in text_of(str(path)).splitlines():
        name, _, value = line.partition(" ")
        if value.strip().isdigit():
            found[name] = float(value)
    return found


def _number(path: Path) -> float | None:
    word = text_of(str(path)).strip()
    return float(word) if word.isdigit() else None


def shims(folder: Path) -> dict[str, int]:
    """Return the pid of each process container's shim that has not ended yet."""
    found: dict[str, int] = {}
    try:
        entries = list(folder.iterdir())
    except OSError:
        return found
    for entry in entries:
        if (entry / "exit.json").exists():
            continue
        try:
            pid = int(json.loads((entry / "shim.json").read_text())["pid"])
        except (OSError, ValueError, KeyError, TypeError):
            continue
        # A pid that was given to somebody else by now is not a shim of this folder.
        if str(entry) in text_of(f"/proc/{pid}/cmdline"):
            found[entry.name] = pid
    return found


def children_by_parent() -> dict[int, list[int]]:
    """Return the pids of every process's children."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):  # noqa: PTH208 - names are enough, once a second
        if entry.isdigit():
            words = text_of(f"/proc/{entry}/stat").rpartition(")")[2].split()
            if len(words) > 1:
                children.setdefault(int(words[1]), []).append(int(entry))
    return children


def descendants(root: int, children: dict[int, list[int]]) -> list[int]:
    """Return the pids below ``root``."""
    found: list[int] = []
    front = [root]
    while front:
        front = [child for pid in front for child in children.get(pid, ())]
        found.extend(front)
    return found
