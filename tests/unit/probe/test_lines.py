"""From the probe's lines to readings: what is unknown stays unknown, what is odd is left out."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.adapters.probe_follower import DeviceWatch, reading_of
from cluster.core.resources import ContainerReading, GpuReading, GpuUuid, HostReading


def test_a_whole_line_becomes_a_reading() -> None:
    line = {
        "v": 2,
        "at": 1_800_000_000.25,
        "host": {"cpu_pct": 12.5, "memory_used_mib": 900, "of_tomorrow": 1},
        "containers": {"abc": {"cpu_pct": 180.0, "processes": 3}},
        "gpus": [
            {
                "uuid": "GPU-1",
                "index": 0,
                "model": "Tesla T4",
                "memory_used_mib": 0,
                "why": {"power_w": "unsupported"},
                "processes": {"abc": None, "": 7},
            }
        ],
        "gpu_error": "",
        "simulated": True,
    }

    assert reading_of(json.dumps(line)) == HostReading(
        observed_at=datetime.fromtimestamp(1_800_000_000.25, tz=UTC),
        cpu_pct=12.5,
        memory_used_mib=900,
        simulated=True,
        containers=(ContainerReading(container_id="abc", cpu_pct=180.0, processes=3),),
        gpus=(
            GpuReading(
                uuid=GpuUuid("GPU-1"),
                model="Tesla T4",
                index=0,
                memory_used_mib=0,
                why={"power_w": "unsupported"},
                processes={"abc": None, "": 7},
            ),
        ),
    )


@pytest.mark.parametrize(
    "line", ["", "Traceback (most recent call last):", "[]", "3", '{"v": 2}', '{"v": 1, "at": 1}']
)
def test_what_is_no_report_is_no_reading(line: str) -> None:
    assert reading_of(line) is None


@given(
    st.dictionaries(
        st.sampled_from(["v", "at", "host", "gpus", "containers"]),
        st.recursive(
            st.none() | st.integers() | st.text(max_size=3) | st.just(1),
            lambda inner: (
                st.lists(inner, max_size=2)
                | st.dictionaries(st.text(max_size=3), inner, max_size=2)
            ),
            max_leaves=4,
        ),
    )
)
def test_no_line_breaks_the_reader(found: dict[str, object]) -> None:
    reading_of(json.dumps({"v": 2} | found))


def test_a_container_that_lost_its_gpus_is_given_up_and_one_that_never_had_any_is_not() -> None:
    at = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)
    fine = HostReading(
        observed_at=at, gpus=(GpuReading(uuid=GpuUuid("GPU-1"), model="T4", index=0),)
    )
    broken = HostReading(observed_at=at, gpu_trouble="driver")
    hanging = HostReading(observed_at=at, gpu_trouble="hang")

    def seen(*readings: HostReading) -> list[bool]:
        watch = DeviceWatch(patience=2)
        return [watch.are_gone(reading) for reading in readings]

    assert seen(fine, broken, broken) == [False, False, True]
    assert seen(fine, broken, fine, broken) == [False] * 4
    assert not any(seen(broken, broken, broken))
    assert not any(seen(fine, hanging, hanging, hanging))
