from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.core.placement.first_fit import FirstFit
from cluster.core.policy.gpu_sharing import GpuStatePolicy, JobFacts, SharingMemory
from cluster.core.policy.order import Ordering, UsageLedger, in_order
from cluster.core.policy.profiles import Duration, Estimate
from cluster.core.policy.queue import Queue, RunningJob, WaitingJob
from cluster.core.policy.settings import PolicySettings
from cluster.core.policy.sharing import Sharer, reserve_mib
from cluster.core.resources import (
    ClusterSnapshot,
    GpuHealth,
    GpuState,
    GpuUuid,
    HostName,
    HostState,
    ReplicaPlacement,
    ResourceRequest,
)
from cluster.core.simulation.models import ByUtilization
from cluster.core.simulation.report import Report
from cluster.core.simulation.run import SchedulingPolicy, SimulationOptions, simulate
from cluster.core.simulation.workload import Workload, WorkloadJob

TOTAL_MIB = 24_000
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def cluster(gpus: int, health: GpuHealth = GpuHealth.OK) -> ClusterSnapshot:
    cards = tuple(
        GpuState(uuid=GpuUuid(f"GPU-{n}"), model="RTX", memory_total_mib=TOTAL_MIB, health=health)
        for n in range(gpus)
    )
    host = HostState(name=HostName("a"), cpu_millis=64_000, memory_mib=64_000, gpus=cards)
    return ClusterSnapshot(taken_at=NOW, hosts=(host,))


def request(key: str, cap: int | None = 4000, gpus: int = 1) -> ResourceRequest:
    return ResourceRequest(key=key, cpu_millis=1000, memory_mib=1000, gpus=gpus, gpu_memory_mib=cap)


def facts(use: float = 40.0, *, known: bool = True, consents: bool = True) -> JobFacts:
    expected = Estimate(utilization_pct=use, memory_peak_mib=2000, measured=True)
    return JobFacts(
        sharer=Sharer(
            kind=f"uses {use:g}", estimate=expected, cap_mib=4000, known=known, consents=consents
        ),
        duration=Duration(median_s=600.0, sigma=0.3),
    )


def waiting(key: str, submitted_s: float = 0.0, cap: int | None = 4000) -> WaitingJob:
    return WaitingJob(request=request(key, cap), submitted_s=submitted_s, expected_s=600.0)


def running(key: str, gpu: int = 0, speed: float | None = 1.0) -> RunningJob:
    place = ReplicaPlacement(rank=0, host=HostName("a"), gpus=(GpuUuid(f"GPU-{gpu}"),))
    return RunningJob(
        request=request(key),
        replicas=(place,),
        started_s=0.0,
        expected_end_s=600.0,
        speed=speed,
    )


def busy(snapshot: ClusterSnapshot, *jobs: RunningJob) -> ClusterSnapshot:
    on = {uuid: job for job in jobs for uuid in job.replicas[0].gpus}
    host = snapshot.hosts[0]
    cards = tuple(
        replace(gpu, claims=1, share_claimed_milli=1, memory_claimed_mib=4000)
        if gpu.uuid in on
        else gpu
        for gpu in host.gpus
    )
    return ClusterSnapshot(taken_at=NOW, hosts=(replace(host, gpus=cards),))


def queue(*jobs: WaitingJob, beside: tuple[RunningJob, ...] = (), gpus: int = 1) -> Queue:
    return Queue(
        waiting=list(jobs),
        running=list(beside),
        snapshot=busy(cluster(gpus), *beside),
        now_s=100.0,
    )


def test_an_idle_gpu_comes_before_any_partner() -> None:
    policy = GpuStatePolicy(facts=lambda _: facts())

    plan = policy.plan(queue(waiting("new"), beside=(running("old"),), gpus=2), FirstFit().place)

    assert plan.placements[0].replicas[0].gpus == (GpuUuid("GPU-1"),)


