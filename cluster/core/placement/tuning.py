"""Tunes the weights of the score by the particle swarm, on arrivals that are past."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from cluster.core.errors import BadProblemError
from cluster.core.placement.pso import Swarm
from cluster.core.placement.score_weights import FEATURES, ScoreWeights
from cluster.core.placement.scoring import Arrivals

Floats = NDArray[np.float64]

#: Where a replay is judged: GPU arrived in percent of all GPUs, and how much it counts.
JUDGED_AT: Final = ((90.0, 0.1), (95.0, 0.15), (100.0, 0.5), (130.0, 0.25))
#: Rules that are asked beside, so that easy and hard histories count the same.
REFERENCES: Final = ("fgd", "gpu-packing", "best-fit")
#: Particles; so many evaluations are one step of the swarm.
SIZE: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """What the swarm found.

    Attributes:
        gains: For each history the GPU allocated beyond the best of the references, in percent of
            all GPUs, as judged.
        score: Mean of the gains and half the worst; the swarm maximises it.
        evaluations: Weight vectors that were tried.
    """

    weights: ScoreWeights
    gains: tuple[float, ...]
    score: float
    evaluations: int


def tune(
    histories: Sequence[Arrivals],
    *,
    evaluations: int,
    seed: int = 0,
    start: Sequence[ScoreWeights] = (),
    progress: Callable[[int, float], None] | None = None,
) -> Tuned:
    """Return the weights under which past arrivals would have got the most GPU.

    Args:
        histories: Arrivals that are replayed for every weight vector that is tried.
        evaluations: How many are tried; rounded up to whole steps of the swarm.
        start: Weights of the first particles, beside those that are always among them.
        progress: Called after each step with the evaluations so far and the best score.

    Raises:
        BadProblemError: If there is no history, or none in which anything asks for GPU.
    """
    used = [history for history in histories if len(history.order) and history.gpus.sum() > 0.0]
    if not used:
        raise BadProblemError("no history asks for GPU; there is nothing to tune on")
    if evaluations < 1:
        raise BadProblemError("tuning needs at least one evaluation")
    references = np.array([max(judged(one, rule) for rule in REFERENCES) for one in used])
    first = np.array([_unit(one.vector()) for one in (*start, *_STARTS)][:SIZE])
    swarm = Swarm(dimension=len(FEATURES), size=SIZE, seed=seed, start=first)
    done = 0
    while done < evaluations:
        gains = [_gains(position, used, references) for position in swarm.ask()]
        swarm.tell(np.array([-_score(gain) for gain in gains]))
        done += SIZE
        if progress is not None:
            progress(done, -swarm.best_cost)
    best = _rounded(_unit(swarm.best_position))
    gain = _gains(best, used, references)
    return Tuned(
        weights=ScoreWeights.of_vector(best),
        gains=tuple(gain.tolist()),
        score=_score(gain),
        evaluations=done,
    )


def judged(history: Arrivals, rule: str, weights: ScoreWeights | None = None) -> float:
    """Return the GPU that a rule allocates, in percent, weighted over the points of judgement."""
    outcome = history.run(rule, weights)
    values = history.allocated_pct(outcome, [at for at, _ in JUDGED_AT])
    return sum(value * part for value, (_, part) in zip(values, JUDGED_AT, strict=True))


def _gains(position: Floats, histories: Sequence[Arrivals], references: Floats) -> Floats:
    weights = ScoreWeights.of_vector(position)
    values = [judged(history, "swarm-tuned", weights) for history in histories]
    gains: Floats = np.array(values) - references
    return gains


def _score(gains: Floats) -> float:
    return float(gains.mean() + 0.5 * gains.min())


def _unit(vector: Floats) -> Floats:
    """Return the direction of a vector, at a length that the swarm's steps suit.

    Only the direction of the weights decides where requests go.
    """
    length = float(np.sqrt((vector**2).mean()))
    return vector / length if length else vector


def _rounded(vector: Floats) -> Floats:
    return np.round(vector, 4)


#: Weights that every search begins from: all features alike, CPU that does not last alone, and
#: full GPUs alone.
_STARTS: Final = (
    ScoreWeights(**dict.fromkeys(FEATURES[:19], 1.0)),
    ScoreWeights(**dict.fromkeys(FEATURES, 1.0)),
    ScoreWeights(**dict.fromkeys(FEATURES[:4], 1.0), partial=0.5, broken=0.5),
    ScoreWeights(partial=1.0, broken=1.0, in_use=0.5, balance=0.5, scarce_free=0.5),
)
