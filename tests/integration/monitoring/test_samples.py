from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from monitoring import selectors, services
from monitoring.models import Sample

pytestmark = pytest.mark.django_db
START = datetime.fromisoformat("2026-03-02T09:00:00+00:00")


def record(seconds: int, value: float, *, subject: str = "host:a") -> None:
    at = START + timedelta(seconds=seconds)
    services.samples_record([(subject, at, {"cpu_pct": value})])


def kept(resolution_s: int) -> list[tuple[int, float]]:
    rows = Sample.objects.filter(resolution_s=resolution_s).order_by("at")
    return [(int((row.at - START).total_seconds()), row.values["cpu_pct"]) for row in rows]


def test_a_sample_that_comes_twice_is_kept_once() -> None:
    record(0, 10)
    record(0, 99)

    assert kept(1) == [(0, 10)]


def test_fine_samples_become_coarse_ones_once_and_only_when_their_time_is_over() -> None:
    for second in range(40):
        record(second, second)

    for _ in range(2):
        services.roll_up_samples(now=START + timedelta(seconds=45))

    assert kept(10) == [(0, 4.5), (10, 14.5)]


def test_a_pause_in_the_samples_does_not_stop_the_roll_up_for_ever() -> None:
    record(0, 1)
    services.roll_up_samples(now=START + timedelta(minutes=1))
    record(5000, 9)

    services.roll_up_samples(now=START + timedelta(seconds=5100))

    assert kept(10) == [(0, 1), (5000, 9)]


def test_what_is_kept_no_longer_goes_and_its_average_stays() -> None:
    record(0, 7)
    services.roll_up_samples(now=START + timedelta(minutes=1))

    services.roll_up_samples(now=START + timedelta(hours=2))

    assert kept(1) == []
    assert kept(10) == [(0, 7)]


def test_a_stretch_nobody_measured_is_a_gap_and_not_a_zero() -> None:
    for second in (0, 1, 20, 21):
        record(second, 50)

    resolution, rows = selectors.samples(
        subject="host:a", since=START, until=START + timedelta(seconds=30), now=START
    )

    assert resolution == 1
    assert [values for _, values in rows] == [
        {"cpu_pct": 50},
        {"cpu_pct": 50},
        {},
        {"cpu_pct": 50},
        {"cpu_pct": 50},
    ]
