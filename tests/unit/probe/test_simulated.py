"""GPUs that are not there: their figures follow the jobs that hold them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cluster.probe.simulated import PROFILES, SimulatedDriver, tidy, uuid_of


def holds(folder: Path, name: str, *gpus: str, cores: float = 2) -> None:
    (folder / name).mkdir(parents=True)
    specification = {"gpus": gpus, "cpu_millis": int(cores * 1000)}
    (folder / name / "spec.json").write_text(json.dumps({"specification": specification}))


def run(driver: SimulatedDriver, uses: dict[str, Any], *, seconds: int = 60) -> dict[str, Any]:
    report: dict[str, Any] = {}
    for _ in range(seconds):
        report = driver.latest(uses, period_s=1)
    return report


@pytest.mark.parametrize("name", PROFILES)
def test_every_machine_is_idle_without_jobs_and_says_that_it_is_made_up(
    tmp_path: Path, name: str
) -> None:
    driver = SimulatedDriver(name.lower(), processes=tmp_path)

    report = driver.latest({}, period_s=1)

    assert report["simulated"] is True
    assert report["gpu_error"] == ""
    count = len(PROFILES[name].cards)
    assert len(report["topology"]) == count * (count - 1) // 2
    assert len({gpu["uuid"] for gpu in report["gpus"]}) == len(report["gpus"])
    for gpu in report["gpus"]:
        assert gpu.get("utilization_pct", 0) == 0
        assert gpu["memory_used_mib"] < 10
        assert gpu["processes"] == {}


def test_a_gpu_is_as_busy_as_the_job_that_holds_it(tmp_path: Path) -> None:
    first, second = uuid_of("2xT4", 0), uuid_of("2xT4", 1)
    holds(tmp_path, "starling-a", first)
    driver = SimulatedDriver("2xT4", processes=tmp_path)

    busy = run(driver, {"starling-a": {"cpu_pct": 150.0}})["gpus"]
    idle = run(driver, {})["gpus"]

    assert busy[0]["uuid"] == first
    assert busy[0]["utilization_pct"] == 75
    assert busy[0]["shares"] == {"starling-a": 75}
    assert 0.3 < busy[0]["processes"]["starling-a"] / 15_360 < 0.9
    assert busy[0]["power_w"] > 50
    assert busy[0]["temperature_c"] > idle[0]["temperature_c"]
    assert (busy[1]["uuid"], busy[1]["utilization_pct"]) == (second, 0)
    assert idle[0]["processes"] == {}
    assert idle[0]["utilization_pct"] == 0


def test_a_slice_is_held_alone_and_warms_its_gpu(tmp_path: Path) -> None:
    holds(tmp_path, "starling-a", uuid_of("A100-MIG", 0, 1))
    driver = SimulatedDriver("A100-MIG", processes=tmp_path)

    gpu, *slices = run(driver, {"starling-a": {"cpu_pct": 200.0}})["gpus"]

    assert gpu["divided"] is True
    assert gpu["power_w"] > 100
    assert [bool(one["processes"]) for one in slices] == [False, True, False, False]
    assert all(one["why"]["utilization_pct"] == "unsupported" for one in slices)


def test_a_job_whose_files_are_gone_holds_nothing(tmp_path: Path) -> None:
    report = run(SimulatedDriver("2xT4", processes=tmp_path), {"starling-b": {"cpu_pct": 99.0}})

    assert [gpu["utilization_pct"] for gpu in report["gpus"]] == [0, 0]


def test_an_unknown_machine_is_refused_with_those_there_are() -> None:
    with pytest.raises(ValueError, match="'9xH100'; there are: 2xT4, 4xRTX3090"):
        tidy("9xH100")
