"""What every template knows."""

from typing import Any

from django.conf import settings
from django.http import HttpRequest


def site(request: HttpRequest) -> dict[str, Any]:  # noqa: ARG001 - Django's signature
    """Return the site-wide facts that the base template shows."""
    return {"signup_open": settings.SIGNUP_OPEN}
