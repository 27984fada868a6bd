"""What the cluster really ran, as a workload that can be simulated."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from django.db.models import Prefetch, QuerySet

from cluster.core.resources import WHOLE_GPU_MILLI, ResourceRequest
from cluster.models import Gpu
from jobs.models import Attempt, Job
from jobs.selectors.jobs import request_of

#: More jobs than a window of history may have.
MAX_JOBS: Final = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Jobs of a time, in the form of our own workload files.

    Attributes:
        rows: One a job, in the order of submission; ``submitted_s`` counts from the first.
        left_out: How many jobs are not among them, by why.
    """

    rows: list[dict[str, Any]]
    left_out: Mapping[str, int] = field(default_factory=dict)


def submitted_between(since: datetime, until: datetime) -> QuerySet[Job]:
    """Return the jobs that were submitted from ``since`` on and before ``until``."""
    return Job.objects.filter(submitted_at__gte=since, submitted_at__lt=until)


def recorded_window(*, since: datetime, until: datetime) -> Window:
    """Return what was submitted in a time, each job with how long it really ran.

    A job whose length nobody knows (it never started, or still runs) is left out and counted.
    What ended early, for whatever reason, runs as long as it ran.
    """
    jobs = (
        submitted_between(since, until)
        .select_related("owner")
        .prefetch_related(Prefetch("attempts", Attempt.objects.order_by("number")))
        .order_by("submitted_at", "id")[:MAX_JOBS]
    )
    models = sorted(set(Gpu.objects.values_list("model", flat=True)))
    left_out: Counter[str] = Counter()
    return Window(rows=list(_rows(jobs, models, left_out)), left_out=dict(left_out))


def _rows(
    jobs: Iterable[Job], models: Iterable[str], left_out: Counter[str]
) -> Iterator[dict[str, Any]]:
    first: datetime | None = None
    for job in jobs:
        seconds = _ran_for_s(job)
        if seconds is None:
            left_out["still running" if job.finished_at is None else "never started"] += 1
            continue
        first = first or job.submitted_at
        yield {
            "id": str(job.public_id),
            "submitted_s": (job.submitted_at - first).total_seconds(),
            "duration_s": seconds,
            "walltime_s": max(float(job.walltime_s), seconds),
            "owner": job.owner.get_username(),
            "priority": job.priority,
            **_sizes(request_of(job), models),
        }


def _ran_for_s(job: Job) -> float | None:
    """Return how long the last attempt that started ran, if it is over."""
    ran = [attempt for attempt in job.attempts.all() if attempt.started_at is not None]
    if not ran or ran[-1].finished_at is None or ran[-1].started_at is None:
        return None
    return max(0.0, (ran[-1].finished_at - ran[-1].started_at).total_seconds())


def _sizes(request: ResourceRequest, models: Iterable[str]) -> dict[str, Any]:
    """Return what a job asks for by the columns of a workload file."""
    sizes: dict[str, Any] = {
        "cpu_milli": request.cpu_millis,
        "memory_mib": request.memory_mib,
        "replicas": request.replicas,
    }
    if not request.gpus:
        return sizes
    share = WHOLE_GPU_MILLI if request.whole_gpus else request.gpu_share_milli or 0
    accepted = [model for model in models if request.accepts_model(model)]
    named = bool(request.gpu_model or request.gpu_models)
    return sizes | {
        "num_gpu": request.gpus,
        "gpu_milli": share,
        "gpu_memory_mib": request.gpu_memory_mib or 0,
        # A file names models whole; where no GPU of the kind is left, the wish stays as it was.
        "gpu_spec": "|".join(accepted or [request.gpu_model]) if named else "",
    }
