"""What the probe itself costs the host it watches: one core's share, and memory.

Runs the real probe for a while on a machine of eight made-up GPUs, each with two jobs' processes on
it, and reads from /proc what its processes used. The driver library is the tests' own, so the time
that a real driver takes for its answers is not in it; the number of questions is.

    python -m benchmarks.probe [--seconds 60] [--machine 8xA100] [--json]
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from tests.fakes.nvml import FakeDriver, build, machine

MAX_CPU_PCT = 1.0
MAX_RSS_MIB = 40.0
_TICKS = os.sysconf("SC_CLK_TCK")
_WARM_UP_S = 5.0


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--machine", default="8xA100")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    found = measure(arguments.machine, seconds=arguments.seconds)
    if arguments.json:
        print(json.dumps(found))
        return
    print(f"{found['gpus']} GPUs, {found['seconds']:.0f} s, {found['lines']} lines")
    print(f"{'':<10}{'measured':>10}{'limit':>8}")
    print(f"{'CPU %':<10}{found['cpu_pct']:>10.2f}{MAX_CPU_PCT:>8.0f}   of one core")
    print(f"{'RSS MiB':<10}{found['rss_mib']:>10.1f}{MAX_RSS_MIB:>8.0f}   both processes")
    print(f"{'PSS MiB':<10}{found['pss_mib']:>10.1f}{'':>8}   shared pages once")
    print(f"{'line':<10}{found['line_bytes']:>10}{'':>8}   bytes, on average")


def measure(name: str, *, seconds: float) -> dict[str, float]:
    """Run the probe and return what it used.

    Raises:
        RuntimeError: If it ended or printed nothing.
    """
    with tempfile.TemporaryDirectory() as folder:
        library = build(Path(folder))
        own = (os.getpid(), 1000, "C", 40)
        driver = FakeDriver(Path(folder) / "gpus.ini")
        driver.gpus = [
            replace(gpu, utilization_pct=80, samples=(80,) * 6, processes=(own, (1, 500, "C", 40)))
            for gpu in machine(name)
        ]
        driver.write()
        environment = driver.environment(library)
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        environment["PYTHONPYCACHEPREFIX"] = str(Path(folder) / "compiled")
        command = [sys.executable, "-m", "cluster.probe", "--docker"]
        with subprocess.Popen(  # noqa: S603 - our own program, no argument from outside
            command, stdout=subprocess.PIPE, env=environment
        ) as probe:
            try:
                return _watch(probe, seconds=seconds)
            finally:
                probe.kill()


def _watch(probe: "subprocess.Popen[bytes]", *, seconds: float) -> dict[str, float]:
    if probe.stdout is None:
        raise RuntimeError("the probe has no output")
    began = 0.0
    used = lines = size = gpus = 0
    started = time.monotonic()
    for line in probe.stdout:
        now = time.monotonic()
        if not began:
            if now - started > _WARM_UP_S:
                began, used = now, _ticks(probe.pid)
            continue
        lines, size, gpus = lines + 1, size + len(line), len(json.loads(line)["gpus"])
        if now - began >= seconds:
            return {
                "gpus": gpus,
                "seconds": round(now - began, 1),
                "lines": lines,
                "line_bytes": size // lines,
                "cpu_pct": round(100 * (_ticks(probe.pid) - used) / _TICKS / (now - began), 3),
                "rss_mib": round(_memory(probe.pid, "Rss:") / 1024, 1),
                "pss_mib": round(_memory(probe.pid, "Pss:") / 1024, 1),
            }
    raise RuntimeError("the probe ended")


def _tree(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(below for child in children for below in _tree(int(child)))]


def _ticks(pid: int) -> int:
    stats = [Path(f"/proc/{one}/stat").read_text().rpartition(")")[2] for one in _tree(pid)]
    return sum(int(words[11]) + int(words[12]) for words in (stat.split() for stat in stats))


def _memory(pid: int, name: str) -> int:
    """Return KiB of the whole tree."""
    return sum(
        int(line.split()[1])
        for one in _tree(pid)
        for line in Path(f"/proc/{one}/smaps_rollup").read_text().splitlines()
        if line.startswith(name)
    )


if __name__ == "__main__":
    main()
