"""A packing while it is searched: the arrays the inner loops work on, behind a few verbs."""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from cluster.core.placement import kernels, neighbourhood
from cluster.core.placement.bound import Prices, default_prices
from cluster.core.placement.kernels import Solution, Terms
from cluster.core.placement.neighbourhood import Board, Moves
from cluster.core.placement.packing import ClassArrays, HostArrays, Ints, Packing
from cluster.core.placement.problem import ObjectiveWeights

Floats = NDArray[np.float64]

#: What tells equal costs apart; far below one host whatever a few hosts hold.
_FILL: Final = 0.01
_WHOLE: Final = 1000


@dataclass(frozen=True, slots=True, order=True)
class Cost:
    """What is left out comes first: the GPU thousandths of it, then the objective's cost."""

    left_out: float
    cost: float


def empty_solution(hosts: HostArrays, classes: ClassArrays, counts: Ints) -> Solution:
    """Return a solution in which nothing is placed yet."""
    shape = (len(hosts.cpu), slot_depth(hosts, classes, counts))
    return Solution(
        cpu=hosts.cpu.copy(),
        memory=hosts.memory.copy(),
        share=hosts.share.copy(),
        gpu_memory=hosts.gpu_memory.copy(),
        slots=np.zeros(len(hosts.cpu), np.int64),
        slot_class=np.zeros(shape, np.int64),
        slot_mask=np.zeros(shape, np.int64),
        slot_count=np.zeros(shape, np.int64),
        unplaced=counts.copy(),
    )


def slot_depth(hosts: HostArrays, classes: ClassArrays, counts: Ints) -> int:
    """Return how many slots one host can need.

    A class without GPUs takes one slot, whatever its count; of those with GPUs no more fit than
    the smallest ones would, by the GPUs and by the CPU of the largest host.
    """
    with_gpu = (classes.gpus > 0) & (counts > 0)
    plain = (classes.gpus == 0) & (counts > 0)
    free_gpu = int(np.maximum(hosts.share, 0).sum(axis=1).max(initial=0))
    free_cpu = int(hosts.cpu.max(initial=0))
    on_gpus = min(
        _most((classes.share * classes.gpus)[with_gpu], counts[with_gpu], free_gpu),
        _most(classes.cpu[with_gpu], counts[with_gpu], free_cpu),
    )
    beside = min(int(plain.sum()), _most(classes.cpu[plain], counts[plain], free_cpu))
    return 1 + on_gpus + beside


