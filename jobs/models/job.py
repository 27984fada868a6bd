"""Jobs: what was asked for, and where it is."""

import uuid
from typing import Final, Self

from django.conf import settings
from django.db import models

from jobs.lifecycle import ACTIVE, JobStatus, Reason
from jobs.models.code import CodeBundle
from jobs.models.dataset import DatasetVersion
from jobs.models.environment import Environment
from jobs.models.ownership import OwnedQuerySet

#: The word is the label, too.
STATUS_CHOICES: Final = [(status.value, status.value) for status in JobStatus]


class JobQuerySet(OwnedQuerySet["Job"]):
    """Jobs by who may see them and by where they are."""

    def active(self) -> Self:
        """Return the jobs to which something can still happen."""
        return self.filter(status__in=[s.value for s in ACTIVE])

    def in_queue_order(self) -> Self:
        """Return the jobs that wait, first the one to be placed first."""
        return self.filter(status=JobStatus.PENDING).order_by("-priority", "submitted_at", "id")


class Job(models.Model):
    """One program to be run once to its end, however many attempts that takes."""

    public_id = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    owner = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="jobs"
    )
    name = models.CharField(max_length=120)
    status = models.CharField(
        max_length=16,
        choices=STATUS_CHOICES,
        default=JobStatus.PENDING,
        db_index=True,
    )
    # Why it ended (or why its last attempt did), and one more sentence of fact.
    reason = models.CharField(
        max_length=32, blank=True, choices=[(r.value, r.value) for r in Reason]
    )
    reason_text = models.TextField(blank=True)
    # Asked-for end, kept until the attempt has ended: cancelled, walltime, force_ended, …
    stop_reason = models.CharField(
        max_length=32, blank=True, choices=[(r.value, r.value) for r in Reason]
    )
    stop_requested_at = models.DateTimeField(null=True, blank=True)

    environment = models.ForeignKey(Environment, on_delete=models.PROTECT, related_name="jobs")
    code = models.ForeignKey(CodeBundle, on_delete=models.PROTECT, related_name="jobs")
    entrypoint = models.CharField(max_length=255)
    arguments = models.JSONField(default=list, blank=True)
    parameters = models.JSONField(default=dict, blank=True)
    datasets = models.ManyToManyField(DatasetVersion, through="JobDataset", related_name="jobs")
    template = models.SlugField(blank=True)
    cloned_from = models.ForeignKey(
        "self", null=True, blank=True, on_delete=models.SET_NULL, related_name="clones"
    )

    cpu_millis = models.PositiveIntegerField()
    memory_mib = models.PositiveIntegerField()
    gpus = models.PositiveSmallIntegerField(default=0)
    gpu_memory_mib = models.PositiveIntegerField(null=True, blank=True)
    gpu_model = models.CharField(max_length=80, blank=True)
    shm_mib = models.PositiveIntegerField()
    walltime_s = models.PositiveIntegerField()
    max_retries = models.PositiveSmallIntegerField(default=0)
    priority = models.SmallIntegerField(default=0)
    replicas = models.PositiveSmallIntegerField(default=1)

    submitted_at = models.DateTimeField(db_index=True)
    started_at = models.DateTimeField(null=True, blank=True)
    finished_at = models.DateTimeField(null=True, blank=True)
    # Not before this moment is it placed again (back-off after a failure of the platform).
    retry_at = models.DateTimeField(null=True, blank=True)

    # Why it waits, written by every scheduling pass; never a guess before the first.
    pending_code = models.CharField(max_length=32, blank=True, default="not_evaluated_yet")
    pending_text = models.TextField(blank=True)
    pending_evidence = models.JSONField(default=dict, blank=True)
    pending_position = models.PositiveIntegerField(null=True, blank=True)
    pending_at = models.DateTimeField(null=True, blank=True)
    # When it will start: in eight of ten cases between the first and the last.
    pending_start_earliest = models.DateTimeField(null=True, blank=True)
    pending_start_p50 = models.DateTimeField(null=True, blank=True)
    pending_start_p90 = models.DateTimeField(null=True, blank=True)
    pending_alternatives = models.JSONField(default=list, blank=True)

    objects = JobQuerySet.as_manager()

    class Meta:
        ordering = ["-submitted_at", "-id"]
        indexes = [
            models.Index(fields=["owner", "-submitted_at"]),
            models.Index(fields=["status", "-priority", "submitted_at"]),
        ]

    def __str__(self) -> str:
        return self.name


class JobDataset(models.Model):
    """A dataset version in a job, under the name by which the program finds it."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="job_datasets")
    version = models.ForeignKey(
        DatasetVersion, on_delete=models.PROTECT, related_name="job_datasets"
    )
    name = models.CharField(max_length=64)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["job", "name"], name="dataset_name_once_per_job")
        ]

    def __str__(self) -> str:
        return f"{self.name}: {self.version_id}"
