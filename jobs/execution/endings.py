"""How replicas, attempts and jobs end: one table of reasons, decided from the rows alone."""

import logging
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from django.conf import settings
from django.db import transaction

from cluster import services as cluster_services
from cluster.models import Host
from cluster.ports import ContainerStatus
from jobs import workspace
from jobs.errors import StaleTransitionError
from jobs.lifecycle import (
    ASKED_FOR,
    PLATFORM_RETRIES,
    VERDICTS,
    JobStatus,
    Reason,
    ReplicaStatus,
    RetryClass,
    may_retry,
    reason_of_exit,
)
from jobs.models import Attempt, Job, Replica
from jobs.selectors.jobs import finishing_jobs, hostless_replicas, unfinished_on
from jobs.services import attempts as writes
from jobs.services.jobs import job_stop

logger = logging.getLogger(__name__)

#: How long the end of a job waits for the last lines of its log.
LOG_PATIENCE: Final = timedelta(seconds=60)
_RETRY_DELAY: Final = timedelta(seconds=10)
_ENDED: Final = (ReplicaStatus.EXITED, ReplicaStatus.LOST)


def replica_exited(replica: Replica, status: ContainerStatus, *, now: datetime) -> None:
    """Take a proven end into the rows: the room is free from here on.

    A replica that had been given up as lost is found again like this; its attempt stays ended.
    """
    with transaction.atomic():
        ended = Replica.objects.filter(
            public_id=replica.public_id, status__in=[ReplicaStatus.RUNNING, ReplicaStatus.LOST]
        ).update(
            status=ReplicaStatus.EXITED,
            exit_code=status.exit_code,
            oom_killed=status.oom_killed,
            error=status.error,
            finished_at=now,
        )
        if not ended:
            return
        cluster_services.allocation_release(holder=replica.public_id, now=now, reason="exited")
        reason = reason_of_exit(
            exit_code=status.exit_code,
            oom_killed=status.oom_killed,
            # What ended before anybody asked it to keeps its own outcome.
            stop_reason=asked_reason(replica) if replica.terminated_at else None,
        )
        _attempt_ended(replica.attempt, reason, _exit_text(status), now=now)


def _exit_text(status: ContainerStatus) -> str:
    if status.error:
        return status.error
    if status.exit_code is None:
        return "Nobody saw how the program ended."
    if status.exit_code > 128:
        return f"Signal {status.exit_code - 128} ended it (exit code {status.exit_code})."
    return f"Exit code {status.exit_code}."


def replica_never_ran(replica: Replica, reason: Reason, text: str, *, now: datetime) -> None:
    """End a placed replica of which nothing is on its host; its room is free."""
    with transaction.atomic():
        if writes.replica_moved(
            replica_id=replica.public_id,
            source=ReplicaStatus.PLACED,
            status=ReplicaStatus.EXITED,
            error=text,
            finished_at=now,
            log_complete_at=now,
            outputs_listed_at=now,
        ):
            cluster_services.allocation_release(
                holder=replica.public_id, now=now, reason="never started"
            )
            _attempt_ended(replica.attempt, reason, text, now=now)
    attempt_finish(job_id=replica.attempt.job.public_id, now=now)


def replica_lost(replica: Replica, reason: Reason, *, now: datetime) -> None:
    """Give a replica up: its host answers without it, or has been silent for too long."""
    with transaction.atomic():
        if not writes.replica_moved(
            replica_id=replica.public_id,
            source=ReplicaStatus(replica.status),
            status=ReplicaStatus.LOST,
            finished_at=now,
        ):
            return
        if reason is Reason.CONTAINER_LOST:
            cluster_services.allocation_release(holder=replica.public_id, now=now, reason="gone")
        else:
            # Nobody knows whether it runs on: its place stays claimed until the host is back.
            cluster_services.allocation_quarantine(
                holder=replica.public_id, reason=f"{replica.host_name} is silent"
            )
        # Whoever asked for the end gets it: a cancelled job is never tried again.
        reason = asked_reason(replica) or reason
        _attempt_ended(replica.attempt, reason, f"on {replica.host_name}", now=now)
    attempt_finish(job_id=replica.attempt.job.public_id, now=now)


def asked_reason(replica: Replica) -> Reason | None:
    """Return why the replica's job was asked to end, if it was."""
    found = Job.objects.values_list("stop_reason", flat=True).get(pk=replica.attempt.job_id)
    return Reason(found) if found else None


def host_silent(host: Host, text: str, *, now: datetime) -> None:
    """Keep everything on a silent host as it is: unknown is not lost, until the limit.

    What an admin ends by force does not wait for the limit.
    """
    cluster_services.host_silent(host_id=host.pk, text=text, now=now)
    host.refresh_from_db()
    patience = timedelta(seconds=settings.STARLING["HOST_LOST_S"])
    given_up = host.connection_at is not None and now - host.connection_at >= patience
    for replica in unfinished_on(host.name):
        forced = replica.attempt.job.stop_reason == Reason.FORCE_ENDED
        if (given_up or forced) and not ReplicaStatus(replica.status).has_ended:
            replica_lost(replica, Reason.HOST_LOST, now=now)


def _attempt_ended(attempt: Attempt, reason: Reason, text: str, *, now: datetime) -> None:
    """Note why the attempt ends: its first failure; or that all of it went well, at the end."""
    if reason is not Reason.COMPLETED or not _replicas_left(attempt):
        Attempt.objects.filter(pk=attempt.pk, finished_at=None).update(
            finished_at=now, reason=reason, reason_text=text
        )
    settle(attempt, now=now)


