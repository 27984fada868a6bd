r"""Placing one arriving request at a time, by a score that is linear in documented features.

A host ``h`` with what it has free is worth :math:`\varphi(h) = \sum_k w_k x_k(h)`; a request goes
where :math:`\varphi` grows least, plus :math:`w_{25}` times its GPUs times how scarce the model is
by what is still free. The weights are tuned by the particle swarm on past arrivals
(``tuning``); the features adapt to what has arrived so far and never look ahead.

The common rules and FGD (Weng et al., ATC'23) run through the same loop, so that they can be
compared request by request.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from cluster.core.placement import scoring_kernels as kernels
from cluster.core.placement.kernels import Solution
from cluster.core.placement.packing import Packing
from cluster.core.placement.score_weights import FEATURES, ScoreWeights, default_weights
from cluster.core.resources import WHOLE_GPU_MILLI

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

OURS: Final = "swarm-tuned"
#: The rules by name; ``swarm-tuned`` is the score, whose weights the swarm found.
RULES: Final[Mapping[str, int]] = {
    OURS: kernels.SCORE,
    "fgd": kernels.FGD,
    "gpu-packing": kernels.PACKING,
    "gpu-clustering": kernels.CLUSTERING,
    "best-fit": kernels.BEST_FIT,
    "first-fit": kernels.FIRST_FIT,
    "dot-product": kernels.DOT,
    "least-loaded": kernels.LEAST_LOADED,
    "random": kernels.RANDOM,
}
#: Arrivals after which statistics are taken: four times as many each time, at most so far apart.
_OBSERVE_FIRST: Final = 64
_OBSERVE_EVERY: Final = 4096
#: What is assumed before anything has arrived: cores and GiB a GPU, blocks, shares, CPU-only part.
_AT_FIRST: Final = (
    *(1.0 / cpu for cpu in (4000, 8000, 10000, 12000)),
    *(1.0 / memory for memory in (16384, 32768)),
    *(0.7, 0.1, 0.1, 0.2),
    *(300.0, 600.0),
    0.1,
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Where each arrival went: ``host`` is -1 for a request that was dropped, [N] each."""

    host: Ints
    mask: Ints


