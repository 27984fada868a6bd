"""Accounts and the tokens of REST clients."""

import uuid

from django.contrib.auth.models import AbstractUser
from django.db import models
from knox.models import AbstractAuthToken


class Role(models.TextChoices):
    """What an account may do: its own work, see everybody's, or change everybody's."""

    STUDENT = "student", "student"
    INSTRUCTOR = "instructor", "instructor"
    ADMIN = "admin", "admin"


class User(AbstractUser):
    """An account; quotas that are not set are the site's."""

    public_id = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    email = models.EmailField("e-mail address", blank=True)
    role = models.CharField(max_length=16, choices=Role, default=Role.STUDENT)
    storage_quota_mib = models.PositiveIntegerField(null=True, blank=True)
    max_active_jobs = models.PositiveIntegerField(null=True, blank=True)
    max_gpus = models.PositiveIntegerField(
        null=True, blank=True, help_text="GPUs of one job; empty: no limit of its own"
    )

    def save(self, *args: object, **kwargs: object) -> None:
        """Keep Django's admin flags in step with the role: admins manage, others do not."""
        if self.is_superuser:
            self.role = Role.ADMIN
        if self.role == Role.ADMIN:
            self.is_staff = self.is_superuser = True
        super().save(*args, **kwargs)  # type: ignore[arg-type] # Django's own signature varies


class ApiToken(AbstractAuthToken):
    """A named, expiring token of a REST client; only its hash is kept."""

    name = models.CharField(max_length=80)
    last_used_at = models.DateTimeField(null=True, blank=True)

    def __str__(self) -> str:
        return f"{self.name} of {self.user_id}"
