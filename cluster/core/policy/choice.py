"""Which GPU a job gets: the state of each, the best partner to share with, the best set for a ring.

A partner is good if the two together make the most of a GPU's time. What a job's work is worth is
found first, for all jobs together, as the dual prices of the shortest schedule that could be: a
job that goes well with anybody is cheap, one that nobody goes well with costs a GPU of its own.
Without prices the lightest jobs would pair with each other and leave the heavy ones over.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, permutations
from typing import Final

import numpy as np
from numpy.typing import NDArray

from cluster.core.policy.settings import DEFAULTS, PolicySettings
from cluster.core.resources import GpuHealth, GpuLink, GpuUuid

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]

_ROUNDS: Final = 160
#: From so much power over the limit, and so many degrees below the slowdown, state costs.
_NEAR_LIMIT: Final = 0.9
_WARM_C: Final = 15.0
#: Sets of GPUs are searched through completely up to so many orders.
_MOST_ORDERS: Final = 20_000
#: How well two GPUs are joined: an NVLink counts 100 each, the rest by what they share.
_EDGES: Final[Mapping[str, int]] = {
    "board": 60,
    "switch": 50,
    "switches": 40,
    "bridge": 30,
    "node": 20,
    "system": 10,
}
_UNKNOWN_EDGE: Final = 10
_NVLINK_EDGE: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuCondition:
    """What is read of a GPU and matters for choosing it; ``None`` is unknown and costs nothing."""

    health: GpuHealth = GpuHealth.OK
    power_part: float | None = None
    temperature_c: float | None = None
    slowdown_c: float | None = None
    image_present: bool = False
    data_local: bool = False

    def worth(self, settings: PolicySettings = DEFAULTS) -> float:
        """Return what the state adds to the score of this GPU, in GPUs; negative is worse."""
        worth = 0.0
        if self.health is GpuHealth.DEGRADED:
            worth -= settings.degraded
        if self.power_part is not None and self.power_part > _NEAR_LIMIT:
            worth -= settings.near_power_limit
        if self.temperature_c is not None and self.slowdown_c is not None:
            over = self.temperature_c - (self.slowdown_c - _WARM_C)
            worth -= settings.hot * min(1.0, max(0.0, over / _WARM_C))
        return worth + settings.image * self.image_present + settings.data * self.data_local


def pair_prices(work: Floats, speeds: Floats, allowed: Bools) -> Floats:
    """Return what a second of each kind's work is worth, in GPU seconds, 0 to 1.

    The dual of a linear program: work is done alone or in pairs, in the least GPU time. Found by
    multiplicative weights to within a few percent, and always feasible: no pair that is allowed
    and no single job is worth more than the time it takes.

    Args:
        work: Shape ``(kinds,)``, seconds alone, above 0.
        speeds: Shape ``(kinds, kinds)``, of the row beside the column.
        allowed: The same shape, symmetric; which pairs may be.
    """
    kinds = len(work)
    if not kinds:
        return np.zeros(0)
    open_speeds: Floats = np.where(allowed, speeds, 0.0)
    weights: Floats = np.zeros(kinds)
    mean: Floats = np.zeros(kinds)
    for step in range(_ROUNDS):
        parts = np.exp(weights - weights.max())
        parts /= parts.sum()
        prices = parts / work
        done = _best_column(prices, open_speeds, work)
        weights -= max(0.3, 2.0 / (1.0 + step / 20.0)) * done / done.max()
        if step >= _ROUNDS // 2:
            mean += parts
    prices = mean / work
    worth = _pair_worth(prices, open_speeds)
    scaled: Floats = prices / max(float(worth.max()), float(prices.max()))
    return scaled


def _pair_worth(prices: Floats, speeds: Floats) -> Floats:
    worth: Floats = speeds * prices[:, None]
    return worth + worth.T


def _best_column(prices: Floats, speeds: Floats, work: Floats) -> Floats:
    """Return what part of each kind's work the most valuable pair or single does in a second."""
    worth = _pair_worth(prices, speeds)
    first, second = divmod(int(np.argmax(worth)), len(work))
    alone = int(np.argmax(prices))
    done: Floats = np.zeros(len(work))
    if worth[first, second] > prices[alone]:
        done[first] += speeds[first, second]
        done[second] += speeds[second, first]
    else:
        done[alone] = 1.0
    return done / work


@dataclass(frozen=True, slots=True, kw_only=True)
class Openings:
    """GPUs with one job that would share, as arrays of shape ``(gpus,)``.

    Attributes:
        kinds: Row of the job there.
        room_mib: What a second cap may be.
        worth: What the state of the GPU adds.
    """

    kinds: Ints
    room_mib: Ints
    worth: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Joiners:
    """Waiting jobs that would share, first in the queue first, as arrays of shape ``(jobs,)``."""

    kinds: Ints
    caps_mib: Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class PairValues:
    """What pairs are worth, shape ``(kinds, kinds)`` by rows of kinds.

    Attributes:
        speeds: Of the row beside the column.
        prices: Shape ``(kinds,)``, see :func:`pair_prices`.
        allowed: Which pairs may be.
    """

    speeds: Floats
    prices: Floats
    allowed: Bools


