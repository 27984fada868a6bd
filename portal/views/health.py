"""Whether this process lives and can serve, for load balancers and supervisors."""

from django.core.cache import cache
from django.db import DatabaseError, connection
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.http import require_safe


@require_safe
def livez(request: HttpRequest) -> HttpResponse:  # noqa: ARG001 - Django's signature
    """Answer, which is all there is to show."""
    return HttpResponse("ok\n", content_type="text/plain")


@require_safe
def readyz(request: HttpRequest) -> HttpResponse:  # noqa: ARG001 - Django's signature
    """Say whether the database and the broker answer; 503 where one does not."""
    checks = {"database": _database(), "broker": _broker()}
    return JsonResponse(checks, status=200 if all(checks.values()) else 503)


def _database() -> bool:
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
    except DatabaseError:
        return False
    return True


def _broker() -> bool:
    try:
        cache.get("starling.readyz")
    except Exception:  # noqa: BLE001 - the cache's client raises errors of its own
        return False
    return True
