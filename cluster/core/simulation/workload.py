"""Workloads: jobs with their arrivals and durations, and what happens to hosts meanwhile."""

from dataclasses import dataclass
from enum import StrEnum

from cluster.core.resources import HostName, ResourceRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadJob:
    """One job of a workload; seconds count from the start of the simulation.

    Attributes:
        request: What it asks for; ``replicas`` is the size it starts with at least.
        duration_s: How long it runs with ``replicas`` workers, alone on its GPUs.
        walltime_s: When it is ended at the latest, counted from its start; ``None`` for never.
        replicas_max: How many workers it may grow to; 0 for a job of a fixed size.
        scaling_loss: What each further worker costs of the speed: ``n`` workers are
            ``n / (1 + loss · (n - 1))`` times as fast as one.
        kind: The row of the pair table that stands for it; empty for none.
        gpu_utilization_pct: What it uses of each GPU when alone; ``None`` for unknown, which
            counts as the share that it asks for.
        checkpoint_s: How often it saves what it has done; 0 for never, so that it starts anew
            when its host is lost.
        fails_after_s: After so much of its work each attempt fails; ``None`` for never.
        retries: How often it is tried again after its program failed.
    """

    request: ResourceRequest
    submitted_s: float
    duration_s: float
    walltime_s: float | None = None
    replicas_max: int = 0
    scaling_loss: float = 0.05
    kind: str = ""
    gpu_utilization_pct: float | None = None
    checkpoint_s: float = 0.0
    fails_after_s: float | None = None
    retries: int = 0
    priority: int = 0
    owner: str = ""

    @property
    def key(self) -> str:
        """Return the job's id."""
        return self.request.key

    @property
    def expected_s(self) -> float:
        """Return how long the queue takes it to run: its walltime, else its true duration."""
        return self.duration_s if self.walltime_s is None else self.walltime_s

    def scaling(self, workers: int) -> float:
        """Return how much faster than one worker so many are."""
        return workers / (1.0 + self.scaling_loss * (workers - 1))


class HostChange(StrEnum):
    """What happens to a host."""

    LOST = "lost"
    BACK = "back"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostEvent:
    """A host that is lost at a moment, or comes back."""

    at_s: float
    host: HostName
    change: HostChange


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Jobs in the order of their submission, and the events of hosts."""

    name: str
    jobs: tuple[WorkloadJob, ...]
    host_events: tuple[HostEvent, ...] = ()
