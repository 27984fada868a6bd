"""Attempts at a job, their replicas, and the files they leave."""

import uuid

from django.db import models

from cluster.models import Host
from jobs.lifecycle import Reason, ReplicaStatus
from jobs.models.job import Job


class Attempt(models.Model):
    """One try at a job; its number is in every path, so an old one never writes over a new."""

    public_id = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="attempts")
    number = models.PositiveSmallIntegerField()
    reason = models.CharField(
        max_length=32, blank=True, choices=[(r.value, r.value) for r in Reason]
    )
    reason_text = models.TextField(blank=True)
    placement_text = models.TextField(blank=True, help_text="why here, in the placer's words")
    decision = models.JSONField(
        default=dict, blank=True, help_text="the hosts that were weighed, with their scores"
    )
    created_at = models.DateTimeField()
    started_at = models.DateTimeField(null=True, blank=True)
    finished_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["job", "number"]
        constraints = [
            models.UniqueConstraint(fields=["job", "number"], name="attempt_number_once")
        ]

    def __str__(self) -> str:
        return f"{self.job_id} attempt {self.number}"


class Replica(models.Model):
    """One container of an attempt; its public id is the container's name and the claim's holder."""

    public_id = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    attempt = models.ForeignKey(Attempt, on_delete=models.CASCADE, related_name="replicas")
    rank = models.PositiveSmallIntegerField(default=0)
    host = models.ForeignKey(Host, null=True, on_delete=models.SET_NULL, related_name="replicas")
    host_name = models.CharField(max_length=63, help_text="kept when the host is removed")
    status = models.CharField(
        max_length=16,
        choices=[(s.value, s.value) for s in ReplicaStatus],
        default=ReplicaStatus.PLACED,
        db_index=True,
    )
    container_id = models.CharField(max_length=80, blank=True, db_index=True)
    exit_code = models.IntegerField(null=True, blank=True)
    oom_killed = models.BooleanField(default=False)
    error = models.TextField(blank=True)
    launch_tries = models.PositiveSmallIntegerField(default=0)
    launching_until = models.DateTimeField(null=True, blank=True)
    terminated_at = models.DateTimeField(
        null=True, blank=True, help_text="when its program was asked to end"
    )
    missing_since = models.DateTimeField(null=True, blank=True)
    started_at = models.DateTimeField(null=True, blank=True)
    finished_at = models.DateTimeField(null=True, blank=True)
    # Set by the follower of its output when the very last line is stored.
    log_complete_at = models.DateTimeField(null=True, blank=True)
    # Set when its files are listed, and when its container is removed from the host.
    outputs_listed_at = models.DateTimeField(null=True, blank=True)
    removed_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["attempt", "rank"]
        constraints = [models.UniqueConstraint(fields=["attempt", "rank"], name="rank_once")]

    def __str__(self) -> str:
        return str(self.public_id)

    @property
    def container_name(self) -> str:
        """Return the deterministic name of the container on its host."""
        return f"starling-{self.public_id}"


class OutputFile(models.Model):
    """A regular file that an attempt left in its working folder."""

    attempt = models.ForeignKey(Attempt, on_delete=models.CASCADE, related_name="output_files")
    path = models.CharField(max_length=1024, help_text="below the attempt's working folder")
    size_bytes = models.PositiveBigIntegerField()
    modified_at = models.DateTimeField()

    class Meta:
        ordering = ["path"]
        constraints = [models.UniqueConstraint(fields=["attempt", "path"], name="output_path_once")]

    def __str__(self) -> str:
        return self.path
