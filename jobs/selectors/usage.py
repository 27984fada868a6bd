"""How much of the GPUs each user had of late, which counts against them in the queue."""

from datetime import datetime, timedelta
from typing import Final

from django.db.models import Q

from cluster.core.policy.settings import DEFAULTS
from jobs.models import Attempt

#: After so many half-lives what was used is forgotten.
_HALF_LIVES: Final = 5


def gpu_seconds_by_owner(*, now: datetime) -> dict[str, float]:
    """Return the GPU seconds of each owner, halved with every half-life since they were used."""
    half_life = timedelta(seconds=DEFAULTS.usage_half_life_s)
    since = now - _HALF_LIVES * half_life
    rows = (
        Attempt.objects.filter(Q(finished_at=None) | Q(finished_at__gt=since), job__gpus__gt=0)
        .exclude(started_at=None)
        .select_related("job")
    )
    used: dict[str, float] = {}
    for attempt in rows:
        job = attempt.job
        start = max(attempt.started_at or now, since)
        end = min(attempt.finished_at or now, now)
        held = job.gpus * job.replicas * (1.0 if job.gpu_memory_mib is None else 0.5)
        passed = now - (start + (end - start) / 2)
        kept = 0.5 ** max(0.0, passed / half_life)
        seconds = max(0.0, (end - start).total_seconds())
        used[str(job.owner_id)] = used.get(str(job.owner_id), 0.0) + held * seconds * kept
    return used
