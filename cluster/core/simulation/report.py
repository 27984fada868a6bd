"""What a simulation found: numbers, time series, and what happened to every job."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from cluster.core.resources import ReplicaPlacement

#: The most points of a time series.
MAX_POINTS: Final = 500
#: A shorter run counts as this long in a slowdown, so that a job of a second cannot rule the mean.
SHORT_RUN_S: Final = 10.0


class Outcome(StrEnum):
    """How a simulated job ended."""

    COMPLETED = "completed"
    FAILED = "failed"  # its program, as often as it may be tried
    WALLTIME = "walltime"  # ended at its limit
    HOST_LOST = "host_lost"  # its hosts, as often as it may be tried
    UNPLACEABLE = "unplaceable"  # no host that was left could ever hold it


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A time in which a job ran in one place."""

    started_s: float
    ended_s: float
    replicas: tuple[ReplicaPlacement, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecord:
    """What happened to one job; seconds of the simulated clock.

    Attributes:
        started_s: When its first attempt started; ``None`` if it never did.
        ended_s: When its last attempt ended; ``None`` if it never started.
        duration_s: How long it runs alone and undisturbed.
        busy_s: How long its attempts ran altogether.
        hosts: Where its last attempt ran.
        spans: Every attempt, and of an elastic job every size, in order.
    """

    key: str
    outcome: Outcome
    submitted_s: float
    duration_s: float
    started_s: float | None = None
    ended_s: float | None = None
    busy_s: float = 0.0
    attempts: int = 0
    hosts: tuple[str, ...] = ()
    spans: tuple[Span, ...] = ()
    owner: str = ""

    @property
    def wait_s(self) -> float | None:
        """Return the seconds from submission to the first start."""
        return None if self.started_s is None else self.started_s - self.submitted_s

    @property
    def turnaround_s(self) -> float | None:
        """Return the seconds from submission to the end."""
        return None if self.ended_s is None else self.ended_s - self.submitted_s

    @property
    def slowdown(self) -> float | None:
        """Return the turnaround in units of the job's own duration, 1 at least."""
        if self.turnaround_s is None:
            return None
        return max(1.0, self.turnaround_s / max(self.duration_s, SHORT_RUN_S))


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """Mean and quantiles of one quantity over jobs; all 0 without jobs."""

    mean: float = 0.0
    p50: float = 0.0
    p95: float = 0.0
    most: float = 0.0

    @classmethod
    def of(cls, values: Sequence[float]) -> "Distribution":
        """Return the spread of ``values``."""
        if not values:
            return cls()
        array: NDArray[np.float64] = np.asarray(values, dtype=np.float64)
        p50, p95 = np.percentile(array, [50, 95])
        return cls(
            mean=float(array.mean()), p50=float(p50), p95=float(p95), most=float(array.max())
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """The cluster over time, at most 500 points; each value holds from its time to the next.

    Attributes:
        gpu_pct, cpu_pct, memory_pct: What is claimed of all hosts that are up.
        gpu_busy_pct: What the jobs use of the GPUs, by their own utilisation alone.
        fragmentation_pct: GPU that is free but of no use to the workload's average job, of all
            GPU.
        power_w: Watts of all hosts that are up.
    """

    time_s: tuple[float, ...] = ()
    running: tuple[int, ...] = ()
    waiting: tuple[int, ...] = ()
    hosts_active: tuple[int, ...] = ()
    gpu_pct: tuple[float, ...] = ()
    gpu_busy_pct: tuple[float, ...] = ()
    cpu_pct: tuple[float, ...] = ()
    memory_pct: tuple[float, ...] = ()
    fragmentation_pct: tuple[float, ...] = ()
    power_w: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The result of one workload under one policy.

    Attributes:
        makespan_s: From the first submission to the last end.
        gpu_pct, cpu_pct, memory_pct: Claimed share of the hosts that were up, mean over the
            makespan.
        gpu_busy_pct: The same for what the jobs use of the GPUs.
        fragmentation_pct: Mean over the makespan; see :class:`Series`.
        energy_kwh: Of all hosts that were up.
        energy_active_kwh: The same if a host without a job drew nothing.
        passes: How often the placer was asked.
    """

    policy: str
    workload: str
    seed: int
    hosts: int
    gpus: int
    jobs: tuple[JobRecord, ...]
    makespan_s: float = 0.0
    wait_s: Distribution = field(default_factory=Distribution)
    turnaround_s: Distribution = field(default_factory=Distribution)
    slowdown: Distribution = field(default_factory=Distribution)
    gpu_pct: float = 0.0
    gpu_busy_pct: float = 0.0
    cpu_pct: float = 0.0
    memory_pct: float = 0.0
    fragmentation_pct: float = 0.0
    energy_kwh: float = 0.0
    energy_active_kwh: float = 0.0
    passes: int = 0
    resizes: int = 0
    series: Series = field(default_factory=Series)

    @property
    def outcomes(self) -> Mapping[str, int]:
        """Return how many jobs ended in which way; every way is named."""
        counted = {outcome.value: 0 for outcome in Outcome}
        for job in self.jobs:
            counted[job.outcome.value] += 1
        return counted

    def as_dict(self, *, jobs: bool = True) -> dict[str, Any]:
        """Return JSON values only.

        Args:
            jobs: Whether each job's own times are wanted; they grow with the workload.
        """
        found: dict[str, Any] = {
            name: getattr(self, name)
            for name in (
                "policy",
                "workload",
                "seed",
                "hosts",
                "gpus",
                "makespan_s",
                "gpu_pct",
                "gpu_busy_pct",
                "cpu_pct",
                "memory_pct",
                "fragmentation_pct",
                "energy_kwh",
                "energy_active_kwh",
                "passes",
                "resizes",
            )
        }
        found["outcomes"] = dict(self.outcomes)
        for name in ("wait_s", "turnaround_s", "slowdown"):
            found[name] = asdict(getattr(self, name))
        found["series"] = {name: list(values) for name, values in asdict(self.series).items()}
        if jobs:
            found["jobs"] = [_job_dict(job) for job in self.jobs]
        return found


def summed_up(report: Report) -> Report:
    """Return the report with what follows from its jobs."""
    waits = [job.wait_s for job in report.jobs if job.wait_s is not None]
    turnarounds = [job.turnaround_s for job in report.jobs if job.turnaround_s is not None]
    slowdowns = [job.slowdown for job in report.jobs if job.slowdown is not None]
    ends = [job.ended_s for job in report.jobs if job.ended_s is not None]
    first_s = min((job.submitted_s for job in report.jobs), default=0.0)
    return replace(
        report,
        makespan_s=max(ends, default=first_s) - first_s,
        wait_s=Distribution.of(waits),
        turnaround_s=Distribution.of(turnarounds),
        slowdown=Distribution.of(slowdowns),
    )


def _job_dict(job: JobRecord) -> dict[str, Any]:
    return {
        "id": job.key,
        "owner": job.owner,
        "outcome": job.outcome.value,
        "submitted_s": job.submitted_s,
        "started_s": job.started_s,
        "ended_s": job.ended_s,
        "wait_s": job.wait_s,
        "turnaround_s": job.turnaround_s,
        "slowdown": job.slowdown,
        "attempts": job.attempts,
        "hosts": list(job.hosts),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitChange:
    """How much longer one job waits under another policy; negative is shorter.

    A wait is ``None`` where the job never started.
    """

    key: str
    owner: str
    before_s: float | None
    after_s: float | None

    @property
    def change_s(self) -> float | None:
        """Return the seconds more, ``None`` where one of the two never started."""
        if self.before_s is None or self.after_s is None:
            return None
        return self.after_s - self.before_s


def wait_changes(before: Report, after: Report) -> tuple[WaitChange, ...]:
    """Return every job's wait under both policies, who waits longest more first.

    Jobs that no longer start come first of all, those that start only now last.
    """
    earlier = {job.key: job for job in before.jobs}
    changes = [
        WaitChange(
            key=job.key,
            owner=job.owner,
            before_s=earlier[job.key].wait_s,
            after_s=job.wait_s,
        )
        for job in after.jobs
        if job.key in earlier
    ]
    return tuple(sorted(changes, key=_urgency))


def _urgency(change: WaitChange) -> tuple[int, float, str]:
    if change.change_s is not None:
        return (1, -change.change_s, change.key)
    if change.after_s is None and change.before_s is not None:
        return (0, 0.0, change.key)
    return (2, 0.0, change.key)
