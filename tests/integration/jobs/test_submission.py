"""What is accepted as a job, and what is told to whom asks for something else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jobs import selectors, services, storage
from jobs.errors import (
    InvalidInputError,
    NotFoundError,
    NotPossibleNowError,
    QuotaExceededError,
    UnsatisfiableError,
)
from jobs.lifecycle import JobStatus, Reason
from jobs.models import Environment, Job, JobDataset, JobEvent, VersionState
from jobs.specification import DatasetChoice, JobSpecification
from portal.models import User
from tests.factories.cluster import HostFactory
from tests.factories.datasets import DatasetFactory, DatasetVersionFactory
from tests.factories.jobs import (
    CodeBundleFactory,
    EnvironmentFactory,
    JobFactory,
    ended_job,
    running_job,
)
from tests.factories.portal import UserFactory

pytestmark = pytest.mark.django_db


@pytest.fixture
def asked(student: User) -> JobSpecification:
    """A small job that the only host could hold."""
    HostFactory(cpu_millis=4000, memory_mib=8192)
    code = CodeBundleFactory(owner=student)
    return JobSpecification(
        name="first", environment=EnvironmentFactory(slug="plain").slug, code=code.public_id
    )


def refused(owner: User, specification: JobSpecification, now: datetime) -> dict[str, list[str]]:
    with pytest.raises(InvalidInputError) as error:
        services.job_submit(owner=owner, specification=specification, now=now)
    assert not Job.objects.exists()
    return error.value.fields


def test_a_job_is_stored_as_asked_for_and_the_scheduler_is_woken_after_the_commit(
    student: User,
    asked: JobSpecification,
    now: datetime,
    monkeypatch: pytest.MonkeyPatch,
    django_capture_on_commit_callbacks: Any,
) -> None:
    sent: list[str] = []
    monkeypatch.setattr("jobs.dispatch._send", lambda name, *args: sent.append(name))
    version = DatasetVersionFactory(dataset__owner=student, state=VersionState.READY)
    specification = replace(
        asked,
        arguments=("--fast",),
        parameters={"epochs": 3, "rate": 0.5, "name": "ü", "shuffle": True},
        datasets=(DatasetChoice(version=version.public_id, name="digits"),),
    )

    with django_capture_on_commit_callbacks(execute=True):
        job = services.job_submit(owner=student, specification=specification, now=now)
        assert sent == []

    assert sent == ["jobs.schedule_pending"]
    assert job.status == JobStatus.PENDING
    assert job.pending_code == "not_evaluated_yet"
    assert job.entrypoint == "main.py"
    assert job.shm_mib == 1024
    assert JobDataset.objects.get(job=job).version == version
    assert JobEvent.objects.get(job=job).actor == student
    stored = selectors.job_specification(Job.objects.get(pk=job.pk))
    assert stored == replace(
        specification, entrypoint="main.py", shm_mib=1024, cloned_from=job.public_id
    )


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("name", {"name": " "}),
        ("name", {"name": "x" * 121}),
        ("name", {"name": "two\nlines"}),
        ("name", {"name": "nul\0"}),
        ("environment", {"environment": "none"}),
        ("code", {"code": uuid4()}),
        ("entrypoint", {"entrypoint": "none.py"}),
        ("entrypoint", {"entrypoint": "../main.py"}),
        ("entrypoint", {"entrypoint": "/etc/passwd"}),
        ("entrypoint", {"entrypoint": "main.py\0"}),
        ("entrypoint", {"entrypoint": "m" * 300}),
        ("arguments", {"arguments": ("x",) * 201}),
        ("arguments", {"arguments": ("a\0b",)}),
        ("arguments", {"arguments": ("\ud800",)}),
        ("arguments", {"arguments": ("x" * 65_537,)}),
        ("parameters", {"parameters": {"1st": 1}}),
        ("parameters", {"parameters": {"a b": 1}}),
        ("parameters", {"parameters": {"list": [1]}}),
        ("parameters", {"parameters": {"none": None}}),
        ("parameters", {"parameters": {"rate": float("nan")}}),
        ("parameters", {"parameters": {"rate": float("inf")}}),
        ("parameters", {"parameters": {"big": 2**70}}),
        ("parameters", {"parameters": {"text": "a\0"}}),
        ("parameters", {"parameters": {"text": "\udfff"}}),
        ("parameters", {"parameters": {"text": "x" * 65_537}}),
        ("parameters", {"parameters": {f"p{n}": n for n in range(101)}}),
        ("cpu_millis", {"cpu_millis": 99}),
        ("cpu_millis", {"cpu_millis": -1}),
        ("memory_mib", {"memory_mib": 63}),
        ("memory_mib", {"memory_mib": 10**9}),
        ("gpus", {"gpus": -1}),
        ("gpus", {"gpus": 65}),
        ("gpu_memory_mib", {"gpu_memory_mib": 0}),
        ("gpu_model", {"gpu_model": "x" * 81}),
        ("shm_mib", {"shm_mib": 0}),
        ("shm_mib", {"shm_mib": 4096}),
        ("walltime_s", {"walltime_s": 9}),
        ("walltime_s", {"walltime_s": 10**8}),
        ("max_retries", {"max_retries": 11}),
        ("template", {"template": "not a slug"}),
    ],
)
def test_a_bad_value_is_named_by_its_field(
    student: User, asked: JobSpecification, now: datetime, field: str, values: dict[str, Any]
) -> None:
    fields = refused(student, replace(asked, **values), now)

    assert list(fields) == [field]
    assert fields[field][0].endswith(".")


def test_all_faults_are_named_at_once(
    student: User, asked: JobSpecification, now: datetime
) -> None:
    wrong = replace(asked, name="", environment="none", cpu_millis=0, parameters={"": 1})

    assert set(refused(student, wrong, now)) == {"name", "environment", "cpu_millis", "parameters"}


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    name=st.text(),
    arguments=st.lists(st.text(), max_size=4).map(tuple),
    parameters=st.dictionaries(
        st.text(max_size=5),
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        max_size=4,
    ),
    entrypoint=st.text(max_size=8),
    numbers=st.lists(st.integers(-5, 2**40), min_size=5, max_size=5),
)
def test_whatever_is_asked_for_is_stored_or_refused_by_field(
    student: User,
    asked: JobSpecification,
    now: datetime,
    name: str,
    arguments: tuple[str, ...],
    parameters: dict[str, Any],
    entrypoint: str,
    numbers: list[int],
) -> None:
    cpu, memory, gpus, shm, walltime = numbers
    specification = replace(
        asked,
        name=name,
        arguments=arguments,
        parameters=parameters,
        entrypoint=entrypoint,
        cpu_millis=cpu,
        memory_mib=memory,
        gpus=gpus,
        shm_mib=shm,
        walltime_s=walltime,
    )

    try:
        services.job_submit(owner=student, specification=specification, now=now)
    except (InvalidInputError, UnsatisfiableError) as error:
        faults = error.fields
    else:
        faults = {"none": ["it is stored"]}

    assert faults
    assert all(faults.values())


class TestDatasets:
    def test_one_that_is_not_ones_own_does_not_exist(
        self, student: User, other_student: User, asked: JobSpecification, now: datetime
    ) -> None:
        private = DatasetVersionFactory(dataset__owner=other_student, state=VersionState.READY)
        choice = DatasetChoice(version=private.public_id, name="data")

        fields = refused(student, replace(asked, datasets=(choice,)), now)

        assert "no dataset version" in fields["datasets"][0]

    def test_a_shared_one_may_be_used(
        self, student: User, other_student: User, asked: JobSpecification, now: datetime
    ) -> None:
        dataset = DatasetFactory(owner=other_student, shared=True)
        shared = DatasetVersionFactory(dataset=dataset, state=VersionState.READY)
        choice = DatasetChoice(version=shared.public_id, name="data")

        job = services.job_submit(
            owner=student, specification=replace(asked, datasets=(choice,)), now=now
        )

        assert job.datasets.get() == shared

    @pytest.mark.parametrize("state", [VersionState.UNPACKING, VersionState.FAILED])
    def test_one_that_is_not_ready_cannot_be_used(
        self, student: User, asked: JobSpecification, now: datetime, state: VersionState
    ) -> None:
        version = DatasetVersionFactory(dataset__owner=student, state=state)
        choice = DatasetChoice(version=version.public_id, name="data")

        fields = refused(student, replace(asked, datasets=(choice,)), now)

        assert "not ready" in fields["datasets"][0]

    @pytest.mark.parametrize("name", ["", "..", ".hidden", "a/b", "a b", "x" * 65, "a\n"])
    def test_its_name_is_one_of_a_folder(
        self, student: User, asked: JobSpecification, now: datetime, name: str
    ) -> None:
        version = DatasetVersionFactory(dataset__owner=student, state=VersionState.READY)
        choice = DatasetChoice(version=version.public_id, name=name)

        assert "datasets" in refused(student, replace(asked, datasets=(choice,)), now)

    def test_two_of_one_name_are_refused(
        self, student: User, asked: JobSpecification, now: datetime
    ) -> None:
        version = DatasetVersionFactory(dataset__owner=student, state=VersionState.READY)
        choice = DatasetChoice(version=version.public_id, name="data")

        fields = refused(student, replace(asked, datasets=(choice, choice)), now)

        assert "name of its own" in fields["datasets"][0]


class TestWhoMay:
    def test_code_of_somebody_else_does_not_exist(
        self, other_student: User, asked: JobSpecification, now: datetime
    ) -> None:
        assert list(refused(other_student, asked, now)) == ["code"]

    @pytest.mark.parametrize("values", [{"staff_only": True}, {"is_enabled": False}])
    def test_an_environment_that_is_not_for_students_is_not_offered(
        self, student: User, asked: JobSpecification, now: datetime, values: dict[str, bool]
    ) -> None:
        Environment.objects.filter(slug="plain").update(**values)

        assert list(refused(student, asked, now)) == ["environment"]

    def test_the_owners_share_of_jobs_is_a_limit(
        self, student: User, asked: JobSpecification, now: datetime
    ) -> None:
        student.max_active_jobs = 1
        student.save()
        ended_job(owner=student)
        first = services.job_submit(owner=student, specification=asked, now=now)

        with pytest.raises(QuotaExceededError) as error:
            services.job_submit(owner=student, specification=asked, now=now)
        assert (error.value.limit, error.value.used) == (1, 1)
        services.job_cancel(job_id=first.public_id, actor=student, now=now)
        services.job_submit(owner=student, specification=asked, now=now)

    def test_the_owners_share_of_gpus_is_a_limit(
        self, student: User, asked: JobSpecification, now: datetime
    ) -> None:
        student.max_gpus = 1

        assert list(refused(student, replace(asked, gpus=2), now)) == ["gpus"]


class TestUnsatisfiable:
    @pytest.mark.parametrize(
        ("values", "field", "fits"),
        [
            ({"cpu_millis": 4001}, "cpu_millis", 4000),
            ({"memory_mib": 8193}, "memory_mib", 8192),
            ({"gpus": 3}, "gpus", 2),
            ({"gpus": 1, "gpu_memory_mib": 10_001}, "gpu_memory_mib", 10_000),
        ],
    )
    def test_what_no_host_could_ever_hold_is_refused_with_what_would_fit(
        self,
        student: User,
        asked: JobSpecification,
        now: datetime,
        values: dict[str, int],
        field: str,
        fits: int,
    ) -> None:
        HostFactory(cpu_millis=1000, memory_mib=1024, gpus=2)

        with pytest.raises(UnsatisfiableError) as error:
            services.job_submit(owner=student, specification=replace(asked, **values), now=now)

        assert list(error.value.fields) == [field]
        assert error.value.fits[field] == fits
        assert not Job.objects.exists()

    def test_what_is_only_taken_at_the_moment_waits(
        self, student: User, asked: JobSpecification, now: datetime
    ) -> None:
        running_job(cpu_millis=4000)

        job = services.job_submit(
            owner=student, specification=replace(asked, cpu_millis=4000), now=now
        )

        assert job.status == JobStatus.PENDING

    def test_without_any_host_that_was_seen_everything_waits(
        self, student: User, now: datetime
    ) -> None:
        code = CodeBundleFactory(owner=student)
        asked = JobSpecification(
            name="x", environment=EnvironmentFactory().slug, code=code.public_id, gpus=8
        )

        assert services.job_submit(owner=student, specification=asked, now=now).pk

    def test_an_environment_without_a_host_says_so(
        self, student: User, asked: JobSpecification, now: datetime
    ) -> None:
        Environment.objects.filter(slug="plain").update(python="")

        with pytest.raises(UnsatisfiableError) as error:
            services.job_submit(owner=student, specification=asked, now=now)

        assert list(error.value.fields) == ["environment"]


class TestOthers:
    ACTS: tuple[Callable[[Job, User, datetime], object], ...] = (
        lambda job, actor, now: services.job_cancel(job_id=job.public_id, actor=actor, now=now),
        lambda job, actor, now: services.job_resubmit(job_id=job.public_id, actor=actor, now=now),
        lambda job, actor, _: services.job_delete(job_id=job.public_id, actor=actor),
    )

    @pytest.mark.parametrize("act", ACTS)
    def test_the_job_of_another_does_not_exist_for_a_student(
        self, other_student: User, now: datetime, act: Callable[..., object]
    ) -> None:
        with pytest.raises(NotFoundError):
            act(ended_job(), other_student, now)

    @pytest.mark.parametrize("act", ACTS)
    def test_an_instructor_sees_and_does_not_change(
        self, instructor: User, now: datetime, act: Callable[..., object]
    ) -> None:
        job = ended_job()

        assert selectors.job_get(user=instructor, public_id=job.public_id) == job
        with pytest.raises(NotFoundError):
            act(job, instructor, now)

    def test_an_admin_changes_everything_and_the_job_stays_its_owners(
        self, admin: User, now: datetime
    ) -> None:
        HostFactory()
        job = ended_job()

        again = services.job_resubmit(job_id=job.public_id, actor=admin, now=now)
        services.job_cancel(job_id=again.public_id, actor=admin, now=now)
        services.job_delete(job_id=job.public_id, actor=admin)

        assert again.owner == job.owner
        assert not Job.objects.filter(pk=job.pk).exists()

    def test_only_an_admin_ends_by_force(self, student: User, now: datetime) -> None:
        job = JobFactory(owner=student)

        with pytest.raises(NotFoundError):
            services.job_cancel(
                job_id=job.public_id, actor=student, now=now, reason=Reason.FORCE_ENDED
            )


class TestCancelling:
    @pytest.mark.parametrize("status", [JobStatus.SUCCEEDED, JobStatus.FAILED])
    def test_what_has_ended_cannot_be_cancelled(self, now: datetime, status: JobStatus) -> None:
        job = ended_job(status=status)

        with pytest.raises(NotPossibleNowError, match=status.words):
            services.job_cancel(job_id=job.public_id, actor=job.owner, now=now)

    def test_twice_is_once(self, now: datetime) -> None:
        job = JobFactory()

        services.job_cancel(job_id=job.public_id, actor=job.owner, now=now)
        services.job_cancel(job_id=job.public_id, actor=job.owner, now=now)

        assert JobEvent.objects.filter(job=job, target="cancelled").count() == 1

    def test_a_stopping_job_is_stopped_once(self, now: datetime) -> None:
        replica = running_job()
        job = replica.attempt.job

        services.job_cancel(job_id=job.public_id, actor=job.owner, now=now)
        services.job_cancel(job_id=job.public_id, actor=job.owner, now=now)

        job.refresh_from_db()
        assert (job.status, job.stop_reason) == (JobStatus.STOPPING, Reason.CANCELLED)
        assert JobEvent.objects.filter(job=job).count() == 1


class TestDeleting:
    def test_what_has_not_ended_stays(self, now: datetime) -> None:
        job = running_job().attempt.job

        with pytest.raises(NotPossibleNowError, match="Cancel"):
            services.job_delete(job_id=job.public_id, actor=job.owner)

    def test_files_go_with_the_job(self, now: datetime) -> None:
        job = ended_job()
        folder = storage.attempt_dir(job.public_id, 1, 0)
        folder.mkdir(parents=True)
        (folder / "model.bin").write_bytes(b"x")

        services.job_delete(job_id=job.public_id, actor=job.owner)

        assert not folder.parent.parent.exists()

    def test_a_job_whose_container_may_still_be_there_stays(self, now: datetime) -> None:
        job = ended_job()
        job.attempts.get().replicas.update(removed_at=None)

        with pytest.raises(NotPossibleNowError, match="removed"):
            services.job_delete(job_id=job.public_id, actor=job.owner)


class TestAgain:
    def test_a_job_is_run_again_as_it_was(self, now: datetime) -> None:
        HostFactory()
        job = ended_job(parameters={"epochs": 3}, memory_mib=2048, max_retries=2)

        again = services.job_resubmit(job_id=job.public_id, actor=job.owner, now=now)

        assert again.cloned_from == job
        assert (again.parameters, again.memory_mib, again.max_retries) == ({"epochs": 3}, 2048, 2)
        assert again.status == JobStatus.PENDING

    def test_not_without_a_dataset_that_was_deleted(self, now: datetime) -> None:
        HostFactory()
        job = ended_job()
        version = DatasetVersionFactory(dataset__owner=job.owner, state=VersionState.READY)
        JobDataset.objects.create(job=job, version=version, name="digits")
        services.dataset_delete(
            dataset_id=version.dataset.public_id, actor=UserFactory(admin=True), now=now
        )

        with pytest.raises(InvalidInputError) as error:
            services.job_resubmit(job_id=job.public_id, actor=job.owner, now=now)

        assert "was deleted" in error.value.fields["datasets"][0]


class TestMoves:
    def test_of_two_that_try_the_same_move_the_second_is_told(self, now: datetime) -> None:
        from jobs.errors import StaleTransitionError

        job = JobFactory()
        move: dict[str, Any] = {
            "job_id": job.public_id,
            "source": JobStatus.PENDING,
            "target": JobStatus.CANCELLED,
            "now": now,
        }
        services.job_transition(**move)

        with pytest.raises(StaleTransitionError):
            services.job_transition(**move)

    def test_a_move_that_is_not_in_the_table_is_a_bug(self, now: datetime) -> None:
        job = JobFactory()

        with pytest.raises(ValueError, match="no move"):
            services.job_transition(
                job_id=job.public_id,
                source=JobStatus.PENDING,
                target=JobStatus.SUCCEEDED,
                now=now,
            )

    def test_a_listener_that_fails_breaks_nothing(
        self, now: datetime, django_capture_on_commit_callbacks: Any
    ) -> None:
        from jobs.signals import job_transitioned

        def failing(**facts: object) -> None:
            raise ZeroDivisionError

        job_transitioned.connect(failing)
        job = JobFactory()
        try:
            with django_capture_on_commit_callbacks(execute=True):
                services.job_cancel(job_id=job.public_id, actor=job.owner, now=now)
        finally:
            job_transitioned.disconnect(failing)

        job.refresh_from_db()
        assert job.status == JobStatus.CANCELLED


def test_a_list_of_jobs_costs_the_same_however_long(
    student: User, django_assert_num_queries: Any
) -> None:
    for _ in range(5):
        JobFactory(owner=student)

    with django_assert_num_queries(1):
        names = [
            (job.name, job.owner.username, job.environment.name)
            for job in selectors.job_list(user=student)
        ]
    assert len(names) == 5
