"""When waiting jobs will start, as far as can be told, and what would start them sooner."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from django.db.models import QuerySet

from cluster import selectors as cluster_selectors
from cluster.core.policy.claims import with_claims
from cluster.core.policy.forecast import MOST_JOBS, Arrivals, alternatives, forecast_starts
from cluster.core.policy.profiles import Duration
from cluster.core.policy.queue import Queue, RunningJob, WaitingJob
from cluster.core.resources import (
    ClusterSnapshot,
    GpuUuid,
    HostName,
    Placement,
    ReplicaPlacement,
    ResourceRequest,
)
from jobs.lifecycle import OCCUPYING
from jobs.models import Job
from jobs.selectors.jobs import request_of
from jobs.selectors.profiles import estimates

#: For so many at the head of the queue it is worked out what would start them sooner.
_ADVISED: Final = 10
#: On large clusters for fewer: so many jobs times GPUs are looked at in a pass.
_ADVICE_WORK: Final = 2000
_RECENT: Final = timedelta(hours=6)


def start_columns(
    *,
    waiting: Sequence[tuple[Job, ResourceRequest]],
    placed: Sequence[tuple[ResourceRequest, Placement]],
    snapshot: ClusterSnapshot,
    now: datetime,
) -> dict[str, dict[str, Any]]:
    """Return the columns of each waiting job that tell when it will start, by its public id.

    Args:
        waiting: In the order of the queue.
        placed: What the pass has just placed on top of the snapshot.
    """
    running = list(_occupying())
    expected = estimates([*(job for job, _ in waiting[:MOST_JOBS]), *running])
    durations = {key: known.duration for key, known in expected.items()}
    start = now.timestamp()
    queue = Queue(
        waiting=[waiting_job(job, request) for job, request in waiting],
        running=_running(running, now),
        snapshot=with_claims(snapshot, ((request, one.replicas) for request, one in placed)),
        now_s=start,
    )
    arrivals = Arrivals.seen(
        [waiting_job(job, request_of(job)) for job in _recent(now)], start, _RECENT.total_seconds()
    )
    found = forecast_starts(queue, durations, seed=len(waiting), arrivals=arrivals)
    gpus = sum(max(1, len(host.gpus)) for host in snapshot.hosts)
    advised = max(1, min(_ADVISED, _ADVICE_WORK // max(1, gpus)))
    columns: dict[str, dict[str, Any]] = {}
    for row, (job, _) in enumerate(waiting):
        key = str(job.public_id)
        told = found.get(key)
        columns[key] = {
            "pending_start_earliest": told and now + timedelta(seconds=told.earliest_s),
            "pending_start_p50": told and now + timedelta(seconds=told.p50_s),
            "pending_start_p90": told and now + timedelta(seconds=told.p90_s),
            "pending_alternatives": _advice(queue, key, durations) if row < advised else [],
        }
    return columns


def _advice(queue: Queue, key: str, durations: dict[str, Duration | None]) -> list[dict[str, Any]]:
    return [
        {"text": offer.text, "start_s": round(offer.start_s), "before_s": round(offer.before_s)}
        for offer in alternatives(queue, key, durations)
    ]


def waiting_job(job: Job, request: ResourceRequest) -> WaitingJob:
    """Return a job as the policies of the queue see it."""
    return WaitingJob(
        request=request,
        submitted_s=job.submitted_at.timestamp(),
        expected_s=float(job.walltime_s),
        priority=job.priority,
        owner=str(job.owner_id),
    )


def _occupying() -> QuerySet[Job]:
    statuses = [status.value for status in OCCUPYING]
    return Job.objects.filter(status__in=statuses).prefetch_related("attempts__replicas")


def _recent(now: datetime) -> QuerySet[Job]:
    return Job.objects.filter(submitted_at__gte=now - _RECENT).order_by("-id")[:200]


def _running(jobs: Sequence[Job], now: datetime) -> list[RunningJob]:
    last = {job: max(job.attempts.all(), key=lambda one: one.number, default=None) for job in jobs}
    replicas = [one for attempt in last.values() if attempt for one in attempt.replicas.all()]
    gpus = cluster_selectors.claims_of([replica.public_id for replica in replicas])
    found = []
    for job, attempt in last.items():
        if attempt is None:
            continue
        started = attempt.started_at or now
        places = tuple(
            ReplicaPlacement(
                rank=one.rank,
                host=HostName(one.host_name),
                gpus=tuple(GpuUuid(uuid) for uuid in gpus.get(one.public_id, ())),
            )
            for one in attempt.replicas.all()
        )
        found.append(
            RunningJob(
                request=request_of(job),
                replicas=places,
                started_s=started.timestamp(),
                expected_end_s=(started + timedelta(seconds=job.walltime_s)).timestamp(),
                owner=str(job.owner_id),
            )
        )
    return found
