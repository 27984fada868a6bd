"""Reads of jobs, attempts and the files they left."""

from collections.abc import Iterable
from typing import Any, Final
from uuid import UUID

from django.db.models import Prefetch, QuerySet

from cluster import selectors as cluster_selectors
from cluster.core.resources import HostName, ResourceRequest
from jobs.errors import NotFoundError
from jobs.lifecycle import VERDICTS, JobStatus, ReplicaStatus, RetryClass
from jobs.models import Attempt, Environment, Job, OutputFile, Replica
from jobs.models.ownership import administers
from jobs.specification import DatasetChoice, JobSpecification

#: Ends for which not the program but its host is to blame.
_HOST_FAULTS: Final = [
    reason.value for reason, verdict in VERDICTS.items() if verdict.retry is RetryClass.PLATFORM
]


def job_list(*, user: Any) -> QuerySet[Job]:
    """Return the jobs that ``user`` may see, newest first, ready for a list page."""
    return Job.objects.for_user(user).select_related("owner", "environment")


def job_get(*, user: Any, public_id: UUID | str) -> Job:
    """Return one job with what its page needs.

    Raises:
        NotFoundError: If there is none, or ``user`` may not see it.
    """
    job = (
        job_list(user=user)
        .select_related("code", "cloned_from")
        .prefetch_related(
            "job_datasets__version__dataset",
            Prefetch("attempts", Attempt.objects.order_by("number").prefetch_related("replicas")),
        )
        .filter(public_id=public_id)
        .first()
    )
    if job is None:
        raise NotFoundError("job", public_id)
    return job


def may_change(*, user: Any, job: Job) -> bool:
    """Return whether ``user`` may cancel, run again or delete the job."""
    return bool(job.owner_id == user.pk or administers(user))


def job_specification(job: Job) -> JobSpecification:
    """Return what was asked for, to be asked for again, changed or not."""
    return JobSpecification(
        name=job.name,
        environment=job.environment.slug,
        code=job.code.public_id,
        entrypoint=job.entrypoint,
        arguments=tuple(job.arguments),
        parameters=dict(job.parameters),
        datasets=tuple(
            DatasetChoice(version=row.version.public_id, name=row.name)
            for row in job.job_datasets.select_related("version")
        ),
        cpu_millis=job.cpu_millis,
        memory_mib=job.memory_mib,
        gpus=job.gpus,
        gpu_memory_mib=job.gpu_memory_mib,
        gpu_model=job.gpu_model,
        shm_mib=job.shm_mib,
        walltime_s=job.walltime_s,
        max_retries=job.max_retries,
        template=job.template,
        cloned_from=job.public_id,
    )


def latest_attempt(job: Job) -> Attempt | None:
    """Return the attempt that is under way or was the last."""
    return job.attempts.order_by("-number").first()


def job_outputs(*, job: Job, attempt: int | None = None) -> QuerySet[OutputFile]:
    """Return the files of one attempt, by default the last one's, by path."""
    chosen = job.attempts.filter(number=attempt) if attempt else job.attempts.order_by("-number")
    return OutputFile.objects.filter(attempt__in=list(chosen[:1].values_list("pk", flat=True)))


def replica_of(*, job: Job, attempt: int | None, rank: int) -> Replica:
    """Return one replica of a job, by default of its last attempt.

    Raises:
        NotFoundError: If the job has no such attempt or rank.
    """
    replicas = Replica.objects.filter(attempt__job=job, rank=rank).select_related("attempt")
    if attempt is not None:
        replicas = replicas.filter(attempt__number=attempt)
    replica = replicas.order_by("-attempt__number").first()
    if replica is None:
        raise NotFoundError("log", f"attempt {attempt or 'last'}, rank {rank}")
    return replica


def following() -> list[Replica]:
    """Return the replicas whose output is still to be followed to its end."""
    return list(
        Replica.objects.filter(log_complete_at=None, removed_at=None, host__isnull=False)
        .exclude(status=ReplicaStatus.PLACED)
        .select_related("host", "attempt__job")
        .order_by("id")
    )


def request_of(
    job: Job, *, hosts_allowed: Iterable[str] | None = None, hosts_excluded: Iterable[str] = ()
) -> ResourceRequest:
    """Return a job as placement sees it.

    Args:
        hosts_allowed: Names of the hosts on which the environment may run; ``None`` for any.
        hosts_excluded: Names of the hosts that failed it; forgiven where no other is left.
    """
    allowed = None if hosts_allowed is None else frozenset(map(HostName, hosts_allowed))
    excluded = frozenset(map(HostName, hosts_excluded))
    if allowed is not None and allowed <= excluded:
        excluded = frozenset()
    return ResourceRequest(
        key=str(job.public_id),
        replicas=job.replicas,
        cpu_millis=job.cpu_millis,
        memory_mib=job.memory_mib,
        gpus=job.gpus,
        gpu_memory_mib=job.gpu_memory_mib,
        gpu_model=job.gpu_model,
        hosts_allowed=allowed,
        hosts_excluded=excluded,
    )


def runnable_hosts(environments: Iterable[Environment]) -> dict[int, frozenset[str]]:
    """Return, by environment's primary key, the hosts it may and can run on.

    An environment with an image runs on container engines, one whose interpreter is installed on
    process hosts, and where an admin has chosen hosts, on those only.
    """
    hosts = list(cluster_selectors.host_list())
    found: dict[int, frozenset[str]] = {}
    for environment in environments:
        chosen = {host.pk for host in environment.hosts.all()}
        found[environment.pk] = frozenset(
            host.name
            for host in hosts
            if (not chosen or host.pk in chosen) and environment.runs_on(host)
        )
    return found


def unfinished_on(host_name: str) -> list[Replica]:
    """Return the replicas on a host that hold something or whose container may still be there."""
    return list(
        Replica.objects.filter(host_name=host_name, removed_at=None)
        .select_related("attempt__job__environment", "attempt__job__code", "host")
        .order_by("id")
    )


def hostless_replicas() -> list[Replica]:
    """Return the replicas that were not dealt with to their end when their host was removed."""
    return list(Replica.objects.filter(host=None, removed_at=None).select_related("attempt__job"))


def hosts_failed_on(jobs: Iterable[Job]) -> dict[int, frozenset[str]]:
    """Return, by job's primary key, the hosts where the platform failed an attempt at it."""
    failed: dict[int, set[str]] = {}
    rows = Replica.objects.filter(
        attempt__job__in=[job.pk for job in jobs], attempt__reason__in=_HOST_FAULTS
    ).values_list("attempt__job_id", "host_name")
    for job_id, host_name in rows:
        failed.setdefault(job_id, set()).add(host_name)
    return {job_id: frozenset(names) for job_id, names in failed.items()}


def finishing_jobs() -> list[UUID]:
    """Return the jobs whose attempt has ended and waits for its log or files."""
    return list(Job.objects.filter(status=JobStatus.FINISHING).values_list("public_id", flat=True))
