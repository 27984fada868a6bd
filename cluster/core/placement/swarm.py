"""Placement by an improved particle swarm.

A particle's position is decoded into a packing host by host (``kernels.decode``), so that every
position is feasible. The swarm starts from the positions that stand for the common heuristics;
its best particles' packings are improved by large-neighbourhood search, whose result is the cost
the swarm is told; prices of the relaxed program steer decoding and search. A packing that no
longer improves hands over to the next particle. docs/placement.md has the formulae and what each
part adds.

The best packing is kept whatever happens, so cost never rises, and the search can be stopped at
any moment.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cluster.core.placement import kernels
from cluster.core.placement.baselines import HEURISTICS, Heuristic
from cluster.core.placement.bound import Prices, prices
from cluster.core.placement.columns import Columns
from cluster.core.placement.kernels import Solution
from cluster.core.placement.neighbourhood import Moves
from cluster.core.placement.options import Budget, PlacerOptions, SwarmFrame
from cluster.core.placement.ordered import (
    InOrder,
    Order,
    Places,
    all_hosts,
    hosts_active,
    plan_of,
)
from cluster.core.placement.packing import HostArrays, Ints, Packing, movable, pack
from cluster.core.placement.problem import objective_name, weights_of
from cluster.core.placement.pso import Swarm, SwarmSettings
from cluster.core.placement.search import Cost, Search, empty_solution, values_of
from cluster.core.resources import ClusterSnapshot, Plan, PlanReport, ResourceRequest

Floats = NDArray[np.float64]


_MOVES: Final = Moves(two=0.6, swap=0.25, noise=1.0, rounds=3, left_out=4, insert=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacerSettings:
    """The parts of the swarm placer and how much each gets; the benchmark switches them.

    Attributes:
        size: Particles.
        swarming: Whether particles move; otherwise they are drawn anew each time.
        warm: Whether the first particles stand for the common heuristics.
        use_prices: Whether the relaxed program is solved for prices.
        search: Whether packings are improved by large-neighbourhood search.
        chunk: Moves between two looks at the clock.
        patience: Moves per active host without an improvement after which a packing is left.
        combine_at: Share of a particle's time after which the filled hosts seen so far are put
            together by a program; 1 for never.
        decoding: Share of the time in which particles are only decoded.
        moves: How the search draws its moves.
        swarm: The numbers of the swarm.
    """

    size: int = 24
    swarming: bool = True
    warm: bool = True
    use_prices: bool = True
    search: bool = True
    chunk: int = 2000
    patience: int = 400
    combine_at: float = 0.35
    decoding: float = 0.1
    moves: Moves = _MOVES
    swarm: SwarmSettings = field(default_factory=SwarmSettings)


#: Moves of a search without a clock: small problems are finished long before.
DEFAULT_MOVES: Final = 200_000
_EPSILON: Final = 1e-6
_FRAME_S: Final = 0.1
#: Where putting filled hosts together pays: chunks between two looks, hosts, classes.
_COLUMNS_EVERY: Final = 8
_FEWEST_HOSTS: Final = 200
_MOST_CLASSES: Final = 600
#: Time to write one placement into the plan.
_PLAN_S: Final = 1.2e-5


class SwarmPlacer:
    """Places requests by the improved swarm; see the module.

    With a clock the search ends after the options' seconds of it; without one after so many
    moves, and then equal input and seed give an equal plan, bit for bit.

    Args:
        options: Objective, time, seed; see :class:`cluster.core.placement.options.PlacerOptions`.
        settings: The parts and their numbers.
    """

    name = "swarm"

    def __init__(
        self, options: PlacerOptions | None = None, *, settings: PlacerSettings | None = None
    ) -> None:
        self.options = options or PlacerOptions()
        self.settings = settings or PlacerSettings()

    def place(self, requests: Sequence[ResourceRequest], snapshot: ClusterSnapshot) -> Plan:
        """Return the plan; see :class:`cluster.core.placement.problem.Placer`."""
        budget = Budget(self.options, without_clock=DEFAULT_MOVES)
        budget.reserve(_PLAN_S * len(requests))
        packing = pack(requests, snapshot)
        problem = Divided(packing)
        if not problem.counts.sum() or not len(packing.hosts):
            return self._finish(packing, problem.places, budget, proven=True, iterations=0)
        found = Run(
            self, packing, problem.counts, problem.base, budget, starts=problem.starts
        ).best()
        assign(packing, problem.free, found.solution, problem.places)
        return self._finish(
            packing, problem.places, budget, proven=found.proven, iterations=found.iterations
        )

    def _finish(
        self, packing: Packing, places: Places, budget: "Budget", *, proven: bool, iterations: int
    ) -> Plan:
        solution = replay(packing, places)
        weights = weights_of(self.options.objective)
        cost = 0.0
        if packing.kinds:
            everything = Search(packing, counts=packing.counts, base=packing.host, weights=weights)
            cost = everything.cost(solution).cost
        why = (
            "the packing is proven to be the best"
            if proven
            else "the best packing that the swarm found"
        )
        report = PlanReport(
            placer=self.name,
            objective=objective_name(self.options.objective),
            hosts_active=hosts_active(packing, solution),
            cost=cost,
            proven=proven,
            seconds=budget.seconds_used(),
            iterations=iterations,
            reason=why,
        )
        return plan_of(packing, solution, places, report, why)


class Divided:
    """A problem divided into what is placed once and what the swarm may move.

    Replicas that must lie to each other in a certain way are placed first, in the queue's order.
    Gangs without such a wish are moved like everything else where a heuristic places all there
    is; where not, they are placed first too, so that none is ever broken.
    """

    def __init__(self, packing: Packing) -> None:
        shaped = np.array([not movable(request) for request in packing.requests], bool)
        self.packing = packing
        self._pin(shaped)
        if self.counts.sum() and not any(start.unplaced.sum() == 0 for start in self.starts):
            gangs = shaped | (packing.replicas > 1)
            if (gangs != shaped).any():
                self._pin(gangs)

    def _pin(self, pinned: NDArray[np.bool_]) -> None:
        packing = self.packing
        self.free = np.flatnonzero(~pinned)
        self.places = Places.none(packing)
        solution = empty_solution(packing.host, packing.classes, packing.counts)
        InOrder(packing, solution).place(
            Order(
                requests=np.flatnonzero(pinned),
                hosts=all_hosts(packing),
                rule=kernels.BEST,
                used_first=True,
            ),
            self.places,
        )
        self.base = pinned_base(packing, solution)
        self.counts = free_counts(packing, self.free)
        self.starts = [self._start(heuristic) for heuristic in _STARTS] if len(self.free) else []

    def _start(self, heuristic: Heuristic) -> Solution:
        packing = self.packing
        solution = empty_solution(self.base, packing.classes, self.counts)
        order = heuristic.order(packing)
        chosen = order.requests[np.isin(order.requests, self.free)]
        InOrder(packing, solution).place(replace(order, requests=chosen), Places.none(packing))
        return solution


#: Cheap heuristics whose packings the search is never worse than.
_STARTS: Final = (HEURISTICS["ffd-gpu"], HEURISTICS["ffd-scarce"], HEURISTICS["first-fit"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The best packing of a run."""

    solution: Solution
    cost: Cost
    proven: bool
    iterations: int


