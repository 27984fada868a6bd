"""What every placer's plan keeps, whatever the hosts and the requests."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.core.errors import BadProblemError
from cluster.core.placement.admission import admit
from cluster.core.placement.baselines import HEURISTICS
from cluster.core.placement.first_fit import FirstFit
from cluster.core.placement.options import PlacerOptions
from cluster.core.placement.planner import QueuePlanner
from cluster.core.placement.problem import Objective, Placer
from cluster.core.placement.room import Room, feasible
from cluster.core.placement.swarm import SwarmPlacer
from cluster.core.resources import (
    ClusterSnapshot,
    Constraint,
    GpuHealth,
    GpuState,
    GpuUuid,
    HostName,
    HostState,
    Plan,
    ResourceRequest,
)

NOW = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)
MODELS = ("NVIDIA A100", "NVIDIA T4")


def few(objective: Objective = Objective.HOSTS) -> PlacerOptions:
    return PlacerOptions(objective=objective, moves=1000)


PLACERS: list[Placer] = [
    FirstFit(),
    *(HEURISTICS[name] for name in ("first-fit", "bfd", "random", "dot-scarce")),
    *(
        SwarmPlacer(few(objective))
        for objective in (Objective.HOSTS, Objective.GPU, Objective.FRAGMENTATION)
    ),
    QueuePlanner(few()),
]
every_placer = pytest.mark.parametrize("placer", PLACERS, ids=lambda placer: placer.name)


@st.composite
def gpu_states(draw: st.DrawFn, uuid: str) -> GpuState:
    total = draw(st.integers(1_000, 40_000))
    exclusive = draw(st.booleans())
    claims = 1 if exclusive else draw(st.integers(0, 2))
    claimed = total if exclusive else draw(st.integers(0, total)) if claims else 0
    return GpuState(
        uuid=GpuUuid(uuid),
        model=draw(st.sampled_from(MODELS)),
        memory_total_mib=total,
        memory_claimed_mib=claimed,
        claims=claims,
        exclusive=exclusive,
        health=draw(st.sampled_from(GpuHealth)),
    )


@st.composite
def host_states(draw: st.DrawFn, name: str) -> HostState:
    cpu, memory = draw(st.integers(0, 16_000)), draw(st.integers(0, 65_536))
    return HostState(
        name=HostName(name),
        cpu_millis=cpu,
        memory_mib=memory,
        cpu_claimed_millis=draw(st.integers(0, cpu)),
        memory_claimed_mib=draw(st.integers(0, memory)),
        gpus=tuple(
            draw(gpu_states(f"GPU-{name}-{index}")) for index in range(draw(st.integers(0, 4)))
        ),
        schedulable=draw(st.booleans()),
        reason="is down",
    )


@st.composite
def snapshots(draw: st.DrawFn) -> ClusterSnapshot:
    return ClusterSnapshot(
        taken_at=NOW,
        hosts=tuple(draw(host_states(f"h{index}")) for index in range(draw(st.integers(0, 4)))),
    )


@st.composite
def request_lists(draw: st.DrawFn) -> list[ResourceRequest]:
    hosts = st.frozensets(st.sampled_from([HostName(f"h{i}") for i in range(4)]))
    return [
        ResourceRequest(
            key=f"job-{index}",
            cpu_millis=draw(st.integers(1, 8_000)),
            memory_mib=draw(st.integers(1, 32_768)),
            replicas=draw(st.integers(1, 4)),
            gpus=draw(st.integers(0, 3)),
            gpu_memory_mib=draw(st.none() | st.integers(1, 30_000)),
            gpu_model=draw(st.sampled_from(["", "a100", "T4", "H100"])),
            hosts_allowed=draw(st.none() | hosts),
            hosts_excluded=draw(hosts),
        )
        for index in range(draw(st.integers(0, 8)))
    ]


def taken(plan: Plan, requests: list[ResourceRequest]) -> tuple[Counter[str], Counter[str]]:
    """Return what the plan takes: of CPU and memory by host, of memory by GPU."""
    wanted = {request.key: request for request in requests}
    by_host: Counter[str] = Counter()
    by_gpu: Counter[str] = Counter()
    for placement in plan.placements:
        request = wanted[placement.key]
        for replica in placement.replicas:
            by_host[f"{replica.host}/cpu"] += request.cpu_millis
            by_host[f"{replica.host}/memory"] += request.memory_mib
            for uuid in replica.gpus:
                by_gpu[uuid] += request.gpu_memory_mib or 10**9
    return by_host, by_gpu


@every_placer
@settings(max_examples=25, deadline=None)
@given(requests=request_lists(), snapshot=snapshots())
def test_a_plan_takes_no_more_than_is_free(
    placer: Placer, requests: list[ResourceRequest], snapshot: ClusterSnapshot
) -> None:
    plan = placer.place(requests, snapshot)

    by_host, by_gpu = taken(plan, requests)
    for host in snapshot.hosts:
        assert by_host[f"{host.name}/cpu"] <= host.cpu_free_millis
        assert by_host[f"{host.name}/memory"] <= host.memory_free_mib
        for gpu in host.gpus:
            whole = by_gpu[gpu.uuid] == 10**9 and gpu.claims == 0
            assert whole or by_gpu[gpu.uuid] <= gpu.memory_free_mib


@every_placer
@settings(max_examples=25, deadline=None)
@given(requests=request_lists(), snapshot=snapshots())
def test_a_gang_is_placed_whole_or_not_at_all_and_everything_is_answered(
    placer: Placer, requests: list[ResourceRequest], snapshot: ClusterSnapshot
) -> None:
    plan = placer.place(requests, snapshot)

    wanted = {request.key: request for request in requests}
    answered = [found.key for found in plan.placements] + [found.key for found in plan.deferred]
    assert sorted(answered) == sorted(wanted)
    for placement in plan.placements:
        request = wanted[placement.key]
        assert [replica.rank for replica in placement.replicas] == list(range(request.replicas))
        for replica in placement.replicas:
            assert len(set(replica.gpus)) == request.gpus
    for deferral in plan.deferred:
        assert deferral.text
        assert deferral.evidence or deferral.constraint is Constraint.NO_HOST


@every_placer
@settings(max_examples=25, deadline=None)
@given(requests=request_lists(), snapshot=snapshots())
def test_nothing_goes_where_it_may_not_or_onto_what_takes_no_work(
    placer: Placer, requests: list[ResourceRequest], snapshot: ClusterSnapshot
) -> None:
    plan = placer.place(requests, snapshot)

    wanted = {request.key: request for request in requests}
    hosts = {host.name: host for host in snapshot.hosts}
    gpus = {gpu.uuid: gpu for host in snapshot.hosts for gpu in host.gpus}
    for placement in plan.placements:
        request = wanted[placement.key]
        for replica in placement.replicas:
            assert hosts[replica.host].schedulable
            assert request.hosts_allowed is None or replica.host in request.hosts_allowed
            assert replica.host not in request.hosts_excluded
            for uuid in replica.gpus:
                assert gpus[uuid].health.takes_work
                assert request.gpu_model.lower() in gpus[uuid].model.lower()


@every_placer
@settings(max_examples=100, deadline=None)
@given(requests=request_lists(), snapshot=snapshots())
def test_equal_input_gives_an_equal_plan(
    placer: Placer, requests: list[ResourceRequest], snapshot: ClusterSnapshot
) -> None:
    assert placer.place(requests, snapshot) == placer.place(requests, snapshot)


@every_placer
@settings(max_examples=25, deadline=None)
@given(requests=request_lists(), snapshot=snapshots())
def test_what_was_placed_was_possible_and_what_is_impossible_says_so(
    placer: Placer, requests: list[ResourceRequest], snapshot: ClusterSnapshot
) -> None:
    plan = placer.place(requests, snapshot)

    wanted = {request.key: request for request in requests}
    rooms = [Room(host) for host in snapshot.hosts]
    for placement in plan.placements:
        assert feasible(wanted[placement.key], rooms)
        assert admit(wanted[placement.key], snapshot).possible
    for deferral in plan.deferred:
        if not deferral.ever and deferral.constraint is not Constraint.NO_HOST:
            assert not feasible(wanted[deferral.key], rooms)


@settings(max_examples=25, deadline=None)
@given(request=request_lists(), snapshot=snapshots())
def test_a_refusal_at_submission_names_a_field_and_what_would_fit(
    request: list[ResourceRequest], snapshot: ClusterSnapshot
) -> None:
    for asked in request:
        admission = admit(asked, snapshot)

        if not admission.possible:
            assert admission.fits
            assert all(sentence.endswith(".") for sentence in admission.shortfalls.values())


def host(name: str = "a", **values: object) -> HostState:
    base: dict[str, object] = {"name": HostName(name), "cpu_millis": 8000, "memory_mib": 16_000}
    return HostState(**(base | values))  # type: ignore[arg-type]


def gpu(uuid: str, **values: object) -> GpuState:
    base: dict[str, object] = {
        "uuid": GpuUuid(uuid),
        "model": "NVIDIA A100",
        "memory_total_mib": 10_000,
    }
    return GpuState(**(base | values))  # type: ignore[arg-type]


def ask(**values: object) -> ResourceRequest:
    base: dict[str, object] = {"key": "job", "cpu_millis": 1000, "memory_mib": 1000}
    return ResourceRequest(**(base | values))  # type: ignore[arg-type]


def shared_claim(uuid: str, claimed_mib: int) -> GpuState:
    return gpu(uuid, memory_claimed_mib=claimed_mib, claims=1)


@every_placer
@pytest.mark.parametrize(
    ("hosts", "request_", "constraint"),
    [
        ([], ask(), Constraint.NO_HOST),
        ([host(schedulable=False, reason="a does not answer")], ask(), Constraint.HOSTS_DOWN),
        ([host()], ask(hosts_allowed=frozenset()), Constraint.NOT_ALLOWED),
        (
            [host(), host("b", cpu_millis=64_000, schedulable=False, reason="b is cordoned")],
            ask(cpu_millis=32_000),
            Constraint.HOSTS_DOWN,
        ),
        ([host(cpu_claimed_millis=7500)], ask(), Constraint.CPU),
        ([host(memory_claimed_mib=15_500)], ask(), Constraint.MEMORY),
        ([host()], ask(gpus=1), Constraint.GPU),
        ([host(gpus=(gpu("G0"),))], ask(gpus=1, gpu_model="H100"), Constraint.GPU_MODEL),
        ([host(gpus=(gpu("G0", claims=1, exclusive=True),))], ask(gpus=1), Constraint.GPU),
        ([host(gpus=(gpu("G0", health=GpuHealth.STALE),))], ask(gpus=1), Constraint.GPU_HEALTH),
        (
            [host(gpus=(shared_claim("G0", 8000),))],
            ask(gpus=1, gpu_memory_mib=4000),
            Constraint.GPU_MEMORY,
        ),
    ],
)
def test_a_deferral_names_the_constraint_that_binds(
    placer: Placer, hosts: list[HostState], request_: ResourceRequest, constraint: Constraint
) -> None:
    plan = placer.place([request_], ClusterSnapshot(taken_at=NOW, hosts=tuple(hosts)))

    assert [deferral.constraint for deferral in plan.deferred] == [constraint]


@every_placer
def test_two_gangs_of_the_size_of_the_cluster_do_not_hold_half_each(placer: Placer) -> None:
    hosts = tuple(host(name, gpus=(gpu(f"{name}0"), gpu(f"{name}1"))) for name in "ab")
    gangs = [ask(key=key, replicas=4, gpus=1) for key in ("first", "second")]

    plan = placer.place(gangs, ClusterSnapshot(taken_at=NOW, hosts=hosts))

    assert [placement.key for placement in plan.placements] == ["first"]
    assert [deferral.key for deferral in plan.deferred] == ["second"]


@every_placer
def test_shared_requests_fill_one_gpu_before_they_open_another(placer: Placer) -> None:
    one = host(gpus=(gpu("G0"), shared_claim("G1", 4000)))

    plan = placer.place(
        [ask(gpus=1, gpu_memory_mib=5000)], ClusterSnapshot(taken_at=NOW, hosts=(one,))
    )

    assert plan.placements[0].replicas[0].gpus == (GpuUuid("G1"),)


@every_placer
def test_more_claimed_than_there_is_is_a_bug_and_not_a_plan(placer: Placer) -> None:
    broken = host(gpus=(gpu("G0", memory_claimed_mib=10_001, claims=2),))

    with pytest.raises(BadProblemError, match="G0"):
        placer.place([ask()], ClusterSnapshot(taken_at=NOW, hosts=(broken,)))


def test_hosts_that_are_down_count_when_a_job_is_submitted() -> None:
    snapshot = ClusterSnapshot(taken_at=NOW, hosts=(host(schedulable=False, reason="down"),))

    assert admit(ask(cpu_millis=8000), snapshot).possible
    refused = admit(ask(cpu_millis=8001), snapshot)
    assert not refused.possible
    assert refused.fits["cpu_millis"] == 8000
    assert list(refused.shortfalls) == ["cpu_millis"]
