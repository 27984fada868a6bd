"""Which container each process of this host belongs to; asked seldom, remembered."""

import os
import re
from typing import Any

from cluster.probe.host import text_of

#: ``/docker/<id>`` (v1, cgroupfs), ``docker-<id>.scope`` (systemd), and nested ones.
_DOCKER = re.compile(r"(?:/docker/|docker-)([0-9a-f]{64})(?:\.scope)?")
#: Programs that use every GPU and take nothing from jobs.
_HARMLESS = frozenset({"nvidia-cuda-mps-server", "nvidia-cuda-mps", "nvidia-persiste"})
#: A process is born beside its container and then moved in: so long it is looked at again.
_YOUNG_LOOKS = 3
#: After so many looks everything is read anew: a process may have been moved, a pid used again.
_RENEW_LOOKS = 60
#: What a desktop may take of a GPU before it counts as somebody's work, in MiB.
_DESKTOP_MIB = 1024


def container_of(pid: int) -> str:
    """Return the id of the container a process is in; empty for none."""
    found = docker_of(pid)
    if found:
        return found
    for word in text_of(f"/proc/{pid}/environ").split("\0"):
        name, _, value = word.partition("=")
        if name == "STARLING_CONTAINER":
            return value
    return ""


def docker_of(pid: int | str) -> str:
    """Return the id of the Docker container a process is in; empty for none."""
    found = _DOCKER.search(text_of(f"/proc/{pid}/cgroup"))
    return found[1] if found else ""


class DockerIndex:
    """The processes of every Docker container; each process is looked up once and not again."""

    def __init__(self) -> None:
        self._containers: dict[str, str] = {}
        self._young: dict[str, int] = {}
        self._looks = 0

    def read(self) -> dict[str, list[int]]:
        """Return the host pids of every container's processes, by container id."""
        self._looks += 1
        if self._looks % _RENEW_LOOKS == 0:
            self._containers.clear()
            self._young.clear()
        there = {entry for entry in os.listdir("/proc") if entry.isdigit()}  # noqa: PTH208
        for gone in self._containers.keys() - there:
            del self._containers[gone]
            self._young.pop(gone, None)
        for pid in (there - self._containers.keys()) | self._young.keys():
            self._containers[pid] = docker_of(pid)
            looks = self._young.get(pid, 0) + 1
            if self._containers[pid] or looks >= _YOUNG_LOOKS:
                self._young.pop(pid, None)
            else:
                self._young[pid] = looks
        found: dict[str, list[int]] = {}
        for pid, container in self._containers.items():
            if container:
                found.setdefault(container, []).append(int(pid))
        return found


class ProcessIndex:
    """Which container a GPU's process is in, by pid and the moment it began."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, str], tuple[str, str]] = {}

    def attribute(self, gpu: dict[str, Any]) -> dict[str, Any]:
        """Replace a GPU's pids by what each container uses; strangers are named.

        Returns:
            The GPU with ``processes`` (MiB by container id, ``None`` where unknown, the empty id
            for strangers), ``shares`` (percent of the GPU by container id) and ``strangers``.
        """
        pids, shares = gpu.pop("pids", ()), dict(gpu.pop("sm", ()))
        memory: dict[str, int | None] = {}
        busy: dict[str, int] = {}
        strangers: list[str] = []
        for pid, mib, kind in pids:
            found = self._look(pid)
            # A driver may name processes that are gone.
            if found is None:
                continue
            container, name = found
            if not container:
                if name in _HARMLESS or (kind == "G" and (mib or 0) < _DESKTOP_MIB):
                    continue
                strangers.append(f"{name} (pid {pid})")
            before = memory.get(container, 0)
            memory[container] = None if mib is None or before is None else before + mib
            if pid in shares:
                busy[container] = min(100, busy.get(container, 0) + shares[pid])
        gpu["processes"] = memory
        if busy:
            gpu["shares"] = busy
        if strangers:
            gpu["strangers"] = strangers[:8]
        return gpu

    def _look(self, pid: int) -> tuple[str, str] | None:
        """Return a process's container and name; ``None`` if there is no such process."""
        name, _, rest = text_of(f"/proc/{pid}/stat").partition("(")[2].rpartition(")")
        words = rest.split()
        if len(words) < 20 or words[0] in {"Z", "X"}:
            return None
        key = (pid, words[19])
        if key not in self._known:
            if len(self._known) > 4096:
                self._known.clear()
            self._known[key] = (container_of(pid), name)
        return self._known[key]
