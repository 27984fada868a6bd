"""What the host as a whole uses, from /proc; rates are over the time since the reading before."""

import os
import time
from pathlib import Path

SECTOR_BYTES = 512
MIB = 1024 * 1024


def text_of(path: str) -> str:
    """Return a file's text, or nothing where it cannot be read."""
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""


class Rates:
    """Counters that only grow, as rates per second; a counter that shrank was reset."""

    def __init__(self) -> None:
        self._before: dict[str, tuple[float, float]] = {}

    def rate(self, name: str, value: float | None, now: float) -> float | None:
        """Return the rate since the last call for ``name``; ``None`` the first time."""
        if value is None:
            self._before.pop(name, None)
            return None
        before = self._before.get(name)
        self._before[name] = (value, now)
        if before is None or value < before[0] or now <= before[1]:
            return None
        return (value - before[0]) / (now - before[1])

    def forget_all_but(self, names: set[str]) -> None:
        """Drop the counters of what is gone."""
        for name in set(self._before) - names:
            del self._before[name]


class HostMeter:
    """Reads the host once a second."""

    def __init__(self, *, disk: str = "/") -> None:
        self._disk = disk
        self._rates = Rates()

    def read(self) -> dict[str, object]:
        """Return the fields that could be read; a field that could not is absent."""
        now = time.monotonic()
        found: dict[str, object] = {"cpu_count": os.cpu_count()}
        found |= self._cpu(now) | memory() | disk_space(self._disk)
        found |= self._traffic(now) | self._disks(now)
        found |= pressure()
        load = text_of("/proc/loadavg").split()
        if load:
            found["load_1m"] = float(load[0])
        return {name: value for name, value in found.items() if value is not None}

    def _cpu(self, now: float) -> dict[str, object]:
        first = text_of("/proc/stat").partition("\n")[0].split()
        if len(first) < 8 or first[0] != "cpu":
            return {}
        ticks = [int(word) for word in first[1:9]]
        busy = self._rates.rate("busy", sum(ticks) - ticks[3] - ticks[4], now)
        total = self._rates.rate("total", sum(ticks), now)
        if busy is None or not total:
            return {}
        return {"cpu_pct": round(min(100.0, 100 * busy / total), 1)}

    def _traffic(self, now: float) -> dict[str, object]:
        # The host's own namespace is that of its first process.
        received, sent = network_bytes("1") or network_bytes("self") or (None, None)
        return {
            "receive_bytes_s": self._rates.rate("receive", received, now),
            "transmit_bytes_s": self._rates.rate("transmit", sent, now),
        }

    def _disks(self, now: float) -> dict[str, object]:
        read = written = 0
        for line in text_of("/proc/diskstats").splitlines():
            words = line.split()
            if len(words) > 9 and Path("/sys/block", words[2]).exists():
                read += int(words[5])
                written += int(words[9])
        return {
            "read_bytes_s": self._rates.rate("read", read * SECTOR_BYTES, now),
            "write_bytes_s": self._rates.rate("write", written * SECTOR_BYTES, now),
        }


def memory() -> dict[str, object]:
    """Return total and used memory in MiB; what the kernel can give back at once is not used."""
    kib = {}
    for line in text_of("/proc/meminfo").splitlines():
        name, _, rest = line.partition(":")
        if name in {"MemTotal", "MemAvailable"}:
            kib[name] = int(rest.split()[0])
    if len(kib) < 2:
        return {}
    return {
        "memory_total_mib": kib["MemTotal"] // 1024,
        "memory_used_mib": (kib["MemTotal"] - kib["MemAvailable"]) // 1024,
    }


def pressure() -> dict[str, object]:
    """Return how much of the last ten seconds some task waited for CPU, memory or disk."""
    found: dict[str, object] = {}
    for resource in ("cpu", "memory", "io"):
        # "some avg10=1.23 avg60=…"; absent where the kernel does not keep it.
        words = text_of(f"/proc/pressure/{resource}").split(maxsplit=2)
        if len(words) > 1 and words[1].startswith("avg10="):
            found[f"{resource}_pressure_pct"] = float(words[1].removeprefix("avg10="))
    return found


def disk_space(path: str) -> dict[str, object]:
    """Return total and used space in MiB of the disk that holds ``path``."""
    try:
        found = os.statvfs(path)
    except OSError:
        return {}
    return {
        "disk_total_mib": found.f_blocks * found.f_frsize // MIB,
        "disk_used_mib": (found.f_blocks - found.f_bfree) * found.f_frsize // MIB,
    }


def network_bytes(pid: str) -> tuple[int, int] | None:
    """Return bytes received and sent in a process's network namespace, loopback left out."""
    lines = text_of(f"/proc/{pid}/net/dev").splitlines()[2:]
    if not lines:
        return None
    received = sent = 0
    for line in lines:
        name, _, rest = line.partition(":")
        words = rest.split()
        if name.strip() != "lo" and len(words) > 8:
            received += int(words[0])
            sent += int(words[8])
    return received, sent