def test_a_job_joins_the_one_it_goes_well_with_and_says_so() -> None:
    known = {"new": facts(30.0), "light": facts(20.0), "heavy": facts(90.0)}
    policy = GpuStatePolicy(facts=known.__getitem__)
    both = (running("heavy", 0), running("light", 1))

    plan = policy.plan(queue(waiting("new"), beside=both, gpus=2), FirstFit().place)

    (join,) = plan.placements
    assert join.replicas[0].gpus == (GpuUuid("GPU-1"),)
    assert join.decision["shares_with"] == "light"
    assert "98 % of its speed" in join.reason


@pytest.mark.parametrize(
    ("mine", "theirs", "settings_"),
    [
        (facts(consents=False), facts(), PolicySettings()),
        (facts(), facts(consents=False), PolicySettings()),
        (facts(), facts(), PolicySettings(sharing=False)),
        (facts(), facts(), PolicySettings(jobs_per_gpu=1)),
        (facts(known=False), facts(), PolicySettings()),
        (facts(99.0), facts(99.0), PolicySettings()),
    ],
)
def test_nobody_shares_without_consent_knowledge_or_speed(
    mine: JobFacts, theirs: JobFacts, settings_: PolicySettings
) -> None:
    known = {"new": mine, "old": theirs}
    policy = GpuStatePolicy(facts=known.__getitem__, settings=settings_)

    plan = policy.plan(queue(waiting("new"), beside=(running("old"),)), FirstFit().place)

    assert plan.placements == ()


def test_memory_is_never_overcommitted_reserve_included() -> None:
    policy = GpuStatePolicy(facts=lambda _: facts())
    most = TOTAL_MIB - 4000 - reserve_mib(TOTAL_MIB)
    wide = {"new": replace(facts(), sharer=replace(facts().sharer, cap_mib=most + 1))}
    too_wide = GpuStatePolicy(facts=lambda key: wide.get(key, facts()))

    fits = policy.plan(queue(waiting("new"), beside=(running("old"),)), FirstFit().place)
    not_fits = too_wide.plan(queue(waiting("new"), beside=(running("old"),)), FirstFit().place)

    assert len(fits.placements) == 1
    assert not_fits.placements == ()


@pytest.mark.parametrize("health", [GpuHealth.STALE, GpuHealth.QUARANTINED, GpuHealth.DRAINING])
def test_a_gpu_that_takes_no_work_is_joined_by_nobody(health: GpuHealth) -> None:
    policy = GpuStatePolicy(facts=lambda _: facts())
    asked = queue(waiting("new"), beside=(running("old"),))
    host = asked.snapshot.hosts[0]
    sick = replace(host, gpus=tuple(replace(gpu, health=health) for gpu in host.gpus))

    plan = policy.plan(
        replace(asked, snapshot=ClusterSnapshot(taken_at=NOW, hosts=(sick,))), FirstFit().place
    )

    assert plan.placements == ()


def test_a_bad_pair_is_parted_once_it_is_measured_and_kept_apart() -> None:
    memory = SharingMemory()
    policy = GpuStatePolicy(facts=lambda _: facts(), memory=memory)
    memory.pairs.rows_of({"uses 40": 40.0})
    both = (running("old", speed=0.3), replace(running("new", speed=0.3), started_s=10.0))
    asked = replace(queue(beside=both), running=list(both))

    early = policy.review(replace(asked, now_s=60.0))
    late = policy.review(replace(asked, now_s=71.0))

    assert early.stop == ()
    assert early.again_s == 70.0
    assert late.stop == ("new",)
    assert memory.parted == 1
    plan = policy.plan(queue(waiting("new"), beside=(running("old"),)), FirstFit().place)
    assert plan.placements == ()


def test_a_job_of_a_new_kind_runs_alone_until_it_is_known() -> None:
    policy = GpuStatePolicy(facts=lambda _: facts(known=False))
    asked = queue(waiting("new"), beside=(running("old"),))

    at_first = policy.review(asked)
    policy.review(replace(asked, now_s=180.0))
    plan = policy.plan(replace(asked, now_s=180.0), FirstFit().place)

    assert at_first.again_s == 180.0
    assert [placement.key for placement in plan.placements] == ["new"]


