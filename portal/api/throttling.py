"""How many requests one person may send; without the cache that counts them, everybody may."""

import logging
from typing import Any

from redis.exceptions import RedisError
from rest_framework.request import Request
from rest_framework.throttling import AnonRateThrottle, UserRateThrottle

logger = logging.getLogger(__name__)


class _FailsOpen:
    """Mixed in before a throttle: a cache that is down must not take the interface with it."""

    def allow_request(self, request: Request, view: Any) -> bool:
        """Return whether the request may go on."""
        try:
            return bool(super().allow_request(request, view))  # type: ignore[misc] # the throttle's
        except (RedisError, OSError) as error:
            logger.warning("requests are not counted", extra={"why": str(error)})
            return True


class UserThrottle(_FailsOpen, UserRateThrottle):
    """Counts the requests of one account."""


class AnonymousThrottle(_FailsOpen, AnonRateThrottle):
    """Counts the requests from one address without a sign-in."""
