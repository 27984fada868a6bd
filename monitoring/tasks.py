"""Nudges: each a single call, idempotent, over within half a minute."""

from celery import shared_task
from django.utils import timezone

from monitoring import retention


@shared_task(name="monitoring.roll_up_samples")
def roll_up_samples() -> None:
    """Average fine samples into coarse ones, drop what is kept no longer."""
    retention.roll_up_samples(now=timezone.now())
