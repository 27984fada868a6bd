"""The probe before a driver library that fails in every way it can."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from cluster.probe.simulated import PROFILES, uuid_of
from tests.fakes.nvml import FakeDriver, machine
from tests.integration.probe.conftest import Probe, Report, healthy

Start = Callable[..., Probe]
BIN = Path(sys.executable).parent


def test_every_field_of_every_gpu_is_read(probe: Start) -> None:
    report = probe().until(lambda report: len(report["gpus"]) == 2)

    assert report["v"] == 2
    assert report["simulated"] is True
    assert report["driver"] == "550.00-simulated"
    assert report["gpu_error"] == ""
    assert report["gpus"][1] == {
        "uuid": uuid_of("2xT4", 1),
        "index": 1,
        "model": "Tesla T4",
        "memory_total_mib": 15_360,
        "memory_used_mib": 3,
        "memory_reserved_mib": 240,
        "utilization_pct": 0,
        "memory_utilization_pct": 0,
        "power_w": 27.0,
        "power_limit_w": 70.0,
        "temperature_c": 38,
        "slowdown_c": 93,
        "clock_mhz": 300,
        "clock_max_mhz": 1590,
        "throttle_mask": 1,
        "ecc_corrected": 0,
        "ecc_uncorrected": 0,
        "remapped_rows": 0,
        "remap_pending": 0,
        "remap_failed": 0,
        "why": {"fan_pct": "unsupported"},
        "processes": {},
    }
    assert [link[2:] for link in report["topology"]] == [["node", 0]]


def lost(report: Report, index: int) -> object:
    return len(report["gpus"]) > index and report["gpus"][index].get("lost")


def test_a_lost_gpu_is_lost_alone_and_may_come_back(probe: Start, driver: FakeDriver) -> None:
    running = probe()
    running.until(healthy)

    driver.change(1, lost=True)
    report = running.until(lambda report: lost(report, 1))

    first, second = report["gpus"]
    assert first["utilization_pct"] == 0
    assert set(first["why"].values()) == {"unsupported"}
    assert second["uuid"] == uuid_of("2xT4", 1)
    assert set(second["why"].values()) == {"lost"}
    assert "utilization_pct" not in second

    driver.change(1, lost=False)
    running.until(healthy)


@pytest.mark.parametrize("whole", [True, False], ids=["library", "one-gpu"])
def test_a_driver_that_hangs_makes_gpus_stale_and_nothing_else(
    probe: Start, driver: FakeDriver, whole: bool
) -> None:
    running = probe()
    running.until(healthy)

    driver.change(None if whole else 0, hang=True)
    report = running.until(lambda report: "does not answer" in report["gpu_error"])
    later = running.until(lambda later: later["at"] > report["at"])

    assert report["trouble"] == "hang"
    assert [gpu["model"] for gpu in report["gpus"]] == ["Tesla T4"] * 2
    for gpu in report["gpus"]:
        assert set(gpu["why"].values()) == {"stale"}
        assert "memory_used_mib" not in gpu
    assert later["host"]["memory_used_mib"] > 0
    assert whole or "about GPU 0" in report["gpu_error"]

    driver.change(None if whole else 0, hang=False)
    running.until(healthy)


def test_a_driver_that_hangs_at_once_is_told(probe: Start, driver: FakeDriver) -> None:
    driver.change(hang=True)

    report = probe().until(lambda report: report["gpu_error"])

    assert "does not answer" in report["gpu_error"]
    assert report["gpus"] == []


def test_a_reader_that_hangs_for_long_is_replaced(probe: Start, driver: FakeDriver) -> None:
    running = probe()
    running.until(healthy)
    first = running.readers()

    driver.change(hang=True)
    running.until(lambda report: report.get("trouble") == "hang")
    running.until(lambda _: running.readers() != first)

    driver.change(hang=False)
    running.until(healthy)
    assert running.readers() != first


@pytest.mark.parametrize("code", [9, 4, 8])
def test_a_driver_that_cannot_begin_says_why_and_is_tried_again(
    probe: Start, driver: FakeDriver, code: int
) -> None:
    words = {9: "not loaded", 4: "may not open", 8: "says"}
    driver.change(init_error=code)
    running = probe()

    report = running.until(lambda report: report["gpu_error"])
    assert words[code] in report["gpu_error"]
    assert report["gpus"] == []

    driver.change(init_error=0)
    running.until(healthy)


def test_a_library_that_ends_its_reader_costs_one_gpu_and_not_the_others(
    probe: Start, driver: FakeDriver
) -> None:
    running = probe()
    running.until(healthy)

    driver.change(1, crash=True)
    crashed = running.until(lambda report: report.get("trouble") == "crash")
    report = running.until(lambda report: report["gpus"] and not report.get("trouble"))

    assert "signal 11" in crashed["gpu_error"]
    assert "GPU 1" in crashed["gpu_error"]
    assert [gpu["uuid"] for gpu in report["gpus"]] == [uuid_of("2xT4", 0)]
    assert "GPU 1 cannot be reached" in report["gpu_error"]


@pytest.mark.parametrize("name", PROFILES)
def test_independent_readers_see_the_same_gpus(
    tmp_path: Path, library: Path, compiled: Path, name: str
) -> None:
    """The stand-in for the driver is no invention of the probe's: stock tools read it too."""
    driver = FakeDriver(tmp_path / "gpus.ini", gpus=machine(name))
    own = ((os.getpid(), 1_990),)
    slices = tuple(replace(one, processes=own) for one in driver.gpus[0].slices)
    driver.change(0, memory_used_mib=12_000, processes=own, slices=slices)
    environment = driver.environment(library) | {"PYTHONPYCACHEPREFIX": str(compiled)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)

    def ask(*command: str) -> str:
        asked = subprocess.run(command, env=environment, capture_output=True, check=True, text=True)
        assert asked.stderr == ""
        return asked.stdout

    stat = json.loads(ask(str(BIN / "gpustat"), "--json"))["gpus"]
    top = ask(str(BIN / "nvitop"), "--once", "--ascii")

    models = [card.model for card in PROFILES[name].cards]
    assert [gpu["name"] for gpu in stat] == models
    assert stat[0]["memory.used"] == 12_000
    assert [process["pid"] for process in stat[0]["processes"]] == [os.getpid()]
    assert top.count("12000MiB /") == 1
    assert f" {os.getpid()} " in top
    for card in PROFILES[name].cards:
        for kind, _ in card.mig:
            assert kind in top
