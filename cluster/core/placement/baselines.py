"""The common heuristics, behind the same interface as the swarm.

Each is an order of requests, an order of hosts and a rule for the host. Sizes are compared by the
sum of the shares that a request takes of all there is (Panigrahy et al. 2011, "weights by average
demand"); the dot product is theirs too.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from cluster.core.placement import kernels
from cluster.core.placement.ordered import (
    InOrder,
    Order,
    Places,
    all_hosts,
    all_requests,
    hosts_active,
    plan_of,
)
from cluster.core.placement.packing import Ints, Packing, pack
from cluster.core.placement.problem import Objective
from cluster.core.placement.search import empty_solution
from cluster.core.resources import ClusterSnapshot, Plan, PlanReport, ResourceRequest

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Heuristic:
    """One of the heuristics by name.

    Attributes:
        sort: How requests are ordered, the largest key first; ``None`` keeps the queue's order.
        hosts: How hosts are ordered, the smallest key first; ``None`` keeps the snapshot's.
    """

    name: str
    rule: int = kernels.FIRST
    sort: Callable[[Packing], Floats] | None = None
    hosts: Callable[[Packing], Floats] | None = None
    used_first: bool = False
    seed: int = 0
    sentence: str = ""

    def place(self, requests: Sequence[ResourceRequest], snapshot: ClusterSnapshot) -> Plan:
        """Return the plan; see :class:`cluster.core.placement.problem.Placer`."""
        packing = pack(requests, snapshot)
        solution = empty_solution(packing.host, packing.classes, packing.counts)
        places = Places.none(packing)
        InOrder(packing, solution, seed=self.seed).place(self.order(packing), places)
        report = PlanReport(
            placer=self.name,
            objective=Objective.HOSTS,
            hosts_active=hosts_active(packing, solution),
            iterations=1,
            reason=self.sentence,
        )
        return plan_of(packing, solution, places, report, self.sentence)

    def order(self, packing: Packing) -> Order:
        """Return the order in which this heuristic places a problem."""
        return Order(
            requests=all_requests(packing) if self.sort is None else _largest(self.sort(packing)),
            hosts=(
                all_hosts(packing)
                if self.hosts is None
                else np.argsort(self.hosts(packing), kind="stable")
            ),
            rule=self.rule,
            used_first=self.used_first,
        )


def _largest(keys: Floats) -> Ints:
    return np.argsort(-keys, kind="stable")


def _shares(packing: Packing) -> Floats:
    """Return what each class takes of all there is of CPU, memory and GPU, [C, 3]."""
    total = np.maximum(packing.host.total.sum(axis=0), 1)
    classes = packing.classes
    wanted = np.stack([classes.cpu, classes.memory, classes.gpus * classes.share], axis=1)
    shares: Floats = wanted / total
    return shares


def by_size(packing: Packing) -> Floats:
    """Return the sum of the shares of each request, [N]."""
    keys: Floats = _shares(packing).sum(axis=1)[packing.request_class]
    return keys


def by_gpu(packing: Packing) -> Floats:
    """Return the GPU of each request, its other shares telling equals apart, [N]."""
    shares = _shares(packing)
    keys: Floats = (1e6 * shares[:, 2] + shares.sum(axis=1))[packing.request_class]
    return keys


def by_scarcity(packing: Packing) -> Floats:
    """Return how few hosts would take each request, its size telling equals apart, [N]."""
    sizes = np.array([len(of_kind) for of_kind in packing.kinds])
    few = 1.0 - (packing.classes.fits * sizes).sum(axis=1) / max(1, sizes.sum())
    keys: Floats = (1e6 * few + _shares(packing).sum(axis=1))[packing.request_class]
    return keys


def biggest_first(packing: Packing) -> Floats:
    """Return the sum of each host's shares of all there is, negated: big hosts first, [H]."""
    total = np.maximum(packing.host.total.sum(axis=0), 1)
    keys: Floats = -(packing.host.total / total).sum(axis=1)
    return keys


#: The heuristics by their names on the command line and in tables.
HEURISTICS: Final = {
    heuristic.name: heuristic
    for heuristic in (
        Heuristic(name="first-fit", sentence="the first host with room"),
        Heuristic(name="ffd", sort=by_size, sentence="the largest first, the first host with room"),
        Heuristic(
            name="best-fit", rule=kernels.BEST, sentence="the host that is left with the least"
        ),
        Heuristic(
            name="bfd",
            rule=kernels.BEST,
            sort=by_size,
            sentence="the largest first, the host that is left with the least",
        ),
        Heuristic(
            name="dot-product",
            rule=kernels.DOT,
            sentence="the host whose free resources point the way of the request",
        ),
        Heuristic(
            name="spread", rule=kernels.WORST, sentence="the host that is left with the most"
        ),
        Heuristic(name="random", rule=kernels.RANDOM, sentence="a host with room, by lot"),
        Heuristic(
            name="ffd-gpu",
            sort=by_gpu,
            hosts=biggest_first,
            sentence="the most GPU first, the biggest host with room",
        ),
        Heuristic(
            name="bfd-gpu",
            rule=kernels.BEST,
            sort=by_gpu,
            hosts=biggest_first,
            used_first=True,
            sentence="the most GPU first, the used host that is left with the least",
        ),
        Heuristic(
            name="ffd-scarce",
            sort=by_scarcity,
            hosts=biggest_first,
            sentence="what few hosts take first, the biggest host with room",
        ),
        Heuristic(
            name="bfd-scarce",
            rule=kernels.BEST,
            sort=by_scarcity,
            hosts=biggest_first,
            used_first=True,
            sentence="what few hosts take first, the used host that is left with the least",
        ),
        Heuristic(
            name="dot-scarce",
            rule=kernels.DOT,
            sort=by_scarcity,
            hosts=biggest_first,
            used_first=True,
            sentence="what few hosts take first, the used host that points its way",
        ),
        Heuristic(
            name="dot-gpu",
            rule=kernels.DOT,
            sort=by_gpu,
            hosts=biggest_first,
            used_first=True,
            sentence="the most GPU first, the used host that points its way",
        ),
    )
}
