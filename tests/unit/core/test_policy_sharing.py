from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog

from cluster.core.policy.choice import GpuCondition, best_ring, pair_prices, ring_weight
from cluster.core.policy.profiles import Estimate
from cluster.core.policy.settings import PolicySettings
from cluster.core.policy.sharing import (
    OutOfMemory,
    PairSpeeds,
    Refusal,
    Sharer,
    after_out_of_memory,
    caps_fit,
    memory_cap_mib,
    predicted_speed,
    reserve_mib,
)
from cluster.core.resources import GpuHealth, GpuLink, GpuUuid

KNOWN = Estimate(utilization_pct=40.0, memory_peak_mib=4000, measured=True)


def test_a_cap_is_the_measured_peak_with_a_margin_and_else_what_was_declared() -> None:
    assert memory_cap_mib(KNOWN) == 4000 * 1.25 + 512
    assert memory_cap_mib(KNOWN, most_mib=5000) == 5000
    assert memory_cap_mib(Estimate(memory_peak_mib=4000), 3000) == 3000
    assert memory_cap_mib(Estimate()) is None


@given(
    total=st.integers(4000, 200_000),
    caps=st.lists(st.integers(1, 100_000), min_size=1, max_size=4),
    used=st.integers(0, 200_000),
)
def test_caps_that_fit_leave_the_reserve_free(total: int, caps: list[int], used: int) -> None:
    if caps_fit(total, caps, used_mib=used):
        assert sum(caps) + reserve_mib(total) <= total
        assert used + caps[-1] + reserve_mib(total) <= total
    assert reserve_mib(total) >= 0.05 * total


@pytest.mark.parametrize(
    ("sharer", "settings", "refusal"),
    [
        (Sharer(kind="a", cap_mib=1000), PolicySettings(), None),
        (Sharer(kind="a", cap_mib=1000), PolicySettings(sharing=False), Refusal.CLUSTER),
        (Sharer(kind="a", cap_mib=1000, consents=False), PolicySettings(), Refusal.CONSENT),
        (Sharer(kind="a", cap_mib=1000, single=False), PolicySettings(), Refusal.NOT_SINGLE),
        (Sharer(kind="a", cap_mib=1000, known=False), PolicySettings(), Refusal.UNKNOWN),
        (Sharer(kind="a"), PolicySettings(), Refusal.UNKNOWN),
    ],
)
def test_sharing_needs_the_cluster_the_owner_one_gpu_and_a_profile(
    sharer: Sharer, settings: PolicySettings, refusal: Refusal | None
) -> None:
    assert sharer.refusal(settings) is refusal


def test_two_light_jobs_do_not_slow_each_other_and_two_heavy_ones_do() -> None:
    assert predicted_speed(80.0) == predicted_speed(100.0) == 0.985
    assert predicted_speed(200.0) == pytest.approx(0.614)


def test_an_unknown_job_counts_as_one_that_uses_the_whole_gpu() -> None:
    pairs = PairSpeeds()
    pairs.rows_of({"light": 20.0, "unknown": None, "full": 100.0})

    assert pairs.speed("light", "unknown") == pairs.speed("light", "full")
    assert pairs.speed("light", "light") > pairs.speed("light", "unknown")


def test_a_measured_pair_speaks_for_itself_and_for_its_kinds() -> None:
    pairs = PairSpeeds()
    pairs.rows_of({"rude": 30.0, "a": 30.0, "b": 30.0})
    before = pairs.speed("b", "rude")

    for _ in range(8):
        pairs.observe("a", "rude", 0.5)

    assert pairs.speed("a", "rude") < 0.6
    assert pairs.speed("b", "rude") < before
    assert pairs.speed("a", "b") > pairs.speed("a", "rude")
    assert pairs.measured("a", "rude") == 8


@pytest.mark.parametrize("speed", [0.0, -1.0, float("nan"), float("inf")])
def test_a_speed_that_cannot_be_is_refused(speed: float) -> None:
    with pytest.raises(ValueError, match="speed must be a number above 0"):
        PairSpeeds().observe("a", "b", speed)


