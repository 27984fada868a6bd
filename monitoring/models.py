"""Rows of logs, metrics and samples."""

from django.db import models

from jobs.models import Replica


class LogStream(models.Model):
    """How far a replica's output is stored; moved in the transaction that stores the lines."""

    replica = models.OneToOneField(Replica, on_delete=models.CASCADE, related_name="log_stream")
    cursor = models.CharField(max_length=255, blank=True)
    next_line = models.PositiveBigIntegerField(default=1)
    stored_bytes = models.PositiveBigIntegerField(default=0)
    dropped_lines = models.PositiveBigIntegerField(
        default=0, help_text="lines past the log quota, counted and not kept"
    )
    is_complete = models.BooleanField(default=False)

    def __str__(self) -> str:
        return f"{self.replica_id} up to {self.next_line}"


class LogChunk(models.Model):
    """Consecutive lines; ``lines`` is ``[[milliseconds since 1970, "o" or "e", text], …]``."""

    stream = models.ForeignKey(LogStream, on_delete=models.CASCADE, related_name="chunks")
    first_line = models.PositiveBigIntegerField()
    line_count = models.PositiveIntegerField()
    lines = models.JSONField()

    class Meta:
        ordering = ["first_line"]
        constraints = [
            models.UniqueConstraint(fields=["stream", "first_line"], name="log_line_stored_once")
        ]

    def __str__(self) -> str:
        return f"{self.stream_id}: {self.first_line}+{self.line_count}"


class MetricPoint(models.Model):
    """One value that a program reported, for instance a loss after an epoch."""

    replica = models.ForeignKey(Replica, on_delete=models.CASCADE, related_name="metric_points")
    name = models.CharField(max_length=80)
    step = models.BigIntegerField()
    value = models.FloatField(null=True, help_text="unset where the program said nan or infinite")
    at = models.DateTimeField()

    class Meta:
        ordering = ["id"]
        indexes = [models.Index(fields=["replica", "name", "step"])]

    def __str__(self) -> str:
        return f"{self.name}[{self.step}] = {self.value}"


class SampleBlock(models.Model):
    """What one subject measured over a while, each sample or mean over ``resolution_s`` seconds.

    A field without a value is absent; see :mod:`monitoring.blocks` for what is in ``packed``.
    """

    subject = models.CharField(
        max_length=100, help_text="host:<name>, gpu:<uuid> or replica:<public id>"
    )
    resolution_s = models.PositiveSmallIntegerField(default=1)
    start = models.DateTimeField(help_text="of its first sample")
    end = models.DateTimeField(help_text="of its last sample")
    packed = models.BinaryField()

    class Meta:
        ordering = ["start"]
        constraints = [
            models.UniqueConstraint(
                fields=["subject", "resolution_s", "start"], name="block_once_per_start"
            )
        ]
        indexes = [models.Index(fields=["resolution_s", "start"])]

    def __str__(self) -> str:
        return f"{self.subject} from {self.start:%H:%M:%S}"
