"""Queue policies: in which order requests are shown to a placer, and who may overtake whom.

A policy knows no placer: it is handed the function that places, and may call it as often as it
likes. Times are seconds of any one clock, so that a database row and a simulated job serve.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from cluster.core.resources import (
    ClusterSnapshot,
    Plan,
    ReplicaPlacement,
    ResourceRequest,
)

#: What a placer does, by its ``place`` method.
Place = Callable[[Sequence[ResourceRequest], ClusterSnapshot], Plan]


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingJob:
    """A job in the queue.

    Attributes:
        expected_s: How long it is expected to run: its walltime, or better what was learned.
        priority: The higher goes first, whatever the policy.
    """

    request: ResourceRequest
    submitted_s: float
    expected_s: float
    priority: int = 0
    owner: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningJob:
    """A job that holds a part of the cluster until about ``expected_end_s``."""

    request: ResourceRequest
    replicas: tuple[ReplicaPlacement, ...]
    started_s: float
    expected_end_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """Everything a policy decides on; ``waiting`` comes in the order of submission."""

    waiting: Sequence[WaitingJob]
    running: Sequence[RunningJob]
    snapshot: ClusterSnapshot
    now_s: float


class QueuePolicy(Protocol):
    """Decides which waiting jobs are placed now; pure, and equal input gives an equal plan."""

    name: str

    def plan(self, queue: Queue, place: Place) -> Plan:
        """Return a plan in which every waiting job is either placed whole or deferred."""
        ...
