"""Requests that arrive one at a time: what every rule keeps, and what tuning finds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.core.errors import BadProblemError
from cluster.core.placement.files import EPOCH, gpu_name
from cluster.core.placement.online import OnlinePlacer
from cluster.core.placement.packing import Packing, pack
from cluster.core.placement.score_weights import FEATURES, ScoreWeights, default_weights
from cluster.core.placement.scoring import OURS, RULES, Arrivals, in_batches, resampled
from cluster.core.placement.tuning import SIZE, tune
from cluster.core.placement.verify import verify
from cluster.core.resources import (
    ClusterSnapshot,
    GpuState,
    HostName,
    HostState,
    ResourceRequest,
    Spread,
)

MODELS = ("A100", "T4")


def host(name: str, gpus: int, *, cpu: int = 16_000, model: str = "T4") -> HostState:
    return HostState(
        name=HostName(name),
        cpu_millis=cpu,
        memory_mib=65_536,
        gpus=tuple(
            GpuState(uuid=gpu_name(name, index), model=model, memory_total_mib=16_384)
            for index in range(gpus)
        ),
    )


def request(key: str, gpus: int, share: int = 1000, cpu: int = 1000) -> ResourceRequest:
    return ResourceRequest(
        key=key, cpu_millis=cpu, memory_mib=512, gpus=gpus, gpu_share_milli=share if gpus else None
    )


def cluster(*hosts: HostState) -> ClusterSnapshot:
    return ClusterSnapshot(taken_at=EPOCH, hosts=hosts)


@st.composite
def hosts_and_requests(draw: st.DrawFn) -> tuple[ClusterSnapshot, tuple[ResourceRequest, ...]]:
    hosts = tuple(
        host(
            f"h{number}",
            draw(st.integers(0, 4)),
            cpu=draw(st.sampled_from([4000, 16_000])),
            model=draw(st.sampled_from(MODELS)),
        )
        for number in range(draw(st.integers(1, 4)))
    )
    requests = tuple(
        replace(
            request(
                f"r{number}",
                draw(st.integers(0, 3)),
                draw(st.sampled_from([1, 250, 460, 1000])),
                draw(st.sampled_from([0, 900, 3000])),
            ),
            gpu_memory_mib=draw(st.sampled_from([None, 5000])),
            gpu_models=frozenset(draw(st.sets(st.sampled_from(MODELS)))),
            replicas=draw(st.sampled_from([1, 1, 1, 2])),
            spread=draw(st.sampled_from(Spread)),
            anti_affinity=draw(st.sampled_from(["", "", "x"])),
            hosts_excluded=frozenset(draw(st.sets(st.sampled_from([hosts[0].name]), max_size=1))),
        )
        for number in range(draw(st.integers(0, 12)))
    )
    return cluster(*hosts), requests


@pytest.mark.parametrize("rule", RULES)
@settings(max_examples=20, deadline=None)
@given(problem=hosts_and_requests())
def test_no_rule_exceeds_a_capacity(
    rule: str, problem: tuple[ClusterSnapshot, tuple[ResourceRequest, ...]]
) -> None:
    snapshot, requests = problem
    placer = OnlinePlacer(name=rule)

    plan = placer.place(requests, snapshot)

    verify(plan, requests, snapshot)
    assert plan == placer.place(requests, snapshot)


def small() -> Packing:
    hosts = [host(f"big{number}", 8, cpu=64_000) for number in range(3)]
    hosts += [host(f"small{number}", 2, model="A100") for number in range(6)]
    shapes = [(1, 1000), (1, 460), (1, 250), (2, 1000), (8, 1000), (0, 1000)]
    requests = [request(f"r{n}", *shapes[n % 6], cpu=500 + n % 5 * 1500) for n in range(60)]
    return pack(requests, cluster(*hosts))


def test_arrivals_are_drawn_until_they_ask_for_what_is_wanted() -> None:
    packing = small()

    more, less = resampled(packing, seed=3), resampled(packing, seed=3, until_pct=50.0)

    assert 1.3 * 36 <= more.gpus.sum() <= 1.3 * 36 + 8
    assert 0.5 * 36 <= less.gpus.sum() <= 0.5 * 36 + 8
    assert (more.order[: len(less.order)] == less.order).all()


def test_what_is_to_come_changes_nothing_before() -> None:
    packing = small()
    order = resampled(packing, seed=5).order
    half = len(order) // 2
    other = np.concatenate([order[:half], order[half:][::-1]])

    first, second = Arrivals(packing, order).run(OURS), Arrivals(packing, other).run(OURS)

    assert (first.host[:half] == second.host[:half]).all()
    assert (first.mask[:half] == second.mask[:half]).all()


def test_allocation_counts_what_was_placed_when_so_much_had_arrived() -> None:
    packing = pack([request("a", 1), request("b", 2), request("c", 1)], cluster(host("h", 2)))
    arrivals = Arrivals(packing, np.array([0, 1, 2]))

    outcome = arrivals.run("first-fit")

    assert outcome.host.tolist() == [0, -1, 0]
    assert arrivals.allocated_pct(outcome, [50.0, 100.0, 200.0, 900.0]) == (
        50.0,
        50.0,
        100.0,
        100.0,
    )


def test_a_batch_goes_largest_first_and_stays_a_batch() -> None:
    packing = pack([request("a", 1), request("b", 2), request("c", 8)], cluster(host("h", 8)))

    batched = in_batches(Arrivals(packing, np.array([0, 1, 2])), 2)

    assert batched.order.tolist() == [1, 0, 2]


def test_tuning_finds_more_gpu_and_repeats_itself() -> None:
    histories = [resampled(small(), seed=1)]

    found = tune(histories, evaluations=2 * SIZE, seed=4)
    again = tune(histories, evaluations=2 * SIZE, seed=4)

    assert found == again
    assert found.evaluations == 2 * SIZE
    assert found.score >= 1.5 * found.gains[0] - 1e-9
    plain = tune(histories, evaluations=1, seed=4)
    assert found.score >= plain.score - 1e-9


def test_tuning_needs_a_history_that_asks_for_gpu() -> None:
    packing = pack([request("a", 0)], cluster(host("h", 2)))

    with pytest.raises(BadProblemError, match="no history asks for GPU"):
        tune([Arrivals(packing, np.array([0]))], evaluations=1)


def test_weights_are_named_finite_and_complete() -> None:
    weights = default_weights()

    assert ScoreWeights.of_dict(weights.as_dict()) == weights
    assert ScoreWeights.of_vector(weights.vector()) == weights
    assert any(weights.as_dict().values())
    for wrong in ({"speed": 1.0}, {FEATURES[0]: float("nan")}, {FEATURES[0]: "1"}):
        with pytest.raises(BadProblemError):
            ScoreWeights.of_dict(wrong)
    with pytest.raises(BadProblemError):
        ScoreWeights.of_vector([1.0])