def join_scores(
    joiners: Joiners, openings: Openings, pairs: PairValues, settings: PolicySettings = DEFAULTS
) -> Floats:
    """Return the score of each job on each GPU, shape ``(jobs, gpus)``; ``-inf`` is not allowed.

    The score is what the pair does in a second, by price, a worth for those first in the queue,
    the state of the GPU, and a cost for memory that would be left over.
    """
    jobs, gpus = len(joiners.kinds), len(openings.kinds)
    mine, theirs = joiners.kinds[:, None], openings.kinds[None, :]
    scores: Floats = (
        pairs.speeds[mine, theirs] * pairs.prices[mine]
        + pairs.speeds[theirs, mine] * pairs.prices[theirs]
    )
    scores = scores - settings.length_weight * (np.arange(jobs) / max(1, jobs))[:, None]
    room: Ints = np.broadcast_to(openings.room_mib[None, :], (jobs, gpus))
    left = (room - joiners.caps_mib[:, None]) / np.maximum(1, room)
    scores = scores + openings.worth[None, :] - settings.leftover * left
    refused = ~pairs.allowed[mine, theirs] | (left < 0)
    return np.where(refused, -np.inf, scores)


def ring_weight(order: Sequence[GpuUuid], links: Sequence[GpuLink]) -> tuple[int, int]:
    """Return the weakest edge of a ring and the sum of its edges; more is better."""
    return _ring_weight(order, _edges(links))


def best_ring(
    free: Sequence[GpuUuid], count: int, links: Sequence[GpuLink]
) -> tuple[GpuUuid, ...] | None:
    """Return ``count`` of the free GPUs in ring order, ``None`` if there are not so many.

    The set and the order have the strongest weakest edge, then the greatest sum; of equals the
    set that leaves the best joined rest for others, then the first by name.
    """
    names = sorted(free)
    if count > len(names) or count < 1:
        return None
    edges = _edges(links)
    best: tuple[tuple[int, int, int], tuple[GpuUuid, ...]] | None = None
    for chosen in _sets(names, count):
        order = _best_order(chosen, edges)
        rest = [one for one in names if one not in chosen]
        left = sum(edges.get(frozenset(pair), _UNKNOWN_EDGE) for pair in combinations(rest, 2))
        key = (*_ring_weight(order, edges), left)
        if best is None or key > best[0]:
            best = (key, order)
    return best[1] if best else None


def _edges(links: Sequence[GpuLink]) -> dict[frozenset[GpuUuid], int]:
    found: dict[frozenset[GpuUuid], int] = {}
    for link in links:
        pair = frozenset((link.first, link.second))
        weight = (
            _NVLINK_EDGE * max(1, link.links)
            if link.kind == "nvlink"
            else _EDGES.get(link.kind, _UNKNOWN_EDGE)
        )
        found[pair] = max(weight, found.get(pair, 0))
    return found


def _ring_weight(
    order: Sequence[GpuUuid], edges: Mapping[frozenset[GpuUuid], int]
) -> tuple[int, int]:
    if len(order) < 2:
        return (0, 0)
    following = [*order[1:], order[0]] if len(order) > 2 else [order[1]]
    weights = [
        edges.get(frozenset((one, other)), _UNKNOWN_EDGE)
        for one, other in zip(order, following, strict=False)
    ]
    return (min(weights), sum(weights))


def _sets(names: Sequence[GpuUuid], count: int) -> Sequence[tuple[GpuUuid, ...]]:
    """Return all sets, or of too many the neighbours by name, which drivers number by place."""
    sets: list[tuple[GpuUuid, ...]] = []
    for chosen in combinations(names, count):
        sets.append(chosen)
        if len(sets) * _orders(count) > _MOST_ORDERS:
            return [tuple(names[at : at + count]) for at in range(len(names) - count + 1)]
    return sets


def _orders(count: int) -> int:
    orders = 1
    for factor in range(3, count):
        orders *= factor
    return orders


def _best_order(
    chosen: tuple[GpuUuid, ...], edges: Mapping[frozenset[GpuUuid], int]
) -> tuple[GpuUuid, ...]:
    if len(chosen) < 4:
        return chosen
    if len(chosen) > 8:
        return _greedy_order(chosen, edges)
    first, rest = chosen[0], chosen[1:]
    # Each ring is looked at in one direction only.
    orders = ((first, *order) for order in permutations(rest) if order[0] <= order[-1])
    return max(orders, key=lambda order: _ring_weight(order, edges))


def _greedy_order(
    chosen: tuple[GpuUuid, ...], edges: Mapping[frozenset[GpuUuid], int]
) -> tuple[GpuUuid, ...]:
    order, rest = [chosen[0]], list(chosen[1:])
    while rest:
        last = order[-1]
        nearest = max(rest, key=lambda one: edges.get(frozenset((last, one)), _UNKNOWN_EDGE))
        rest.remove(nearest)
        order.append(nearest)
    return tuple(order)
