"""One scheduling pass: load, decide, apply."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final

from django.db.models import Q

from cluster import leases
from cluster import selectors as cluster_selectors
from cluster.core.placement.problem import Placer
from cluster.core.policy.order import Ordering, in_order
from cluster.core.policy.settings import DEFAULTS
from cluster.core.resources import Deferral, Placement, ResourceRequest
from cluster.errors import NoRoomError
from jobs import explain
from jobs.errors import StaleTransitionError
from jobs.models import Environment, Job
from jobs.selectors import forecast
from jobs.selectors.jobs import hosts_failed_on, request_of, runnable_hosts
from jobs.selectors.usage import gpu_seconds_by_owner
from jobs.services.attempts import announce_change, placement_apply

logger = logging.getLogger(__name__)
#: The lease only spares work: a placement is checked again when it is applied.
_LEASE: Final = timedelta(seconds=20)
#: How many waiting jobs one pass looks at; the rest keep the reason of the pass before.
MAX_QUEUE: Final = 5000
#: How many at the head of the queue hear of every step they move up.
_TOLD: Final = 50
#: Jobs of many people wait in the order of their coming, not by their length.
_AS_SUBMITTED: Final = replace(DEFAULTS, longest_first=False)
#: A foretold start that moves by less is not told anew.
_MOVED: Final = timedelta(seconds=30)
_COLUMNS: Final = [
    "pending_code",
    "pending_text",
    "pending_evidence",
    "pending_position",
    "pending_start_earliest",
    "pending_start_p50",
    "pending_start_p90",
    "pending_alternatives",
    "pending_at",
]


def schedule_pending(*, placer: Placer, holder: str, now: datetime) -> int:
    """Place as many queued jobs as the cluster can hold; return how many.

    The snapshot is read, the database is let go, the placer thinks, and each placement is then
    applied in a transaction of its own. A placement that lost a race is dropped: its job is
    still in the queue for the next pass. Of two passes at the same moment one does nothing.
    """
    with leases.held(name="scheduler", holder=holder, ttl=_LEASE, now=now) as fence:
        if fence is None:
            return 0
        queue = _queue(now=now)
        if not queue:
            return 0
        requests = _requests(queue)
        snapshot = cluster_selectors.cluster_snapshot(now=now)

        plan = placer.place(requests, snapshot)

        placed = {chosen.key: chosen for chosen in plan.placements if _apply(chosen, now=now)}
        by_key = {request.key: request for request in requests}
        waiting = [
            (job, request)
            for job, request in zip(queue, requests, strict=True)
            if request.key not in placed
        ]
        starts = forecast.start_columns(
            waiting=waiting,
            placed=[(by_key[key], chosen) for key, chosen in placed.items()],
            snapshot=snapshot,
            now=now,
        )
        deferred = {deferral.key: deferral for deferral in plan.deferred}
        _explain([job for job, _ in waiting], deferred, starts, now=now)
        return len(placed)


def _queue(*, now: datetime) -> list[Job]:
    due = Q(retry_at=None) | Q(retry_at__lte=now)
    return _by_fair_share(list(Job.objects.in_queue_order().filter(due)[:MAX_QUEUE]), now=now)


def _by_fair_share(queue: list[Job], *, now: datetime) -> list[Job]:
    """Return the queue by priority, then by what each owner used of late, then as it came."""
    if len({job.owner_id for job in queue}) < 2:
        return queue
    by_key = {str(job.public_id): job for job in queue}
    ordering = Ordering(
        now_s=now.timestamp(),
        durations={},
        used=gpu_seconds_by_owner(now=now),
        settings=_AS_SUBMITTED,
    )
    waiting = [forecast.waiting_job(job, request_of(job)) for job in queue]
    return [by_key[one.request.key] for one in in_order(waiting, ordering)]


def _requests(queue: Sequence[Job]) -> list[ResourceRequest]:
    wanted = {job.environment_id for job in queue}
    environments = Environment.objects.filter(pk__in=wanted).prefetch_related("hosts")
    allowed = runnable_hosts(environments)
    # Only what was put back into the queue can have failed anywhere.
    failed = hosts_failed_on([job for job in queue if job.reason])
    return [
        request_of(
            job,
            hosts_allowed=allowed[job.environment_id],
            hosts_excluded=failed.get(job.pk, ()),
        )
        for job in queue
    ]


def _apply(placement: Placement, *, now: datetime) -> bool:
    try:
        return placement_apply(placement=placement, now=now)
    except (NoRoomError, StaleTransitionError) as error:
        logger.info("placement lost a race", extra={"job": placement.key, "why": str(error)})
        return False


def _explain(
    waiting: Sequence[Job],
    deferred: Mapping[str, Deferral],
    starts: Mapping[str, Mapping[str, Any]],
    *,
    now: datetime,
) -> None:
    """Write for every job that waits its place in the queue, the one reason, and its start."""
    changed: list[Job] = []
    told: list[Job] = []
    for position, job in enumerate(waiting, start=1):
        key = str(job.public_id)
        deferral = deferred.get(key)
        values = (
            explain.overtaken(position=position)
            if deferral is None
            else explain.waiting(deferral, position=position)
        )
        values |= _worth_telling(job, starts[key])
        if all(getattr(job, name) == value for name, value in values.items()):
            continue
        if position <= _TOLD or job.pending_code != values["pending_code"]:
            told.append(job)
        for name, value in values.items():
            setattr(job, name, value)
        job.pending_at = now
        changed.append(job)
    Job.objects.bulk_update(changed, _COLUMNS, batch_size=500)
    for job in told:
        announce_change(job.public_id)


def _worth_telling(job: Job, starts: Mapping[str, Any]) -> dict[str, Any]:
    """Return when a job will start, or what it was told before if that is about the same."""
    before, after = job.pending_start_p50, starts["pending_start_p50"]
    if before is None or after is None or abs(after - before) >= _MOVED:
        return dict(starts)
    kept = ("pending_start_earliest", "pending_start_p50", "pending_start_p90")
    return {**starts, **{name: getattr(job, name) for name in kept}}
