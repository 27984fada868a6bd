"""Runs a workload on simulated hosts under a policy: arrivals, passes, ends, losses."""

from collections.abc import Callable
from dataclasses import dataclass

from cluster.core.placement.problem import Placer
from cluster.core.policy.queue import QueuePolicy
from cluster.core.resources import ClusterSnapshot
from cluster.core.simulation.report import Report
from cluster.core.simulation.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulingPolicy:
    """A placer and the order in which it is shown the queue.

    Attributes:
        name: How a person names it: ``placer`` or ``placer+queue``.
    """

    name: str
    placer: Placer
    queue: QueuePolicy


def simulate(
    hosts: ClusterSnapshot,
    workload: Workload,
    policy: SchedulingPolicy,
    seed: int = 0,
    *,
    progress: Callable[[float], None] | None = None,
) -> Report:
    """Return what ``policy`` makes of ``workload`` on ``hosts``.

    Equal arguments give an equal report. What the hosts run already counts as there for ever.

    Args:
        progress: Called now and then with the share of the jobs that have ended, 0 to 1.
    """
    raise NotImplementedError
