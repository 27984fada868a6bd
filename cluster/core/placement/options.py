"""What a placer may be told beside the problem, and how long it may search."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from cluster.core.placement.problem import Objective, ObjectiveWeights

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class SwarmFrame:
    """What can be watched of a running search, at most ten times a second.

    Attributes:
        seconds: Since the search began.
        best_cost: The objective's cost of the best packing so far.
        left_out: Replicas that it leaves out.
        diversity: See :attr:`cluster.core.placement.pso.Swarm.diversity`.
        positions: Each particle in the plane of the first particles' two main directions.
        costs: Each particle's own best cost.
    """

    iteration: int
    seconds: float
    best_cost: float
    left_out: int
    diversity: float
    positions: tuple[tuple[float, float], ...]
    costs: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacerOptions:
    """What a placer may use of; those that need none of it ignore it.

    Attributes:
        objective: What the plan is good for, by name or by weights.
        seconds: Wall time of one pass.
        seed: Of all chance.
        clock: Seconds from any origin, such as ``time.perf_counter``. Without one, placers that
            search stop after a number of steps, and equal seeds give equal plans.
        moves: At most so many steps; ``None`` for no limit but the clock's.
        watch: Called with frames while a search runs.
    """

    objective: Objective | ObjectiveWeights = Objective.HOSTS
    seconds: float = 1.0
    seed: int = 0
    clock: Clock | None = None
    moves: int | None = None
    watch: Callable[[SwarmFrame], None] | None = None


class Budget:
    """How long a search may take, by the clock, by moves, or by both."""

    def __init__(self, options: PlacerOptions, *, without_clock: int) -> None:
        self._clock, self._seconds, self._moves = options.clock, options.seconds, options.moves
        if self._moves is None and self._clock is None:
            self._moves = without_clock
        self._all = self._moves
        self._began = self._clock() if self._clock else 0.0

    def seconds_used(self) -> float:
        """Return the seconds since the search began; 0 without a clock."""
        return self._clock() - self._began if self._clock else 0.0

    def seconds_left(self) -> float:
        """Return the seconds that are left; infinite without a clock."""
        return self._seconds - self.seconds_used() if self._clock else math.inf

    def reserve(self, seconds: float) -> None:
        """Keep time back for what comes after the search; at most half of all."""
        self._seconds -= min(seconds, 0.5 * self._seconds)

    def spent(self) -> float:
        """Return the share of the budget that is spent, from 0 to 1."""
        by_moves = 1.0 - self._moves / self._all if self._moves is not None and self._all else 0.0
        return max(by_moves, self.seconds_used() / self._seconds if self._clock else 0.0)

    def spend(self, moves: int) -> None:
        """Count moves that were made."""
        if self._moves is not None:
            self._moves -= moves

    def over(self) -> bool:
        """Return whether nothing is left."""
        return (self._moves is not None and self._moves <= 0) or self.seconds_left() <= 0
