"""Datasets, their immutable versions, the content they share, and uploads under way."""

import uuid
from typing import Any

from django.conf import settings
from django.core.validators import MinLengthValidator
from django.db import models
from django.db.models import Q

from jobs.models.ownership import OwnedQuerySet


class Content(models.Model):
    """A tree of files, stored once however many versions have it.

    The files are at ``STATE/contents/<sha256[:2]>/<sha256>/files``, the list of them, one JSON
    object a line (``path``, ``size_bytes``, ``sha256``), beside them in ``files.jsonl``.
    """

    sha256 = models.CharField(max_length=64, unique=True, validators=[MinLengthValidator(64)])
    size_bytes = models.PositiveBigIntegerField()
    file_count = models.PositiveIntegerField()
    created_at = models.DateTimeField()

    def __str__(self) -> str:
        return self.sha256[:12]


class DatasetQuerySet(OwnedQuerySet["Dataset"]):
    """Datasets by who may see them: their owner, and everybody where shared."""

    def _visible(self, user: Any) -> Q:
        return Q(owner=user) | Q(is_shared=True)


class Dataset(models.Model):
    """A named series of versions."""

    public_id = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    owner = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="datasets"
    )
    name = models.CharField(max_length=120)
    description = models.TextField(blank=True, max_length=4000)
    is_shared = models.BooleanField(default=False, help_text="everybody may see it and train on it")
    created_at = models.DateTimeField()

    objects = DatasetQuerySet.as_manager()

    class Meta:
        ordering = ["-created_at", "-id"]
        constraints = [
            models.UniqueConstraint(fields=["owner", "name"], name="dataset_name_once_per_owner")
        ]

    def __str__(self) -> str:
        return self.name


class VersionState(models.TextChoices):
    """How far a version has come; only a ready one can be used, and it never changes again."""

    UNPACKING = "unpacking", "being unpacked"
    READY = "ready", "ready"
    FAILED = "failed", "failed"


class DatasetVersion(models.Model):
    """One immutable state of a dataset."""

    public_id = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    dataset = models.ForeignKey(Dataset, on_delete=models.CASCADE, related_name="versions")
    number = models.PositiveIntegerField()
    state = models.CharField(max_length=16, choices=VersionState, default=VersionState.UNPACKING)
    error = models.TextField(blank=True)
    content = models.ForeignKey(
        Content, null=True, blank=True, on_delete=models.PROTECT, related_name="versions"
    )
    original_name = models.CharField(max_length=255, blank=True)
    upload_sha256 = models.CharField(max_length=64, blank=True)
    upload_bytes = models.PositiveBigIntegerField(default=0)
    created_at = models.DateTimeField()

    class Meta:
        ordering = ["dataset", "-number"]
        constraints = [
            models.UniqueConstraint(fields=["dataset", "number"], name="version_number_once")
        ]

    def __str__(self) -> str:
        return f"{self.dataset} v{self.number}"


class UploadState(models.TextChoices):
    """Where an upload is: bytes come in, then the content is checked and unpacked."""

    RECEIVING = "receiving", "receiving"
    COMPLETE = "complete", "complete"
    ABANDONED = "abandoned", "abandoned"


class Upload(models.Model):
    """A file on its way in (tus 1.0); the bytes are at ``STATE/uploads/<public_id>``."""

    public_id = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    owner = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="uploads"
    )
    dataset_name = models.CharField(max_length=120)
    filename = models.CharField(max_length=255)
    length_bytes = models.PositiveBigIntegerField()
    offset_bytes = models.PositiveBigIntegerField(default=0)
    sha256 = models.CharField(max_length=64, blank=True, help_text="what the client says it is")
    state = models.CharField(max_length=16, choices=UploadState, default=UploadState.RECEIVING)
    version = models.OneToOneField(
        DatasetVersion, null=True, blank=True, on_delete=models.SET_NULL, related_name="upload"
    )
    created_at = models.DateTimeField()
    expires_at = models.DateTimeField(db_index=True)

    objects = OwnedQuerySet["Upload"].as_manager()

    def __str__(self) -> str:
        return f"{self.filename} ({self.offset_bytes}/{self.length_bytes})"
