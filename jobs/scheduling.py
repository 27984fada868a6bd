"""One scheduling pass: load, decide, apply."""

import logging
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from django.db.models import Q

from cluster import leases
from cluster import selectors as cluster_selectors
from cluster.core.placement.problem import Placer
from cluster.core.resources import Deferral, Placement
from cluster.errors import NoRoomError
from jobs.errors import StaleTransitionError
from jobs.models import Environment, Job
from jobs.selectors.jobs import request_of, runnable_hosts
from jobs.services.attempts import announce_change, placement_apply

logger = logging.getLogger(__name__)
_LEASE: Final = timedelta(seconds=40)
#: How many waiting jobs one pass looks at; the rest keep the reason of the pass before.
MAX_QUEUE: Final = 5000


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
        hosts = runnable_hosts(_environments(queue))
        requests = [request_of(job, hosts_allowed=hosts[job.environment_id]) for job in queue]
        snapshot = cluster_selectors.cluster_snapshot(now=now)

        plan = placer.place(requests, snapshot)

        placed = sum(_apply(placement, now=now) for placement in plan.placements)
        _explain(queue, {deferral.key: deferral for deferral in plan.deferred}, now=now)
        return placed


def _queue(*, now: datetime) -> list[Job]:
    due = Q(retry_at=None) | Q(retry_at__lte=now)
    return list(Job.objects.in_queue_order().filter(due)[:MAX_QUEUE])


def _environments(queue: Sequence[Job]) -> list[Environment]:
    wanted = {job.environment_id for job in queue}
    return list(Environment.objects.filter(pk__in=wanted).prefetch_related("hosts"))


def _apply(placement: Placement, *, now: datetime) -> bool:
    try:
        return placement_apply(placement=placement, now=now)
    except (NoRoomError, StaleTransitionError) as error:
        logger.info("placement lost a race", extra={"job": placement.key, "why": str(error)})
        return False


def _explain(queue: Sequence[Job], deferred: Mapping[str, Deferral], *, now: datetime) -> None:
    """Write for every job that still waits its place in the queue and the one reason."""
    changed: list[Job] = []
    position = 0
    for job in queue:
        deferral = deferred.get(str(job.public_id))
        if deferral is None:
            continue
        position += 1
        values = _pending(deferral, position)
        if any(getattr(job, name) != value for name, value in values.items()):
            for name, value in values.items():
                setattr(job, name, value)
            job.pending_at = now
            changed.append(job)
    if changed:
        fields = ["pending_code", "pending_text", "pending_evidence", "pending_position"]
        Job.objects.bulk_update(changed, [*fields, "pending_at"], batch_size=500)
        for job in changed:
            announce_change(job.public_id)


def _pending(deferral: Deferral, position: int) -> dict[str, Any]:
    text = deferral.text
    if not deferral.ever:
        text += " No host that is registered now could ever hold it."
    return {
        "pending_code": deferral.constraint.value if deferral.ever else "unsatisfiable",
        "pending_text": text,
        "pending_evidence": dict(deferral.evidence),
        "pending_position": position,
    }
