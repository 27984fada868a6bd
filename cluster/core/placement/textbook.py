"""The textbook particle swarm, to compare with: a coordinate per request is the host it takes.

Kennedy and Eberhart's swarm as most placement papers use it (30 particles, inertia 0.7,
accelerations 1.5, fully connected): coordinate ``i`` is rounded to the number of request ``i``'s
host, and what exceeds a host's capacity is a penalty. Beyond a hundred requests it rarely finds a
packing at all; what does not fit where its particle says is left out.
"""

from collections.abc import Sequence

import numpy as np

from cluster.core.placement import kernels
from cluster.core.placement.options import Budget, PlacerOptions
from cluster.core.placement.ordered import InOrder, Order, Places, hosts_active, plan_of
from cluster.core.placement.packing import pack
from cluster.core.placement.problem import Objective
from cluster.core.placement.pso import Floats, Swarm, SwarmSettings
from cluster.core.placement.search import empty_solution, values_of
from cluster.core.resources import ClusterSnapshot, Plan, PlanReport, ResourceRequest

#: Evaluations without a clock.
_EVALUATIONS = 3000
_SIZE = 30
_TEXTBOOK = SwarmSettings(leader_share=1.0, adaptive=False, diversity=False)


class TextbookSwarm:
    """Places by the textbook swarm; a baseline, not for use."""

    name = "textbook-pso"

    def __init__(self, options: PlacerOptions | None = None) -> None:
        self.options = options or PlacerOptions()

    def place(self, requests: Sequence[ResourceRequest], snapshot: ClusterSnapshot) -> Plan:
        """Return the plan; see :class:`cluster.core.placement.problem.Placer`."""
        budget = Budget(self.options, without_clock=_EVALUATIONS)
        packing = pack(requests, snapshot)
        value, total = values_of(packing), len(packing.hosts)
        best = empty_solution(packing.host, packing.classes, packing.counts)
        places = Places.none(packing)
        iterations, best_cost = 0, np.inf
        swarm = Swarm(
            dimension=max(1, len(requests)), size=_SIZE, seed=self.options.seed, settings=_TEXTBOOK
        )
        while total and len(requests) and not budget.over():
            positions = swarm.ask()
            costs = np.full(len(positions), np.inf)
            for particle, position in enumerate(positions):
                if budget.over():
                    break
                trial = empty_solution(packing.host, packing.classes, packing.counts)
                tried = Places.none(packing)
                self._put(position, InOrder(packing, trial), tried, total)
                left_out = float((value * trial.unplaced).sum())
                costs[particle] = 1e4 * left_out + hosts_active(packing, trial)
                if costs[particle] < best_cost:
                    best_cost, best, places = costs[particle], trial, tried
                iterations += 1
                budget.spend(1)
            swarm.tell(costs)
        report = PlanReport(
            placer=self.name,
            objective=Objective.HOSTS,
            hosts_active=hosts_active(packing, best),
            seconds=budget.seconds_used(),
            iterations=iterations,
            reason="where the best particle says",
        )
        return plan_of(packing, best, places, report, report.reason)

    @staticmethod
    def _put(position: Floats, into: InOrder, places: Places, hosts: int) -> None:
        """Put each request on the host its coordinate names, if it fits there."""
        # A normal coordinate becomes a host's number by its rank on a logistic scale.
        chosen = (hosts / (1.0 + np.exp(-1.7 * position))).astype(np.int64).clip(0, hosts - 1)
        for host in np.unique(chosen):
            into.place(
                Order(
                    requests=np.flatnonzero(chosen == host),
                    hosts=np.array([host]),
                    rule=kernels.FIRST,
                ),
                places,
            )
