"""Placing requests one after the other, and the plan that comes of it.

Everything that places in a given order does it here: the common heuristics, the gangs whose
replicas must lie in a certain way, and the pass over a queue.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from cluster.core.placement import kernels
from cluster.core.placement.kernels import Solution, Terms
from cluster.core.placement.packing import Ints, Packing
from cluster.core.placement.reasons import Reasons
from cluster.core.resources import GpuUuid, Placement, Plan, PlanReport, ReplicaPlacement, Spread

Floats = NDArray[np.float64]

_SPREAD: Final = {Spread.ANY: kernels.ANY, Spread.PACK: kernels.PACK, Spread.SPREAD: kernels.SPREAD}


@dataclass(frozen=True, slots=True)
class Places:
    """Where each replica lies: request ``i``'s from ``first[i]`` to ``first[i + 1]``.

    ``host`` is -1 for a replica that is not placed; ``mask`` holds the bits of its GPUs.
    """

    host: Ints
    mask: Ints
    first: Ints

    @classmethod
    def none(cls, packing: Packing) -> "Places":
        """Return the places of a plan that places nothing."""
        first = np.concatenate([[0], np.cumsum(packing.replicas)]).astype(np.int64)
        return cls(np.full(int(first[-1]), -1, np.int64), np.zeros(int(first[-1]), np.int64), first)

    def placed(self) -> NDArray[np.bool_]:
        """Return for each request whether its replicas lie somewhere, [N]."""
        return self.host[self.first[:-1]] >= 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """How requests are gone through and which host each takes.

    Attributes:
        requests: Numbers of the requests, the first first.
        hosts: Numbers of the hosts in the order in which they are looked at.
        rule: One of the rules of ``kernels``.
        used_first: Whether a host that is in use is preferred to any that is not.
    """

    requests: Ints
    hosts: Ints
    rule: int = kernels.FIRST
    used_first: bool = False


class InOrder:
    """Places requests of one problem in an order; what is placed stays for the next call."""

    def __init__(
        self, packing: Packing, solution: Solution, terms: Terms | None = None, seed: int = 0
    ) -> None:
        self.packing, self.solution = packing, solution
        self.terms = terms or no_terms(packing)
        self.state = np.array([1 + seed % 2147483646], np.int64)
        labels: dict[str, int] = {}
        self._label = np.array(
            [
                labels.setdefault(request.anti_affinity, len(labels))
                if request.anti_affinity
                else -1
                for request in packing.requests
            ],
            np.int64,
        )
        self._spread = np.array([_SPREAD[request.spread] for request in packing.requests], np.int64)
        self._zone = np.array([request.same_zone for request in packing.requests], np.int64)
        self._label_hosts = np.zeros((max(1, len(labels)), len(packing.hosts)), np.uint8)

    def place(self, order: Order, places: Places) -> None:
        """Place what fits; gangs whole or not at all."""
        chosen = order.requests
        if not len(chosen) or not len(order.hosts):
            return
        kernels.place_in_order(
            self.packing.request_class[chosen],
            self.packing.replicas[chosen],
            self._spread[chosen],
            self._label[chosen],
            self._zone[chosen],
            order.hosts,
            order.rule,
            order.used_first,
            self._label_hosts,
            self.packing.host,
            self.packing.classes,
            self.solution,
            self.terms,
            self.state,
            places.host,
            places.mask,
            places.first[:-1][chosen],
        )


def no_terms(packing: Packing) -> Terms:
    """Return terms that cost nothing, for rules that ask for no cost."""
    zeros = np.zeros(len(packing.classes.cpu))
    return Terms(0.0, 0.0, 0.0, 0.0, 0.0, np.zeros(3), zeros, zeros, zeros)


def all_hosts(packing: Packing) -> Ints:
    """Return the hosts in the snapshot's order."""
    return np.arange(len(packing.hosts), dtype=np.int64)


def all_requests(packing: Packing) -> Ints:
    """Return the requests in the queue's order."""
    return np.arange(len(packing.requests), dtype=np.int64)


def plan_of(
    packing: Packing, solution: Solution, places: Places, report: PlanReport, reason: str
) -> Plan:
    """Return the plan that the places stand for, with a reason for everything left out."""
    placed = places.placed()
    host, mask, first = places.host.tolist(), places.mask.tolist(), places.first.tolist()
    names = [one.name for one in packing.hosts]
    gpus: dict[tuple[int, int], tuple[GpuUuid, ...]] = {}

    def replica(rank: int, at: int) -> ReplicaPlacement:
        where = (host[at], mask[at])
        if where not in gpus:
            gpus[where] = packing.gpus_of(*where)
        return ReplicaPlacement(rank=rank, host=names[where[0]], gpus=gpus[where])

    reasons = Reasons(packing, solution)
    return Plan(
        placements=tuple(
            Placement(
                key=packing.requests[number].key,
                replicas=tuple(
                    replica(rank, at)
                    for rank, at in enumerate(range(first[number], first[number + 1]))
                ),
                reason=reason,
            )
            for number in np.flatnonzero(placed).tolist()
        ),
        deferred=tuple(reasons.why(number) for number in np.flatnonzero(~placed).tolist()),
        report=report,
    )


def hosts_active(packing: Packing, solution: Solution) -> int:
    """Return how many hosts hold anything."""
    return int(((solution.slots > 0) | (packing.host.used > 0)).sum())
