"""Tells whoever watches what jobs announce."""

from typing import Any
from uuid import UUID

from django.dispatch import receiver

from jobs.models import Job
from jobs.signals import job_changed, job_transitioned
from monitoring import events
from monitoring.broadcast import publish
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
