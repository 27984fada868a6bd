"""Submitting, stopping, repeating and deleting jobs."""

import json
import re
from datetime import datetime
from pathlib import PurePosixPath
from typing import Any, Final
from uuid import UUID

from django.conf import settings
from django.db import transaction

from cluster import selectors as cluster_selectors
from cluster.core.placement.admission import admit
from jobs import dispatch, storage
from jobs.errors import (
    InvalidInputError,
    NotFoundError,
    NotPossibleNowError,
    QuotaExceededError,
    StaleTransitionError,
    UnsatisfiableError,
)
from jobs.lifecycle import JobStatus, Reason
from jobs.models import (
    CodeBundle,
    Dataset,
    DatasetVersion,
    Environment,
    Job,
    JobDataset,
    JobEvent,
    Replica,
    VersionState,
)
from jobs.selectors.environments import environment_list
from jobs.selectors.jobs import job_get, job_specification, may_change, request_of, runnable_hosts
from jobs.services.attempts import announce_change, job_transition
from jobs.specification import JobSpecification

_MOUNT_NAME: Final = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")
_PARAMETER_NAME: Final = re.compile(r"^[A-Za-z][A-Za-z0-9_-]{0,63}$")
_MAX_ARGUMENTS: Final = 200
_MAX_TEXT_BYTES: Final = 64 * 1024
_SHM_CAP_MIB: Final = 8192


