"""What every template knows."""

from typing import Any, Final

from django.conf import settings
from django.http import HttpRequest

_SECTIONS: Final = {
    "dashboard": "dashboard",
    "job": "jobs",
    "dataset": "datasets",
    "cluster": "cluster",
    "host": "cluster",
}


def site(request: HttpRequest) -> dict[str, Any]:
    """Return the site-wide facts that the base template shows."""
    return {
        "signup_open": settings.SIGNUP_OPEN,
        "section": _section(request),
        "simulated_gpus": settings.STARLING["SIMULATED_GPUS"],
    }


def _section(request: HttpRequest) -> str:
    match = request.resolver_match
    if match is None or match.namespace != "portal" or match.url_name is None:
        return ""
    return _SECTIONS.get(match.url_name.split("-")[0], "")
