"""Submitting, stopping, repeating and deleting jobs."""

from datetime import datetime
from typing import Any, Final
from uuid import UUID

from django.conf import settings
from django.contrib.auth import get_user_model
from django.db import transaction

from cluster import selectors as cluster_selectors
from cluster.core.placement.admission import admit
from jobs import dispatch, storage
from jobs.errors import (
    InvalidInputError,
    NotFoundError,
    NotPossibleNowError,
    QuotaExceededError,
    UnsatisfiableError,
)
from jobs.lifecycle import JobStatus, Reason, overrides
from jobs.models import Environment, Job, JobDataset, JobEvent, Replica
from jobs.models.ownership import administers
from jobs.selectors.jobs import job_get, job_specification, may_change, request_of, runnable_hosts
from jobs.services.attempts import announce_change, job_transition
from jobs.services.submission import check_specification
from jobs.specification import JobSpecification

_SHM_CAP_MIB: Final = 8192


def job_submit(*, owner: Any, specification: JobSpecification, now: datetime) -> Job:
    """Check a request and put the job into the queue.

    Raises:
        InvalidInputError: By field, with what to do.
        QuotaExceededError: If the owner has too many jobs that are not yet at their end.
        UnsatisfiableError: If no host could ever hold it; says what would fit.
    """
    parts = check_specification(owner=owner, specification=specification)
    job = Job(
        owner=owner,
        name=specification.name.strip(),
        environment=parts.environment,
        code=parts.code,
        entrypoint=specification.entrypoint or parts.code.entrypoint,
        arguments=list(specification.arguments),
        parameters=dict(specification.parameters),
        template=specification.template,
        cloned_from=_original(owner, specification),
        cpu_millis=specification.cpu_millis,
        memory_mib=specification.memory_mib,
        gpus=specification.gpus,
        gpu_memory_mib=specification.gpu_memory_mib if specification.gpus else None,
        gpu_model=specification.gpu_model.strip() if specification.gpus else "",
        shm_mib=_shm_mib(specification),
        walltime_s=specification.walltime_s,
        max_retries=specification.max_retries,
        submitted_at=now,
    )
    _check_satisfiable(job, parts.environment, now=now)
    with transaction.atomic():
        _check_quota(owner)
        job.save()
        JobDataset.objects.bulk_create(
            JobDataset(job=job, version=version, name=name) for name, version in parts.versions
        )
        JobEvent.objects.create(
            job=job, at=now, target=JobStatus.PENDING, code="submitted", actor=owner
        )
        announce_change(job.public_id)
        dispatch.request_scheduling()
    return job


@transaction.atomic
def job_cancel(
    *, job_id: UUID, actor: Any, now: datetime, reason: Reason = Reason.CANCELLED
) -> None:
    """End a job: at once while it waits, else by stopping its containers; idempotent.

    Args:
        reason: ``CANCELLED``, or ``FORCE_ENDED`` (admins only): no time for a last checkpoint, and
            a host that does not answer is not waited for.

    Raises:
        NotFoundError: If there is none, or ``actor`` may not see or change it.
        NotPossibleNowError: If it has already ended in another way.
    """
    if reason is Reason.FORCE_ENDED and not administers(actor):
        raise NotFoundError("job", job_id)
    job = Job.objects.select_for_update().get(pk=changeable(job_id=job_id, actor=actor).pk)
    status = JobStatus(job.status)
    if status is JobStatus.CANCELLED:
        return
    if status.is_terminal:
        raise NotPossibleNowError(f"The job {status.words} already.")
    if status not in {JobStatus.STOPPING, JobStatus.FINISHING}:
        job_stop(job=job, reason=reason, now=now, actor=actor)
        return
    if overrides(reason, Reason(job.stop_reason) if job.stop_reason else None):
        job.stop_reason = reason
        job.stop_requested_at = job.stop_requested_at or now
        job.save(update_fields=["stop_reason", "stop_requested_at"])
        JobEvent.objects.create(job=job, at=now, code=reason, actor=actor)
        announce_change(job.public_id)
        _nudge_hosts(job)


