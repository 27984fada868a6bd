"""Tasks of accounts; each is one call."""

from celery import shared_task
from django.utils import timezone

from portal import services


@shared_task(name="portal.sweep")
def sweep() -> None:
    """Delete answered requests, sessions and tokens whose time is over."""
    services.sweep(now=timezone.now())