def job_submit(*, owner: Any, specification: JobSpecification, now: datetime) -> Job:
    """Check a request and put the job into the queue.

    Raises:
        InvalidInputError: By field, with what to do.
        QuotaExceededError: If the owner has too many jobs that are not yet at their end.
        UnsatisfiableError: If no host could ever hold it; says what would fit.
    """
    environment = _environment(owner, specification)
    code = _code(owner, specification)
    versions = _versions(owner, specification)
    _check_values(specification)
    _check_quota(owner, specification)
    job = Job(
        owner=owner,
        name=specification.name.strip(),
        environment=environment,
        code=code,
        entrypoint=specification.entrypoint or code.entrypoint,
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
    _check_satisfiable(job, environment, now=now)
    with transaction.atomic():
        job.save()
        JobDataset.objects.bulk_create(
            JobDataset(job=job, version=version, name=name) for name, version in versions
        )
        JobEvent.objects.create(
            job=job, at=now, target=JobStatus.PENDING, code="submitted", actor=owner
        )
        announce_change(job.public_id)
        dispatch.request_scheduling()
    return job


def job_cancel(
    *, job_id: UUID, actor: Any, now: datetime, reason: Reason = Reason.CANCELLED
) -> None:
    """End a job: at once while it waits, else by stopping its containers; idempotent.

    Raises:
        NotFoundError: If there is none, or ``actor`` may not see or change it.
        NotPossibleNowError: If it has already ended in another way.
    """
    job = changeable(job_id=job_id, actor=actor)
    for _ in range(8):
        job.refresh_from_db(fields=["status", "stop_reason"])
        if job.status == JobStatus.CANCELLED or (
            job.status in {JobStatus.STOPPING, JobStatus.FINISHING} and job.stop_reason
        ):
            return
        if JobStatus(job.status).is_terminal or job.status == JobStatus.FINISHING:
            raise NotPossibleNowError(f"The job {JobStatus(job.status).words} already.")
        try:
            job_stop(job=job, reason=reason, now=now, actor=actor)
        except StaleTransitionError:
            continue
        return
    raise NotPossibleNowError("The job changes too quickly to be cancelled; try again.")


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
    for host_name in Replica.objects.filter(attempt__job=job, removed_at=None).values_list(
        "host_name", flat=True
    ):
        dispatch.request_reconcile(host_name)


def job_resubmit(*, job_id: UUID, actor: Any, now: datetime) -> Job:
    """Submit a job once more as it was; the new one belongs to ``actor``.

    Raises:
        NotFoundError: If there is none, or ``actor`` may not see or change it.
        InvalidInputError: If something it needs is gone.
    """
    job = changeable(job_id=job_id, actor=actor)
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


def _environment(owner: Any, specification: JobSpecification) -> Environment:
    found = environment_list(user=owner).filter(slug=specification.environment).first()
    if found is None:
        names = ", ".join(environment_list(user=owner).values_list("slug", flat=True)) or "none"
        raise InvalidInputError(
            {"environment": [f"Choose an environment that you may use: {names}."]}
        )
    return found


def _code(owner: Any, specification: JobSpecification) -> CodeBundle:
    found = CodeBundle.objects.for_user(owner).filter(public_id=specification.code).first()
    if found is None:
        raise InvalidInputError({"code": ["Bring the program first; this code is not yours."]})
    entrypoint = specification.entrypoint
    if entrypoint:
        path = PurePosixPath(entrypoint)
        inside = not path.is_absolute() and ".." not in path.parts
        if not inside or not (storage.code_dir(found.sha256) / path).is_file():
            raise InvalidInputError({"entrypoint": [f"There is no file {entrypoint!r} in it."]})
    return found


def _versions(owner: Any, specification: JobSpecification) -> list[tuple[str, DatasetVersion]]:
    chosen: list[tuple[str, DatasetVersion]] = []
    visible = Dataset.objects.for_user(owner)
    for choice in specification.datasets:
        version = DatasetVersion.objects.filter(
            public_id=choice.version, dataset__in=visible
        ).first()
        if version is None:
            raise InvalidInputError(
                {"datasets": [f"There is no dataset version {choice.version}."]}
            )
        if version.state != VersionState.READY:
            raise InvalidInputError(
                {"datasets": [f"{version} is {VersionState(version.state).label}, not ready."]}
            )
        if not _MOUNT_NAME.match(choice.name):
            raise InvalidInputError(
                {"datasets": [f"{choice.name!r}: use letters, digits, dots, hyphens, at most 64."]}
            )
        chosen.append((choice.name, version))
    names = [name for name, _ in chosen]
    if len(set(names)) < len(names):
        raise InvalidInputError({"datasets": ["Give every dataset a name of its own."]})
    return chosen


def _original(owner: Any, specification: JobSpecification) -> Job | None:
    if specification.cloned_from is None:
        return None
    return Job.objects.for_user(owner).filter(public_id=specification.cloned_from).first()


def _shm_mib(specification: JobSpecification) -> int:
    if specification.shm_mib is not None:
        return specification.shm_mib
    return max(64, min(_SHM_CAP_MIB, specification.memory_mib // 2))


def _check_values(specification: JobSpecification) -> None:
    problems: dict[str, list[str]] = {}
    if not 1 <= len(specification.name.strip()) <= 120:
        problems["name"] = ["Give the job a name of at most 120 characters."]
    max_walltime_s = 3600 * settings.STARLING["MAX_WALLTIME_H"]
    for name, low, high, unit in (
        ("cpu_millis", 100, 1_024_000, "thousandths of a core"),
        ("memory_mib", 64, 16_777_216, "MiB"),
        ("gpus", 0, 64, "GPUs"),
        ("walltime_s", 10, max_walltime_s, "seconds"),
        ("max_retries", 0, 10, "retries"),
    ):
        if not low <= getattr(specification, name) <= high:
            problems[name] = [f"Ask for {low} to {high} {unit}."]
    for name in ("gpu_memory_mib", "shm_mib"):
        value = getattr(specification, name)
        if value is not None and not 1 <= value <= 16_777_216:
            problems[name] = ["Ask for at least 1 MiB, or leave it empty."]
    if (specification.shm_mib or 0) > specification.memory_mib:
        problems["shm_mib"] = ["Shared memory counts as memory: ask for no more than that."]
    if len(specification.gpu_model) > 80:
        problems["gpu_model"] = ["Name a GPU model in at most 80 characters."]
    problems |= _argument_problems(specification)
    if problems:
        raise InvalidInputError(problems)


def _argument_problems(specification: JobSpecification) -> dict[str, list[str]]:
    problems: dict[str, list[str]] = {}
    arguments = specification.arguments
    if len(arguments) > _MAX_ARGUMENTS or any("\0" in argument for argument in arguments):
        problems["arguments"] = [f"At most {_MAX_ARGUMENTS} arguments, without NUL characters."]
    elif sum(len(argument.encode()) for argument in arguments) > _MAX_TEXT_BYTES:
        problems["arguments"] = ["Together at most 64 KiB; put larger texts into a file."]
    for name, value in specification.parameters.items():
        if not _PARAMETER_NAME.match(name):
            problems["parameters"] = [f"{name!r} is not a name: a letter, then letters and digits."]
        elif not isinstance(value, str | int | float | bool):
            problems["parameters"] = [f"{name}: give a text, a number, or yes or no."]
        elif isinstance(value, str) and "\0" in value:
            problems["parameters"] = [f"{name}: leave out the NUL character."]
    if len(json.dumps(specification.parameters, default=str).encode()) > _MAX_TEXT_BYTES:
        problems["parameters"] = ["Together at most 64 KiB; put larger texts into a file."]
    return problems


def _check_quota(owner: Any, specification: JobSpecification) -> None:
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
    if owner.max_gpus is not None and specification.gpus > owner.max_gpus:
        raise InvalidInputError({"gpus": [f"Your jobs may ask for {owner.max_gpus} GPUs at most."]})


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
