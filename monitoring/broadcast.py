"""Sends messages to whoever watches; a message that cannot be sent is not missed for long.

Pages drop what they already have and ask REST for what they lack, so nothing here is retried.
"""

import logging
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

from asgiref.sync import async_to_sync
from channels.layers import get_channel_layer
from django.core.cache import cache

logger = logging.getLogger(__name__)

_WATCHED: Final = "watched:"
#: Several times as long as a socket waits between its checks.
_WATCHED_S: Final = 60


def publish(group: str, message: dict[str, Any]) -> None:
    """Send one message to a group; the broker being down is logged and no error."""
    layer = get_channel_layer()
    if layer is None:
        return
    try:
        async_to_sync(layer.group_send)(group, {"type": "forward", "message": message})
    except Exception as error:  # noqa: BLE001 - a page that misses a message asks again
        logger.warning("message not sent", extra={"group": group, "why": str(error)})


def note_watcher(group: str) -> None:
    """Remember for a while that somebody watches a group; asked only where there are many."""
    with suppress(Exception):
        cache.set(_WATCHED + group, 1, timeout=_WATCHED_S)


def watched(groups: Sequence[str]) -> list[str]:
    """Return those of the groups that somebody watches; all of them where nobody can tell."""
    try:
        found = cache.get_many([_WATCHED + group for group in groups])
    except Exception as error:  # noqa: BLE001 - the cache's client raises errors of its own
        logger.warning("watchers not known", extra={"why": str(error)})
        return list(groups)
    return [group for group in groups if _WATCHED + group in found]
