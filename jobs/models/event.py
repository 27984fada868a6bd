"""What happened to a job, in order; rows are only ever added."""

from django.conf import settings
from django.db import models

from jobs.models.job import Job


class JobEvent(models.Model):
    """One move of a job, or one fact about it, with who caused it."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="events")
    at = models.DateTimeField()
    source = models.CharField(max_length=16, blank=True)
    target = models.CharField(max_length=16, blank=True)
    code = models.CharField(max_length=40, blank=True)
    text = models.TextField(blank=True)
    actor = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL
    )

    class Meta:
        ordering = ["at", "id"]

    def __str__(self) -> str:
        return f"{self.job_id}: {self.source} → {self.target} {self.code}"
