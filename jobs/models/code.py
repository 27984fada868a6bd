"""The programs that people bring."""

import uuid

from django.conf import settings
from django.db import models

from jobs.models.ownership import OwnedQuerySet


class CodeKind(models.TextChoices):
    """How the code came."""

    SCRIPT = "script", "script"
    ARCHIVE = "archive", "archive"
    NOTEBOOK = "notebook", "notebook"


class CodeBundle(models.Model):
    """A script, notebook or small archive; unpacked at ``STATE/code/<sha256[:2]>/<sha256>``."""

    public_id = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    owner = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="code_bundles"
    )
    kind = models.CharField(max_length=16, choices=CodeKind)
    filename = models.CharField(max_length=255)
    sha256 = models.CharField(max_length=64, db_index=True)
    size_bytes = models.PositiveBigIntegerField()
    entrypoint = models.CharField(max_length=255)
    created_at = models.DateTimeField()

    objects = OwnedQuerySet["CodeBundle"].as_manager()

    def __str__(self) -> str:
        return f"{self.filename} ({self.sha256[:12]})"
