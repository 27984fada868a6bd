"""Samples over time: kept fine, then as means, then not at all; and read as one series."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from monitoring import retention, selectors, services
from monitoring.blocks import unpack
from monitoring.models import SampleBlock

pytestmark = pytest.mark.django_db
START = datetime.fromisoformat("2026-03-02T09:00:00+00:00")


def record(*seconds: int, value: float | None = None, subject: str = "host:a") -> None:
    """Store a sample at each second, whose value is that second unless another is given."""
    services.samples_record(
        [
            (
                subject,
                START + timedelta(seconds=second),
                {"cpu_pct": second if value is None else value},
            )
            for second in seconds
        ]
    )


def roll_up(at: int, **values: float) -> int:
    return retention.roll_up_samples(now=START + timedelta(seconds=at), **values)


def kept(resolution_s: int, subject: str = "host:a") -> list[tuple[int, Any]]:
    """Return what is stored of a resolution: seconds since the beginning, and the value."""
    rows = SampleBlock.objects.filter(resolution_s=resolution_s, subject=subject).order_by("start")
    return [
        (at // 1000 - int(START.timestamp()), values.get("cpu_pct"))
        for row in rows
        for at, values in unpack(bytes(row.packed)).rows()
    ]


def seen(since: int, until: int, *, now: int, resolution_s: int | None = None) -> tuple[int, Any]:
    resolution, rows = selectors.samples(
        subject="host:a",
        since=START + timedelta(seconds=since),
        until=START + timedelta(seconds=until),
        now=START + timedelta(seconds=now),
        resolution_s=resolution_s,
    )
    shown = [(at // 1000 - int(START.timestamp()), values.get("cpu_pct")) for at, values in rows]
    return resolution, shown


def test_a_sample_that_comes_twice_is_kept_once() -> None:
    record(0, value=10)
    record(0, value=99)

    assert kept(1) == [(0, 10)]


def test_a_sample_that_comes_twice_in_other_company_is_shown_once() -> None:
    record(0, 1, 2)
    record(1, 2, 3)

    assert seen(0, 9, now=9)[1] == [(0, 0), (1, 1), (2, 2), (3, 3)]


def test_samples_of_long_are_stored_in_parts_that_can_be_found() -> None:
    record(*range(300))

    assert SampleBlock.objects.count() == 3
    assert seen(150, 152, now=300)[1] == [(150, 150), (151, 151), (152, 152)]


def test_fine_samples_become_coarse_ones_once_and_only_when_their_time_is_over() -> None:
    record(*range(40))
    record(*range(600, 620))

    assert roll_up(650) == 0
    assert roll_up(660) == 1
    assert roll_up(660) == 0

    assert kept(10) == [(0, 4.5), (10, 14.5), (20, 24.5), (30, 34.5)]


def test_coarse_samples_become_coarser_ones() -> None:
    for minute in (0, 1, 2):
        record(*range(60 * minute, 60 * minute + 60), value=minute)
    roll_up(700)

    assert roll_up(3 * 3600) == 0
    assert roll_up(3 * 3600 + 61) == 1

    assert kept(60) == [(0, 0), (60, 1), (120, 2)]


def test_means_are_made_for_all_in_as_many_calls_as_it_takes() -> None:
    for number in range(250):
        record(0, 1, subject=f"host:{number}")

    made = [roll_up(700, seconds=0.0) for _ in range(4)]

    assert made == [100, 100, 50, 0]


def test_a_pause_in_the_samples_does_not_stop_the_roll_up_for_ever() -> None:
    record(0)
    roll_up(700)
    record(5000, value=9)

    roll_up(6000)

    assert kept(10) == [(0, 0), (5000, 9)]


def test_what_is_kept_no_longer_goes_and_its_mean_stays() -> None:
    record(0, value=7)
    roll_up(700)

    roll_up(2 * 3600)

    assert kept(1) == []
    assert kept(10) == [(0, 7)]


def test_a_stretch_nobody_measured_is_a_gap_and_not_a_zero() -> None:
    record(0, 1, 20, 21, value=50)

    assert seen(0, 30, now=0) == (1, [(0, 50), (1, 50), (2, None), (20, 50), (21, 50)])


def test_a_coarse_series_reaches_to_the_present() -> None:
    """What has no means yet is averaged while it is read."""
    record(*range(1300))
    roll_up(1300)

    _, shown = seen(0, 1300, now=1300, resolution_s=10)

    assert [at for at, _ in shown] == list(range(0, 1300, 10))
    assert shown[-1] == (1290, 1294.5)


def test_a_minute_series_reaches_to_the_present_through_both() -> None:
    record(*range(1300))
    roll_up(1300)

    _, shown = seen(0, 1300, now=1300, resolution_s=60)

    assert [at for at, _ in shown] == list(range(0, 1300, 60))
    assert shown[0] == (0, 29.5)
