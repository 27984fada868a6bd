"""Reads of environments and templates."""

from typing import Any

from django.db.models import Q, QuerySet

from jobs.models import Environment, JobTemplate
from jobs.models.ownership import sees_all


def environment_list(*, user: Any) -> QuerySet[Environment]:
    """Return the environments that ``user`` may run jobs in."""
    enabled = Environment.objects.filter(is_enabled=True).prefetch_related("hosts")
    return enabled if sees_all(user) else enabled.filter(staff_only=False)


def template_list(*, user: Any) -> QuerySet[JobTemplate]:
    """Return the templates whose environment ``user`` may use."""
    allowed = Q(environment__is_enabled=True)
    if not sees_all(user):
        allowed &= Q(environment__staff_only=False)
    return JobTemplate.objects.filter(allowed, is_enabled=True).select_related("environment")
