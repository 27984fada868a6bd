"""Small clusters and workloads, and an account of what a report says that trusts nobody."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime

from hypothesis import strategies as st

from cluster.core.resources import (
    ClusterSnapshot,
    GpuState,
    GpuUuid,
    HostName,
    HostState,
    ResourceRequest,
)
from cluster.core.simulation.models import FailureModel
from cluster.core.simulation.policies import policy_named
from cluster.core.simulation.report import Report, Span
from cluster.core.simulation.run import SchedulingPolicy, SimulationOptions
from cluster.core.simulation.workload import HostChange, HostEvent, Workload, WorkloadJob

NOW = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)


def host(
    name: str, *, cores: int = 8, memory_mib: int = 8000, gpus: int = 2, model: str = "T4"
) -> HostState:
    return HostState(
        name=HostName(name),
        cpu_millis=1000 * cores,
        memory_mib=memory_mib,
        gpus=tuple(
            GpuState(uuid=GpuUuid(f"{name}/{index}"), model=model, memory_total_mib=16_000)
            for index in range(gpus)
        ),
    )


def cluster(*hosts: HostState) -> ClusterSnapshot:
    return ClusterSnapshot(taken_at=NOW, hosts=hosts or (host("a"), host("b")))


def request(key: str, *, cores: int = 1, gpus: int = 0, **rest: object) -> ResourceRequest:
    values: dict[str, object] = {"memory_mib": 1000} | rest
    return ResourceRequest(key=key, cpu_millis=1000 * cores, gpus=gpus, **values)  # type: ignore[arg-type]


def job(
    key: str,
    at: float = 0.0,
    seconds: float = 100.0,
    *,
    cores: int = 1,
    gpus: int = 0,
    **rest: object,
) -> WorkloadJob:
    asked = {
        name: rest.pop(name)
        for name in ("replicas", "gpu_share_milli", "gpu_memory_mib", "gpu_models", "memory_mib")
        if name in rest
    }
    return WorkloadJob(
        request=request(key, cores=cores, gpus=gpus, **asked),
        submitted_s=at,
        duration_s=seconds,
        **rest,  # type: ignore[arg-type]
    )


def workload(*jobs: WorkloadJob, events: Sequence[HostEvent] = ()) -> Workload:
    return Workload(name="test", jobs=jobs, host_events=tuple(events))


def lost(name: str, at: float, back: float | None = None) -> list[HostEvent]:
    events = [HostEvent(at_s=at, host=HostName(name), change=HostChange.LOST)]
    if back is not None:
        events.append(HostEvent(at_s=back, host=HostName(name), change=HostChange.BACK))
    return events


@st.composite
def clusters(draw: st.DrawFn) -> ClusterSnapshot:
    return cluster(
        *(
            host(
                f"h{number}",
                cores=draw(st.integers(1, 8)),
                memory_mib=draw(st.integers(1000, 8000)),
                gpus=draw(st.integers(0, 3)),
                model=draw(st.sampled_from(["T4", "V100"])),
            )
            for number in range(draw(st.integers(1, 4)))
        )
    )


@st.composite
def jobs(draw: st.DrawFn, key: str) -> WorkloadJob:
    gpus = draw(st.integers(0, 3))
    share = draw(st.sampled_from([None, 250, 500, 1000])) if gpus else None
    replicas = draw(st.integers(1, 3))
    seconds = draw(st.sampled_from([0.0, 0.5, 10.0, 10.0, 60.0, 1000.0]))
    return job(
        key,
        draw(st.sampled_from([0.0, 0.0, 5.0, 10.0, 37.5, 500.0])),
        seconds,
        cores=draw(st.integers(0, 6)),
        gpus=gpus,
        gpu_share_milli=share,
        gpu_models=draw(st.sampled_from([frozenset(), frozenset({"V100"})])),
        memory_mib=draw(st.integers(0, 6000)),
        replicas=replicas,
        replicas_max=draw(st.sampled_from([0, 0, replicas + 2])),
        walltime_s=draw(st.sampled_from([None, 30.0, 2000.0])),
        gpu_utilization_pct=draw(st.sampled_from([None, 20.0, 90.0])),
        checkpoint_s=draw(st.sampled_from([0.0, 4.0])),
        fails_after_s=draw(st.sampled_from([None, None, 5.0])),
        retries=draw(st.integers(0, 2)),
        priority=draw(st.integers(0, 1)),
    )


@st.composite
def workloads(draw: st.DrawFn, hosts: ClusterSnapshot) -> Workload:
    events: list[HostEvent] = []
    for state in hosts.hosts:
        if draw(st.integers(0, 3)) == 0:
            at = draw(st.sampled_from([0.0, 7.0, 10.0, 300.0]))
            back = draw(st.sampled_from([None, 1.0, 400.0]))
            events += lost(state.name, at, None if back is None else at + back)
    return workload(
        *(draw(jobs(f"j{number}")) for number in range(draw(st.integers(1, 12)))), events=events
    )


def policies() -> st.SearchStrategy[SchedulingPolicy]:
    names = [
        f"{placer}+{queue}"
        for placer in ("first-fit", "bfd", "spread")
        for queue in ("greedy", "fifo", "shortest", "easy")
    ]
    return st.sampled_from(names).map(policy_named)


def options() -> st.SearchStrategy[SimulationOptions]:
    failing = FailureModel(host_mtbf_s=500.0, host_repair_s=100.0, attempt_pct=20.0)
    return st.sampled_from([SimulationOptions(), SimulationOptions(failures=failing)])


def check_account(hosts: ClusterSnapshot, given: Workload, report: Report) -> None:
    """Hold a report to what no cluster can do otherwise."""
    assert [record.key for record in report.jobs] == [one.key for one in given.jobs]
    wanted = {one.key: one for one in given.jobs}
    for record in report.jobs:
        asked = wanted[record.key]
        assert record.wait_s is None or record.wait_s >= 0
        assert (record.ended_s is None) == (record.started_s is None) == (not record.spans)
        for span in record.spans:
            assert span.started_s <= span.ended_s
            most = max(asked.request.replicas, asked.replicas_max)
            assert asked.request.replicas <= len(span.replicas) <= most
        for earlier, later in zip(record.spans, record.spans[1:], strict=False):
            assert earlier.ended_s <= later.started_s
    _check_capacity(hosts, wanted, report)


def _check_capacity(hosts: ClusterSnapshot, wanted: dict[str, WorkloadJob], report: Report) -> None:
    for moment in {span.started_s for record in report.jobs for span in record.spans}:
        used: Counter[tuple[str, str]] = Counter()
        for record in report.jobs:
            asked = wanted[record.key].request
            for span in record.spans:
                if span.started_s <= moment < span.ended_s:
                    _count(used, asked, span)
        for state in hosts.hosts:
            assert used[state.name, "cpu"] <= state.cpu_millis
            assert used[state.name, "memory"] <= state.memory_mib
            assert all(used[state.name, gpu.uuid] <= 1000 for gpu in state.gpus)


def _count(used: Counter[tuple[str, str]], asked: ResourceRequest, span: Span) -> None:
    for replica in span.replicas:
        assert len(set(replica.gpus)) == asked.gpus
        used[replica.host, "cpu"] += asked.cpu_millis
        used[replica.host, "memory"] += asked.memory_mib
        for uuid in replica.gpus:
            used[replica.host, uuid] += asked.share_milli
