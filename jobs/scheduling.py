"""One scheduling pass: load, decide, apply."""

import logging
from collections.abc import Mapping, Sequence, Set
from datetime import datetime, timedelta
from typing import Final

from django.db.models import Q

from cluster import leases
from cluster import selectors as cluster_selectors
from cluster.core.placement.problem import Placer
from cluster.core.resources import Deferral, Placement, ResourceRequest
from cluster.errors import NoRoomError
from jobs import explain
from jobs.errors import StaleTransitionError
from jobs.models import Environment, Job
from jobs.selectors.jobs import hosts_failed_on, request_of, runnable_hosts
from jobs.services.attempts import announce_change, placement_apply

logger = logging.getLogger(__name__)
#: The lease only spares work: a placement is checked again when it is applied.
_LEASE: Final = timedelta(seconds=20)
#: How many waiting jobs one pass looks at; the rest keep the reason of the pass before.
MAX_QUEUE: Final = 5000
#: How many at the head of the queue hear of every step they move up.
_TOLD: Final = 50
_COLUMNS: Final = [
    "pending_code",
    "pending_text",
    "pending_evidence",
    "pending_position",
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

        placed = {chosen.key for chosen in plan.placements if _apply(chosen, now=now)}
        _explain(queue, placed, {deferral.key: deferral for deferral in plan.deferred}, now=now)
        return len(placed)


def _queue(*, now: datetime) -> list[Job]:
    due = Q(retry_at=None) | Q(retry_at__lte=now)
    return list(Job.objects.in_queue_order().filter(due)[:MAX_QUEUE])


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
    queue: Sequence[Job], placed: Set[str], deferred: Mapping[str, Deferral], *, now: datetime
) -> None:
    """Write for every job that still waits its place in the queue and the one reason."""
    waiting = [job for job in queue if str(job.public_id) not in placed]
    changed: list[Job] = []
    told: list[Job] = []
    for position, job in enumerate(waiting, start=1):
        deferral = deferred.get(str(job.public_id))
        values = (
            explain.overtaken(position=position)
            if deferral is None
            else explain.waiting(deferral, position=position)
        )
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
