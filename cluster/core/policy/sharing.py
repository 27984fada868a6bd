"""Which jobs may share a GPU, with how much memory each, how fast they are then, and what follows.

Memory is never overcommitted: each job has a cap, and all caps and a reserve fit into the GPU.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from cluster.core.policy.profiles import Estimate
from cluster.core.policy.settings import DEFAULTS, PolicySettings

Floats = NDArray[np.float64]


def memory_cap_mib(
    estimate: Estimate,
    declared_mib: int | None = None,
    settings: PolicySettings = DEFAULTS,
    *,
    most_mib: int | None = None,
) -> int | None:
    """Return what a job may have of a GPU's memory, ``None`` where nothing is known.

    What was measured goes before what was declared; without a measurement the declaration is
    taken at its word, since it is enforced.

    Args:
        most_mib: What the largest GPU has; who would need more to be safe gets all of it.
    """
    if not estimate.measured or not estimate.memory_peak_mib:
        return declared_mib
    cap = math.ceil(estimate.memory_peak_mib * settings.memory_margin) + settings.memory_extra_mib
    return cap if most_mib is None else min(cap, most_mib)


def reserve_mib(total_mib: int, settings: PolicySettings = DEFAULTS) -> int:
    """Return what is never given away of a GPU with ``total_mib`` that two jobs share."""
    return max(settings.reserve_mib, math.ceil(settings.reserve_part * total_mib))


def caps_fit(
    total_mib: int, caps_mib: Sequence[int], settings: PolicySettings = DEFAULTS, used_mib: int = 0
) -> bool:
    """Return whether all caps and the reserve fit, by what is promised and by what is in use.

    Args:
        used_mib: What programs and driver really use now; the last cap comes on top of it.
    """
    left = total_mib - reserve_mib(total_mib, settings)
    last = caps_mib[-1] if caps_mib else 0
    return sum(caps_mib) <= left and used_mib + last <= left


def predicted_speed(utilization_pct: float, settings: PolicySettings = DEFAULTS) -> float:
    """Return the speed, 1 for alone, of each of two jobs that alone use so much in sum, percent."""
    over = max(0.0, utilization_pct / 100.0 - 1.0)
    return max(0.05, settings.speed_base - settings.speed_slope * over)


def slowdown(speed: float) -> float:
    """Return how many times as long a job takes at this speed."""
    return 1.0 / speed


class Refusal(StrEnum):
    """Why a job does not share a certain GPU; the word is shown by pages and the API."""

    CLUSTER = "cluster"
    CONSENT = "consent"
    NOT_SINGLE = "not_single"
    FULL = "full"
    UNKNOWN = "unknown"
    MEMORY = "memory"
    SPEED = "speed"
    BARRED = "barred"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharer:
    """A job as far as sharing goes.

    Attributes:
        kind: What it is in the table of pair speeds.
        cap_mib: What it may have of a GPU's memory; ``None`` for the whole.
        consents: Whether its owner lets it share.
        known: Whether its kind has been watched alone.
    """

    kind: str
    estimate: Estimate = field(default_factory=Estimate)
    cap_mib: int | None = None
    consents: bool = True
    known: bool = True
    single: bool = True

    def refusal(self, settings: PolicySettings = DEFAULTS) -> Refusal | None:
        """Return why it shares no GPU with anybody now, ``None`` if it would."""
        checks = (
            (settings.sharing, Refusal.CLUSTER),
            (self.consents, Refusal.CONSENT),
            (self.single, Refusal.NOT_SINGLE),
            (self.known and self.cap_mib is not None, Refusal.UNKNOWN),
        )
        return next((word for holds, word in checks if not holds), None)


class PairSpeeds:
    """How fast a kind of job runs beside another, relative to alone; learned as pairs run.

    What is not measured comes from the utilisation of the two, corrected by how sensitive the one
    and how troublesome the other has proved beside others; a measured pair's own mean takes over
    as it is seen more often.
    """

    def __init__(self, settings: PolicySettings = DEFAULTS) -> None:
        self._settings = settings
        self._rows: dict[str, int] = {}
        self._seen: Floats = np.zeros((0, 0))
        self._means: Floats = np.zeros((0, 0))
        self._use: Floats = np.zeros(0)
        self._table: Floats | None = None

    def rows_of(self, kinds: Mapping[str, float | None]) -> NDArray[np.int64]:
        """Return the rows of kinds in :meth:`table`; a kind that is new gets one.

        Args:
            kinds: What each uses of a GPU alone, percent; ``None`` counts as all of it.
        """
        fresh = [kind for kind in kinds if kind not in self._rows]
        if fresh:
            self._grow(fresh)
        rows: NDArray[np.int64] = np.array([self._rows[kind] for kind in kinds], dtype=np.int64)
        use = np.array([100.0 if value is None else value for value in kinds.values()])
        if (self._use[rows] != use).any():
            self._use[rows] = use
            self._table = None
        return rows

    def observe(self, kind: str, beside: str, speed: float) -> None:
        """Count in the measured speed of ``kind`` beside ``beside``.

        Raises:
            ValueError: If the speed is no number above 0.
        """
        if not speed > 0 or not math.isfinite(speed):
            raise ValueError(f"a speed must be a number above 0, got {speed}")
        self._grow([one for one in dict.fromkeys((kind, beside)) if one not in self._rows])
        row, column = self._rows[kind], self._rows[beside]
        self._seen[row, column] += 1
        distance = min(speed, 2.0) - self._means[row, column]
        self._means[row, column] += distance / self._seen[row, column]
        self._table = None

    def table(self) -> Floats:
        """Return the expected speeds, shape ``(kinds, kinds)``: of the row beside the column."""
        if self._table is None:
            self._table = self._expected()
        return self._table

    def speed(self, kind: str, beside: str) -> float:
        """Return the expected speed of one kind beside another; both must have rows."""
        return float(self.table()[self._rows[kind], self._rows[beside]])

    def measured(self, kind: str, beside: str) -> int:
        """Return how often the pair has been measured."""
        if kind not in self._rows or beside not in self._rows:
            return 0
        return int(self._seen[self._rows[kind], self._rows[beside]])

    def _grow(self, kinds: Sequence[str]) -> None:
        if not kinds:
            return
        for kind in kinds:
            self._rows[kind] = len(self._rows)
        more = (0, len(kinds))
        self._seen = np.pad(self._seen, (more, more))
        self._means = np.pad(self._means, (more, more))
        self._use = np.pad(self._use, more, constant_values=100.0)
        self._table = None

    def _expected(self) -> Floats:
        settings = self._settings
        over = np.maximum(0.0, (self._use[:, None] + self._use[None, :]) / 100.0 - 1.0)
        prior = settings.speed_base - settings.speed_slope * over
        weight = np.minimum(self._seen, 4.0)
        off = np.where(self._seen > 0, self._means - prior, 0.0)
        level, rows, columns = _effects(off, weight, settings.shrink_runs)
        prior = prior + level + rows[:, None] + columns[None, :]
        few = settings.shrink_pairs
        mixed = (self._seen * self._means + few * prior) / (self._seen + few)
        return np.clip(mixed, 0.05, 1.0)


def _effects(off: Floats, weight: Floats, few: float) -> tuple[float, Floats, Floats]:
    """Return what of the weighted distances is common, each row's and each column's; shrunk."""
    rows: Floats = np.zeros(len(off))
    columns: Floats = np.zeros(len(off))
    level = float((weight * off).sum() / (weight.sum() + few)) if weight.size else 0.0
    for _ in range(4):
        left = off - level - columns[None, :]
        rows = (weight * left).sum(axis=1) / (weight.sum(axis=1) + few)
        left = off - level - rows[:, None]
        columns = (weight * left).sum(axis=0) / (weight.sum(axis=0) + few)
    return level, rows, columns


class OutOfMemory(StrEnum):
    """What follows when a job ran out of GPU memory."""

    RETRY_ALONE = "retry_alone"
    FAIL = "fail"


def after_out_of_memory(*, alone: bool, out_of_memory_before: int) -> OutOfMemory:
    """Return what follows: a first time beside another is retried once alone, all else fails.

    Its partner is left as it is.
    """
    if alone or out_of_memory_before > 0:
        return OutOfMemory.FAIL
    return OutOfMemory.RETRY_ALONE
