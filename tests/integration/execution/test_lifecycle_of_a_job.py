"""From the queue to the end, with an engine in memory and no message ever sent."""

from __future__ import annotations

import errno
from datetime import timedelta
from typing import Any

import pytest
from django.conf import settings

from cluster.errors import (
    GpuUnavailableError,
    HostRefusedError,
    ImageMissingError,
    LaunchFailedError,
)
from cluster.models import Allocation, AllocationState, GpuClaim, HostConnection
from cluster.ports import LABEL_INSTANCE, LABEL_REPLICA
from jobs import storage, workspace
from jobs.lifecycle import PLATFORM_RETRIES, JobStatus, Reason, ReplicaStatus
from jobs.models import Job, JobEvent, OutputFile
from jobs.services import job_cancel
from tests.factories.cluster import GpuFactory, HostFactory
from tests.factories.jobs import CodeBundleFactory, JobFactory
from tests.factories.portal import UserFactory
from tests.integration.execution.conftest import Platform, replica_of


def held() -> int:
    return Allocation.objects.exclude(state=AllocationState.RELEASED).count()


def path_of(job: Job) -> list[str]:
    moves = JobEvent.objects.filter(job=job).exclude(target="").order_by("id")
    return list(moves.values_list("target", flat=True))


def test_a_job_runs_once_and_succeeds(platform: Platform) -> None:
    job = JobFactory()

    platform.until(job, JobStatus.RUNNING)
    platform.runtime.exit_all(0)
    platform.until(job, JobStatus.SUCCEEDED)

    assert path_of(job) == ["placed", "running", "finishing", "succeeded"]
    assert job.reason == Reason.COMPLETED
    assert sum(platform.runtime.started.values()) == 1
    assert held() == 0
    platform.tick()
    assert platform.runtime.containers_by_name == {}


@pytest.mark.parametrize(
    ("exit_code", "oom_killed", "reason"),
    [
        (1, False, Reason.PROGRAM_ERROR),
        (137, True, Reason.OUT_OF_MEMORY),
        (137, False, Reason.KILLED),
    ],
)
def test_a_failure_says_why(
    platform: Platform, exit_code: int, oom_killed: bool, reason: Reason
) -> None:
    job = JobFactory()

    platform.until(job, JobStatus.RUNNING)
    platform.runtime.exit_all(exit_code, oom_killed=oom_killed)
    platform.until(job, JobStatus.FAILED)

    assert job.reason == reason
    assert str(exit_code) in job.reason_text
    assert held() == 0


def test_the_owner_gets_as_many_retries_as_were_asked_for(platform: Platform) -> None:
    job = JobFactory(max_retries=2)

    for _ in range(3):
        platform.until(job, JobStatus.RUNNING)
        platform.runtime.exit_all(1)
        platform.tick()
        platform.tick()
    platform.until(job, JobStatus.FAILED)

    assert job.attempts.count() == 3
    assert set(platform.runtime.started.values()) == {1}
    assert [attempt.number for attempt in job.attempts.all()] == [1, 2, 3]


def test_a_job_that_is_tried_again_says_so_while_it_waits(platform: Platform) -> None:
    job = JobFactory(max_retries=1)
    platform.until(job, JobStatus.RUNNING)
    platform.runtime.exit_all(1)

    platform.until(job, JobStatus.PENDING)

    assert job.pending_code == "back_off"
    assert job.retry_at is not None
    assert job.retry_at > platform.now


@pytest.mark.parametrize(
    ("refusal", "reason"),
    [
        (ImageMissingError("local", image="x"), Reason.IMAGE_MISSING),
        (GpuUnavailableError("local", detail="no toolkit"), Reason.GPU_UNAVAILABLE),
        (LaunchFailedError("local", detail="no"), Reason.LAUNCH_FAILED),
        (HostRefusedError("local", detail="no"), Reason.LAUNCH_FAILED),
        (OSError(errno.ENOSPC, "No space left on device"), Reason.DISK_FULL),
        (OSError(errno.EDQUOT, "Quota exceeded"), Reason.DISK_FULL),
        (OSError(errno.EACCES, "Permission denied"), Reason.LAUNCH_FAILED),
    ],
)
def test_what_cannot_be_started_ends_for_a_reason_and_frees_its_room(
    platform: Platform, refusal: Exception, reason: Reason
) -> None:
    job = JobFactory()
    platform.runtime.refusals = [refusal] * 50

    for _ in range(60):
        platform.tick()
    job.refresh_from_db()

    assert job.status == JobStatus.FAILED
    assert job.reason == reason
    assert job.attempts.count() == 1 + PLATFORM_RETRIES
    assert held() == 0


