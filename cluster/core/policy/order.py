"""In which order jobs wait: who is due, priority, fair share, then length."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from cluster.core.policy.profiles import Duration
from cluster.core.policy.queue import RunningJob, WaitingJob
from cluster.core.policy.settings import DEFAULTS, PolicySettings

#: Longer than any job: quick ones come before all long ones, the quickest first.
_AFTER_ALL_S = 1e15


@dataclass(slots=True)
class UsageLedger:
    """GPU seconds by owner, halved with every half-life that passes."""

    settings: PolicySettings = DEFAULTS
    used: dict[str, float] = field(default_factory=dict)
    at_s: float | None = None

    def advance(self, now_s: float, running: Iterable[RunningJob]) -> None:
        """Let time pass while ``running`` holds what it holds; a shared GPU counts half."""
        passed = 0.0 if self.at_s is None else max(0.0, now_s - self.at_s)
        self.at_s = now_s
        if passed <= 0:
            return
        half_life_s = self.settings.usage_half_life_s
        kept = 0.5 ** (passed / half_life_s)
        # What is used at a constant rate meanwhile decays while it is being used.
        grown = (1 - kept) * half_life_s / math.log(2)
        self.used = {owner: used * kept for owner, used in self.used.items() if used * kept > 1.0}
        for job in running:
            rate = gpus_held(job)
            if rate:
                self.used[job.owner] = self.used.get(job.owner, 0.0) + rate * grown


def gpus_held(job: RunningJob) -> float:
    """Return how many GPUs a job holds; one that lets others on it holds a half of each."""
    gpus = job.request.gpus * len(job.replicas)
    return gpus if job.request.whole_gpus else gpus / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Ordering:
    """What the order of a queue rests on.

    Attributes:
        durations: By the job's key; who has none counts by ``expected_s``.
        used: GPU seconds by owner, decayed.
        weights: What share an owner has relative to others; 1 where nothing is said.
    """

    now_s: float
    durations: Mapping[str, Duration | None]
    used: Mapping[str, float] = field(default_factory=dict)
    weights: Mapping[str, float] = field(default_factory=dict)
    settings: PolicySettings = DEFAULTS

    def median_s(self, job: WaitingJob) -> float:
        """Return the median of the job's duration."""
        duration = self.durations.get(job.request.key)
        return job.expected_s if duration is None else duration.median_s

    def due(self, job: WaitingJob) -> bool:
        """Return whether the job has waited so long that it goes before all that are not due."""
        patience_s = max(self.settings.due_s, self.settings.due_durations * self.median_s(job))
        return self.now_s - job.submitted_s >= patience_s

    def share(self, owner: str) -> int:
        """Return how often the owner's use has doubled beyond an hour of one GPU, by weight.

        Users within a factor of two count as equal, so that length may still order their jobs.
        """
        weight = self.weights.get(owner, 1.0)
        hours = self.used.get(owner, 0.0) / 3600.0 / max(weight, 1e-6)
        return max(0, math.floor(math.log2(hours)) + 1) if hours > 0 else 0


def in_order(waiting: Sequence[WaitingJob], ordering: Ordering) -> list[WaitingJob]:
    """Return the waiting jobs, first the one that comes next.

    First come all that are due, in the order of submission; then by priority, by fair share, and
    at last as the settings say: long jobs first, short ones first, or as they were submitted.
    Before long ones come quick ones, as many as make up a small part of all work: that shortens
    the mean turnaround and hardly lengthens the series.
    """
    quick = _quick(waiting, ordering) if ordering.settings.longest_first else frozenset()
    return sorted(waiting, key=lambda job: _key(job, ordering, quick=job.request.key in quick))


def _quick(waiting: Sequence[WaitingJob], ordering: Ordering) -> frozenset[str]:
    lengths = sorted((ordering.median_s(job), job.request.key) for job in waiting)
    left_s = ordering.settings.quick_part * sum(length for length, _ in lengths)
    found = []
    for length, key in lengths:
        left_s -= length
        if left_s < 0:
            break
        found.append(key)
    return frozenset(found)


def _key(job: WaitingJob, ordering: Ordering, *, quick: bool) -> tuple[float, ...]:
    if ordering.due(job):
        return (0, job.submitted_s)
    settings = ordering.settings
    length = 0.0
    if settings.shortest_first:
        gpus = max(1, job.request.gpus) * job.request.replicas
        waited_s = ordering.now_s - job.submitted_s
        length = ordering.median_s(job) * gpus / (1.0 + waited_s / settings.age_s)
    elif settings.longest_first:
        length = ordering.median_s(job) - _AFTER_ALL_S if quick else -ordering.median_s(job)
    return (1, -job.priority, ordering.share(job.owner), length, job.submitted_s)
