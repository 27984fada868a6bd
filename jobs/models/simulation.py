"""Computations that run beside the workers: what-if simulations and trials of placement."""

import uuid
from typing import Any, Self, TypeVar

from django.conf import settings
from django.db import models

from jobs.models.ownership import OwnedQuerySet, sees_all


class RunState(models.TextChoices):
    """Where a computation is."""

    WAITING = "waiting", "waiting"
    RUNNING = "running", "running"
    DONE = "done", "done"
    FAILED = "failed", "failed"
    CANCELLED = "cancelled", "cancelled"

    @property
    def is_over(self) -> bool:
        """Return whether nothing more happens to it."""
        return self in {RunState.DONE, RunState.FAILED, RunState.CANCELLED}


_M = TypeVar("_M", bound="Run")


class RunQuerySet(OwnedQuerySet[_M]):
    """Computations by who may see them and by where they are."""

    def unfinished(self) -> Self:
        """Return those that wait or run, the oldest first."""
        states = [RunState.WAITING, RunState.RUNNING]
        return self.filter(state__in=states).order_by("created_at", "id")


class Run(models.Model):
    """What every such computation has: an owner, a state, and how far it is."""

    public_id = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    owner = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="%(class)ss"
    )
    name = models.CharField(max_length=120)
    state = models.CharField(
        max_length=16, choices=RunState, default=RunState.WAITING, db_index=True
    )
    progress_pct = models.FloatField(default=0)
    progress_text = models.CharField(max_length=200, blank=True)
    error = models.TextField(blank=True)
    # How often a program began it; one that kills its program is not begun for ever.
    starts = models.PositiveSmallIntegerField(default=0)
    seed = models.PositiveIntegerField(default=0)
    created_at = models.DateTimeField()
    started_at = models.DateTimeField(null=True, blank=True)
    finished_at = models.DateTimeField(null=True, blank=True)
    result = models.JSONField(default=dict, blank=True)

    class Meta:
        abstract = True
        ordering = ["-id"]

    def __str__(self) -> str:
        return self.name

    @property
    def is_over(self) -> bool:
        """Return whether nothing more happens to it."""
        return RunState(self.state).is_over


class SimulationRunQuerySet(RunQuerySet["SimulationRun"]):
    """Simulations are for those who answer for the cluster: instructors and admins."""

    def for_user(self, user: Any) -> Self:
        """Return every simulation to instructors and admins, and none to students."""
        return self.all() if sees_all(user) else self.none()


class SimulationRun(Run):
    """One workload on one set of hosts, under several policies.

    What it was asked about is kept with it, so that its address shows the same for ever,
    whatever happens to the jobs and hosts that it was taken from.
    """

    source = models.JSONField(default=dict, help_text="where the workload and hosts are from")
    workload = models.TextField(help_text="a workload file, in any format that can be read")
    job_count = models.PositiveIntegerField(default=0)
    hosts = models.JSONField(default=list, help_text="name, cores, memory and GPUs of each")
    policies = models.JSONField(default=list, help_text="placer, or placer+queue")

    objects = SimulationRunQuerySet.as_manager()


class PlacementRunQuerySet(RunQuerySet["PlacementRun"]):
    """Trials of placement are their owner's, as jobs are."""


class PlacementRun(Run):
    """One search by the swarm, with the heuristics beside it."""

    problem = models.JSONField(
        default=dict, help_text="the texts of the files with hosts and requests, and their names"
    )
    objective = models.CharField(max_length=16)
    method = models.CharField(max_length=16, help_text="which parts of the swarm placer work")
    seconds = models.FloatField()

    objects = PlacementRunQuerySet.as_manager()


class PlacementFrames(models.Model):
    """A piece of what could be watched of a search, in the order of its numbers."""

    run = models.ForeignKey(PlacementRun, on_delete=models.CASCADE, related_name="frames")
    first = models.PositiveIntegerField(help_text="number of the first frame, from 0")
    frames = models.JSONField(default=list)

    class Meta:
        ordering = ["run", "first"]
        constraints = [models.UniqueConstraint(fields=["run", "first"], name="frame_once")]

    def __str__(self) -> str:
        return f"{self.run_id} from {self.first}"