def job_stop(*, job: Job, reason: Reason, now: datetime, actor: Any = None) -> None:
    """Move a job from where it is towards its end for ``reason``.

    Raises:
        StaleTransitionError: If it moved meanwhile.
    """
    source = JobStatus(job.status)
    if source is JobStatus.PENDING:
        job_transition(
            job_id=job.public_id,
            source=source,
            target=JobStatus.CANCELLED,
            now=now,
            reason=reason,
            actor=actor,
        )
        return
    job_transition(
        job_id=job.public_id,
        source=source,
        target=JobStatus.STOPPING,
        now=now,
        text=reason.value,
        actor=actor,
        stop_reason=reason,
        stop_requested_at=now,
    )
    _nudge_hosts(job)


def _nudge_hosts(job: Job) -> None:
    there = Replica.objects.filter(attempt__job=job, removed_at=None)
    for host_name in there.order_by("host_name").values_list("host_name", flat=True).distinct():
        dispatch.request_reconcile(host_name)


def job_resubmit(*, job_id: UUID, actor: Any, now: datetime) -> Job:
    """Submit a job once more as it was; the new one has the same owner.

    Raises:
        NotFoundError: If there is none, or ``actor`` may not see or change it.
        InvalidInputError: If something it needs is gone.
    """
    job = changeable(job_id=job_id, actor=actor)
    deleted = job.events.filter(code="dataset_deleted").first()
    if deleted is not None:
        raise InvalidInputError(
            {"datasets": [f"{deleted.text} Change the job and choose another."]}
        )
    return job_submit(owner=job.owner, specification=job_specification(job), now=now)


def job_delete(*, job_id: UUID, actor: Any) -> None:
    """Forget a job that has ended, with its log and files.

    Raises:
        NotFoundError: If there is none, or ``actor`` may not see or change it.
        NotPossibleNowError: If it has not ended, or a container of it may still be there.
    """
    job = changeable(job_id=job_id, actor=actor)
    with transaction.atomic():
        locked = Job.objects.select_for_update().get(pk=job.pk)
        if not JobStatus(locked.status).is_terminal:
            raise NotPossibleNowError("Cancel the job first; it has not ended yet.")
        if Replica.objects.filter(attempt__job=job, removed_at=None).exists():
            raise NotPossibleNowError("Its container is being removed; try again in a moment.")
        public_id = job.public_id
        locked.delete()
    storage.remove_tree(storage.attempt_dir(public_id, 1, 0).parent.parent)


def changeable(*, job_id: UUID, actor: Any) -> Job:
    """Return a job that ``actor`` may change.

    Raises:
        NotFoundError: If there is none, or it is not ``actor``'s to change.
    """
    job = job_get(user=actor, public_id=job_id)
    if not may_change(user=actor, job=job):
        raise NotFoundError("job", job_id)
    return job


def _original(owner: Any, specification: JobSpecification) -> Job | None:
    if specification.cloned_from is None:
        return None
    return Job.objects.for_user(owner).filter(public_id=specification.cloned_from).first()


def _shm_mib(specification: JobSpecification) -> int:
    if specification.shm_mib is not None:
        return specification.shm_mib
    return max(64, min(_SHM_CAP_MIB, specification.memory_mib // 2))


def _check_quota(owner: Any) -> None:
    # The owner's row is the lock: two requests at once cannot both take the last place.
    get_user_model().objects.select_for_update().get(pk=owner.pk)
    limit = owner.max_active_jobs
    if limit is None:
        limit = int(settings.STARLING["MAX_ACTIVE_JOBS"])
    active = Job.objects.filter(owner=owner).active().count()
    if active >= limit:
        raise QuotaExceededError(
            f"You have {active} jobs that have not ended and may have {limit}; "
            "wait for one or cancel one.",
            limit=limit,
            used=active,
            asked=1,
        )


def _check_satisfiable(job: Job, environment: Environment, *, now: datetime) -> None:
    hosts = runnable_hosts([environment])[environment.pk]
    snapshot = cluster_selectors.cluster_snapshot(now=now)
    admission = admit(request_of(job, hosts_allowed=hosts), snapshot)
    if not admission.possible:
        raise UnsatisfiableError(
            "No host could ever hold this job: " + " ".join(admission.shortfalls.values()),
            fields={name: [text] for name, text in admission.shortfalls.items()},
            fits=admission.fits,
        )
