"""Jobs that run: how far each has come, how fast it goes, and with whom it shares its GPUs."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from cluster.core.policy.queue import RunningJob
from cluster.core.resources import GpuUuid, HostName, HostState, ReplicaPlacement
from cluster.core.simulation.models import Interference, utilization
from cluster.core.simulation.report import Outcome
from cluster.core.simulation.workload import WorkloadJob

Card = tuple[HostName, GpuUuid]
#: Sums of many parts of a run are off by less than this.
_ROUNDING_S: Final = 1e-6


@dataclass(slots=True, eq=False)
class Run:
    """One attempt of a job; work is counted in seconds of ``request.replicas`` workers alone.

    Attributes:
        left_s: Work left to the end.
        fails_left_s: The work left at which it fails; ``None`` for never.
        span_s: Since when it has run with the workers it has.
        version: Counts the ends that were foretold; only the last one holds.
    """

    job: WorkloadJob
    replicas: tuple[ReplicaPlacement, ...]
    started_s: float
    left_s: float
    fails_left_s: float | None = None
    speed: float = 1.0
    updated_s: float = 0.0
    resized_s: float = 0.0
    span_s: float = 0.0
    version: int = 0

    @property
    def workers(self) -> int:
        """Return how many workers it has."""
        return len(self.replicas)

    @property
    def elastic(self) -> bool:
        """Return whether its size may change."""
        return self.job.replicas_max > self.job.request.replicas

    @property
    def cards(self) -> Iterable[Card]:
        """Return the GPUs it is on."""
        return ((one.host, uuid) for one in self.replicas for uuid in one.gpus)

    def advance(self, now_s: float) -> None:
        """Do the work since it was last looked at."""
        self.left_s = max(0.0, self.left_s - self.speed * (now_s - self.updated_s))
        self.updated_s = now_s

    def ending(self) -> tuple[float, Outcome]:
        """Return when and how it ends if nothing changes."""
        to_do = self.left_s
        outcome = Outcome.COMPLETED
        if self.fails_left_s is not None:
            to_do = max(0.0, to_do - self.fails_left_s)
            outcome = Outcome.FAILED
        end_s = self.updated_s + to_do / self.speed
        if self.job.walltime_s is not None:
            limit_s = self.started_s + self.job.walltime_s
            if limit_s < end_s - _ROUNDING_S:
                return max(limit_s, self.updated_s), Outcome.WALLTIME
        return end_s, outcome

    def saved_s(self) -> float:
        """Return the work that a next attempt need not do again."""
        every_s = self.job.checkpoint_s
        if every_s <= 0:
            return 0.0
        return every_s * ((self.job.duration_s - self.left_s) // every_s)

    def as_running(self) -> RunningJob:
        """Return it as a queue policy sees it."""
        return RunningJob(
            request=self.job.request,
            replicas=self.replicas,
            started_s=self.started_s,
            expected_end_s=self.started_s + self.job.expected_s,
            owner=self.job.owner,
            speed=self.speed,
            since_s=self.updated_s,
        )


@dataclass(slots=True)
class Tenants:
    """Who is on which GPU; tells speeds and how busy a GPU is."""

    interference: Interference
    _on_card: dict[Card, dict[str, Run]] = field(default_factory=dict)

    def add(self, run: Run, cards: Iterable[Card]) -> None:
        """Put a run on GPUs."""
        for card in cards:
            self._on_card.setdefault(card, {})[run.job.key] = run

    def remove(self, run: Run, cards: Iterable[Card]) -> None:
        """Take a run off GPUs."""
        for card in cards:
            tenants = self._on_card.get(card, {})
            tenants.pop(run.job.key, None)  # two of its workers may be on one GPU
            if not tenants:
                self._on_card.pop(card, None)

    def beside(self, cards: Iterable[Card]) -> dict[str, Run]:
        """Return all runs on these GPUs."""
        return {key: run for card in cards for key, run in self._on_card.get(card, {}).items()}

    def speed(self, run: Run) -> float:
        """Return how fast a run goes, 1 for its starting size alone: the slowest GPU counts."""
        job = run.job
        slowest = 1.0
        if job.request.gpus and not job.request.whole_gpus:
            for card in run.cards:
                others = [one.job for one in self._on_card[card].values() if one is not run]
                if others:
                    slowest = min(slowest, self.interference.speed(job, others))
        if run.workers != job.request.replicas:
            slowest *= job.scaling(run.workers) / job.scaling(job.request.replicas)
        return slowest

    def busy(self, host: HostState) -> Sequence[float]:
        """Return how much of each GPU of a host is used, 0 to 1."""
        if not host.schedulable:
            return [0.0] * len(host.gpus)
        return [
            min(
                1.0,
                sum(
                    utilization(run.job)
                    for run in self._on_card.get((host.name, gpu.uuid), {}).values()
                ),
            )
            for gpu in host.gpus
        ]