def test_running_out_of_memory_is_tried_once_more_alone() -> None:
    assert after_out_of_memory(alone=False, out_of_memory_before=0) is OutOfMemory.RETRY_ALONE
    assert after_out_of_memory(alone=True, out_of_memory_before=0) is OutOfMemory.FAIL
    assert after_out_of_memory(alone=False, out_of_memory_before=1) is OutOfMemory.FAIL


@given(seed=st.integers(0, 10_000), kinds=st.integers(1, 12))
def test_prices_are_feasible_and_near_the_best_that_can_be(seed: int, kinds: int) -> None:
    chance = np.random.default_rng(seed)
    speeds = chance.uniform(0.3, 1.0, (kinds, kinds))
    allowed = chance.random((kinds, kinds)) < 0.7
    allowed = allowed | allowed.T
    work = chance.uniform(10, 1000, kinds)

    prices = pair_prices(work, speeds, allowed)

    worth = speeds * prices[:, None]
    worth = worth + worth.T
    assert (prices >= 0).all()
    assert prices.max() <= 1 + 1e-9
    assert worth[allowed].max(initial=0.0) <= 1 + 1e-9
    assert work @ prices >= 0.85 * least_gpu_s(work, speeds, allowed)


def least_gpu_s(work: np.ndarray, speeds: np.ndarray, allowed: np.ndarray) -> float:
    columns = [np.eye(len(work))[row] for row in range(len(work))]
    for one in range(len(work)):
        for other in range(one, len(work)):
            if allowed[one, other]:
                column = np.zeros(len(work))
                column[one] += speeds[one, other]
                column[other] += speeds[other, one]
                columns.append(column)
    found = linprog(np.ones(len(columns)), A_ub=-np.array(columns).T, b_ub=-work, method="highs")
    return float(found.fun)


def test_a_gpu_in_a_bad_state_is_worth_less() -> None:
    good = GpuCondition(image_present=True, data_local=True).worth()
    hot = GpuCondition(temperature_c=90.0, slowdown_c=90.0).worth()

    assert good == pytest.approx(0.10)
    assert GpuCondition().worth() == 0.0
    assert GpuCondition(health=GpuHealth.DEGRADED).worth() == pytest.approx(-0.10)
    assert hot == pytest.approx(-0.05)
    assert GpuCondition(power_part=0.95).worth() == pytest.approx(-0.10)


def names(count: int) -> list[GpuUuid]:
    return [GpuUuid(f"GPU-{number}") for number in range(count)]


def test_a_ring_follows_the_nvlinks_and_leaves_the_others_their_own() -> None:
    gpus = names(4)
    links = [
        GpuLink(first=gpus[0], second=gpus[2], kind="nvlink", links=2),
        GpuLink(first=gpus[1], second=gpus[3], kind="nvlink", links=2),
        GpuLink(first=gpus[0], second=gpus[1], kind="node"),
    ]

    assert best_ring(gpus, 2, links) == (gpus[0], gpus[2])
    assert best_ring([gpus[1], gpus[2], gpus[3]], 2, links) == (gpus[1], gpus[3])
    assert best_ring(gpus, 5, links) is None


@given(seed=st.integers(0, 1000), count=st.integers(2, 5))
def test_no_order_of_any_set_has_a_stronger_weakest_edge(seed: int, count: int) -> None:
    gpus = names(5)
    chance = np.random.default_rng(seed)
    kinds = ["nvlink", "switch", "bridge", "node", "system"]
    links = [
        GpuLink(first=gpus[a], second=gpus[b], kind=str(chance.choice(kinds)), links=1)
        for a in range(5)
        for b in range(a + 1, 5)
    ]

    ring = best_ring(gpus, count, links)

    assert ring is not None
    best = max(ring_weight(order, links)[0] for order in permutations(gpus, count))
    assert ring_weight(ring, links)[0] == best
