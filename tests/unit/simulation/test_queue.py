"""Queue policies on their own: who is placed now, whatever the placer prefers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.core.placement.first_fit import FirstFit
from cluster.core.policy.claims import claimed, released, with_claims, without_claims
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
from cluster.core.resources import (
    ClusterSnapshot,
    GpuHealth,
    GpuState,
    GpuUuid,
    HostName,
    HostState,
    Plan,
    ResourceRequest,
)
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


def test_a_claim_changes_what_is_claimed_and_nothing_else() -> None:
    state = HostState(
        name=HostName("h"),
        cpu_millis=8000,
        memory_mib=8000,
        cpu_claimed_millis=1000,
        memory_claimed_mib=500,
        gpus=(
            GpuState(
                uuid=GpuUuid("g"),
                model="T4",
                memory_total_mib=16_000,
                memory_claimed_mib=1000,
                share_claimed_milli=100,
                claims=1,
                health=GpuHealth.DEGRADED,
                reason="hot",
            ),
        ),
        schedulable=False,
        reason="cordoned",
        zone="rack",
    )
    asked = request("x", cores=2, gpus=1, gpu_share_milli=250, gpu_memory_mib=3000)

    after = claimed(state, asked, [GpuUuid("g")])

    gpu = replace(state.gpus[0], claims=2, share_claimed_milli=350, memory_claimed_mib=4000)
    assert after == replace(
        state, cpu_claimed_millis=3000, memory_claimed_mib=1500, gpus=(gpu,)
    )  # fmt: skip
    # Every field is told from its default above, so that one that comes later is thought of.
    assert {field.name for field in fields(GpuState)} - {"exclusive"} == {
        *("uuid", "model", "memory_total_mib", "memory_claimed_mib"),
        *("share_claimed_milli", "claims", "health", "reason"),
    }
    assert {field.name for field in fields(HostState)} == {
        *("name", "cpu_millis", "memory_mib", "cpu_claimed_millis", "memory_claimed_mib"),
        *("gpus", "schedulable", "reason", "zone"),
    }


def test_a_whole_gpu_is_claimed_with_all_its_memory_and_given_back() -> None:
    state = host("h", gpus=2)
    asked = request("x", gpus=1)

    after = claimed(state, asked, [state.gpus[1].uuid])

    assert after.gpus[0] == state.gpus[0]
    assert after.gpus[1].exclusive
    assert after.gpus[1].memory_claimed_mib == state.gpus[1].memory_total_mib
    assert released(after, asked, [state.gpus[1].uuid]) == state
