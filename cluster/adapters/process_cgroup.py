"""Control groups for process containers, where this process may make them: v1 and v2.

The kernel then keeps the limits of memory, CPU and number of processes; without it the shim
watches memory itself.
"""

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path("/sys/fs/cgroup")
_PERIOD_US: Final = 100_000
_CONTROLLERS: Final = ("memory", "cpu", "pids")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a process container may use."""

    memory_mib: int
    cpu_millis: int
    pids: int


def make(name: str, limits: Limits, *, root: Path = ROOT) -> dict[str, str]:
    """Make the groups of a container and return the folder of each controller; none is fine."""
    if (root / "cgroup.controllers").exists():
        return _make_v2(f"starling-{name}", limits, root)
    return _make_v1(f"starling-{name}", limits, root)


def remove(folders: Mapping[str, str]) -> None:
    """Remove a container's groups; one that still has processes stays."""
    for folder in set(folders.values()):
        with suppress(OSError):
            Path(folder).rmdir()


def members(folders: Mapping[str, str]) -> set[int]:
    """Return the pids that are in a container's groups."""
    found: set[int] = set()
    for folder in set(folders.values()):
        with suppress(OSError):
            found |= {int(word) for word in Path(folder, "cgroup.procs").read_text().split()}
    return found


def _own(controller: str) -> str:
    """Return this process's path in the hierarchy of a controller; v2's where it is empty."""
    with suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, names, path = line.split(":", 2)
            if controller in names.split(","):
                return path.strip("/")
    return ""


def _make_v1(name: str, limits: Limits, root: Path) -> dict[str, str]:
    memory = str(limits.memory_mib * 2**20)
    settings = {
        "memory": {"memory.limit_in_bytes": memory, "memory.memsw.limit_in_bytes": memory},
        "cpu": {
            "cpu.cfs_period_us": str(_PERIOD_US),
            "cpu.cfs_quota_us": str(limits.cpu_millis * _PERIOD_US // 1000),
        },
        "pids": {"pids.max": str(limits.pids)},
    }
    found: dict[str, str] = {}
    for controller in _CONTROLLERS:
        above = root / controller / _own(controller)
        if not above.is_dir():
            above = root / controller
        if _filled(above / name, settings[controller]):
            found[controller] = str(above / name)
    return found


def _make_v2(name: str, limits: Limits, root: Path) -> dict[str, str]:
    own = root / _own("")
    # Beside this process's own group: a group with processes may have no groups below it.
    above = own if own == root else own.parent
    # Moving a process also needs the right to write where both groups meet.
    if not os.access(above / "cgroup.procs", os.W_OK):
        return {}
    with suppress(OSError):
        (above / "cgroup.subtree_control").write_text("+memory +cpu +pids")
    enabled = _words(above / "cgroup.subtree_control")
    settings = {
        "memory": {"memory.max": str(limits.memory_mib * 2**20), "memory.swap.max": "0"},
        "cpu": {"cpu.max": f"{limits.cpu_millis * _PERIOD_US // 1000} {_PERIOD_US}"},
        "pids": {"pids.max": str(limits.pids)},
    }
    wanted = {
        key: value
        for controller in _CONTROLLERS
        if controller in enabled
        for key, value in settings[controller].items()
    }
    if not wanted or not _filled(above / name, wanted):
        return {}
    return {controller: str(above / name) for controller in _CONTROLLERS if controller in enabled}


def _words(path: Path) -> set[str]:
    try:
        return set(path.read_text().split())
    except OSError:
        return set()


def _filled(folder: Path, settings: Mapping[str, str]) -> bool:
    """Make a group with these settings; swap's may be missing, as where a kernel counts none."""
    try:
        folder.mkdir(exist_ok=True)
        if not os.access(folder / "cgroup.procs", os.W_OK):
            folder.rmdir()
            return False
        for name, value in settings.items():
            if (folder / name).exists() or "sw" not in name:
                (folder / name).write_text(value)
    except OSError:
        with suppress(OSError):
            folder.rmdir()
        return False
    return True
