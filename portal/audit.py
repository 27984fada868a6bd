"""Who changed what: which rows are audited, and whose name stands in the entry."""

from typing import Any

from auditlog.middleware import AuditlogMiddleware
from auditlog.registry import auditlog
from django.http import HttpRequest
from django.utils.functional import SimpleLazyObject

from cluster.models import Gpu, Host
from jobs.models import Environment, JobTemplate
from portal.models import User

#: What the platform itself writes all the time; nobody did it.
_OBSERVED_OF_HOSTS = (
    "connection",
    "connection_text",
    "connection_at",
    "engine",
    "probed_at",
    "probe_text",
    "is_simulated",
    "created_at",
)


def register() -> None:
    """Tell the audit which models to watch; no secret is among the fields."""
    auditlog.register(Host, exclude_fields=[*_OBSERVED_OF_HOSTS])
    auditlog.register(Gpu, include_fields=["is_enabled"])
    auditlog.register(Environment, m2m_fields={"hosts"})
    auditlog.register(JobTemplate)
    auditlog.register(User, exclude_fields=["password", "last_login"])


class ActorMiddleware(AuditlogMiddleware):  # type: ignore[misc] # auditlog is not typed
    """Names who made a change, also when a token and not a session says who that is.

    Tokens are looked at only when the REST view begins, so the name is taken when an entry is
    written and not when the request arrives.
    """

    @staticmethod
    def _get_actor(request: HttpRequest) -> Any:
        return SimpleLazyObject(lambda: getattr(request, "user", None))
