"""Writes of statuses, attempts and replicas; every one may lose a race and says so."""

from collections.abc import Sequence
from datetime import datetime
from functools import partial
from typing import Any, Final
from uuid import UUID

from django.db import transaction
from django.db.models import F, Q

from cluster import services as cluster_services
from cluster.core.resources import Placement
from jobs import dispatch
from jobs.errors import StaleTransitionError
from jobs.lifecycle import JobStatus, Reason, ReplicaStatus, sources_of
from jobs.models import Attempt, Job, JobEvent, OutputFile, Replica
from jobs.signals import job_changed, job_transitioned

#: Nothing is foretold of a job before a pass has looked at it.
UNKNOWN_START: Final[dict[str, Any]] = {
    "pending_start_earliest": None,
    "pending_start_p50": None,
    "pending_start_p90": None,
    "pending_alternatives": [],
}


@transaction.atomic
def job_transition(  # noqa: PLR0913 - a move and everything that is told about it
    *,
    job_id: UUID,
    source: JobStatus,
    target: JobStatus,
    now: datetime,
    reason: Reason | None = None,
    text: str = "",
    actor: Any = None,
    **values: Any,
) -> None:
    """Move a job from ``source`` to ``target``, or fail if it is no longer there.

    The condition and the write are one UPDATE, so of two workers that try the same move exactly
    one succeeds, on every database.

    Args:
        values: Other columns that change in the same moment.

    Raises:
        ValueError: If the lifecycle has no such move; a bug in the caller.
        StaleTransitionError: If the job is not in ``source`` any more.
    """
    if source not in sources_of(target):
        raise ValueError(f"no move from {source} to {target}")
    if target.is_terminal:
        values["finished_at"] = now
    if target is JobStatus.RUNNING:
        values["started_at"] = now
    if target is JobStatus.PENDING:
        values = UNKNOWN_START | {"pending_code": "not_evaluated_yet", "pending_text": ""} | values
    if reason is not None:
        values |= {"reason": reason, "reason_text": text}
    moved = Job.objects.filter(public_id=job_id, status=source).update(status=target, **values)
    if not moved:
        raise StaleTransitionError(job_id, target)
    job = Job.objects.get(public_id=job_id)
    JobEvent.objects.create(
        job=job,
        at=now,
        source=source,
        target=target,
        code=reason or "",
        text=text,
        actor=actor if getattr(actor, "pk", None) else None,
    )
    transaction.on_commit(
        partial(
            job_transitioned.send_robust,
            sender=Job,
            job_id=job_id,
            source=source,
            target=target,
            at=now,
        )
    )
    if target is JobStatus.PENDING or target.is_terminal:
        dispatch.request_scheduling()


def job_note(*, job: Job, code: str, text: str, now: datetime) -> None:
    """Add a fact to a job's history without moving it."""
    JobEvent.objects.create(job=job, at=now, code=code, text=text)
    announce_change(job.public_id)


def announce_change(job_id: UUID) -> None:
    """Tell whoever watches the job that something about it changed, once this is committed."""
    transaction.on_commit(partial(job_changed.send_robust, sender=Job, job_id=job_id))


@transaction.atomic
def placement_apply(*, placement: Placement, now: datetime) -> bool:
    """Give a waiting job the place that was decided; return whether it could still be given.

    Raises:
        NoRoomError: If a host or GPU no longer has the room; nothing has changed then.
    """
    job_id = UUID(placement.key)
    job = Job.objects.select_for_update().filter(public_id=job_id).first()
    if job is None or job.status != JobStatus.PENDING:
        return False
    attempt = Attempt.objects.create(
        job=job,
        number=job.attempts.count() + 1,
        created_at=now,
        placement_text=placement.reason,
        decision=dict(placement.decision),
    )
    # Hosts in the order of their names, so that two gangs never wait for each other's lock.
    for chosen in sorted(placement.replicas, key=lambda replica: replica.host):
        replica = Replica(attempt=attempt, rank=chosen.rank, host_name=chosen.host)
        allocation = cluster_services.allocation_create(
            holder=replica.public_id,
            host_name=chosen.host,
            cpu_millis=job.cpu_millis,
            memory_mib=job.memory_mib,
            gpus=[(uuid, job.gpu_memory_mib) for uuid in chosen.gpus],
            now=now,
        )
        replica.host = allocation.host
        replica.save()
        dispatch.request_launch(replica.public_id)
    hosts = ", ".join(sorted({chosen.host for chosen in placement.replicas}))
    job_transition(
        job_id=job_id,
        source=JobStatus.PENDING,
        target=JobStatus.PLACED,
        now=now,
        text=f"on {hosts}: {placement.reason}",
        retry_at=None,
        pending_position=None,
    )
    return True


def replica_moved(*, replica_id: UUID, source: ReplicaStatus, **values: Any) -> bool:
    """Write columns of a replica if it is still in ``source``; return whether it was."""
    return bool(Replica.objects.filter(public_id=replica_id, status=source).update(**values))


def launch_begin(*, replica_id: UUID, until: datetime, now: datetime) -> bool:
    """Take the turn of acting on a replica that has not started; return whether it was free."""
    return bool(
        Replica.objects.filter(public_id=replica_id, status=ReplicaStatus.PLACED)
        .filter(Q(launching_until=None) | Q(launching_until__lte=now))
        .update(launching_until=until, launch_tries=F("launch_tries") + 1)
    )


def launch_over(*, replica_id: UUID) -> None:
    """Give the turn back after a try that may be repeated at once."""
    Replica.objects.filter(public_id=replica_id).update(launching_until=None)


def replica_log_completed(*, replica_id: UUID, now: datetime) -> None:
    """Note that the last line of a replica's output is stored; its job may now end."""
    replica = (
        Replica.objects.filter(public_id=replica_id, log_complete_at=None)
        .select_related("attempt__job")
        .first()
    )
    if replica is None:
        return
    Replica.objects.filter(pk=replica.pk).update(log_complete_at=now)
    transaction.on_commit(partial(dispatch.request_reconcile, replica.host_name))


@transaction.atomic
def outputs_store(
    *,
    attempt: Attempt,
    replica: Replica,
    files: Sequence[OutputFile],
    left_out: int,
    now: datetime,
) -> None:
    """Store the list of files that a replica left; done twice it is the same list.

    Args:
        left_out: How many more there were; the job's history says so.
    """
    listed = Replica.objects.filter(pk=replica.pk, outputs_listed_at=None)
    if not listed.update(outputs_listed_at=now):
        return
    OutputFile.objects.bulk_create(files, ignore_conflicts=True, batch_size=500)
    if left_out:
        job_note(
            job=attempt.job,
            code="files_left_out",
            text=f"{left_out} more files were left and are not listed; pack them into an archive.",
            now=now,
        )
    announce_change(attempt.job.public_id)