@dataclass(frozen=True, slots=True)
class Rule:
    """One of :data:`RULES`, the weights of the score, and the seed of the rules that draw lots."""

    name: str
    weights: ScoreWeights | None = None
    seed: int = 0

    def vector(self) -> Floats:
        """Return the weights that count, [25]."""
        if self.name != OURS:
            return np.zeros(len(FEATURES))
        return (self.weights or default_weights()).vector()


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Requests that come one after the other to the hosts of a problem.

    Args:
        packing: The problem; its hosts as they are, its requests' classes.
        order: The requests' numbers in the order of their arrival; one may come again, [N].
    """

    packing: Packing
    order: Ints

    @property
    def gpus(self) -> Floats:
        """Return the GPU that each arrival asks for, [N]."""
        classes = self.packing.classes
        asked: Floats = (classes.gpus * classes.share / WHOLE_GPU_MILLI)[
            self.packing.request_class[self.order]
        ]
        return asked

    def run(self, rule: str, weights: ScoreWeights | None = None, *, seed: int = 0) -> Outcome:
        """Place the arrivals one after the other; what does not fit is dropped.

        Args:
            rule: One of :data:`RULES`.
            weights: Of the score; those of the product if not given.
            seed: Of chance, for the rules that draw lots.
        """
        return run(self.packing, self.order, Rule(rule, weights, seed))

    def allocated_pct(self, outcome: Outcome, at_pct: Sequence[float]) -> tuple[float, ...]:
        """Return the GPU allocated when so much had arrived, both in percent of all GPUs.

        Where less arrives in all, the value is that at the end.
        """
        gpus = self.gpus
        capacity = float((self.packing.host.share >= 0).sum())
        if not capacity or not len(gpus):
            return tuple(0.0 for _ in at_pct)
        arrived = np.cumsum(gpus)
        placed = np.cumsum(np.where(outcome.host >= 0, gpus, 0.0))
        at = np.searchsorted(arrived, np.asarray(at_pct) / 100.0 * capacity - 1e-9)
        values: list[float] = (100.0 * placed[np.minimum(at, len(gpus) - 1)] / capacity).tolist()
        return tuple(values)


def run(packing: Packing, order: Ints, rule: Rule, solution: Solution | None = None) -> Outcome:
    """Place requests, each of one replica, in an order; what does not fit is dropped.

    Args:
        solution: What hosts have left; as they are in the problem if not given.
    """
    asked, room = arrays_of(packing, solution)
    number, hosts = len(order), len(room)
    outcome = Outcome(np.full(number, -1, np.int64), np.zeros(number, np.int64))
    if not hosts:
        return outcome
    arrivals = packing.request_class[order]
    counts = np.zeros(len(asked), np.int64)
    known = np.array([*_AT_FIRST, *[0.0] * packing.classes.accepts.shape[1]])
    likely = _popularity(packing)
    weights = rule.vector()
    price = np.zeros(hosts)
    state = np.array([1 + rule.seed % 2147483646], np.int64)
    touched = np.zeros(hosts, bool) if solution is None else solution.slots > 0
    last_change = np.where(touched, 0, -1)
    begins = _looks(number) if rule.name == OURS else [0, number]
    for begin, end in pairwise(begins):
        if begin:
            observe(counts, packing, room, known)
        kernels.arrive(
            RULES[rule.name],
            arrivals[begin:end],
            counts,
            packing.host.kind,
            packing.classes.fits,
            last_change,
            packing.host.share.shape[1],
            asked,
            room,
            known,
            likely,
            weights,
            price,
            state,
            outcome.host[begin:end],
            outcome.mask[begin:end],
        )
    return outcome


def _looks(number: int) -> list[int]:
    """Return after how many arrivals statistics are taken: 0, 64, 256, ... and the end."""
    looks = [0]
    following = _OBSERVE_FIRST
    while following < number:
        looks.append(following)
        following = min(4 * following, following + _OBSERVE_EVERY)
    return [*looks, number]


def observe(counts: Ints, packing: Packing, room: Ints, known: Floats) -> None:
    """Take the statistics of what has arrived, ``counts`` of each class, into ``known``."""
    classes = packing.classes
    units = classes.gpus * classes.share / WHOLE_GPU_MILLI
    amount = counts * units
    seen = amount > 0.0
    cpu, memory = counts * classes.cpu, classes.memory
    total, all_cpu = float(amount.sum()), float(cpu.sum())
    known[kernels.CPU_ONLY] = float(cpu[classes.gpus == 0].sum()) / max(1.0, all_cpu)
    kernel_arrays = (packing.host.share.shape[1], arrays_of(packing)[0], room)
    known[kernels.TENSION :] = kernels.tensions(counts, *kernel_arrays, False)  # noqa: FBT003
    if not total:
        return
    each, weight = classes.cpu[seen] / units[seen], amount[seen]
    for level, part in enumerate((0.25, 0.5, 0.75, 0.9)):
        known[kernels.CPU_PER_GPU + level] = 1.0 / max(1.0, _quantile(each, weight, part))
    each = memory[seen] / units[seen]
    for level, part in enumerate((0.5, 0.85)):
        known[kernels.MEMORY_PER_GPU + level] = 1.0 / max(1.0, _quantile(each, weight, part))
    whole = classes.share == WHOLE_GPU_MILLI
    most = np.minimum(8, classes.gpus)
    for level in range(4):
        block = whole & (most > (1 << level) // 2) & (most <= 1 << level)
        known[kernels.BLOCKS + level] = math.sqrt(float(amount[block].sum()) / total)
    shared = seen & ~whole
    for level, part in enumerate((0.33, 0.66) if shared.any() else ()):
        known[kernels.SHARE_SIZES + level] = _quantile(
            classes.share[shared].astype(np.float64), amount[shared], part
        )


def _quantile(values: Floats, amounts: Floats, part: float) -> float:
    """Return the value below which ``part`` of the amounts lies."""
    order = np.argsort(values, kind="stable")
    upto = np.cumsum(amounts[order])
    place = int(np.searchsorted(upto, part * upto[-1]))
    return float(values[order[min(place, len(order) - 1)]])


def resampled(packing: Packing, *, seed: int, until_pct: float = 130.0) -> Arrivals:
    """Return the requests in a shuffled order, drawn again until they ask for ``until_pct``.

    The percentage is of all GPUs of the hosts. Requests that ask for more in all are cut off.
    """
    random = np.random.default_rng(seed)
    order = random.permutation(len(packing.requests)).astype(np.int64)
    gpus = Arrivals(packing, order).gpus
    wanted = until_pct / 100.0 * float((packing.host.share >= 0).sum())
    total = float(gpus.sum())
    if total <= 0.0:
        return Arrivals(packing, order)
    if total >= wanted:
        return Arrivals(packing, order[: int(np.searchsorted(np.cumsum(gpus), wanted)) + 1])
    rounds = int((wanted - total) / (total / len(order))) + 1
    more: list[Ints] = []
    while total < wanted:
        drawn = random.integers(len(order), size=rounds).astype(np.int64)
        asked = np.cumsum(Arrivals(packing, drawn).gpus)
        kept = drawn[: int(np.searchsorted(asked, wanted - total)) + 1]
        total += float(asked[len(kept) - 1])
        more.append(kept)
    return Arrivals(packing, np.concatenate([order, *more]))


def in_batches(arrivals: Arrivals, size: int) -> Arrivals:
    """Return arrivals that wait until ``size`` are there and then go in the better order.

    Within a batch those go first whose GPU models are the fewest, then those that ask for the most
    GPUs; the last batch may be smaller.
    """
    packing = arrivals.packing
    classes = packing.classes
    on_models = np.bincount(
        packing.host.model[packing.host.share >= 0], minlength=classes.accepts.shape[1]
    )
    among = (classes.accepts * on_models).sum(axis=1)
    class_ = packing.request_class[arrivals.order]
    number = np.arange(len(class_)) // size
    gpus = (classes.gpus * classes.share)[class_]
    better = np.lexsort((-classes.cpu[class_], -gpus, among[class_], gpus == 0, number))
    return Arrivals(packing, arrivals.order[better])


def arrays_of(packing: Packing, solution: Solution | None = None) -> tuple[Ints, Ints]:
    """Return what classes ask for and what hosts have free, as the loops want them."""
    host, classes = packing.host, packing.classes
    left = host if solution is None else solution
    asked = np.hstack(
        [
            np.stack(
                [classes.cpu, classes.memory, classes.gpus, classes.share, classes.gpu_memory], 1
            ),
            classes.accepts,
        ]
    )
    room = np.hstack(
        [
            np.stack([left.cpu, left.memory, host.total[:, 0], host.total[:, 1]], 1),
            (host.share >= 0).sum(axis=1, keepdims=True),
            left.share,
            left.gpu_memory,
            np.maximum(host.model, 0),
        ]
    )
    return np.ascontiguousarray(asked, np.int64), np.ascontiguousarray(room, np.int64)


def _popularity(packing: Packing) -> Floats:
    """Return how large a part of all requests each class is, [C]; FGD is told this in advance."""
    counts = packing.counts
    return counts / max(1, int(counts.sum()))