def settle(attempt: Attempt, *, now: datetime) -> None:
    """Move the job on once replicas of its attempt have ended; asked again in every pass.

    A job that moves in the same moment is met again in the next pass.
    """
    ended = Attempt.objects.get(pk=attempt.pk)
    job = Job.objects.get(pk=attempt.job_id)
    source = JobStatus(job.status)
    left = _replicas_left(attempt)
    if ended.number < job.attempts.count() or (left and not ended.reason):
        return
    if not ended.reason:
        # The last two of a gang ended at the same moment and neither saw the other's end.
        ended.reason, ended.reason_text, ended.finished_at = Reason.COMPLETED, "", now
        ended.save(update_fields=["reason", "reason_text", "finished_at"])
    with suppress(StaleTransitionError):
        if left:
            # The others of a gang cannot go on alone.
            if source in {JobStatus.PLACED, JobStatus.RUNNING}:
                job_stop(job=job, reason=Reason(ended.reason), now=now)
        elif source in {JobStatus.PLACED, JobStatus.RUNNING, JobStatus.STOPPING}:
            writes.job_transition(
                job_id=job.public_id,
                source=source,
                target=JobStatus.FINISHING,
                now=now,
                reason=Reason(ended.reason),
                text=ended.reason_text,
            )


def _replicas_left(attempt: Attempt) -> bool:
    return Replica.objects.filter(attempt=attempt).exclude(status__in=_ENDED).exists()


def outputs_list(replica: Replica, *, now: datetime) -> None:
    """Store the list of files an ended replica left, once."""
    if replica.outputs_listed_at is not None:
        return
    found = workspace.outputs(replica)
    writes.outputs_store(
        attempt=replica.attempt,
        replica=replica,
        files=found.files,
        left_out=found.left_out,
        now=now,
    )
    replica.outputs_listed_at = now


def attempt_finish(*, job_id: UUID, now: datetime) -> None:
    """End a job whose attempt is over and complete, or put it back into the queue to retry."""
    job = Job.objects.filter(public_id=job_id, status=JobStatus.FINISHING).first()
    attempt = None if job is None else job.attempts.order_by("-number").first()
    if attempt is None or _replicas_left(attempt):
        return
    waited = now - (attempt.finished_at or now)
    # A host that is lost gives neither log nor files: there is nothing to wait for.
    for replica in attempt.replicas.exclude(status=ReplicaStatus.LOST):
        outputs_list(replica, now=now)
        if replica.log_complete_at is None and waited < LOG_PATIENCE:
            return
    with suppress(StaleTransitionError):
        _end(job_id, attempt, now=now)


@transaction.atomic
def _end(job_id: UUID, attempt: Attempt, *, now: datetime) -> None:
    # Locked, so that a cancellation in this moment is seen or comes too late, and never lost.
    job = Job.objects.select_for_update().get(public_id=job_id)
    reason = Reason(attempt.reason or Reason.CONTAINER_LOST)
    text = attempt.reason_text
    target, values = VERDICTS[reason].status, {}
    if _retries_left(job, reason):
        asked = Reason(job.stop_reason) if job.stop_reason in ASKED_FOR else None
        if asked is None:
            retry_at = now + _retry_delay(job)
            target = JobStatus.PENDING
            values = {
                "retry_at": retry_at,
                "pending_code": "back_off",
                "pending_text": f"{VERDICTS[reason].words} It is tried again soon.",
                "pending_evidence": {"retry_at": retry_at.isoformat()},
            }
        else:
            target, reason, text = VERDICTS[asked].status, asked, ""
    writes.job_transition(
        job_id=job_id,
        source=JobStatus.FINISHING,
        target=target,
        now=now,
        reason=reason,
        text=text,
        stop_reason="",
        stop_requested_at=None,
        **values,
    )


def _retries_left(job: Job, reason: Reason) -> bool:
    used: dict[RetryClass, int] = dict.fromkeys(RetryClass, 0)
    for ended in job.attempts.exclude(reason="").values_list("reason", flat=True):
        used[VERDICTS[Reason(ended)].retry] += 1
    # The attempt that has just ended is among those counted: it used no retry, it asks for one.
    return may_retry(
        reason,
        owner_retries_left=job.max_retries - used[RetryClass.OWNER] + 1,
        platform_retries_left=PLATFORM_RETRIES - used[RetryClass.PLATFORM] + 1,
    )


def _retry_delay(job: Job) -> timedelta:
    return _RETRY_DELAY * int(2 ** min(job.attempts.count() - 1, 5))


def finish_overdue(*, now: datetime, over: Callable[[], bool] = lambda: False) -> None:
    """End what no pass over a host will end: hosts may be silent, or removed from the portal.

    Args:
        over: Asked between two jobs; what is left then is done by the next call.
    """
    for replica in hostless_replicas():
        if over():
            return
        if not ReplicaStatus(replica.status).has_ended:
            replica_lost(replica, Reason.HOST_LOST, now=now)
        Replica.objects.filter(pk=replica.pk).update(
            removed_at=now, log_complete_at=replica.log_complete_at or now
        )
    for job_id in finishing_jobs():
        if over():
            return
        attempt_finish(job_id=job_id, now=now)
