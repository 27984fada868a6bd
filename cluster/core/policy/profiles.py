"""What each kind of job needs: learned while it runs alone, and borrowed from its parents.

A kind is a user's program in an environment with certain arguments. Its parents are the same
program of the same user whatever the arguments, and the same program of anybody.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Final

from cluster.core.policy.settings import DEFAULTS, PolicySettings

_NORMAL: Final = NormalDist()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileKey:
    """What two jobs must have in common so that one teaches about the other.

    Attributes:
        program: The template, or a digest of the script.
        arguments: In one fixed spelling, the batch size among them.
    """

    user: str
    program: str
    environment: str = ""
    arguments: str = ""

    @property
    def kind(self) -> tuple[str, ...]:
        """Return the key that says all."""
        return (self.user, self.program, self.environment, self.arguments)

    @property
    def chain(self) -> tuple[tuple[str, ...], ...]:
        """Return the key itself and its parents, nearest first."""
        return (self.kind, (self.user, self.program), ("", self.program))


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedRun:
    """What was measured of one attempt; ``None`` where the device could not say.

    Attributes:
        utilization_pct: Mean over the time in which it was alone on its GPUs.
        memory_peak_mib: The highest on any of its GPUs.
        duration_s: Only of an attempt that came to its own end.
        alone_s: How long it was alone; the two others count only if this is long enough.
    """

    utilization_pct: float | None = None
    memory_peak_mib: int | None = None
    duration_s: float | None = None
    alone_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """What the runs under one key add up to.

    Attributes:
        alone_runs: Runs of which utilisation was measured.
        ended_runs: Runs of which the duration is known.
        log_duration, log_squares: Mean of the logarithms of the durations in seconds, and the
            sum of the squared distances from it.
    """

    alone_runs: int = 0
    utilization_pct: float = 0.0
    memory_peak_mib: int = 0
    ended_runs: int = 0
    log_duration: float = 0.0
    log_squares: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Duration:
    """A log-normal distribution of a job's duration."""

    median_s: float
    sigma: float

    def quantile_s(self, part: float) -> float:
        """Return the duration that a run keeps to with probability ``part``, above 0, below 1."""
        return self.median_s * math.exp(self.sigma * _NORMAL.inv_cdf(part))

    def left(self, elapsed_s: float, part: float = 0.5) -> float:
        """Return the quantile of what is left of a run that has already lasted ``elapsed_s``."""
        if elapsed_s <= 0:
            return self.quantile_s(part)
        if self.sigma <= 0:
            return max(0.0, self.median_s - elapsed_s)
        passed = _NORMAL.cdf(math.log(elapsed_s / self.median_s) / self.sigma)
        if passed > 1 - 1e-9:  # longer than anything known: it may go on as long again
            return elapsed_s * part
        reached = passed + (1 - passed) * part
        return max(0.0, self.quantile_s(min(reached, 1 - 1e-12)) - elapsed_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """What the user says of a job; ``None`` for nothing."""

    memory_mib: int | None = None
    walltime_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What a job is expected to need.

    Attributes:
        utilization_pct: Of a GPU, alone on it; ``None`` for unknown, which is the worst case for
            sharing.
        measured: Whether a job of exactly this kind has been watched alone.
        runs: How many ended runs of this kind the duration rests on, parents not counted.
    """

    utilization_pct: float | None = None
    memory_peak_mib: int | None = None
    duration: Duration | None = None
    measured: bool = False
    runs: int = 0


def learned(
    before: Learned | None, run: ObservedRun, settings: PolicySettings = DEFAULTS
) -> Learned:
    """Return what is known once ``run`` is counted in."""
    known = before or Learned()
    if run.utilization_pct is not None and run.alone_s >= settings.profile_s:
        runs = known.alone_runs + 1
        mean = known.utilization_pct + (run.utilization_pct - known.utilization_pct) / runs
        known = replace(known, alone_runs=runs, utilization_pct=mean)
    if run.memory_peak_mib is not None:
        known = replace(known, memory_peak_mib=max(known.memory_peak_mib, run.memory_peak_mib))
    if run.duration_s is not None and run.duration_s > 0:
        known = _with_duration(known, math.log(run.duration_s))
    return known


def _with_duration(known: Learned, value: float) -> Learned:
    runs = known.ended_runs + 1
    distance = value - known.log_duration
    mean = known.log_duration + distance / runs
    squares = known.log_squares + distance * (value - mean)
    return replace(known, ended_runs=runs, log_duration=mean, log_squares=squares)


def estimate(
    chain: Sequence[Learned | None],
    declared: Declared | None = None,
    settings: PolicySettings = DEFAULTS,
) -> Estimate:
    """Return what a job is expected to need.

    Args:
        chain: What is learned under the job's own key and its parents', nearest first.
        declared: Stands in where nothing is learned.
    """
    said = declared or Declared()
    own = chain[0] if chain else None
    peaks = [one.memory_peak_mib for one in chain if one is not None and one.memory_peak_mib]
    return Estimate(
        utilization_pct=_utilization(chain, settings),
        memory_peak_mib=peaks[0] if peaks else said.memory_mib,
        duration=_duration(chain, said, settings),
        measured=bool(own and own.alone_runs),
        runs=own.ended_runs if own else 0,
    )


def _utilization(chain: Sequence[Learned | None], settings: PolicySettings) -> float | None:
    value: float | None = None
    for one in reversed(chain):
        if one is not None and one.alone_runs:
            weight = _weight(one.alone_runs, settings, alone=value is None)
            value = weight * one.utilization_pct + (1 - weight) * (value or 0.0)
    return value


def _duration(
    chain: Sequence[Learned | None], said: Declared, settings: PolicySettings
) -> Duration | None:
    log_median: float | None = None
    variance = settings.duration_sigma**2
    for one in reversed(chain):
        if one is None or not one.ended_runs:
            continue
        weight = _weight(one.ended_runs, settings, alone=log_median is None)
        log_median = weight * one.log_duration + (1 - weight) * (log_median or 0.0)
        prior = settings.shrink_runs
        variance = (one.log_squares + prior * variance) / (max(0, one.ended_runs - 1) + prior)
    if log_median is not None:
        return Duration(median_s=math.exp(log_median), sigma=math.sqrt(variance))
    if said.walltime_s:
        # People ask for about twice what they need, so that the walltime is nearly never reached.
        return Duration(median_s=said.walltime_s / 2, sigma=settings.duration_sigma)
    return None


def _weight(runs: int, settings: PolicySettings, *, alone: bool) -> float:
    return 1.0 if alone else runs / (runs + settings.shrink_runs)