def test_who_used_much_comes_later_and_who_waited_too_long_comes_first() -> None:
    ledger = UsageLedger()
    ledger.advance(0.0, [])
    ledger.advance(36_000.0, [replace(running("x"), owner="greedy")])
    jobs = [
        replace(waiting("heavy user"), owner="greedy", submitted_s=36_000.0),
        replace(waiting("light user"), owner="modest", submitted_s=36_000.0),
        replace(waiting("urgent"), owner="greedy", submitted_s=36_000.0, priority=1),
        replace(waiting("forgotten"), owner="greedy", submitted_s=-50_000.0),
    ]

    ordered = in_order(jobs, Ordering(now_s=36_001.0, durations={}, used=ledger.used))

    assert [job.request.key for job in ordered] == [
        "forgotten",
        "urgent",
        "light user",
        "heavy user",
    ]


def test_use_is_forgotten_by_half_in_a_half_life() -> None:
    ledger = UsageLedger()
    ledger.advance(0.0, [])
    ledger.advance(7200.0, [replace(running("x"), owner="ada")])
    before = ledger.used["ada"]

    ledger.advance(7200.0 + PolicySettings().usage_half_life_s, [])

    assert ledger.used["ada"] == pytest.approx(before / 2)
    assert before == pytest.approx(3600.0, rel=0.05)  # a shared GPU counts half


def played(seed: int, jobs: int, policy_settings: PolicySettings) -> tuple[Report, GpuStatePolicy]:
    chance = np.random.default_rng(seed)
    work = []
    known: dict[str, JobFacts] = {}
    for number in range(jobs):
        key, gang = f"job-{number}", bool(chance.random() < 0.2)
        seconds = float(chance.integers(60, 900))
        use = float(chance.choice([20.0, 50.0, 95.0]))
        work.append(
            WorkloadJob(
                request=request(key, None if gang else 4000, 2 if gang else 1),
                submitted_s=float(chance.integers(0, 3000)),
                duration_s=seconds,
                kind=f"uses {use:g}",
                gpu_utilization_pct=use,
            )
        )
        one = facts(use, consents=bool(chance.random() < 0.8))
        sharer = replace(one.sharer, single=not gang)
        known[key] = JobFacts(sharer=sharer, duration=Duration(median_s=seconds, sigma=0.2))
    policy = GpuStatePolicy(facts=known.__getitem__, settings=policy_settings)
    report = simulate(
        cluster(2),
        Workload(name="random", jobs=tuple(sorted(work, key=lambda job: job.submitted_s))),
        SchedulingPolicy(name="gpu-state", placer=FirstFit(), queue=policy),
        options=SimulationOptions(interference=ByUtilization()),
    )
    return report, policy


@given(seed=st.integers(0, 10_000), jobs=st.integers(1, 24))
@settings(max_examples=25, deadline=None)
def test_every_job_starts_within_the_bound_that_is_stated(seed: int, jobs: int) -> None:
    rules = PolicySettings(due_s=300.0, due_durations=1.0, speed_undo=0.0)
    slowest = 0.5

    report, _ = played(seed, jobs, rules)

    for record in report.jobs:
        assert record.started_s is not None
        due_s = record.submitted_s + max(300.0, record.duration_s)
        ahead = [
            other
            for other in report.jobs
            if other is not record
            and other.ended_s is not None
            and other.started_s is not None
            and other.ended_s > due_s
            and (
                other.started_s <= due_s
                or other.submitted_s + max(300.0, other.duration_s) <= record.started_s
            )
        ]
        bound_s = due_s + sum(other.duration_s for other in ahead) / slowest
        assert record.started_s <= bound_s + 1e-6


@given(seed=st.integers(0, 10_000))
@settings(max_examples=10, deadline=None)
def test_equal_input_gives_an_equal_schedule_without_overcommit(seed: int) -> None:
    first, _ = played(seed, 16, PolicySettings())
    second, _ = played(seed, 16, PolicySettings())

    assert first == second
    for moment in {span.started_s for record in first.jobs for span in record.spans}:
        on: dict[str, list[int]] = {}
        for record in first.jobs:
            for span in record.spans:
                if span.started_s <= moment < span.ended_s:
                    for replica in span.replicas:
                        for uuid in replica.gpus:
                            on.setdefault(uuid, []).append(2 if len(replica.gpus) > 1 else 1)
        assert all(sum(held) <= 2 for held in on.values())
