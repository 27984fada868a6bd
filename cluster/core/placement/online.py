"""The rules for arriving requests as placers: a queue is placed as if it arrived in its order."""

from collections.abc import Sequence

import numpy as np

from cluster.core.placement import kernels
from cluster.core.placement.options import PlacerOptions
from cluster.core.placement.ordered import InOrder, Order, Places, all_hosts, hosts_active, plan_of
from cluster.core.placement.packing import Packing, movable, pack
from cluster.core.placement.problem import Objective
from cluster.core.placement.score_weights import ScoreWeights
from cluster.core.placement.scoring import OURS, Rule, run
from cluster.core.placement.search import empty_solution
from cluster.core.placement.swarm import replay
from cluster.core.resources import ClusterSnapshot, Plan, PlanReport, ResourceRequest

_SENTENCES = {
    OURS: "the host whose worth it lowers least, by weights that the swarm tuned",
    "fgd": "the host whose free GPU it breaks least for the requests to come",
}


class OnlinePlacer:
    """Places one request after the other by a rule, with no look at those behind it.

    Gangs, and requests that mind each other, go first and by best fit: the rules know one replica.

    Args:
        name: One of :data:`cluster.core.placement.scoring.RULES`.
        weights: Of the score; those of the product if not given.
    """

    def __init__(
        self,
        options: PlacerOptions | None = None,
        *,
        name: str = OURS,
        weights: ScoreWeights | None = None,
    ) -> None:
        self.name = name
        self.rule = Rule(name, weights, (options or PlacerOptions()).seed)

    def place(self, requests: Sequence[ResourceRequest], snapshot: ClusterSnapshot) -> Plan:
        """Return the plan; see :class:`cluster.core.placement.problem.Placer`."""
        packing = pack(requests, snapshot)
        places = Places.none(packing)
        alone = np.array([one.replicas == 1 and movable(one) for one in requests], bool)
        solution = None if alone.all() else _placed(packing, np.flatnonzero(~alone), places)
        order = np.flatnonzero(alone)
        outcome = run(packing, order, self.rule, solution)
        places.host[places.first[order]] = outcome.host
        places.mask[places.first[order]] = outcome.mask
        end = replay(packing, places)
        sentence = _SENTENCES.get(self.name, self.name)
        report = PlanReport(
            placer=self.name,
            objective=Objective.GPU,
            hosts_active=hosts_active(packing, end),
            iterations=1,
            reason=sentence,
        )
        return plan_of(packing, end, places, report, sentence)


def _placed(
    packing: Packing, requests: np.ndarray[tuple[int], np.dtype[np.int64]], places: Places
) -> kernels.Solution:
    """Place requests by best fit; return what is left."""
    solution = empty_solution(packing.host, packing.classes, packing.counts)
    order = Order(requests=requests, hosts=all_hosts(packing), rule=kernels.BEST)
    InOrder(packing, solution).place(order, places)
    return solution
