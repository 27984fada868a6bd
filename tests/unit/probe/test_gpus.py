"""The probe before a driver library that fails in every way it can; only its GPUs are made up."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.nvml import FakeDriver, build, four_rtx_3090, two_t4

Report = dict[str, Any]
GPUSTAT = Path(sys.executable).with_name("gpustat")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def driver(tmp_path: Path) -> FakeDriver:
    made = FakeDriver(tmp_path / "gpus.ini", gpus=two_t4())
    made.write()
    return made


@pytest.fixture
def probe(driver: FakeDriver, library: Path) -> Iterator[Callable[[], subprocess.Popen[bytes]]]:
    """Start the probe with twenty periods a second: its patience shrinks with them."""
    running: list[subprocess.Popen[bytes]] = []

    def start() -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "cluster.probe", "--period", "0.05"]
        made = subprocess.Popen(command, stdout=subprocess.PIPE, env=driver.environment(library))
        running.append(made)
        return made

    yield start
    for made in running:
        with made:
            made.kill()


def until(probe: subprocess.Popen[bytes], seen: Callable[[Report], object]) -> Report:
    """Return the first report in which something is seen."""
    assert probe.stdout is not None
    for line in probe.stdout:
        report: Report = json.loads(line)
        if seen(report):
            return report
    raise AssertionError("the probe ended")


def healthy(report: Report) -> bool:
    return len(report["gpus"]) == 2 and not any(gpu["why"] for gpu in report["gpus"])


def test_every_field_of_every_gpu_is_read(probe: Any) -> None:
    report = until(probe(), healthy)

    assert report["v"] == 1
    assert report["simulated"] is True
    assert report["gpu_error"] == ""
    assert report["gpus"][1] == {
        "uuid": "GPU-7e570000-0000-4000-8000-000000000001",
        "index": 1,
        "model": "Tesla T4",
        "memory_total_mib": 15_360,
        "memory_used_mib": 3,
        "utilization_pct": 0,
        "power_w": 27.0,
        "power_limit_w": 70.0,
        "temperature_c": 41,
        "clock_mhz": 585,
        "why": {},
        "processes": {},
    }


def test_a_field_that_is_not_supported_is_missing_alone(probe: Any, driver: FakeDriver) -> None:
    driver.change(0, power_w=None, utilization_pct=None)

    report = until(probe(), lambda report: report["gpus"])

    first, second = report["gpus"]
    assert first["why"] == {"power_w": "unsupported", "utilization_pct": "unsupported"}
    assert "power_w" not in first
    assert first["temperature_c"] == 41
    assert second["why"] == {}


def test_a_lost_gpu_is_lost_alone_and_may_come_back(probe: Any, driver: FakeDriver) -> None:
    running = probe()
    until(running, healthy)

    driver.change(1, lost=True)
    report = until(running, lambda report: report["gpus"][1].get("lost"))

    first, second = report["gpus"]
    assert first["utilization_pct"] == 0
    assert first["why"] == {}
    assert second["uuid"] == "GPU-7e570000-0000-4000-8000-000000000001"
    assert set(second["why"].values()) == {"lost"}
    assert "utilization_pct" not in second

    driver.change(1, lost=False)
    until(running, healthy)


def test_a_gpu_that_was_lost_from_the_beginning_is_told(probe: Any, driver: FakeDriver) -> None:
    driver.change(0, lost=True)

    report = until(probe(), lambda report: report["gpus"])

    assert [gpu["index"] for gpu in report["gpus"]] == [1]
    assert "GPU 0 cannot be reached" in report["gpu_error"]


@pytest.mark.parametrize("whole", [True, False], ids=["library", "one-gpu"])
def test_a_driver_that_hangs_makes_gpus_stale_and_nothing_else(
    probe: Any, driver: FakeDriver, whole: bool
) -> None:
    running = probe()
    until(running, healthy)

    driver.change(None if whole else 0, hang=True)
    report = until(running, lambda report: "does not answer" in report["gpu_error"])
    later = until(running, lambda later: later["at"] > report["at"])

    assert [gpu["model"] for gpu in report["gpus"]] == ["Tesla T4"] * 2
    for gpu in report["gpus"]:
        assert set(gpu["why"].values()) == {"stale"}
        assert "memory_used_mib" not in gpu
    assert later["host"]["memory_used_mib"] > 0

    driver.change(None if whole else 0, hang=False)
    until(running, lambda report: healthy(report) and not report["gpu_error"])


def test_a_driver_that_hangs_at_once_is_told(probe: Any, driver: FakeDriver) -> None:
    driver.change(hang=True)

    report = until(probe(), lambda report: report["gpu_error"])

    assert "does not answer" in report["gpu_error"]
    assert report["gpus"] == []


@pytest.mark.parametrize(
    ("code", "words"), [(18, "restart it"), (9, "not loaded"), (4, "may not open"), (8, "says")]
)
def test_a_driver_that_cannot_begin_says_why_and_is_tried_again(
    probe: Any, driver: FakeDriver, code: int, words: str
) -> None:
    driver.change(init_error=code)
    running = probe()

    report = until(running, lambda report: report["gpu_error"])
    assert words in report["gpu_error"]
    assert report["gpus"] == []

    driver.change(init_error=0)
    until(running, healthy)


def test_a_driver_that_is_updated_beneath_makes_gpus_stale_not_lost(
    probe: Any, driver: FakeDriver
) -> None:
    running = probe()
    until(running, healthy)

    driver.change(init_error=18)
    report = until(running, lambda report: "restart it" in report["gpu_error"])

    assert [set(gpu["why"].values()) for gpu in report["gpus"]] == [{"stale"}] * 2
    assert not any(gpu.get("lost") for gpu in report["gpus"])


def test_memory_is_told_by_container_and_strangers_are_seen(probe: Any, driver: FakeDriver) -> None:
    sleeping = [sys.executable, "-c", "import time; time.sleep(600)"]
    ours = os.environ | {"STARLING_CONTAINER": "starling-a"}
    with (
        subprocess.Popen(sleeping, env=ours) as first,
        subprocess.Popen(sleeping, env=ours) as second,
        subprocess.Popen(sleeping) as stranger,
    ):
        driver.change(0, processes=((first.pid, 500), (second.pid, 20), (stranger.pid, 7)))
        driver.change(1, processes=((first.pid, 100), (second.pid, None)))
        report = until(probe(), healthy)
        for process in (first, second, stranger):
            process.kill()

    assert report["gpus"][0]["processes"] == {"starling-a": 520, "": 7}
    assert report["gpus"][1]["processes"] == {"starling-a": None}


def test_an_independent_reader_sees_the_same_gpus(tmp_path: Path, library: Path) -> None:
    """The stand-in for the driver is no invention of the probe's: gpustat reads it too."""
    driver = FakeDriver(tmp_path / "gpus.ini", gpus=four_rtx_3090())
    driver.change(2, memory_used_mib=12_000, utilization_pct=88, processes=((os.getpid(), 11_990),))

    answer = subprocess.run(
        [GPUSTAT, "--json"],
        env=driver.environment(library),
        capture_output=True,
        check=True,
        text=True,
    )
    found = json.loads(answer.stdout)

    assert [gpu["name"] for gpu in found["gpus"]] == ["NVIDIA GeForce RTX 3090"] * 4
    third = found["gpus"][2]
    assert (third["memory.used"], third["utilization.gpu"]) == (12_000, 88)
    assert [process["pid"] for process in third["processes"]] == [os.getpid()]
