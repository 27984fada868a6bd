import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.core.policy.profiles import (
    Declared,
    Duration,
    Learned,
    ObservedRun,
    ProfileKey,
    estimate,
    learned,
)
from cluster.core.policy.settings import PolicySettings


def after(*runs: ObservedRun) -> Learned:
    known = None
    for run in runs:
        known = learned(known, run)
    assert known is not None
    return known


def test_a_key_borrows_from_the_same_program_of_the_same_user_and_then_of_anybody() -> None:
    key = ProfileKey(user="ada", program="resnet", environment="tf", arguments="--batch 64")

    assert key.chain == (
        ("ada", "resnet", "tf", "--batch 64"),
        ("ada", "resnet"),
        ("", "resnet"),
    )


def test_utilisation_beside_others_teaches_nothing() -> None:
    run = ObservedRun(utilization_pct=90.0, alone_s=30.0, memory_peak_mib=4000)

    found = estimate([after(run)])

    assert found.utilization_pct is None
    assert not found.measured
    assert found.memory_peak_mib == 4000


def test_a_few_runs_are_pulled_to_the_parents_and_many_are_not() -> None:
    parent = after(*[ObservedRun(utilization_pct=80.0, alone_s=600.0)] * 50)
    one = after(ObservedRun(utilization_pct=20.0, alone_s=600.0))
    many = after(*[ObservedRun(utilization_pct=20.0, alone_s=600.0)] * 60)

    few = estimate([one, parent]).utilization_pct
    sure = estimate([many, parent]).utilization_pct

    assert few == pytest.approx(0.25 * 20 + 0.75 * 80)
    assert sure is not None
    assert sure < 23


def test_memory_is_the_highest_peak_that_was_ever_seen_of_the_key_itself() -> None:
    own = after(ObservedRun(memory_peak_mib=3000), ObservedRun(memory_peak_mib=2000))
    parent = after(ObservedRun(memory_peak_mib=9000))

    assert estimate([own, parent]).memory_peak_mib == 3000
    assert estimate([None, parent]).memory_peak_mib == 9000
    assert estimate([None], Declared(memory_mib=700)).memory_peak_mib == 700


def test_durations_are_learned_as_quantiles_and_grow_surer_with_every_run() -> None:
    runs = [ObservedRun(duration_s=seconds) for seconds in (900.0, 1000.0, 1100.0)]
    settings = PolicySettings()

    few, many = estimate([after(*runs)]).duration, estimate([after(*(runs * 10))]).duration

    assert few is not None
    assert many is not None
    assert few.median_s == pytest.approx(996.7, abs=1)
    assert few.quantile_s(0.9) > many.quantile_s(0.9) > many.median_s
    assert few.sigma < settings.duration_sigma


def test_without_any_run_the_walltime_says_something() -> None:
    found = estimate([None, None], Declared(walltime_s=3600.0))

    assert found.duration is not None
    assert found.duration.median_s == 1800.0
    assert estimate([None]).duration is None


@given(
    median=st.floats(10, 1e6),
    sigma=st.floats(0.05, 2.0),
    elapsed=st.floats(0, 1e7),
    part=st.floats(0.05, 0.95),
)
def test_what_is_left_is_never_negative_and_more_certainty_takes_longer(
    median: float, sigma: float, elapsed: float, part: float
) -> None:
    duration = Duration(median_s=median, sigma=sigma)

    left = duration.left(elapsed, part)

    assert left >= 0
    assert math.isfinite(left)
    assert duration.left(elapsed, min(0.99, part + 0.04)) >= left - 1e-6 * max(1.0, left)