class Searching(NamedTuple):
    """What a search is told beside the problem."""

    options: PlacerOptions
    settings: PlacerSettings


class Run:
    """One search from the first particle to the last move.

    Args:
        placer: Whose objective, seed and settings count.
        packing: The problem.
        counts: Replicas of each class that may be moved, [C].
        base: What hosts have free for them.
        budget: When to stop.
        starts: Packings of the heuristics, to be no worse than.
    """

    def __init__(
        self,
        placer: Searching | SwarmPlacer,
        packing: Packing,
        counts: Ints,
        base: HostArrays,
        budget: Budget,
        starts: Sequence[Solution] = (),
    ) -> None:
        self._placer, self._settings, self._budget = placer, placer.settings, budget
        self._weights = weights_of(placer.options.objective)
        relaxed = self._relax(packing)
        self._search = Search(
            packing,
            counts=counts,
            base=base,
            weights=self._weights,
            prices=relaxed,
            seed=placer.options.seed,
        )
        self._bound = self._best_possible(packing, relaxed)
        self._iterations = 0
        self._best, self._work = self._search.empty(), self._search.empty()
        self._best_cost = Cost(math.inf, math.inf)
        for start in starts:
            self._keep(start)
        self._swarm = self._first_swarm()
        self._axes: Floats | None = None
        self._last_frame = -math.inf

    def best(self) -> Found:
        """Search until the budget is spent or the bound is met; return the best packing."""
        if self._settings.search and self._best_cost.left_out < math.inf:
            kernels.copy(self._best, self._work)
        generation = 0
        while not self._done():
            generation += 1
            positions = self._swarm.ask()
            costs = self._decode_all(positions)
            if self._settings.search and not self._done() and self._decoded_enough():
                leader = int(np.argmin(costs))
                self._decode(positions[leader])
                costs[leader] = self._intensify(self._work, positions[leader])
            self._swarm.tell(costs)
            if not self._settings.swarming:
                self._swarm = self._scattered(generation)
            self._show()
            if not self._settings.search and self._budget.seconds_left() == math.inf:
                self._budget.spend(self._settings.chunk)
        return Found(
            solution=self._best,
            cost=self._best_cost,
            proven=self._met(),
            iterations=self._iterations,
        )

    def _relax(self, packing: Packing) -> Prices | None:
        seconds = min(0.5, 0.3 * self._budget.seconds_left())
        if not self._settings.use_prices or not self._by_hosts() or seconds <= 0:
            return None
        value = None if self._weights.hosts > 0 else values_of(packing)
        return prices(packing, value=value, seconds=seconds)

    def _by_hosts(self) -> bool:
        """Return whether the objective asks for full hosts: fewest of them, or most placed."""
        weights = self._weights
        return not (weights.balance or weights.fragmentation or weights.move)

    def _best_possible(self, packing: Packing, relaxed: Prices | None) -> Cost | None:
        """Return a cost that no packing goes below, where one is known."""
        if relaxed is None:
            return None
        if self._weights.hosts > 0:
            opened = math.ceil(relaxed.bound - _EPSILON) + int(packing.host.used.sum())
            return Cost(0.0, self._weights.hosts * opened)
        total = float((values_of(packing) * packing.counts).sum())
        return Cost(total - relaxed.bound, 0.0)

    def _met(self) -> bool:
        bound, best = self._bound, self._best_cost
        if bound is None:
            return False
        return best.left_out <= bound.left_out + _EPSILON and best.cost <= bound.cost + _EPSILON

    def _done(self) -> bool:
        return self._budget.over() or self._met()

    def _decoded_enough(self) -> bool:
        """Return whether the share of the budget that belongs to decoding alone is spent."""
        if self._budget.seconds_left() == math.inf:
            return True
        return self._budget.seconds_used() >= self._settings.decoding * self._placer.options.seconds

    def _first_swarm(self) -> Swarm:
        settings = self._settings
        start = self._search.start_positions()[: settings.size] if settings.warm else None
        return Swarm(
            dimension=self._search.dimension,
            size=settings.size,
            seed=self._placer.options.seed,
            start=start,
            settings=settings.swarm,
        )

    def _scattered(self, generation: int) -> Swarm:
        """Return particles drawn anew around the warm ones: what a swarm must beat."""
        settings, warm = self._settings, self._search.start_positions()
        random = np.random.default_rng((self._placer.options.seed, generation))
        chosen = warm[random.integers(0, len(warm), settings.size)]
        drawn = random.normal(chosen, settings.swarm.sigma)
        return Swarm(
            dimension=self._search.dimension,
            size=settings.size,
            seed=self._placer.options.seed,
            start=drawn,
            settings=settings.swarm,
        )

    def _decode_all(self, positions: Floats) -> Floats:
        costs = np.full(len(positions), np.inf)
        for particle, position in enumerate(positions):
            if self._done():
                break
            self._decode(position)
            costs[particle] = self._told(self._keep(self._work))
        return costs

    def _decode(self, position: Floats) -> None:
        self._search.decode(position, self._work)
        self._iterations += 1

    def _told(self, cost: Cost) -> float:
        """Return one number for the swarm; what is left out outweighs everything."""
        return 1e4 * cost.left_out + self._search.fine_cost(self._work).cost

    def _keep(self, solution: Solution) -> Cost:
        cost = self._search.cost(solution)
        if cost < self._best_cost:
            self._best_cost = cost
            kernels.copy(solution, self._best)
        return cost

    def _intensify(self, solution: Solution, position: Floats) -> float:
        """Improve a packing until it no longer gets better; return the cost for the swarm."""
        settings, search, budget = self._settings, self._search, self._budget
        moves = self._moves()
        search.open(solution)
        began, columns = budget.spent(), Columns(search)
        idle = chunks = 0
        combined = not self._may_combine()
        while not self._done():
            better = search.improve(solution, moves, settings.chunk)
            budget.spend(settings.chunk)
            self._iterations += settings.chunk
            chunks += 1
            if better:
                self._keep(solution)
            if not combined and chunks % _COLUMNS_EVERY == 0:
                columns.add(solution)
                combined = budget.spent() - began > settings.combine_at * (1.0 - began)
                if combined:
                    self._combine(columns, position, solution)
            idle = 0 if better else idle + settings.chunk
            self._show()
            if idle > settings.patience * max(10, search.active):
                break
        return self._told(search.cost(solution))

    def _moves(self) -> Moves:
        """Return how moves are drawn for this objective."""
        moves = self._settings.moves
        if not self._by_hosts():
            return moves._replace(insert=1.0)
        # Where not all can be placed every host is full: none is idle, none the weakest.
        return moves if self._weights.hosts > 0 else moves._replace(swap=0.0, rounds=1)

    def _may_combine(self) -> bool:
        """Return whether a program over filled hosts may pay: many hosts, few classes."""
        return (
            self._settings.combine_at < 1.0
            and self._weights.hosts > 0
            and self._best_cost.left_out == 0
            and len(self._search.counts) <= _MOST_CLASSES
            and self._search.active >= _FEWEST_HOSTS
        )

    def _combine(self, columns: Columns, position: Floats, solution: Solution) -> None:
        """Go on from the packing that the program makes of all columns, if it is no worse."""
        search, made = self._search, self._search.empty()
        if not columns.combine(position, made, 0.3 * self._budget.seconds_left()):
            return
        if search.cost(made) <= search.cost(solution):
            kernels.copy(made, solution)
            self._keep(solution)
            search.open(solution)

    def _show(self) -> None:
        watch, seconds = self._placer.options.watch, self._budget.seconds_used()
        if watch is None or seconds - self._last_frame < _FRAME_S:
            return
        self._last_frame = seconds
        swarm = self._swarm
        if self._axes is None:
            centred = swarm.positions - swarm.positions.mean(axis=0)
            self._axes = np.linalg.svd(centred, full_matrices=False)[2][:2]
        plane = swarm.positions @ self._axes.T
        watch(
            SwarmFrame(
                iteration=self._iterations,
                seconds=seconds,
                best_cost=self._best_cost.cost,
                left_out=int(self._best.unplaced.sum()),
                diversity=swarm.diversity,
                positions=tuple((float(row[0]), float(row[-1])) for row in plane),
                costs=tuple(swarm.own_cost.tolist()),
            )
        )


