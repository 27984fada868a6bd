"""The question every placer answers, and the room that is left while it is being answered."""

from collections.abc import Sequence
from typing import Protocol

from cluster.core.resources import ClusterSnapshot, Plan, ResourceRequest


class Placer(Protocol):
    """Maps requests to hosts and GPUs; pure, and equal input gives an equal plan.

    A student can write one in a file and compare it with ours.
    """

    name: str

    def place(self, requests: Sequence[ResourceRequest], snapshot: ClusterSnapshot) -> Plan:
        """Return a plan in which every request is either placed whole or deferred with a reason.

        The requests come in queue order. No placement may exceed what the snapshot says is free.
        """
        ...
