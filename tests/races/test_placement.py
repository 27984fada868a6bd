"""Many workers at the same moment, on a database that really lets them."""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from threading import Barrier
from typing import TypeVar
from uuid import UUID, uuid4

import pytest
from django.db import connection

from cluster import leases
from cluster import services as cluster_services
from cluster.adapters import registry
from cluster.core.placement.first_fit import FirstFit
from cluster.errors import NoRoomError
from cluster.models import Allocation, AllocationState, GpuClaim
from jobs import execution, scheduling, services
from jobs.errors import NotPossibleNowError, QuotaExceededError, StaleTransitionError
from jobs.lifecycle import JobStatus
from jobs.models import Attempt, Job, JobEvent, Replica
from jobs.specification import JobSpecification
from tests.conftest import require
from tests.factories.cluster import NOW, GpuFactory, HostFactory
from tests.factories.jobs import CodeBundleFactory, EnvironmentFactory, JobFactory
from tests.fakes.runtime import FakeRuntime

pytestmark = [pytest.mark.postgres, pytest.mark.django_db(transaction=True)]
T = TypeVar("T")
WORKERS = 8
LOST = (
    NoRoomError,
    StaleTransitionError,
    NotPossibleNowError,
    QuotaExceededError,
)


@pytest.fixture(autouse=True)
def _on_postgres_and_without_a_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    require(connection.vendor == "postgresql", "PostgreSQL (DATABASE_URL)")
    monkeypatch.setattr("jobs.dispatch._send", lambda name, *args: None)


def at_once(acts: list[Callable[[], T]]) -> list[T | Exception]:
    """Do all acts at the same moment, each in a thread of its own; return what came of each."""
    barrier = Barrier(len(acts))

    def run(act: Callable[[], T]) -> T | Exception:
        try:
            barrier.wait(30)
            return act()
        except LOST as error:
            return error
        finally:
            connection.close()

    with ThreadPoolExecutor(len(acts)) as pool:
        return list(pool.map(run, acts))


def won(results: list[T | Exception]) -> list[T]:
    return [result for result in results if not isinstance(result, Exception)]


@pytest.mark.parametrize("round_", range(5))
def test_a_gpu_takes_exactly_as_many_claims_as_fit(now: datetime, round_: int) -> None:
    host = HostFactory()
    gpu = GpuFactory(host=host, memory_total_mib=10_000)

    def claim(holder: UUID) -> Callable[[], Allocation]:
        return lambda: cluster_services.allocation_create(
            holder=holder,
            host_name=host.name,
            cpu_millis=100,
            memory_mib=100,
            gpus=[(gpu.uuid, 4000)],
            now=now,
        )

    results = at_once([claim(uuid4()) for _ in range(WORKERS)])

    assert len(won(results)) == 2
    assert GpuClaim.objects.filter(active=True).count() == 2