def free_counts(packing: Packing, requests: Ints) -> Ints:
    """Return how many replicas of each class these requests have, [C]."""
    counted = np.bincount(
        packing.request_class[requests],
        weights=packing.replicas[requests],
        minlength=len(packing.classes.cpu),
    )
    return counted.astype(np.int64)


def pinned_base(packing: Packing, solution: Solution) -> HostArrays:
    """Return what hosts have left once what cannot be moved lies on them."""
    return packing.host._replace(
        cpu=solution.cpu.copy(),
        memory=solution.memory.copy(),
        share=solution.share.copy(),
        gpu_memory=solution.gpu_memory.copy(),
        used=((packing.host.used > 0) | (solution.slots > 0)).astype(np.uint8),
    )


def assign(packing: Packing, requests: Ints, solution: Solution, places: Places) -> None:
    """Hand the replicas of each class to its requests, in the queue's order."""
    waiting = kernels.replicas_of(
        packing.request_class, packing.replicas, places.first, requests, len(packing.classes.cpu)
    )
    kernels.hand_out(
        waiting[0],
        waiting[1],
        solution.slots,
        solution.slot_class,
        solution.slot_mask,
        solution.slot_count,
        places.host,
        places.mask,
    )


def replay(packing: Packing, places: Places) -> Solution:
    """Return the solution that the places stand for."""
    solution = empty_solution(packing.host, packing.classes, packing.counts)
    kernels.replay(
        packing.request_class,
        places.first,
        places.host,
        places.mask,
        packing.classes,
        solution,
    )
    return solution
