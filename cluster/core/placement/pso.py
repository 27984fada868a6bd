"""The particle swarm: positions are asked for, their costs told; nothing else is known of them.

Kennedy and Eberhart (1995) with the constricted inertia of Shi and Eberhart (1998), and what is
changed here: particles may start from given positions, each learns from its neighbours on a ring
as well as from the leader, inertia and acceleration follow the share of particles that improved,
and a swarm that has lost its diversity without a better leader scatters its worst half anew.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cluster.core.errors import BadProblemError

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class SwarmSettings:
    """The numbers of the swarm; see Clerc and Kennedy (2002) for why these converge.

    Attributes:
        inertia: How much of its velocity a particle keeps; the mean over time when adaptive.
        own_pull, social_pull: Acceleration towards a particle's own best and its neighbourhood's.
        leader_share: How much of the social pull goes to the leader of all, the rest to the best
            of the two neighbours on a ring. 1 is the textbook's fully connected swarm.
        sigma: Scale of a position's coordinates; velocities are held within two of it.
        adaptive: Whether inertia rises while particles improve and falls while they do not.
        diversity: Whether a swarm that has collapsed is scattered anew.
        collapse: Mean distance to the centre, in sigma, below which a swarm has collapsed.
        patience: Iterations without a better leader before a collapsed swarm is scattered.
    """

    inertia: float = 0.7
    own_pull: float = 1.5
    social_pull: float = 1.5
    leader_share: float = 0.5
    sigma: float = 1.0
    adaptive: bool = True
    diversity: bool = True
    collapse: float = 0.25
    patience: int = 10


class Swarm:
    """Minimises a function of ``dimension`` real numbers that only the caller can evaluate.

    ``ask`` and ``tell`` alternate. Equal seeds and equal costs give equal positions, bit for bit.

    Args:
        dimension: Coordinates of a position.
        size: Particles.
        start: Positions of the first particles, at most ``size`` of shape (n, dimension); the
            rest is drawn from a normal distribution around ``start``'s mean, or around 0.

    Raises:
        BadProblemError: If a size is not positive, ``start`` has another shape, or costs are told
            that were not asked for.
    """

    def __init__(
        self,
        *,
        dimension: int,
        size: int,
        seed: int,
        start: Floats | None = None,
        settings: SwarmSettings | None = None,
    ) -> None:
        if dimension < 1 or size < 1:
            raise BadProblemError("a swarm needs at least one particle and one dimension")
        self.settings = settings or SwarmSettings()
        self._random = np.random.default_rng(seed)
        given = np.empty((0, dimension)) if start is None else np.asarray(start, dtype=np.float64)
        if given.ndim != 2 or given.shape[1] != dimension or len(given) > size:
            raise BadProblemError(f"start must be at most {size} rows of {dimension} numbers")
        centre = given.mean(axis=0) if len(given) else np.zeros(dimension)
        drawn = self._random.normal(centre, self.settings.sigma, (size - len(given), dimension))
        self.positions: Floats = np.vstack([given, drawn])
        self.velocities: Floats = self._random.normal(
            0.0, 0.1 * self.settings.sigma, (size, dimension)
        )
        self.own_best: Floats = self.positions.copy()
        self.own_cost: Floats = np.full(size, np.inf)
        self.best_position: Floats = self.positions[0].copy()
        self.best_cost: float = np.inf
        self.iterations = 0
        self._stagnation = 0
        self._inertia = self.settings.inertia
        self._asked = False

    @property
    def diversity(self) -> float:
        """Return the mean distance of a coordinate from the swarm's centre, in sigma."""
        spread = np.abs(self.positions - self.positions.mean(axis=0)).mean()
        return float(spread / self.settings.sigma)

    def ask(self) -> Floats:
        """Return the positions whose costs are wanted, one row a particle."""
        if self._asked:
            raise BadProblemError("tell the costs of the last positions before asking again")
        self._asked = True
        if self.iterations:
            self._move()
        return self.positions.copy()

    def tell(self, costs: Floats) -> None:
        """Take the costs of the positions asked for, in their order; NaN counts as the worst."""
        if not self._asked or np.shape(costs) != self.own_cost.shape:
            raise BadProblemError(f"{len(self.own_cost)} costs are wanted, after ask")
        self._asked = False
        self.iterations += 1
        told = np.where(np.isnan(costs), np.inf, costs)
        better = told < self.own_cost
        self.own_cost[better] = told[better]
        self.own_best[better] = self.positions[better]
        leader = int(np.argmin(self.own_cost))
        improved = bool(self.own_cost[leader] < self.best_cost)
        if improved:
            self.best_cost = float(self.own_cost[leader])
            self.best_position = self.own_best[leader].copy()
        self._stagnation = 0 if improved else self._stagnation + 1
        if self.settings.adaptive:
            # Nickabadi, Ebadzadeh, Safabakhsh (2011): the share of particles that improved says
            # whether the swarm still travels; the range keeps the mean at the setting.
            self._inertia = self.settings.inertia * (0.75 + 0.5 * float(better.mean()))
        if self.settings.diversity and self._collapsed():
            self._scatter()

    def _move(self) -> None:
        settings, shape = self.settings, self.positions.shape
        own, social, ring = (self._random.random(shape) for _ in range(3))
        share = settings.leader_share
        pull = settings.own_pull * own * (self.own_best - self.positions)
        pull += share * settings.social_pull * social * (self.best_position - self.positions)
        if share < 1.0:
            pull += (
                (1.0 - share)
                * settings.social_pull
                * ring
                * (self.own_best[self._neighbours()] - self.positions)
            )
        limit = 2.0 * settings.sigma
        self.velocities = np.clip(self._inertia * self.velocities + pull, -limit, limit)
        self.positions = self.positions + self.velocities

    def _neighbours(self) -> NDArray[np.int64]:
        """Return for every particle the best of itself and its two neighbours on the ring."""
        index = np.arange(len(self.own_cost))
        trio = np.stack([np.roll(index, 1), index, np.roll(index, -1)])
        chosen: NDArray[np.int64] = trio[np.argmin(self.own_cost[trio], axis=0), index]
        return chosen

    def _collapsed(self) -> bool:
        return (
            self._stagnation >= self.settings.patience and self.diversity < self.settings.collapse
        )

    def _scatter(self) -> None:
        """Draw the worse half anew around the leader; what they knew of their own is forgotten."""
        worse = np.argsort(self.own_cost, kind="stable")[(len(self.own_cost) + 1) // 2 :]
        shape = (len(worse), self.positions.shape[1])
        self.positions[worse] = self.best_position + self._random.normal(
            0.0, self.settings.sigma, shape
        )
        self.velocities[worse] = 0.0
        self.own_cost[worse] = np.inf
        self.own_best[worse] = self.positions[worse]
        self._stagnation = 0
