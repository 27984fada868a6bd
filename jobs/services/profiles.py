"""Writes of what is learned of jobs."""

from datetime import datetime
from uuid import UUID

from django.db import transaction

from cluster.core.policy.profiles import ObservedRun, learned
from jobs.models import Job, JobProfile
from jobs.selectors.profiles import digest, learned_of, profile_key

_LEVELS = ("this program with these arguments", "this program of this user", "this program")


@transaction.atomic
def profile_learn(*, job_id: UUID, run: ObservedRun, now: datetime) -> None:
    """Count an attempt in, for its own kind and for its parents."""
    job = Job.objects.select_related("owner", "environment").get(public_id=job_id)
    program = job.template or job.entrypoint
    for words, key in zip(_LEVELS, profile_key(job).chain, strict=True):
        # Locked in the order of the chain, which is the same for all jobs that meet in a key.
        row, _ = JobProfile.objects.select_for_update().get_or_create(
            key=digest(key),
            defaults={"words": f"{program}: {words}"[:300], "updated_at": now},
        )
        after = learned(learned_of(row), run)
        row.alone_runs, row.utilization_pct = after.alone_runs, after.utilization_pct
        row.memory_peak_mib = after.memory_peak_mib
        row.ended_runs, row.log_duration = after.ended_runs, after.log_duration
        row.log_squares = after.log_squares
        row.updated_at = now
        row.save()