def test_the_next_attempt_goes_where_the_platform_has_not_failed(platform: Platform) -> None:
    other = HostFactory(name="other")
    job = JobFactory()
    platform.runtime.refusals = [ImageMissingError("local", image="x")]

    platform.until(job, JobStatus.PLACED)
    platform.reconcile()
    for _ in range(6):
        platform.tick()

    assert replica_of(job).host_name == other.name


def test_a_dataset_that_is_gone_ends_the_job(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = JobFactory()
    storage.remove_tree(storage.code_dir(job.code.sha256))

    platform.until(job, JobStatus.FAILED)

    assert job.reason == Reason.DATASET_MISSING
    assert platform.runtime.started == {}


class TestCancelling:
    def test_a_waiting_job_is_cancelled_at_once(self, platform: Platform) -> None:
        job = JobFactory()

        job_cancel(job_id=job.public_id, actor=job.owner, now=platform.now)

        job.refresh_from_db()
        assert (job.status, job.reason) == (JobStatus.CANCELLED, Reason.CANCELLED)
        platform.tick()
        assert platform.runtime.started == {}

    def test_a_placed_job_never_starts(self, platform: Platform) -> None:
        job = JobFactory()
        platform.schedule()

        job_cancel(job_id=job.public_id, actor=job.owner, now=platform.now)
        platform.until(job, JobStatus.CANCELLED)

        assert platform.runtime.started == {}
        assert held() == 0

    def test_a_running_program_is_asked_first(self, platform: Platform) -> None:
        job = JobFactory()
        platform.until(job, JobStatus.RUNNING)
        name = platform.runtime.running[0]

        job_cancel(job_id=job.public_id, actor=job.owner, now=platform.now)
        platform.until(job, JobStatus.CANCELLED)

        assert "kill" not in platform.runtime.calls
        assert replica_of(job).container_name == name
        assert held() == 0

    def test_a_program_that_does_not_listen_is_ended_after_the_grace(
        self, platform: Platform
    ) -> None:
        job = JobFactory()
        platform.runtime.heeds_term = False
        platform.until(job, JobStatus.RUNNING)
        job_cancel(job_id=job.public_id, actor=job.owner, now=platform.now)

        platform.tick()
        platform.tick(settings.STARLING["STOP_GRACE_S"] - 5)
        job.refresh_from_db()
        assert job.status == JobStatus.STOPPING
        assert platform.runtime.calls.count("terminate") == 1
        assert held() == 1
        platform.tick(10)
        platform.until(job, JobStatus.CANCELLED)

        assert platform.runtime.calls.count("kill") >= 1
        assert held() == 0

    def test_what_ended_by_itself_before_it_was_asked_keeps_its_outcome(
        self, platform: Platform
    ) -> None:
        job = JobFactory()
        platform.until(job, JobStatus.RUNNING)

        platform.runtime.exit_all(0)
        job_cancel(job_id=job.public_id, actor=job.owner, now=platform.now)
        platform.until(job, JobStatus.SUCCEEDED)

        assert "terminate" not in platform.runtime.calls

    def test_a_job_with_retries_left_is_not_tried_again(self, platform: Platform) -> None:
        job = JobFactory(max_retries=3)
        platform.until(job, JobStatus.RUNNING)

        platform.runtime.exit_all(1)
        job_cancel(job_id=job.public_id, actor=job.owner, now=platform.now)
        platform.until(job, JobStatus.CANCELLED)

        assert job.attempts.count() == 1

    def test_a_cancelled_job_whose_container_disappears_is_not_tried_again(
        self, platform: Platform
    ) -> None:
        job = JobFactory()
        platform.runtime.heeds_term = False
        platform.until(job, JobStatus.RUNNING)
        job_cancel(job_id=job.public_id, actor=job.owner, now=platform.now)
        platform.tick()

        platform.runtime.containers_by_name.clear()
        platform.until(job, JobStatus.CANCELLED)

        assert job.attempts.count() == 1

    def test_a_job_between_two_attempts_ends_there(self, platform: Platform) -> None:
        job = JobFactory(max_retries=1)
        platform.follows_logs = False
        platform.until(job, JobStatus.RUNNING)
        platform.runtime.exit_all(1)
        platform.until(job, JobStatus.FINISHING)

        job_cancel(job_id=job.public_id, actor=job.owner, now=platform.now)
        platform.follows_logs = True
        platform.until(job, JobStatus.CANCELLED)

        assert job.reason == Reason.CANCELLED

    def test_force_does_not_wait_for_a_silent_host(self, platform: Platform) -> None:
        admin = UserFactory(admin=True)
        job = JobFactory()
        platform.until(job, JobStatus.RUNNING)
        platform.runtime.silent = True
        job_cancel(job_id=job.public_id, actor=job.owner, now=platform.now)
        platform.tick()

        job_cancel(job_id=job.public_id, actor=admin, now=platform.now, reason=Reason.FORCE_ENDED)
        platform.until(job, JobStatus.CANCELLED)

        # Its room is not given to anybody while the host says nothing.
        assert Allocation.objects.get().state == AllocationState.QUARANTINED

    def test_force_ends_a_program_without_asking(self, platform: Platform) -> None:
        admin = UserFactory(admin=True)
        job = JobFactory()
        platform.until(job, JobStatus.RUNNING)

        job_cancel(job_id=job.public_id, actor=admin, now=platform.now, reason=Reason.FORCE_ENDED)
        platform.until(job, JobStatus.CANCELLED)

        assert "terminate" not in platform.runtime.calls
        assert job.reason == Reason.FORCE_ENDED


def test_a_job_is_stopped_at_its_time_limit_and_not_tried_again(platform: Platform) -> None:
    job = JobFactory(walltime_s=60, max_retries=3)
    platform.until(job, JobStatus.RUNNING)

    platform.tick(61)
    platform.until(job, JobStatus.FAILED)

    assert job.reason == Reason.WALLTIME
    assert job.attempts.count() == 1


class TestRepairing:
    def test_a_container_created_and_never_started_is_started(self, platform: Platform) -> None:
        job = JobFactory()
        platform.schedule()
        replica = replica_of(job)
        spec = workspace.prepare(replica)
        platform.runtime.start(spec)
        fake = platform.runtime.containers_by_name[spec.name]
        fake.state = type(fake.state).CREATED
        platform.runtime.started.clear()

        platform.until(job, JobStatus.RUNNING)

        assert platform.runtime.started == {spec.name: 1}

    def test_a_running_container_of_a_placed_replica_is_adopted(self, platform: Platform) -> None:
        job = JobFactory()
        platform.schedule()
        replica = replica_of(job)
        platform.runtime.start(workspace.prepare(replica))

        platform.reconcile()

        job.refresh_from_db()
        assert job.status == JobStatus.RUNNING
        assert platform.runtime.calls.count("start") == 1

    def test_a_container_that_disappears_is_lost_and_tried_again(self, platform: Platform) -> None:
        job = JobFactory()
        platform.until(job, JobStatus.RUNNING)
        platform.runtime.containers_by_name.clear()

        platform.tick()
        job.refresh_from_db()
        assert job.status == JobStatus.RUNNING  # one list without it proves nothing
        platform.until(job, JobStatus.PENDING)
        assert job.reason == Reason.CONTAINER_LOST
        assert held() == 0
        platform.until(job, JobStatus.RUNNING)

        assert job.attempts.count() == 2

    def test_a_container_that_comes_back_into_the_list_goes_on(self, platform: Platform) -> None:
        job = JobFactory()
        platform.until(job, JobStatus.RUNNING)
        kept = dict(platform.runtime.containers_by_name)
        platform.runtime.containers_by_name.clear()
        platform.tick()

        platform.runtime.containers_by_name.update(kept)
        platform.tick()
        platform.tick(60)

        job.refresh_from_db()
        assert job.status == JobStatus.RUNNING
        assert replica_of(job).missing_since is None

    def test_containers_nobody_knows_are_removed_and_those_of_others_are_not(
        self, platform: Platform
    ) -> None:
        ours = {LABEL_INSTANCE: settings.STARLING["INSTANCE"]}
        platform.runtime.adopt_stranger(ours, name="no-replica")
        platform.runtime.adopt_stranger(
            ours | {LABEL_REPLICA: "9b0f1a3e-0000-4000-8000-000000000000"}, name="unknown"
        )
        platform.runtime.adopt_stranger({LABEL_INSTANCE: "another"}, name="another")

        platform.reconcile()

        assert list(platform.runtime.containers_by_name) == ["another"]

    def test_a_container_stays_until_its_log_is_whole(self, platform: Platform) -> None:
        platform.follows_logs = False
        job = JobFactory()
        platform.until(job, JobStatus.RUNNING)
        platform.runtime.exit_all(0)

        platform.tick()
        job.refresh_from_db()
        assert job.status == JobStatus.FINISHING
        assert held() == 0
        platform.tick(61)
        job.refresh_from_db()
        # The job does not wait for ever; the container does.
        assert job.status == JobStatus.SUCCEEDED
        assert len(platform.runtime.containers_by_name) == 1
        platform.collect()
        platform.tick()

        assert platform.runtime.containers_by_name == {}

    def test_a_job_whose_host_was_removed_while_it_finished_ends(self, platform: Platform) -> None:
        platform.follows_logs = False
        job = JobFactory()
        platform.until(job, JobStatus.RUNNING)
        platform.runtime.exit_all(0)
        platform.until(job, JobStatus.FINISHING)
        Allocation.objects.all().delete()
        platform.host.delete()

        platform.until(job, JobStatus.SUCCEEDED)

        assert replica_of(job).removed_at is not None


class TestSilence:
    def test_unknown_is_not_lost(self, platform: Platform) -> None:
        job = JobFactory()
        platform.until(job, JobStatus.RUNNING)
        platform.runtime.silent = True

        for _ in range(5):
            platform.tick(30)

        platform.host.refresh_from_db()
        job.refresh_from_db()
        assert platform.host.connection == HostConnection.UNREACHABLE
        assert job.status == JobStatus.RUNNING
        assert held() == 1

    def test_a_silent_host_is_left_alone_for_longer_and_longer(self, platform: Platform) -> None:
        platform.runtime.silent = True

        for _ in range(30):
            platform.tick(3)

        # 90 seconds in steps of 3: after 2, 4, 8, 16, 32 and 60 seconds, not 30 times.
        assert platform.runtime.calls.count("containers") <= 1
        assert len(platform.runtime.calls) <= 7

    def test_after_the_limit_the_job_runs_elsewhere_and_its_place_is_kept(
        self, platform: Platform
    ) -> None:
        job = JobFactory()
        platform.until(job, JobStatus.RUNNING)
        old = replica_of(job)
        platform.runtime.silent = True
        platform.tick()
        platform.tick(settings.STARLING["HOST_LOST_S"] + 60)
        job.refresh_from_db()
        assert job.status == JobStatus.PENDING
        assert job.reason == Reason.HOST_LOST
        assert Allocation.objects.get(holder=old.public_id).state == AllocationState.QUARANTINED

        # The host is back: the old container is ended, only then is its place free.
        platform.runtime.silent = False
        platform.tick(61)
        platform.tick()
        platform.tick()

        assert Allocation.objects.get(holder=old.public_id).state == AllocationState.RELEASED
        platform.until(job, JobStatus.RUNNING)
        assert platform.runtime.running == [replica_of(job).container_name]
        old.refresh_from_db()
        assert old.status == ReplicaStatus.EXITED

    def test_a_host_that_hangs_while_a_container_starts_keeps_the_job_placed(
        self, platform: Platform
    ) -> None:
        job = JobFactory()
        platform.schedule()
        platform.runtime.silent = True
        platform.tick()
        job.refresh_from_db()
        assert job.status == JobStatus.PLACED

        platform.runtime.silent = False
        platform.tick(61)
        platform.until(job, JobStatus.RUNNING)

        assert sum(platform.runtime.started.values()) == 1


class TestGpus:
    def test_a_program_gets_its_gpus_in_order_and_they_are_free_after_its_end(
        self, platform: Platform
    ) -> None:
        for index in range(3):
            GpuFactory(host=platform.host, index=index, uuid=f"GPU-{index}")
        job = JobFactory(gpus=2)

        platform.schedule()
        spec = workspace.prepare(replica_of(job))
        assert spec.gpus == ("GPU-0", "GPU-1")
        platform.reconcile()
        platform.runtime.exit_all(0)
        platform.reconcile()

        assert GpuClaim.objects.filter(active=True).count() == 0


class TestFiles:
    def test_what_the_program_left_is_listed_and_what_it_was_given_is_not(
        self, platform: Platform
    ) -> None:
        job = JobFactory(code=CodeBundleFactory(source="print(1)\n"))
        platform.until(job, JobStatus.RUNNING)
        work = storage.attempt_dir(job.public_id, 1, 0)
        (work / "model").mkdir()
        (work / "model" / "weights.bin").write_bytes(b"12345")
        (work / "passwd").symlink_to("/etc/passwd")
        (work / "outside").symlink_to("/etc")
        platform.runtime.exit_all(0)

        platform.until(job, JobStatus.SUCCEEDED)

        files = OutputFile.objects.filter(attempt__job=job)
        assert [(file.path, file.size_bytes) for file in files] == [("model/weights.bin", 5)]

    def test_a_changed_script_is_an_output(self, platform: Platform) -> None:
        job = JobFactory()
        platform.until(job, JobStatus.RUNNING)
        (storage.attempt_dir(job.public_id, 1, 0) / "main.py").write_text("print('changed')\n")
        platform.runtime.exit_all(0)

        platform.until(job, JobStatus.SUCCEEDED)

        assert OutputFile.objects.get(attempt__job=job).path == "main.py"

    def test_more_files_than_are_listed_are_counted(
        self, platform: Platform, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(workspace, "MAX_OUTPUT_FILES", 2)
        job = JobFactory()
        platform.until(job, JobStatus.RUNNING)
        work = storage.attempt_dir(job.public_id, 1, 0)
        for name in "abcde":
            (work / name).write_text(name)
        platform.runtime.exit_all(0)

        platform.until(job, JobStatus.SUCCEEDED)

        assert OutputFile.objects.filter(attempt__job=job).count() == 2
        assert "3 more files" in JobEvent.objects.get(job=job, code="files_left_out").text


class TestGangs:
    def test_when_one_fails_the_others_are_stopped(self, platform: Platform) -> None:
        job = JobFactory(replicas=3)
        platform.until(job, JobStatus.RUNNING)
        platform.tick()
        first, *others = platform.runtime.running
        assert len(others) == 2

        platform.runtime.exit(first, 1)
        platform.until(job, JobStatus.FAILED)

        assert job.reason == Reason.PROGRAM_ERROR
        assert held() == 0

    def test_when_one_ends_well_the_others_go_on(self, platform: Platform) -> None:
        job = JobFactory(replicas=2)
        platform.until(job, JobStatus.RUNNING)
        platform.tick()
        first, second = platform.runtime.running

        platform.runtime.exit(first, 0)
        platform.tick()
        job.refresh_from_db()
        assert job.status == JobStatus.RUNNING
        platform.runtime.exit(second, 0)
        platform.until(job, JobStatus.SUCCEEDED)

        assert job.reason == Reason.COMPLETED


def test_steady_replicas_cost_a_pass_no_query_each(
    platform: Platform, django_assert_max_num_queries: Any
) -> None:
    for _ in range(8):
        JobFactory()
    platform.schedule()
    platform.reconcile()
    platform.reconcile()

    with django_assert_max_num_queries(7):
        platform.reconcile()


def test_a_pass_that_runs_out_of_time_leaves_the_rest_to_the_next(platform: Platform) -> None:
    from jobs import execution

    for _ in range(3):
        JobFactory()
    platform.schedule()
    answers = iter([False, True])

    execution.reconcile_host(
        name="local", holder="test", now=platform.now, over=lambda: next(answers)
    )
    assert len(platform.runtime.running) == 1
    platform.tick()

    assert len(platform.runtime.running) == 3


def test_a_lease_that_another_pass_holds_makes_this_one_do_nothing(platform: Platform) -> None:
    from cluster import leases

    leases.acquire(name="host:local", holder="other", ttl=timedelta(seconds=20), now=platform.now)

    platform.reconcile()

    assert platform.runtime.calls == []
