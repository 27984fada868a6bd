"""Scheduling policies by name: ``placer`` or ``placer+queue``, each part possibly from a file."""

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Final

from cluster.core.errors import BadProblemError
from cluster.core.placement.catalogue import placer_named, placer_names
from cluster.core.placement.first_fit import FirstFit
from cluster.core.placement.options import PlacerOptions
from cluster.core.placement.packing import movable
from cluster.core.placement.planner import QueuePlanner
from cluster.core.placement.problem import Placer
from cluster.core.policy.queue import QUEUE_POLICIES, QueuePolicy
from cluster.core.resources import ClusterSnapshot, Plan, ResourceRequest
from cluster.core.simulation.run import SchedulingPolicy

#: How the queue is shown where the name does not say; production's own way.
DEFAULT_QUEUE: Final = "greedy"


def policy_named(name: str, seed: int = 0) -> SchedulingPolicy:
    """Return the policy of this name.

    A placer that searches gets no clock: it stops after a number of steps, so that equal seeds
    give equal reports.

    Raises:
        BadProblemError: If there is no such placer or queue policy.
    """
    placer, plus, queue = name.rpartition("+")
    if not plus or ".py:" in queue:
        placer, queue = name, DEFAULT_QUEUE
    return SchedulingPolicy(name=name, placer=_placer(placer, seed), queue=_queue(queue))


def policy_names() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names of the placers and of the queue policies."""
    return placer_names(), tuple(QUEUE_POLICIES)


def _placer(name: str, seed: int) -> Placer:
    options = PlacerOptions(seed=seed)
    if name == QueuePlanner.name:
        return QueuePlanner(options)  # what production's pass asks: the swarm, fair to the queue
    placer = placer_named(name, options)
    return _LazyFirstFit(placer) if name == FirstFit.name else placer


class _LazyFirstFit:
    """First fit that looks at no more hosts than it needs, and so suits long traces.

    It leaves to the other one what says how replicas lie to each other.
    """

    name = FirstFit.name
    #: It judges each host by itself; see ``SimulatedCluster.filtered``.
    hosts_alone = True

    def __init__(self, thorough: Placer) -> None:
        self._thorough, self._lazy = thorough, FirstFit()

    def place(self, requests: Sequence[ResourceRequest], snapshot: ClusterSnapshot) -> Plan:
        """Return the plan; see :class:`cluster.core.placement.problem.Placer`."""
        placer = self._lazy if all(map(movable, requests)) else self._thorough
        return placer.place(requests, snapshot)


def _queue(name: str) -> QueuePolicy:
    if name not in QUEUE_POLICIES:
        near = get_close_matches(name, QUEUE_POLICIES, n=1, cutoff=0.5)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise BadProblemError(
            f"there is no queue policy {name!r}.{hint} There are: {', '.join(QUEUE_POLICIES)}"
        )
    return QUEUE_POLICIES[name]
