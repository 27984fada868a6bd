"""What is learned of each kind of job, by key."""

from django.db import models


class JobProfile(models.Model):
    """What the runs under one key add up to; see ``cluster.core.policy.profiles.Learned``.

    A key is a user's program with its environment and arguments, or one of its parents, which
    leave out the arguments or the user.
    """

    key = models.CharField(max_length=64, unique=True, help_text="a digest of what it stands for")
    words = models.CharField(max_length=300, help_text="what it stands for")
    alone_runs = models.PositiveIntegerField(default=0)
    utilization_pct = models.FloatField(default=0.0)
    memory_peak_mib = models.PositiveIntegerField(default=0)
    ended_runs = models.PositiveIntegerField(default=0)
    log_duration = models.FloatField(default=0.0)
    log_squares = models.FloatField(default=0.0)
    updated_at = models.DateTimeField()

    class Meta:
        ordering = ["-updated_at"]

    def __str__(self) -> str:
        return self.words
