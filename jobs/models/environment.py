"""What programs run in, and the templates that people start from."""

import os

from django.conf import settings
from django.db import models

from cluster.models import Host


class Environment(models.Model):
    """A named set of software: an image for container engines, an interpreter for processes."""

    slug = models.SlugField(unique=True)
    name = models.CharField(max_length=120)
    description = models.TextField(blank=True)
    framework = models.CharField(max_length=40, blank=True, help_text="tensorflow, pytorch, …")
    image = models.CharField(
        max_length=255, blank=True, help_text="reference of a container image; empty: none"
    )
    python = models.CharField(
        max_length=255,
        blank=True,
        help_text="path of an interpreter on process hosts; {state} is the state folder",
    )
    uses_gpus = models.BooleanField(default=False, help_text="programs here can use GPUs")
    is_enabled = models.BooleanField(default=True)
    staff_only = models.BooleanField(default=False, help_text="instructors and admins only")
    hosts = models.ManyToManyField(
        Host, blank=True, related_name="environments", help_text="none chosen: every host"
    )
    position = models.PositiveSmallIntegerField(default=100)
    # Sum over the values that came with the product; other values are an admin's, and stay.
    shipped = models.CharField(max_length=64, blank=True, editable=False)

    class Meta:
        ordering = ["position", "name"]

    def __str__(self) -> str:
        return self.name

    @property
    def interpreter(self) -> str:
        """Return the path of its interpreter on process hosts; empty where it has none."""
        return self.python.replace("{state}", str(settings.STATE_DIR))

    def runs_on(self, host: Host) -> bool:
        """Return whether a host of this kind can run it: with its image, or its interpreter."""
        if host.url.startswith("process:"):
            return bool(self.python) and os.access(self.interpreter, os.X_OK)
        return bool(self.image)


class JobTemplate(models.Model):
    """A script with sensible defaults, to be submitted as it is or changed first."""

    slug = models.SlugField(unique=True)
    title = models.CharField(max_length=120)
    description = models.TextField(blank=True)
    script = models.TextField()
    environment = models.ForeignKey(Environment, on_delete=models.PROTECT, related_name="templates")
    parameters = models.JSONField(
        default=list, blank=True, help_text="[{name, default, help}], offered as fields"
    )
    dataset_hint = models.CharField(
        max_length=255, blank=True, help_text="what kind of dataset it wants, in words"
    )
    default_dataset = models.CharField(
        max_length=120, blank=True, help_text="name of a shared dataset to choose at first"
    )
    cpu_millis = models.PositiveIntegerField(default=1000)
    memory_mib = models.PositiveIntegerField(default=2048)
    gpus = models.PositiveSmallIntegerField(default=0)
    walltime_s = models.PositiveIntegerField(default=3600)
    is_enabled = models.BooleanField(default=True)
    position = models.PositiveSmallIntegerField(default=100)
    shipped = models.CharField(max_length=64, blank=True, editable=False)

    class Meta:
        ordering = ["position", "title"]

    def __str__(self) -> str:
        return self.title
