"""Sends messages to whoever watches; a message that cannot be sent is not missed for long.

Pages drop what they already have and ask REST for what they lack, so nothing here is retried.
"""

import logging
from typing import Any

from asgiref.sync import async_to_sync
from channels.layers import get_channel_layer

logger = logging.getLogger(__name__)


def publish(group: str, message: dict[str, Any]) -> None:
    """Send one message to a group; the broker being down is logged and no error."""
    layer = get_channel_layer()
    if layer is None:
        return
    try:
        async_to_sync(layer.group_send)(group, {"type": "forward", "message": message})
    except Exception as error:  # noqa: BLE001 - a page that misses a message asks again
        logger.warning("message not sent", extra={"group": group, "why": str(error)})
