from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.core.placement.first_fit import FirstFit
from cluster.core.policy.forecast import (
    MOST_JOBS,
    Arrivals,
    alternatives,
    forecast_starts,
    median_starts,
)
from cluster.core.policy.profiles import Duration
from cluster.core.policy.queue import Greedy, Queue, WaitingJob
from cluster.core.resources import (
    ClusterSnapshot,
    GpuState,
    GpuUuid,
    HostName,
    HostState,
    ResourceRequest,
)
from cluster.core.simulation.run import SchedulingPolicy, simulate
from cluster.core.simulation.workload import Workload, WorkloadJob

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def cluster(gpus: int, hosts: int = 1) -> ClusterSnapshot:
    return ClusterSnapshot(
        taken_at=NOW,
        hosts=tuple(
            HostState(
                name=HostName(f"host-{number}"),
                cpu_millis=64_000,
                memory_mib=64_000,
                gpus=tuple(
                    GpuState(
                        uuid=GpuUuid(f"GPU-{number}-{at}"), model="RTX", memory_total_mib=24_000
                    )
                    for at in range(gpus)
                ),
            )
            for number in range(hosts)
        ),
    )


def job(key: str, gpus: int = 1, expected_s: float = 600.0, **more: object) -> WaitingJob:
    request = ResourceRequest(key=key, cpu_millis=1000, memory_mib=1000, gpus=gpus, **more)  # type: ignore[arg-type]
    return WaitingJob(request=request, submitted_s=0.0, expected_s=expected_s)


def queue(*jobs: WaitingJob, gpus: int = 1, hosts: int = 1) -> Queue:
    return Queue(waiting=list(jobs), running=[], snapshot=cluster(gpus, hosts), now_s=0.0)


def test_what_fits_starts_at_once_and_the_rest_one_after_another() -> None:
    starts = median_starts(queue(job("a"), job("b"), job("c")), {})

    assert starts == {"a": 0.0, "b": 600.0, "c": 1200.0}


def test_what_is_uncertain_is_an_interval_and_what_is_certain_is_none() -> None:
    unsure = {"a": Duration(median_s=600.0, sigma=0.5), "b": None}

    found = forecast_starts(queue(job("a"), job("b")), unsure)

    assert found["a"].p90_s == 0.0
    assert found["b"].earliest_s < found["b"].p50_s < found["b"].p90_s
    assert found["b"].p50_s == pytest.approx(600.0, rel=0.1)
    assert found == forecast_starts(queue(job("a"), job("b")), unsure)


def test_who_may_come_can_only_delay() -> None:
    waiting = queue(job("a"), job("b", gpus=2), gpus=2)
    more = Arrivals.seen([job(f"old-{n}", expected_s=900.0) for n in range(20)], 0.0, 3600.0)

    alone, crowded = forecast_starts(waiting, {}), forecast_starts(waiting, {}, arrivals=more)

    assert crowded["b"].p90_s > alone["b"].p90_s


def test_a_job_that_fits_nowhere_has_no_start() -> None:
    assert "big" not in forecast_starts(queue(job("big", gpus=4)), {})


def test_the_pace_is_carried_on_for_very_long_queues() -> None:
    jobs = [job(f"job-{number:04d}") for number in range(MOST_JOBS + 50)]

    found = forecast_starts(queue(*jobs), {})

    assert len(found) == len(jobs)
    assert found[jobs[-1].request.key].p50_s > found[jobs[MOST_JOBS - 1].request.key].p50_s


def test_each_wish_that_costs_time_is_named_with_what_it_saves() -> None:
    held = job("held", gpus=1, hosts_allowed=frozenset({HostName("host-0")}))
    wants = job("wants", gpus=2, hosts_allowed=frozenset({HostName("host-0")}))

    found = alternatives(queue(held, wants, gpus=2, hosts=2), "wants", {})

    assert [offer.text for offer in found] == [
        "host host-1 has 2 free GPUs, but the environment is not allowed there; with it at once",
        "with 1 GPU instead of 2 at once",
    ]
    assert all(offer.start_s < offer.before_s for offer in found)


def test_who_starts_at_once_needs_no_advice() -> None:
    assert alternatives(queue(job("a", gpus=2), gpus=2), "a", {}) == ()


@given(sizes=st.lists(st.tuples(st.integers(1, 3), st.integers(60, 5000)), min_size=1, max_size=12))
@settings(max_examples=40, deadline=None)
def test_at_certain_durations_the_forecast_is_what_the_simulator_does(
    sizes: list[tuple[int, int]],
) -> None:
    jobs = [
        job(f"job-{row:02d}", gpus=gpus, expected_s=float(seconds))
        for row, (gpus, seconds) in enumerate(sizes)
    ]
    work = tuple(
        WorkloadJob(request=one.request, submitted_s=0.0, duration_s=one.expected_s) for one in jobs
    )

    starts = median_starts(queue(*jobs, gpus=3), {})
    report = simulate(
        cluster(3),
        Workload(name="jobs", jobs=work),
        SchedulingPolicy(name="greedy", placer=FirstFit(), queue=Greedy()),
    )

    assert starts == {record.key: record.started_s for record in report.jobs}
