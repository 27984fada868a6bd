"""What one scheduling pass places, what it writes of the rest, and what it costs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import pytest

from cluster import leases
from cluster import services as cluster_services
from cluster.core.placement.first_fit import FirstFit
from cluster.core.placement.options import PlacerOptions
from cluster.core.placement.planner import QueuePlanner
from cluster.core.placement.problem import Placer
from cluster.core.resources import ClusterSnapshot, Plan, ResourceRequest
from cluster.models import Allocation, GpuClaim, HostConnection, HostMode
from jobs import scheduling
from jobs.lifecycle import JobStatus, Reason
from jobs.models import Attempt, Job, JobEvent, Replica
from jobs.services import job_cancel
from tests.factories.cluster import AllocationFactory, GpuFactory, HostFactory
from tests.factories.jobs import (
    AttemptFactory,
    CodeBundleFactory,
    EnvironmentFactory,
    JobFactory,
    ReplicaFactory,
)

pytestmark = pytest.mark.django_db


PLANNER = QueuePlanner(PlacerOptions(moves=1000))


def schedule(now: datetime, placer: Placer | None = None) -> int:
    return scheduling.schedule_pending(placer=placer or PLANNER, holder="test", now=now)


def test_jobs_are_placed_in_the_order_of_the_queue(now: datetime) -> None:
    HostFactory(cpu_millis=2000)
    late = JobFactory(submitted_at=now + timedelta(seconds=1))
    early = JobFactory(submitted_at=now)
    urgent = JobFactory(submitted_at=now + timedelta(seconds=2), priority=1)

    placed = schedule(now)

    assert placed == 2
    for job in (late, early, urgent):
        job.refresh_from_db()
    assert [urgent.status, early.status, late.status] == ["placed", "placed", "pending"]
    assert late.pending_position == 1


def test_a_placed_job_has_an_attempt_a_replica_and_its_room(now: datetime) -> None:
    host = HostFactory()
    GpuFactory(host=host, uuid="GPU-a")
    job = JobFactory(gpus=1, gpu_memory_mib=4000, memory_mib=2048)

    schedule(now)

    replica = Replica.objects.get(attempt__job=job)
    allocation = Allocation.objects.get(holder=replica.public_id)
    claim = GpuClaim.objects.get(allocation=allocation)
    assert (replica.host, replica.host_name) == (host, host.name)
    assert (allocation.cpu_millis, allocation.memory_mib) == (1000, 2048)
    assert (claim.gpu.uuid, claim.memory_mib, claim.exclusive) == ("GPU-a", 4000, False)


def test_two_jobs_share_a_gpu_only_as_far_as_its_memory_goes(now: datetime) -> None:
    GpuFactory(host=HostFactory(), memory_total_mib=10_000)
    jobs = [JobFactory(gpus=1, gpu_memory_mib=4000) for _ in range(3)]

    assert schedule(now) == 2

    jobs[2].refresh_from_db()
    assert jobs[2].pending_code == "gpu_memory"
    assert jobs[2].pending_evidence["asked_mib"] == 4000


@pytest.mark.parametrize(
    ("host", "job", "code"),
    [
        (None, {}, "no_host"),
        ({"connection": HostConnection.UNREACHABLE}, {}, "hosts_down"),
        ({"mode": HostMode.DRAINING}, {}, "hosts_down"),
        ({"cpu_millis": 500}, {}, "unsatisfiable"),
        ({}, {"gpus": 1}, "unsatisfiable"),
        ({}, {"memory_mib": 16_384}, "memory"),
        ({}, {"cpu_millis": 8000}, "cpu"),
    ],
)
def test_after_one_pass_every_waiting_job_says_why(
    now: datetime, host: dict[str, Any] | None, job: dict[str, Any], code: str
) -> None:
    if host is not None:
        AllocationFactory(host=HostFactory(**host))
    waiting = JobFactory(**job)
    assert waiting.pending_code == "not_evaluated_yet"

    schedule(now)

    waiting.refresh_from_db()
    assert waiting.pending_code == code
    assert waiting.pending_text
    assert waiting.pending_at == now
    assert waiting.pending_position == 1


def test_a_waiting_job_becomes_unsatisfiable_when_the_only_host_for_it_goes(now: datetime) -> None:
    big = HostFactory(cpu_millis=64_000, mode=HostMode.CORDONED)
    HostFactory(cpu_millis=4000)
    job = JobFactory(cpu_millis=32_000)
    schedule(now)
    job.refresh_from_db()
    before = job.pending_code

    cluster_services.host_remove(host_id=big.pk)
    schedule(now)

    job.refresh_from_db()
    assert (before, job.pending_code) == ("hosts_down", "unsatisfiable")
    assert "ask for less" in job.pending_text


def test_a_job_in_its_back_off_is_left_alone_until_it_is_over(now: datetime) -> None:
    HostFactory()
    job = JobFactory(retry_at=now + timedelta(seconds=10), pending_code="back_off")

    assert schedule(now) == 0
    job.refresh_from_db()
    assert job.pending_code == "back_off"
    assert schedule(now + timedelta(seconds=10)) == 1

    job.refresh_from_db()
    assert job.retry_at is None


def test_an_environment_runs_only_where_it_can_and_may(now: datetime) -> None:
    process = HostFactory(name="a-process")
    docker = HostFactory(name="b-docker", docker=True)
    other = HostFactory(name="c-docker", docker=True)
    image_only = JobFactory(environment=EnvironmentFactory(python=""))
    here_only = EnvironmentFactory()
    here_only.hosts.add(other)
    chosen = JobFactory(environment=here_only)
    python_only = JobFactory(environment=EnvironmentFactory(image=""))

    schedule(now)

    def where(job: Job) -> str:
        return Replica.objects.get(attempt__job=job).host_name

    assert where(image_only) in {docker.name, other.name}
    assert where(chosen) == other.name
    assert where(python_only) == process.name


def test_a_host_that_failed_a_job_is_avoided_while_there_is_another(now: datetime) -> None:
    bad, good = HostFactory(name="a-bad"), HostFactory(name="b-good")
    job = JobFactory(reason=Reason.IMAGE_MISSING)
    attempt = AttemptFactory(job=job, reason=Reason.IMAGE_MISSING, finished_at=now)
    ReplicaFactory(attempt=attempt, host=bad, status="exited", removed_at=now)

    schedule(now)

    assert Replica.objects.filter(attempt__job=job).latest("id").host_name == good.name


def test_an_attempt_keeps_what_its_placement_rested_on(now: datetime) -> None:
    busy, idle = HostFactory(name="busy"), HostFactory(name="idle")
    AllocationFactory(host=busy, cpu_millis=1000, memory_mib=100)
    job = JobFactory(cpu_millis=1000, memory_mib=100)

    schedule(now)

    decision = Attempt.objects.get(job=job).decision
    assert decision["placer"] == "swarm"
    assert decision["proven"] is True
    chosen, other = decision["candidates"]
    assert (chosen["host"], chosen["chosen"]) == (busy.name, True)
    assert (other["host"], other["chosen"]) == (idle.name, False)
    assert other["parts"]["opens_host"] > chosen["parts"]["opens_host"] == 0
    assert chosen["score"] < other["score"]


class Overcommitting:
    """Promises the same GPU to everybody; what is applied is checked all the same."""

    name = "overcommitting"

    def place(self, requests: Sequence[ResourceRequest], snapshot: ClusterSnapshot) -> Plan:
        plans = [FirstFit().place([request], snapshot) for request in requests]
        return Plan(placements=tuple(p for plan in plans for p in plan.placements))


def test_a_placement_that_no_longer_fits_leaves_its_job_in_the_queue(now: datetime) -> None:
    GpuFactory(host=HostFactory())
    first, second = JobFactory(gpus=1), JobFactory(gpus=1)

    placed = schedule(now, Overcommitting())

    first.refresh_from_db()
    second.refresh_from_db()
    assert placed == 1
    assert [first.status, second.status] == [JobStatus.PLACED, JobStatus.PENDING]
    assert second.pending_code == "lost_race"
    assert second.attempts.count() == 0
    assert Allocation.objects.count() == 1


class Cancelling:
    """A person cancels everything while the placer thinks."""

    name = "cancelling"

    def __init__(self, now: datetime) -> None:
        self.now = now

    def place(self, requests: Sequence[ResourceRequest], snapshot: ClusterSnapshot) -> Plan:
        for job in Job.objects.all():
            job_cancel(job_id=job.public_id, actor=job.owner, now=self.now)
        return FirstFit().place(requests, snapshot)


def test_a_job_cancelled_while_the_placer_thinks_is_not_placed(now: datetime) -> None:
    HostFactory()
    job = JobFactory()

    assert schedule(now, Cancelling(now)) == 0

    job.refresh_from_db()
    assert job.status == JobStatus.CANCELLED
    assert Allocation.objects.count() == 0


def test_of_two_passes_at_once_one_does_nothing(now: datetime) -> None:
    HostFactory()
    JobFactory()
    leases.acquire(name="scheduler", holder="other", ttl=timedelta(seconds=20), now=now)

    assert schedule(now) == 0
    assert schedule(now + timedelta(seconds=20)) == 1


def many(count: int) -> None:
    bundle, environment = CodeBundleFactory(), EnvironmentFactory()
    JobFactory.create_batch(
        count, owner=bundle.owner, code=bundle, environment=environment, cpu_millis=9000
    )


def queries_of_a_pass(now: datetime, capture: Any) -> int:
    with capture as captured:
        schedule(now)
    return len(captured)


def test_a_queue_costs_a_pass_no_query_for_each_job(
    now: datetime, django_assert_max_num_queries: Any
) -> None:
    HostFactory()
    many(5)
    few = queries_of_a_pass(now, django_assert_max_num_queries(40))
    many(200)

    more = queries_of_a_pass(now, django_assert_max_num_queries(40))

    # What changed is written some ninety jobs at a time: the most that SQLite takes at once.
    assert more <= few + 200 // 90 + 1


def test_a_pass_over_an_unchanged_queue_writes_nothing(
    now: datetime, django_capture_on_commit_callbacks: Any
) -> None:
    HostFactory()
    many(20)
    schedule(now)

    with django_capture_on_commit_callbacks() as announced:
        schedule(now + timedelta(seconds=3))

    assert announced == []
    assert set(Job.objects.values_list("pending_at", flat=True)) == {now}


def test_thousands_wait_and_each_pass_still_answers_for_all(now: datetime) -> None:
    HostFactory.create_batch(5, gpus=2)
    bundle, environment = CodeBundleFactory(), EnvironmentFactory()
    template = JobFactory(owner=bundle.owner, code=bundle, environment=environment, gpus=8)
    Job.objects.bulk_create(
        Job(
            **{
                field.attname: getattr(template, field.attname)
                for field in Job._meta.concrete_fields
                if field.attname not in {"id", "public_id"}
            }
        )
        for _ in range(2000)
    )

    assert schedule(now) == 0

    assert Job.objects.filter(pending_code="unsatisfiable").count() == 2001
    assert Job.objects.order_by("-pending_position").first().pending_position == 2001  # type: ignore[union-attr]


def test_a_move_is_in_the_history_with_its_place(now: datetime) -> None:
    HostFactory(name="here")
    job = JobFactory()

    schedule(now)

    event = JobEvent.objects.get(job=job, target="placed")
    assert "here" in event.text
