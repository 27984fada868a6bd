"""Tells whoever watches what jobs announce."""

from datetime import datetime
from typing import Any
from uuid import UUID

from django.dispatch import receiver

from cluster.core.policy.profiles import ObservedRun
from jobs.lifecycle import JobStatus
from jobs.models import Job
from jobs.services.profiles import profile_learn
from jobs.signals import job_changed, job_transitioned
from monitoring import events
from monitoring.broadcast import publish
from monitoring.selectors import job_use
from monitoring.status import status_message


@receiver(job_transitioned)
@receiver(job_changed)
def tell_status(*, job_id: UUID, **facts: Any) -> None:
    """Send a job's state to its pages, and to those that list all of its owner's."""
    job = Job.objects.filter(public_id=job_id).first()
    if job is None:
        return
    message = status_message(job)
    publish(events.job_group(job_id), message)
    publish(events.owner_group(job.owner_id), message)


@receiver(job_transitioned)
def learn_profile(*, job_id: UUID, target: JobStatus, at: datetime, **facts: Any) -> None:
    """Learn from a job that came to its own end what its kind needs."""
    if target is not JobStatus.SUCCEEDED:
        return
    job = Job.objects.get(public_id=job_id)
    last = job.attempts.exclude(started_at=None).order_by("-number").first()
    if last is None or last.started_at is None or last.finished_at is None:
        return
    use = job_use(job=job, attempt=last, now=at)
    profile_learn(
        job_id=job_id,
        run=ObservedRun(
            utilization_pct=use.utilization_pct,
            memory_peak_mib=use.memory_peak_mib,
            duration_s=(last.finished_at - last.started_at).total_seconds(),
            alone_s=use.alone_s,
        ),
        now=at,
    )