def _most(sizes: Ints, counts: Ints, capacity: int) -> int:
    """Return how many fit at most when the smallest are taken first."""
    placed = 0
    order = np.argsort(sizes, kind="stable")
    for size, count in zip(sizes[order].tolist(), counts[order].tolist(), strict=True):
        fits = count if size == 0 else min(count, max(0, capacity) // size)
        placed += fits
        capacity -= fits * size
        if fits < count:
            break
    return placed


def values_of(packing: Packing) -> Floats:
    """Return what one replica of each class is worth when not all can be placed, [C].

    GPU thousandths; what asks for no GPU counts by its CPU, a whole host's as one thousandth, so
    that no GPU is given up for it.
    """
    classes = packing.classes
    largest = max(1, int(packing.host.total[:, 0].max(initial=1)))
    value: Floats = classes.gpus * classes.share + (1.0 + classes.cpu / largest) * 1e-2
    return value


class Search:
    """Searches packings of a number of replicas per class; the best found is kept.

    Args:
        packing: The problem.
        counts: Replicas of each class that may be moved freely, [C].
        base: What hosts have free for these replicas.
        weights: The objective.
        prices: Prices of the relaxed program, where there are any.
        seed: Of the search's own chance.
    """

    def __init__(
        self,
        packing: Packing,
        *,
        counts: Ints,
        base: HostArrays,
        weights: ObjectiveWeights,
        prices: Prices | None = None,
        seed: int = 0,
    ) -> None:
        self.packing, self.counts, self.base = packing, counts, base
        self.classes = packing.classes
        self.state = np.array([1 + seed % 2147483646], np.int64)
        self.kind_hosts = np.concatenate(packing.kinds)
        sizes = [len(of_kind) for of_kind in packing.kinds]
        self.kind_start = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        total = np.maximum(base.total.max(axis=0), 1)
        classes = packing.classes
        self.demand: Floats = np.stack(
            [
                classes.cpu / total[0],
                classes.memory / total[1],
                classes.gpus * classes.share / total[2],
            ],
            axis=1,
        )
        self.terms = self._terms(weights, prices)
        self.guide: Floats = np.zeros(classes.fits.shape) if prices is None else prices.guide
        opened = np.ones(len(sizes)) if prices is None else prices.opened
        self.openness: Floats = np.where(opened > 1e-9, 0.0, -1.0)
        #: How few of the hosts would take a class, from 0 to 1: what is hard to place, [C].
        self.scarcity: Floats = 1.0 - (classes.fits * np.array(sizes)).sum(axis=1) / sum(sizes)
        self.board = Board(
            active=np.zeros(len(base.cpu), np.int64),
            place=np.zeros(len(base.cpu), np.int64),
            idle=np.zeros(len(base.cpu), np.int64),
            start=self.kind_start,
            idle_count=np.zeros(len(sizes), np.int64),
            n=np.zeros(1, np.int64),
            fill=np.zeros(len(base.cpu)),
        )

    @property
    def dimension(self) -> int:
        """Return how many coordinates a particle's position has."""
        return 2 * len(self.counts) + len(self.packing.kinds) + 4

    def empty(self) -> Solution:
        """Return a solution in which nothing is placed yet."""
        return empty_solution(self.base, self.classes, self.counts)

    def decode(self, position: Floats, into: Solution) -> Cost:
        """Turn a particle's position into a packing and return its cost."""
        kernels.reset(self.base, self.counts, into)
        self._decode(position, self.base, into)
        return self.cost(into)

    def decode_rest(self, position: Floats, into: Solution) -> None:
        """Place what a packing leaves out, on its own hosts first."""
        used = ((self.base.used > 0) | (into.slots > 0)).astype(np.uint8)
        self._decode(position, self.base._replace(used=used), into)

    def _decode(self, position: Floats, hosts: HostArrays, into: Solution) -> None:
        kernels.decode(
            position,
            self.terms.price,
            self.openness,
            self.demand,
            self.guide,
            self.kind_hosts,
            self.kind_start,
            hosts,
            self.classes,
            into,
        )

    def cost(self, solution: Solution) -> Cost:
        """Return the cost of a solution, without what only tells equal costs apart."""
        left_out, cost = kernels.total_cost(
            self.base, self.classes, solution, self.terms._replace(fill=0.0)
        )
        return Cost(left_out, cost)

    def fine_cost(self, solution: Solution) -> Cost:
        """Return the cost with what tells equal costs apart."""
        left_out, cost = kernels.total_cost(self.base, self.classes, solution, self.terms)
        return Cost(left_out, cost)

    @property
    def active(self) -> int:
        """Return how many hosts hold anything in the opened solution."""
        return int(self.board.n[0])

    def open(self, solution: Solution) -> None:
        """Make a solution the one that :meth:`improve` works on."""
        neighbourhood.set_up(self.base, solution, self.terms, self.board)

    def improve(self, solution: Solution, moves: Moves, count: int) -> int:
        """Try moves on the opened solution; return how many made it better."""
        return neighbourhood.improve(
            count,
            moves,
            _EVEN,
            self.demand,
            self.base,
            self.base,
            self.classes,
            solution,
            self.terms,
            self.board,
            self.state,
        )

    def start_positions(self) -> Floats:
        """Return the positions that stand for the well-known heuristics, the best guesses first.

        Fill and seed by scarcity, with weights that range from greedy size to balanced fit.
        """
        rows = []
        for strength in (1.0, 4.0, 0.0):
            for fit in (1.0, 2.0, 0.0):
                for trust in (2.0, 4.0, 0.0):
                    row = np.zeros(self.dimension)
                    count = len(self.counts)
                    row[:count] = row[count : 2 * count] = strength * self.scarcity
                    row[-4:] = (fit, fit, fit, trust)
                    rows.append(row)
        return np.array(rows)

    def _terms(self, weights: ObjectiveWeights, prices: Prices | None) -> Terms:
        fallback = default_prices(self.packing)
        price = 0.8 * fallback if prices is None else prices.price
        total = np.maximum(self.base.total.sum(axis=0), 1)
        asked = np.array(
            [
                (self.classes.cpu * self.counts).sum(),
                (self.classes.memory * self.counts).sum(),
                (self.classes.gpus * self.classes.share * self.counts).sum(),
            ]
        )
        held = total - np.array(
            [
                np.maximum(self.base.cpu, 0).sum(),
                np.maximum(self.base.memory, 0).sum(),
                np.maximum(self.base.share, 0).sum(),
            ]
        )
        waiting = np.maximum(self.counts.sum(), 1)
        return Terms(
            hosts=weights.hosts,
            balance=weights.balance,
            fragmentation=weights.fragmentation,
            move=weights.move,
            fill=_FILL if weights.hosts > 0 or weights == ObjectiveWeights() else 0.0,
            target=np.minimum(1.0, (held + asked) / total),
            value=values_of(self.packing),
            # A little of the plain shares, so that what the program prices at nothing has a size.
            price=price + 0.01 * fallback,
            likely=self.counts / waiting,
        )


_EVEN: Final = np.ones(4)
