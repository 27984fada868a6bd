"""Any of our processes may end between any two calls and any two statements: the job ends right."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import connection, transaction
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from cluster.models import Allocation, AllocationState, GpuClaim, Lease
from cluster.ports import ContainerState
from jobs.lifecycle import SUCCESSORS, JobStatus, Reason
from jobs.models import Job, JobEvent, Replica
from jobs.services import job_cancel
from tests.factories.cluster import NOW, GpuFactory, HostFactory
from tests.factories.jobs import CodeBundleFactory, EnvironmentFactory, JobFactory
from tests.fakes.runtime import FakeRuntime, Killed
from tests.integration.execution.conftest import Platform

#: The places where a turn can break off are counted; after this many it goes through.
PLACES = 70


class Fuse:
    """Ends the running turn at the n-th place; then it is out, until it is set again."""

    def __init__(self) -> None:
        self.left: int | None = None

    def burn(self) -> None:
        if self.left is None:
            return
        self.left -= 1
        if self.left < 0:
            self.left = None
            raise Killed

    def statement(
        self, execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any
    ) -> Any:
        self.burn()
        return execute(sql, params, many, context)


@contextmanager
def breaking_off(fuse: Fuse, place: int | None) -> Iterator[None]:
    """Let the block end as by kill -9 at that place, if it comes so far."""
    fuse.left = place
    try:
        with connection.execute_wrapper(fuse.statement):
            yield
    except Killed:
        # Who was killed gives no lease back; time passes until it has run out.
        Lease.objects.all().update(holder="dead")
    finally:
        fuse.left = None


@contextmanager
def undone() -> Iterator[None]:
    with transaction.atomic():
        yield
        transaction.set_rollback(True)


def world(fuse: Fuse) -> tuple[Platform, Job]:
    host = HostFactory(name="local")
    GpuFactory(host=host, uuid="GPU-0")
    runtime = FakeRuntime(interrupt=fuse.burn)
    owner_and_code = CodeBundleFactory()
    job = JobFactory(
        owner=owner_and_code.owner,
        code=owner_and_code,
        environment=EnvironmentFactory(),
        gpus=1,
        max_retries=1,
    )
    return Platform(runtime=runtime, host=host, now=NOW), job


def check_always(platform: Platform) -> None:
    """What holds at every moment, whatever was killed when."""
    holding = set(GpuClaim.objects.filter(active=True).values_list("allocation__holder", flat=True))
    for name in platform.runtime.running:
        replica = Replica.objects.get(public_id=name.removeprefix("starling-"))
        assert replica.public_id in holding, "a GPU is free while its container runs"
    assert len(holding) <= 1
    assert len(platform.runtime.running) <= 1
    assert all(count == 1 for count in platform.runtime.started.values())


def check_history(job: Job) -> None:
    status = JobStatus.PENDING
    for event in JobEvent.objects.filter(job=job).exclude(source="").order_by("id"):
        assert event.source == status
        assert JobStatus(event.target) in SUCCESSORS[status]
        status = JobStatus(event.target)
    assert status == job.status
    assert status.is_terminal


def check_end(platform: Platform, job: Job) -> None:
    for _ in range(8):
        platform.tick(30)
    job.refresh_from_db()
    check_history(job)
    assert not Allocation.objects.exclude(state=AllocationState.RELEASED).exists()
    assert platform.runtime.containers_by_name == {}
    assert not Replica.objects.filter(removed_at=None).exists()
    assert set(platform.runtime.started.values()) <= {1}


@pytest.mark.django_db
@settings(
    max_examples=60,
    # A shorter example is not worth minutes: every place is tried one by one below.
    phases=[Phase.explicit, Phase.generate],
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    places=st.lists(st.none() | st.integers(0, PLACES), min_size=12, max_size=12),
    exit_codes=st.lists(st.sampled_from([0, 1]), min_size=2, max_size=2),
    ends_at=st.integers(1, 4),
    cancelled_at=st.none() | st.integers(0, 10),
)
def test_a_job_ends_right_wherever_turns_break_off(
    served_by: Callable[[FakeRuntime], None],
    places: list[int | None],
    exit_codes: list[int],
    ends_at: int,
    cancelled_at: int | None,
) -> None:
    with undone():
        fuse = Fuse()
        platform, job = world(fuse)
        served_by(platform.runtime)
        codes, age = list(exit_codes), 0
        for turn, place in enumerate([*places, *[None] * 20]):
            if turn == cancelled_at:
                job.refresh_from_db()
                if not JobStatus(job.status).is_terminal:
                    job_cancel(job_id=job.public_id, actor=job.owner, now=platform.now)
            with breaking_off(fuse, place):
                platform.tick(25)
            check_always(platform)
            age = age + 1 if platform.runtime.running else 0
            if age >= ends_at:
                platform.runtime.exit_all(codes.pop(0) if codes else 0)
                age = 0
        check_end(platform, job)

        if cancelled_at is None:
            tried = exit_codes if exit_codes[0] else exit_codes[:1]
            assert job.attempts.count() == len(tried)
            assert job.status == (JobStatus.FAILED if tried[-1] else JobStatus.SUCCEEDED)
        elif job.status == JobStatus.CANCELLED:
            assert job.reason == Reason.CANCELLED


@pytest.fixture
def served_by() -> Iterator[Callable[[FakeRuntime], None]]:
    from cluster.adapters import registry

    yield lambda runtime: registry.override(lambda _: runtime)
    registry.override(None)


@pytest.mark.django_db
def test_every_single_place_of_a_launch_may_break_off(
    served_by: Callable[[FakeRuntime], None],
) -> None:
    """Not by chance but one after the other: every place of the turns that start a container."""
    for place in range(PLACES):
        with undone():
            fuse = Fuse()
            platform, job = world(fuse)
            served_by(platform.runtime)
            with breaking_off(fuse, place):
                platform.tick(3)
            check_always(platform)

            platform.tick(50)
            platform.until(job, JobStatus.RUNNING)

            assert [c.state for c in platform.runtime.containers_by_name.values()] == [
                ContainerState.RUNNING
            ]
            assert sum(platform.runtime.started.values()) == 1


@pytest.mark.django_db
def test_every_single_place_of_an_end_may_break_off(
    served_by: Callable[[FakeRuntime], None],
) -> None:
    for place in range(PLACES):
        with undone():
            fuse = Fuse()
            platform, job = world(fuse)
            served_by(platform.runtime)
            platform.until(job, JobStatus.RUNNING)
            platform.runtime.exit_all(0)
            with breaking_off(fuse, place):
                platform.tick(3)
            check_always(platform)

            platform.tick(50)
            platform.until(job, JobStatus.SUCCEEDED)

            assert job.attempts.count() == 1
            check_end(platform, job)


@pytest.mark.django_db
def test_every_single_place_of_a_cancellation_may_break_off(
    served_by: Callable[[FakeRuntime], None],
) -> None:
    for heeds_term in (True, False):
        for place in range(0, PLACES, 3):
            with undone():
                fuse = Fuse()
                platform, job = world(fuse)
                platform.runtime.heeds_term = heeds_term
                served_by(platform.runtime)
                platform.until(job, JobStatus.RUNNING)
                job_cancel(job_id=job.public_id, actor=job.owner, now=platform.now)
                with breaking_off(fuse, place):
                    platform.tick(3)
                check_always(platform)

                platform.tick(50)
                platform.until(job, JobStatus.CANCELLED)

                assert job.attempts.count() == 1
                check_end(platform, job)