@pytest.mark.parametrize("round_", range(5))
def test_a_whole_gpu_is_never_given_twice(now: datetime, round_: int) -> None:
    host = HostFactory()
    gpus = [GpuFactory(host=host, index=index) for index in range(2)]

    def claim(order: list[str]) -> Callable[[], Allocation]:
        return lambda: cluster_services.allocation_create(
            holder=uuid4(),
            host_name=host.name,
            cpu_millis=100,
            memory_mib=100,
            gpus=[(uuid, None) for uuid in order],
            now=now,
        )

    forward = [gpu.uuid for gpu in gpus]
    results = at_once([claim(forward), claim(forward[::-1])] * (WORKERS // 2))

    assert len(won(results)) == 1
    assert GpuClaim.objects.filter(active=True).count() == 2


@pytest.mark.parametrize("round_", range(5))
def test_exactly_one_of_eight_workers_moves_a_job(now: datetime, round_: int) -> None:
    job = JobFactory()

    def move() -> bool:
        services.job_transition(
            job_id=job.public_id, source=JobStatus.PENDING, target=JobStatus.CANCELLED, now=now
        )
        return True

    results = at_once([move] * WORKERS)

    assert len(won(results)) == 1
    assert JobEvent.objects.filter(job=job).count() == 1


def test_exactly_one_gets_a_lease_and_the_fence_is_its_own(now: datetime) -> None:
    def take(number: int) -> Callable[[], int | None]:
        return lambda: leases.acquire(
            name="one", holder=f"worker-{number}", ttl=timedelta(seconds=20), now=now
        )

    for round_ in range(1, 6):
        results = at_once([take(number) for number in range(WORKERS)])
        assert [fence for fence in results if fence is not None] == [round_]
        now += timedelta(seconds=20)


class Anew(FirstFit):
    """Eight schedulers that do not know of one another: what counts is what is applied."""


def test_eight_passes_at_once_place_no_job_twice_and_no_gpu_twice(
    now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As if every lease had run out just then.
    monkeypatch.setattr(scheduling.leases, "acquire", lambda **_: 1)
    host = HostFactory(cpu_millis=64_000, memory_mib=64_000)
    for index in range(4):
        GpuFactory(host=host, index=index)
    bundle, environment = CodeBundleFactory(), EnvironmentFactory()
    JobFactory.create_batch(
        8, owner=bundle.owner, code=bundle, environment=environment, gpus=1, memory_mib=100
    )

    at_once(
        [
            lambda: scheduling.schedule_pending(placer=Anew(), holder=uuid4().hex, now=now)
            for _ in range(WORKERS)
        ]
    )

    assert Job.objects.filter(status=JobStatus.PLACED).count() == 4
    assert Attempt.objects.count() == Replica.objects.count() == 4
    claimed = list(GpuClaim.objects.filter(active=True).values_list("gpu_id", flat=True))
    assert len(claimed) == len(set(claimed)) == 4


def test_a_cancellation_between_claim_and_start_leaks_nothing(now: datetime) -> None:
    """A hundred times: a person cancels while workers place, start and look around."""
    runtime = FakeRuntime()
    registry.override(lambda _: runtime)
    chance = random.Random(7)
    HostFactory(name="local")
    bundle, environment = CodeBundleFactory(), EnvironmentFactory()
    try:
        for round_ in range(100):
            moment = now + timedelta(minutes=round_)
            job = JobFactory(owner=bundle.owner, code=bundle, environment=environment)
            if chance.random() < 0.7:
                scheduling.schedule_pending(placer=FirstFit(), holder="first", now=moment)
            acts: list[Callable[[], object]] = [
                lambda job=job, moment=moment: services.job_cancel(  # type: ignore[misc]
                    job_id=job.public_id, actor=job.owner, now=moment
                ),
                lambda moment=moment: scheduling.schedule_pending(  # type: ignore[misc]
                    placer=FirstFit(), holder=uuid4().hex, now=moment
                ),
                lambda moment=moment: execution.reconcile_host(  # type: ignore[misc]
                    name="local", holder=uuid4().hex, now=moment
                ),
                lambda job=job, moment=moment: [  # type: ignore[misc]
                    execution.replica_launch(replica_id=replica.public_id, now=moment)
                    for replica in Replica.objects.filter(attempt__job=job)
                ],
            ]
            chance.shuffle(acts)
            at_once(acts)
        settle(runtime, now + timedelta(days=1))
    finally:
        registry.override(None)

    assert set(Job.objects.values_list("status", flat=True)) == {JobStatus.CANCELLED}
    assert not Allocation.objects.exclude(state=AllocationState.RELEASED).exists()
    assert runtime.containers_by_name == {}
    assert set(runtime.started.values()) <= {1}


def settle(runtime: FakeRuntime, moment: datetime) -> None:
    """Give the passes time to end what was cancelled; the logs are followed to their ends."""
    for step in range(6):
        later = moment + timedelta(minutes=step)
        execution.reconcile_host(name="local", holder="last", now=later)
        Replica.objects.filter(status="exited", log_complete_at=None).update(log_complete_at=later)
        execution.finish_overdue(now=later)


@pytest.mark.parametrize("round_", range(3))
def test_the_last_place_of_a_quota_is_given_once(now: datetime, round_: int) -> None:
    bundle, environment = CodeBundleFactory(), EnvironmentFactory()
    owner = bundle.owner
    owner.max_active_jobs = 3
    owner.save()
    specification = JobSpecification(name="x", environment=environment.slug, code=bundle.public_id)

    results = at_once(
        [
            lambda: services.job_submit(owner=owner, specification=specification, now=now)
            for _ in range(WORKERS)
        ]
    )

    assert len(won(results)) == 3
    assert Job.objects.count() == 3


def test_two_passes_over_one_host_start_a_container_once(
    now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cluster.leases.acquire", lambda **_: 1)
    runtime = FakeRuntime()
    registry.override(lambda _: runtime)
    HostFactory(name="local")
    bundle, environment = CodeBundleFactory(), EnvironmentFactory()
    JobFactory.create_batch(
        4, owner=bundle.owner, code=bundle, environment=environment, memory_mib=100
    )
    scheduling.schedule_pending(placer=FirstFit(), holder="first", now=now)
    try:
        at_once(
            [
                lambda: execution.reconcile_host(name="local", holder=uuid4().hex, now=NOW)
                for _ in range(WORKERS)
            ]
        )
    finally:
        registry.override(None)

    assert runtime.calls.count("start") == 4
    assert Job.objects.filter(status=JobStatus.RUNNING).count() == 4
    assert JobEvent.objects.filter(target="running").count() == 4
