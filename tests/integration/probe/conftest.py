"""The real probe as a process, before a driver library whose GPUs are made up."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.nvml import FakeDriver, build, machine

Report = dict[str, Any]
PERIOD_S = 0.05


class Probe:
    """A running probe: the lines it prints are its reports."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process

    def until(self, seen: Callable[[Report], object]) -> Report:
        """Return the first report in which something is seen."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            report: Report = json.loads(line)
            if seen(report):
                return report
        raise AssertionError("the probe ended")

    def gpus(self) -> list[Report]:
        """Return the GPUs of the first report that has any, all of them there."""
        found: list[Report] = self.until(healthy)["gpus"]
        return found

    def readers(self) -> list[int]:
        """Return the processes that it has talk to the driver."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return [int(word) for word in children.read_text().split()]


def healthy(report: Report) -> bool:
    fine = all(not gpu.get("lost") and "stale" not in gpu["why"].values() for gpu in report["gpus"])
    return bool(report["gpus"]) and fine and not report["gpu_error"]


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture(scope="session")
def old_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("old-nvml"), old=True)


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where programs keep what they compiled, so that only the first one compiles."""
    return tmp_path_factory.mktemp("compiled")


@pytest.fixture
def driver(tmp_path: Path) -> FakeDriver:
    made = FakeDriver(tmp_path / "gpus.ini", gpus=machine("2xT4"))
    made.write()
    return made


@pytest.fixture
def probe(driver: FakeDriver, library: Path, compiled: Path) -> Iterator[Callable[..., Probe]]:
    """Start the probe with twenty periods a second: its patience shrinks with them."""
    running: list[subprocess.Popen[bytes]] = []

    def start(*arguments: str, library: Path = library) -> Probe:
        driver.write()
        command = [sys.executable, "-m", "cluster.probe", "--period", str(PERIOD_S), *arguments]
        environment = driver.environment(library) | {"PYTHONPYCACHEPREFIX": str(compiled)}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        made = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment)
        running.append(made)
        return Probe(made)

    yield start
    for made in running:
        with made:
            made.kill()


@pytest.fixture
def asleep() -> Iterator[Callable[[dict[str, str]], int]]:
    """Start programs that do nothing; return the pid of each."""
    import os

    running: list[subprocess.Popen[bytes]] = []

    def start(environment: dict[str, str]) -> int:
        command: Sequence[str] = [sys.executable, "-c", "import time; time.sleep(600)"]
        running.append(subprocess.Popen(command, env=os.environ | environment))
        return running[-1].pid

    yield start
    for made in running:
        with made:
            made.kill()
