"""What every template knows."""

from typing import Any, Final

from django.conf import settings
from django.http import HttpRequest

from jobs.models.ownership import sees_all

_SECTIONS: Final = {
    "dashboard": "dashboard",
    "job": "jobs",
    "dataset": "datasets",
    "cluster": "cluster",
    "host": "cluster",
    "lab": "lab",
    "simulation": "simulations",
}


def site(request: HttpRequest) -> dict[str, Any]:
    """Return the site-wide facts that the base template shows."""
    return {
        "signup_open": settings.SIGNUP_OPEN,
        "section": _section(request),
        "may_simulate": sees_all(request.user) if hasattr(request, "user") else False,
        "simulated_gpus": settings.STARLING["SIMULATED_GPUS"],
    }


def _section(request: HttpRequest) -> str:
    match = request.resolver_match
    if match is None or match.namespace != "portal" or match.url_name is None:
        return ""
    return _SECTIONS.get(match.url_name.split("-")[0], "")
