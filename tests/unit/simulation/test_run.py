"""What a simulation keeps whatever the cluster, the workload and the policy; and its rules."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cluster.core.errors import BadProblemError
from cluster.core.resources import (
    ClusterSnapshot,
    HostName,
    Placement,
    Plan,
    ReplicaPlacement,
    ResourceRequest,
)
from cluster.core.simulation.engine import Engine
from cluster.core.simulation.models import FailureModel, PairTable
from cluster.core.simulation.policies import policy_named
from cluster.core.simulation.report import JobRecord, Outcome, Report, wait_changes
from cluster.core.simulation.run import SchedulingPolicy, SimulationOptions, simulate
from cluster.core.simulation.workload import Workload, WorkloadJob
from tests.unit.simulation.worlds import (
    check_account,
    cluster,
    clusters,
    host,
    job,
    lost,
    options,
    policies,
    workload,
    workloads,
)

FIRST_FIT = policy_named("first-fit")


def run(
    *jobs: WorkloadJob, hosts: ClusterSnapshot | None = None, policy: str = "first-fit"
) -> dict[str, JobRecord]:
    report = simulate(hosts or cluster(host("a")), workload(*jobs), policy_named(policy))
    return {record.key: record for record in report.jobs}


def times(record: JobRecord) -> tuple[float | None, float | None]:
    return record.started_s, record.ended_s


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data(), seed=st.integers(0, 3))
def test_every_job_ends_once_in_one_place_within_capacity_and_the_same_again(
    data: st.DataObject, seed: int
) -> None:
    hosts = data.draw(clusters())
    work = data.draw(workloads(hosts))
    policy = data.draw(policies())
    world = data.draw(options())

    report = simulate(hosts, work, policy, seed, options=world)

    check_account(hosts, work, report)
    assert simulate(hosts, work, policy, seed, options=world) == report


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_nobody_overtakes_first_in_first_out(data: st.DataObject) -> None:
    hosts = data.draw(clusters())
    drawn = data.draw(workloads(hosts))
    steady = [
        job(one.key, one.submitted_s, one.duration_s, cores=one.request.cpu_millis // 1000)
        for one in sorted(drawn.jobs, key=lambda one: one.submitted_s)
    ]

    report = simulate(hosts, workload(*steady), policy_named("first-fit+fifo"))

    starts = [record.started_s for record in report.jobs if record.started_s is not None]
    assert starts == sorted(starts)


def test_a_job_waits_for_room_and_runs_as_long_as_it_takes() -> None:
    found = run(job("x", 0, 100, cores=6), job("y", 10, 50, cores=6))

    assert times(found["x"]) == (0, 100)
    assert times(found["y"]) == (100, 150)
    assert found["y"].wait_s == 90
    assert found["y"].slowdown == pytest.approx(140 / 50)


def test_a_walltime_ends_a_job() -> None:
    (record,) = run(job("x", 5, 100, walltime_s=40)).values()

    assert record.outcome is Outcome.WALLTIME
    assert times(record) == (5, 45)


def test_a_job_that_takes_its_whole_walltime_is_completed_however_often_it_is_looked_at() -> None:
    shared = {"gpus": 1, "gpu_share_milli": 100, "gpu_utilization_pct": 1.0}
    jobs = [job(f"j{number}", 0.1 * number, 0.7, **shared) for number in range(1, 9)]
    table = PairTable(speeds={("", ""): 1.0})

    report = simulate(
        cluster(host("a", gpus=1)),
        workload(job("x", 0, 10 / 3, walltime_s=10 / 3, **shared), *jobs),
        FIRST_FIT,
        options=SimulationOptions(interference=table),
    )

    assert report.jobs[0].outcome is Outcome.COMPLETED


def test_what_no_host_could_ever_hold_is_told_so_and_does_not_stop_the_rest() -> None:
    found = run(job("x", gpus=5), job("y", seconds=7))

    assert found["x"].outcome is Outcome.UNPLACEABLE
    assert times(found["x"]) == (None, None)
    assert times(found["y"]) == (0, 7)


def test_a_program_that_fails_is_tried_again_as_often_as_it_may() -> None:
    (record,) = run(job("x", seconds=100, fails_after_s=30, retries=2)).values()

    assert (record.outcome, record.attempts, record.ended_s) == (Outcome.FAILED, 3, 90)


def test_a_lost_host_costs_the_work_since_the_last_checkpoint() -> None:
    hosts = cluster(host("a"), host("b"))
    work = workload(
        job("kept", seconds=100, cores=8, checkpoint_s=20),
        job("anew", 0, 100, cores=8),
        events=[*lost("a", 50), *lost("b", 50, back=60)],
    )

    found = {one.key: one for one in simulate(hosts, work, FIRST_FIT).jobs}

    # Both lose 50 s of work; only b returns: first the one, which had saved 40, then the other.
    assert times(found["kept"]) == (0, 120)
    assert times(found["anew"]) == (0, 220)
    assert [span.started_s for span in found["anew"].spans] == [0, 120]


def test_a_job_that_loses_its_host_too_often_is_given_up() -> None:
    events = [event for at in range(10, 60, 10) for event in lost("a", at, back=at + 1)]

    report = simulate(cluster(host("a")), workload(job("x", seconds=100), events=events), FIRST_FIT)

    assert (report.jobs[0].outcome, report.jobs[0].attempts) == (Outcome.HOST_LOST, 4)


def test_a_job_whose_only_host_never_returns_is_told_unplaceable() -> None:
    report = simulate(cluster(host("a")), workload(job("x", 20), events=lost("a", 10)), FIRST_FIT)

    assert report.jobs[0].outcome is Outcome.UNPLACEABLE


def test_two_on_one_gpu_slow_each_other_by_the_formula_while_they_are_two() -> None:
    shared = {"gpus": 1, "gpu_share_milli": 500, "gpu_utilization_pct": 90.0}

    found = run(
        job("x", 0, 100, **shared), job("y", 0, 200, **shared), hosts=cluster(host("a", gpus=1))
    )

    speed = 0.985 - 0.371 * 0.8
    assert found["x"].ended_s == pytest.approx(100 / speed)
    assert found["y"].ended_s == pytest.approx(100 / speed + 100)


def test_a_pair_table_goes_before_the_formula() -> None:
    table = PairTable(speeds={("slow", "fast"): 0.5, ("fast", "slow"): 1.0})
    shared = {"gpus": 1, "gpu_share_milli": 500}
    work = workload(
        job("x", 0, 100, kind="slow", **shared), job("y", 0, 100, kind="fast", **shared)
    )

    report = simulate(
        cluster(host("a", gpus=1)), work, FIRST_FIT, options=SimulationOptions(interference=table)
    )

    assert [record.ended_s for record in report.jobs] == [150, 100]


def test_an_elastic_job_grows_into_idle_hosts_and_gives_back_to_who_waits() -> None:
    hosts = cluster(host("a", cores=2))
    work = workload(
        job("elastic", 0, 10_000, replicas_max=2, scaling_loss=0.0),
        job("small", 3000, 100),
    )

    report = simulate(hosts, work, FIRST_FIT)

    elastic, small = report.jobs
    assert [(len(span.replicas), span.started_s) for span in elastic.spans] == [
        (1, 0),
        (2, 600),
        (1, 3000),
        (2, 3600),
    ]
    assert times(small) == (3000, 3100)
    assert report.resizes == 3
    # Each restart costs 30 s of the new size.
    done = 600 + 2 * (2400 - 30) + (600 - 30)
    assert elastic.ended_s == pytest.approx(3600 + 30 + (10_000 - done) / 2)


def test_priorities_go_first() -> None:
    found = run(job("now", cores=8), job("x", 1, cores=8), job("urgent", 2, cores=8, priority=5))

    assert found["urgent"].started_s == 100
    assert found["x"].started_s == 200


def test_backfill_never_delays_the_head_of_the_queue() -> None:
    jobs = (
        job("runs", 0, 100, cores=6),
        job("head", 1, 100, cores=8),
        job("short", 2, 50, cores=2),
        job("long", 3, 500, cores=2),
    )

    easy, greedy = run(*jobs, policy="first-fit+easy"), run(*jobs, policy="first-fit")

    assert easy["short"].started_s == 2
    assert easy["head"].started_s == 100
    assert easy["long"].started_s == 200
    assert greedy["head"].started_s == 552  # the long one overtook it


def test_the_numbers_follow_from_the_jobs() -> None:
    report = simulate(cluster(host("a")), workload(job("x", 10, 100, cores=8, gpus=1)), FIRST_FIT)

    assert report.makespan_s == 100
    assert report.cpu_pct == pytest.approx(100)
    assert report.gpu_pct == pytest.approx(50)
    # 120 W, 8 cores of 4 W, one T4 at 70 W and one idle at 12 % of it.
    assert report.energy_kwh == pytest.approx((120 + 32 + 70 + 8.4) * 100 / 3.6e6)
    assert report.series.time_s == (10, 110)
    assert report.series.running == (1, 0)


def test_free_gpu_counts_as_fragment_where_the_cores_for_it_are_gone() -> None:
    report = simulate(cluster(host("a")), workload(job("x", 0, 100, cores=7, gpus=1)), FIRST_FIT)

    assert report.series.fragmentation_pct == (50, 0)


def test_a_report_is_json_with_bounded_series() -> None:
    jobs = [job(f"j{number}", 3.0 * number, 2.0) for number in range(2000)]
    told: list[float] = []

    report = simulate(cluster(), workload(*jobs), FIRST_FIT, progress=told.append)

    found = json.loads(json.dumps(report.as_dict()))
    assert len(found["jobs"]) == 2000
    assert {len(values) for values in found["series"].values()} == {len(report.series.time_s)}
    assert 100 < len(report.series.time_s) <= 500
    assert report.series.time_s[-1] == report.makespan_s
    assert report.series.running[-1] == 0
    assert told == sorted(told)
    assert told[-1] == 1.0


def test_who_waits_longer_is_named_first() -> None:
    jobs = (job("x", 0, 100, cores=8), job("long", 1, 90, cores=8), job("short", 2, 5, cores=8))
    by_policy: list[Report] = [
        simulate(cluster(host("a")), workload(*jobs), policy_named(name))
        for name in ("first-fit+fifo", "first-fit+shortest")
    ]

    changes = wait_changes(*by_policy)

    assert [(change.key, change.change_s) for change in changes] == [
        ("long", 5),
        ("x", 0),
        ("short", -90),
    ]


def test_chance_follows_the_seed() -> None:
    world = SimulationOptions(failures=FailureModel(host_mtbf_s=300, host_repair_s=50))
    jobs = workload(*(job(f"j{number}", number, 100) for number in range(30)))

    first, again, other = (
        simulate(cluster(), jobs, FIRST_FIT, seed, options=world) for seed in (1, 1, 2)
    )

    assert first == again
    assert first.jobs != other.jobs


class Careless:
    """A placer that puts everything on the first host, room or not."""

    name = "careless"

    def __init__(self, key: str = "") -> None:
        self.key = key

    def place(self, requests: Sequence[ResourceRequest], snapshot: ClusterSnapshot) -> Plan:
        where = ReplicaPlacement(rank=0, host=HostName("a"))
        keys = [self.key] if self.key else [request.key for request in requests]
        return Plan(placements=tuple(Placement(key=key, replicas=(where,)) for key in keys))


@pytest.mark.parametrize(
    ("placer", "words"),
    [(Careless(), "no room for it"), (Careless("nobody"), "does not wait")],
)
def test_a_plan_that_cannot_be_is_refused(placer: Careless, words: str) -> None:
    policy = SchedulingPolicy(name="careless", placer=placer, queue=FIRST_FIT.queue)
    jobs = workload(job("x", cores=5), job("y", cores=4))

    with pytest.raises(BadProblemError, match=words):
        simulate(cluster(host("a")), jobs, policy)


@pytest.mark.parametrize(
    ("work", "words"),
    [
        (workload(job("x"), job("x")), "comes twice"),
        (workload(job("x", seconds=-1)), "negative"),
        (workload(job("x"), events=lost("z", 1)), "host z, which is not there"),
    ],
)
def test_a_workload_that_contradicts_itself_is_refused(work: Workload, words: str) -> None:
    with pytest.raises(BadProblemError, match=words):
        simulate(cluster(), work, FIRST_FIT)


def test_a_job_of_no_length_ends_at_once() -> None:
    report = simulate(cluster(), workload(job("x", 5, 0.0)), FIRST_FIT)

    assert times(report.jobs[0]) == (5, 5)
    assert report.series.running == (0,)


def test_an_empty_workload_takes_no_time() -> None:
    report = simulate(cluster(), workload(), FIRST_FIT)

    assert (report.makespan_s, report.jobs, report.series.time_s) == (0, (), ())


def test_events_of_one_moment_keep_their_order_and_none_goes_back_in_time() -> None:
    engine: Engine[str] = Engine()
    for at_s, name in ((5.0, "c"), (1.0, "a"), (5.0, "d"), (1.0, "b")):
        engine.schedule(at_s, name)

    assert [engine.pop() for _ in range(4)] == ["a", "b", "c", "d"]
    with pytest.raises(ValueError, match="cannot schedule"):
        engine.schedule(4.0, "late")
    with pytest.raises(ValueError, match="cannot schedule"):
        engine.schedule(float("nan"), "never")
