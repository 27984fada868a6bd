"""Queue policies on their own: who is placed now, whatever the placer prefers."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.core.placement.first_fit import FirstFit
from cluster.core.policy.claims import with_claims, without_claims
from cluster.core.policy.queue import (
    QUEUE_POLICIES,
    Easy,
    Fifo,
    Place,
    Queue,
    RunningJob,
    WaitingJob,
    place_in_order,
)
from cluster.core.resources import ClusterSnapshot, Plan, ResourceRequest
from tests.unit.simulation.worlds import cluster, clusters, host, request

FIRST_FIT: Place = FirstFit().place


def biggest_first(requests: Sequence[ResourceRequest], snapshot: ClusterSnapshot) -> Plan:
    """Serve the largest first: a placer that does not care who came first."""
    return FIRST_FIT(sorted(requests, key=lambda one: -one.cpu_millis), snapshot)


def waiting(key: str, cores: int, *, seconds: float = 100.0) -> WaitingJob:
    return WaitingJob(request=request(key, cores=cores), submitted_s=0.0, expected_s=seconds)


def placed(plan: Plan) -> set[str]:
    return {placement.key for placement in plan.placements}


def test_a_placer_that_prefers_the_large_cannot_make_them_overtake() -> None:
    requests = [request("a", cores=3), request("b", cores=3), request("c", cores=8)]

    assert placed(biggest_first(requests, cluster(host("h")))) == {"c"}
    plan, head = place_in_order(requests, cluster(host("h")), biggest_first)
    assert placed(plan) == {"a", "b"}
    assert head is not None
    assert head.key == "c"


def test_what_can_never_be_placed_holds_up_nobody() -> None:
    queue = Queue(
        waiting=[waiting("never", 99), waiting("x", 1)],
        running=[],
        snapshot=cluster(host("h")),
        now_s=0.0,
    )

    plan = Fifo().plan(queue, FIRST_FIT)

    assert placed(plan) == {"x"}
    assert [deferral.key for deferral in plan.deferred] == ["never"]


@pytest.mark.parametrize(("seconds", "starts"), [(49.0, True), (51.0, False)])
def test_backfill_ends_before_the_head_can_start(seconds: float, starts: bool) -> None:
    runs = request("runs", cores=6)
    (held,) = FIRST_FIT([runs], cluster(host("h"))).placements
    queue = Queue(
        waiting=[waiting("head", 8), waiting("small", 2, seconds=seconds)],
        running=[
            RunningJob(request=runs, replicas=held.replicas, started_s=0.0, expected_end_s=150.0)
        ],
        snapshot=with_claims(cluster(host("h")), [(runs, held.replicas)]),
        now_s=100.0,
    )

    assert placed(Easy().plan(queue, FIRST_FIT)) == ({"small"} if starts else set())


def test_a_long_backfill_starts_where_the_head_needs_nothing() -> None:
    runs = request("runs", cores=6)
    hosts = cluster(host("big"), host("small", cores=4))
    (held,) = FIRST_FIT([runs], hosts).placements
    queue = Queue(
        waiting=[waiting("head", 8), waiting("beside", 4, seconds=1e6)],
        running=[
            RunningJob(request=runs, replicas=held.replicas, started_s=0.0, expected_end_s=150.0)
        ],
        snapshot=with_claims(hosts, [(runs, held.replicas)]),
        now_s=100.0,
    )

    assert placed(Easy().plan(queue, FIRST_FIT)) == {"beside"}


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_no_policy_places_twice_or_more_than_there_is(data: st.DataObject) -> None:
    hosts = data.draw(clusters())
    sizes = data.draw(st.lists(st.integers(0, 6), min_size=1, max_size=10))
    queue = Queue(
        waiting=[
            waiting(f"j{number}", cores, seconds=data.draw(st.sampled_from([1.0, 50.0, 500.0])))
            for number, cores in enumerate(sizes)
        ],
        running=[],
        snapshot=hosts,
        now_s=0.0,
    )
    place = data.draw(st.sampled_from([FIRST_FIT, biggest_first]))
    policy = QUEUE_POLICIES[data.draw(st.sampled_from(sorted(QUEUE_POLICIES)))]

    plan = policy.plan(queue, place)

    keys = [placement.key for placement in plan.placements]
    assert len(keys) == len(set(keys))
    asked = {job.request.key: job.request for job in queue.waiting}
    held = [(asked[one.key], one.replicas) for one in plan.placements]
    after = with_claims(hosts, held)
    for state in after.hosts:
        assert state.cpu_free_millis >= 0
        assert state.memory_free_mib >= 0
    assert without_claims(after, held) == hosts
