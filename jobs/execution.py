"""Starts replicas, compares what runs on a host with the rows, and brings attempts to their end.

Everything here may be killed between any two lines and done again: names are deterministic, moves
are compare-and-set, and what a host's own engine lists is what counts.
"""

import logging
import os
from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from django.conf import settings
from django.db import transaction

from cluster import leases
from cluster import services as cluster_services
from cluster.adapters import registry
from cluster.errors import (
    ClusterError,
    GpuUnavailableError,
    HostRefusedError,
    HostUnreachableError,
    ImageMissingError,
)
from cluster.models import Host, HostConnection
from cluster.ports import (
    LABEL_INSTANCE,
    LABEL_REPLICA,
    ContainerRuntime,
    ContainerState,
    ContainerStatus,
)
from jobs import workspace
from jobs.errors import NotFoundError, StaleTransitionError
from jobs.lifecycle import (
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
from jobs.selectors.jobs import unfinished_on
from jobs.services import attempts as writes
from jobs.services.jobs import job_stop

logger = logging.getLogger(__name__)

#: How long a started container may be absent from its host's list before it counts as lost.
MISSING_GRACE: Final = timedelta(seconds=10)
#: How long the end of a job waits for the last lines of its log.
LOG_PATIENCE: Final = timedelta(seconds=60)
#: After this a container is removed although its log never became complete.
REMOVAL_PATIENCE: Final = timedelta(days=1)
_HOST_LEASE: Final = timedelta(seconds=45)
_RETRY_DELAY: Final = timedelta(seconds=10)
_MAX_LAUNCH_TRIES: Final = 3
#: While one task starts a container no other does, and nobody declares it not started.
_LAUNCH_TURN: Final = timedelta(seconds=30)


def replica_launch(*, replica_id: UUID, now: datetime) -> None:
    """Start a placed replica's container; done twice, the second finds the first's.

    A host that does not answer is left to the next pass. What can never work ends the attempt.
    """
    replica = _launchable(replica_id)
    if replica is None or replica.host is None or replica.host.connection != HostConnection.UP:
        return
    if not writes.launch_begin(replica_id=replica_id, until=now + _LAUNCH_TURN, now=now):
        return
    try:
        runtime = registry.runtime_for(replica.host.endpoint)
        status = runtime.start(workspace.prepare(replica))
    except HostUnreachableError as error:
        _host_silent(replica.host, error, now=now)
    except (ImageMissingError, GpuUnavailableError, NotFoundError, OSError, ClusterError) as error:
        if replica.launch_tries + 1 >= _MAX_LAUNCH_TRIES or _is_final(error):
            _launch_failed(replica, _launch_reason(error), str(error), now=now)
        else:
            writes.job_note(job=replica.attempt.job, code="launch_tried", text=str(error), now=now)
            writes.launch_over(replica_id=replica_id)
    else:
        _saw(replica, status, now=now)


def _launchable(replica_id: UUID) -> Replica | None:
    return (
        Replica.objects.filter(
            public_id=replica_id,
            status=ReplicaStatus.PLACED,
            attempt__job__status=JobStatus.PLACED,
        )
        .select_related("attempt__job__environment", "attempt__job__code", "host")
        .first()
    )


def _is_final(error: Exception) -> bool:
    return isinstance(
        error, ImageMissingError | GpuUnavailableError | NotFoundError | HostRefusedError
    )


def _launch_reason(error: Exception) -> Reason:
    if isinstance(error, ImageMissingError):
        return Reason.IMAGE_MISSING
    if isinstance(error, GpuUnavailableError):
        return Reason.GPU_UNAVAILABLE
    if isinstance(error, NotFoundError):
        return Reason.DATASET_MISSING
    if isinstance(error, OSError) and error.errno in workspace.DISK_FULL:
        return Reason.DISK_FULL
    return Reason.LAUNCH_FAILED


def _launch_failed(replica: Replica, reason: Reason, text: str, *, now: datetime) -> None:
    """End a replica that never ran: nothing of it is on the host, so its room is free."""
    if replica.host is not None:
        with suppress(ClusterError):
            registry.runtime_for(replica.host.endpoint).remove(replica.container_name)
    with transaction.atomic():
        ended = writes.replica_moved(
            replica_id=replica.public_id,
            source=ReplicaStatus.PLACED,
            status=ReplicaStatus.EXITED,
            error=text,
            finished_at=now,
            log_complete_at=now,
            outputs_listed_at=now,
        )
        if ended:
            cluster_services.allocation_release(
                holder=replica.public_id, now=now, reason="never started"
            )
            _attempt_ended(replica.attempt, reason, text, now=now)
    attempt_finish(job_id=replica.attempt.job.public_id, now=now)


def reconcile_host(*, name: str, holder: str, now: datetime) -> None:
    """Compare what runs on a host with the rows and repair whatever differs.

    Of two passes over the same host at the same moment one does nothing. A host that does not
    answer costs this pass its timeout and no other host anything.
    """
    host = Host.objects.filter(name=name).first()
    if host is None:
        return
    with leases.held(name=f"host:{name}", holder=holder, ttl=_HOST_LEASE, now=now) as fence:
        if fence is None:
            return
        try:
            runtime = registry.runtime_for(host.endpoint)
            if host.connection != HostConnection.UP:
                cluster_services.host_test(host_id=host.pk, now=now)
            seen = runtime.containers({LABEL_INSTANCE: settings.STARLING["INSTANCE"]})
            cluster_services.host_answered(host_id=host.pk)
        except HostUnreachableError as error:
            _host_silent(host, error, now=now)
            return
        except HostRefusedError as error:
            cluster_services.host_connection(
                host_id=host.pk, connection=HostConnection.REFUSED, text=str(error), now=now
            )
            return
        _converge(host, runtime, seen, now=now)


def _converge(
    host: Host, runtime: ContainerRuntime, seen: Iterable[ContainerStatus], *, now: datetime
) -> None:
    by_name = {status.name: status for status in seen}
    for replica in unfinished_on(host.name):
        status = by_name.pop(replica.container_name, None)
        try:
            _step(replica, status, runtime, now=now)
        except StaleTransitionError:
            continue
        except HostUnreachableError:
            raise
        except (ClusterError, OSError):
            logger.exception("replica not reconciled", extra={"replica": replica.public_id})
    for status in by_name.values():
        _remove_orphan(host, runtime, status)


def _step(
    replica: Replica, status: ContainerStatus | None, runtime: ContainerRuntime, *, now: datetime
) -> None:
    """Bring one replica one step further."""
    if status is None:
        _absent(replica, now=now)
    else:
        _saw(replica, status, now=now)
    replica.refresh_from_db()
    job = replica.attempt.job
    job.refresh_from_db()
    if status is not None and status.state is ContainerState.RUNNING:
        _enforce(replica, job, runtime, now=now)
    if ReplicaStatus(replica.status).has_ended:
        _complete(replica, job, runtime, now=now)


def _saw(replica: Replica, status: ContainerStatus, *, now: datetime) -> None:
    """Take what the engine says of a container into the rows."""
    if status.state is ContainerState.CREATED:
        return
    values = {
        "container_id": status.container_id,
        "started_at": status.started_at or now,
        "missing_since": None,
    }
    with transaction.atomic():
        if writes.replica_moved(
            replica_id=replica.public_id,
            source=ReplicaStatus.PLACED,
            status=ReplicaStatus.RUNNING,
            **values,
        ):
            _attempt_started(replica, now=now)
    if replica.missing_since is not None:
        Replica.objects.filter(pk=replica.pk).update(missing_since=None)
    if status.state is ContainerState.EXITED:
        _exited(replica, status, now=now)


def _attempt_started(replica: Replica, *, now: datetime) -> None:
    Attempt.objects.filter(pk=replica.attempt_id, started_at=None).update(started_at=now)
    with suppress(StaleTransitionError):
        writes.job_transition(
            job_id=replica.attempt.job.public_id,
            source=JobStatus.PLACED,
            target=JobStatus.RUNNING,
            now=now,
            text=f"on {replica.host_name}",
        )


def _exited(replica: Replica, status: ContainerStatus, *, now: datetime) -> None:
    """A proven end: the room is free from here on, whatever else is still to be done."""
    if replica.status == ReplicaStatus.EXITED:
        return
    with transaction.atomic():
        _end_of(replica, status, now=now)


def _end_of(replica: Replica, status: ContainerStatus, *, now: datetime) -> None:
    ended = Replica.objects.filter(
        public_id=replica.public_id, status__in=[ReplicaStatus.RUNNING, ReplicaStatus.LOST]
    ).update(
        status=ReplicaStatus.EXITED,
        exit_code=status.exit_code,
        oom_killed=status.oom_killed,
        error=status.error,
        finished_at=status.finished_at or now,
    )
    cluster_services.allocation_release(holder=replica.public_id, now=now, reason="exited")
    if not ended:
        return
    job = Job.objects.get(pk=replica.attempt.job_id)
    asked = job.stop_requested_at
    finished_at = status.finished_at or now
    stopped = asked is not None and finished_at >= asked
    reason = reason_of_exit(
        exit_code=status.exit_code,
        oom_killed=status.oom_killed,
        stop_reason=Reason(job.stop_reason) if stopped and job.stop_reason else None,
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


def _absent(replica: Replica, *, now: datetime) -> None:
    """The host answers and does not list the container."""
    match ReplicaStatus(replica.status):
        case ReplicaStatus.PLACED:
            if replica.attempt.job.status == JobStatus.PLACED:
                replica_launch(replica_id=replica.public_id, now=now)
            elif writes.launch_begin(
                replica_id=replica.public_id, until=now + _LAUNCH_TURN, now=now
            ):
                _launch_failed(replica, _stop_reason(replica), "It never started.", now=now)
        case ReplicaStatus.RUNNING:
            if replica.missing_since is None:
                Replica.objects.filter(pk=replica.pk).update(missing_since=now)
            elif now - replica.missing_since >= MISSING_GRACE:
                _lost(replica, Reason.CONTAINER_LOST, now=now)
        case ReplicaStatus.LOST:
            # The host is back without the container: now it is proven gone.
            cluster_services.allocation_release(
                holder=replica.public_id, now=now, reason="proven gone"
            )
            _no_more_log(replica, now=now)
        case ReplicaStatus.EXITED:
            _no_more_log(replica, now=now)


def _no_more_log(replica: Replica, *, now: datetime) -> None:
    """The container is not there any more: what its log still held is gone with it."""
    if replica.log_complete_at is None:
        Replica.objects.filter(pk=replica.pk).update(log_complete_at=now)


def _stop_reason(replica: Replica) -> Reason:
    asked = replica.attempt.job.stop_reason
    return Reason(asked) if asked else Reason.LAUNCH_FAILED


def _lost(replica: Replica, reason: Reason, *, now: datetime) -> None:
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
        _attempt_ended(replica.attempt, reason, f"on {replica.host_name}", now=now)
    attempt_finish(job_id=replica.attempt.job.public_id, now=now)


def _host_silent(host: Host, error: HostUnreachableError, *, now: datetime) -> None:
    """Keep everything on a silent host as it is: unknown is not lost, until the limit."""
    cluster_services.host_silent(host_id=host.pk, text=str(error), now=now)
    host.refresh_from_db()
    patience = timedelta(seconds=settings.STARLING["HOST_LOST_S"])
    if host.connection_at is None or now - host.connection_at < patience:
        return
    for replica in unfinished_on(host.name):
        if not ReplicaStatus(replica.status).has_ended:
            _lost(replica, Reason.HOST_LOST, now=now)


def _enforce(replica: Replica, job: Job, runtime: ContainerRuntime, *, now: datetime) -> None:
    """Stop what must not run: cancelled, past its time, or of an attempt given up before."""
    if replica.status == ReplicaStatus.LOST or replica.attempt.finished_at is not None:
        runtime.kill(replica.container_name)
        return
    started_at = replica.started_at or now
    if job.status == JobStatus.RUNNING and now - started_at > timedelta(seconds=job.walltime_s):
        job_stop(job=job, reason=Reason.WALLTIME, now=now)
        job.refresh_from_db()
    if job.status != JobStatus.STOPPING:
        return
    asked_at = job.stop_requested_at or now
    grace = timedelta(seconds=settings.STARLING["STOP_GRACE_S"])
    if job.stop_reason == Reason.FORCE_ENDED or now - asked_at > grace:
        runtime.kill(replica.container_name)
    elif replica.terminated_at is None:
        runtime.terminate(replica.container_name)
        Replica.objects.filter(pk=replica.pk).update(terminated_at=now)


def _attempt_ended(attempt: Attempt, reason: Reason, text: str, *, now: datetime) -> None:
    """Note the first end of a replica, and settle what follows for the job."""
    Attempt.objects.filter(pk=attempt.pk, finished_at=None).update(
        finished_at=now, reason=reason, reason_text=text
    )
    _settle(attempt, now=now)


def _settle(attempt: Attempt, *, now: datetime) -> None:
    """Move the job on once replicas of its attempt have ended; asked again in every pass.

    A job that moves in the same moment is met again in the next pass.
    """
    ended = Attempt.objects.get(pk=attempt.pk)
    job = Job.objects.get(pk=attempt.job_id)
    source = JobStatus(job.status)
    if ended.finished_at is None or ended.number < job.attempts.count():
        return
    with suppress(StaleTransitionError):
        if _replicas_left(attempt):
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
    ended = [ReplicaStatus.EXITED, ReplicaStatus.LOST]
    return Replica.objects.filter(attempt=attempt).exclude(status__in=ended).exists()


def _complete(replica: Replica, job: Job, runtime: ContainerRuntime, *, now: datetime) -> None:
    """List the files, end the job, and remove the container once its log is safe."""
    if replica.outputs_listed_at is None:
        files = workspace.outputs(replica)
        writes.outputs_store(attempt=replica.attempt, replica=replica, files=files, now=now)
        replica.refresh_from_db()
    _settle(replica.attempt, now=now)
    attempt_finish(job_id=job.public_id, now=now)
    finished_at = replica.finished_at or now
    if replica.log_complete_at is not None or now - finished_at > REMOVAL_PATIENCE:
        runtime.remove(replica.container_name)
        # From here on nothing of the replica is on its host: whatever it still held is free.
        cluster_services.allocation_release(holder=replica.public_id, now=now, reason="removed")
        Replica.objects.filter(pk=replica.pk).update(
            removed_at=now, log_complete_at=replica.log_complete_at or now
        )


def attempt_finish(*, job_id: UUID, now: datetime) -> None:
    """End a job whose attempt is over and complete, or put it back into the queue to retry."""
    job = Job.objects.filter(public_id=job_id, status=JobStatus.FINISHING).first()
    if job is None:
        return
    attempt = job.attempts.order_by("-number").first()
    if attempt is None or _replicas_left(attempt):
        return
    # The host that is lost gives neither log nor files: there is nothing to wait for.
    for replica in attempt.replicas.exclude(status=ReplicaStatus.LOST):
        waited = now - (replica.finished_at or now)
        if replica.outputs_listed_at is None:
            return
        if replica.log_complete_at is None and waited < LOG_PATIENCE:
            return
    reason = Reason(attempt.reason or Reason.CONTAINER_LOST)
    if _retries_left(job, reason):
        target, values = JobStatus.PENDING, {"retry_at": now + _retry_delay(job)}
    else:
        target, values = VERDICTS[reason].status, {}
    with suppress(StaleTransitionError):
        writes.job_transition(
            job_id=job_id,
            source=JobStatus.FINISHING,
            target=target,
            now=now,
            reason=reason,
            text=attempt.reason_text,
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


def _remove_orphan(host: Host, runtime: ContainerRuntime, status: ContainerStatus) -> None:
    """Remove a container of ours that no unfinished row speaks of.

    The rows are asked again: the list was taken first, and a row may have come since.
    """
    name = status.labels.get(LABEL_REPLICA, "")
    with suppress(ValueError):
        if Replica.objects.filter(public_id=UUID(name), removed_at=None).exists():
            return
    logger.warning(
        "orphan removed", extra={"host": host.name, "container": status.name, "pid": os.getpid()}
    )
    with suppress(ClusterError):
        runtime.remove(status.name)
