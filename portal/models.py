"""Accounts, the tokens of REST clients, and the requests that were answered."""

import uuid
from typing import Any, ClassVar, Self

from django.contrib.auth.models import AbstractUser, UserManager
from django.db import models
from knox.models import AbstractAuthToken


class Role(models.TextChoices):
    """What an account may do: its own work, see everybody's, or change everybody's."""

    STUDENT = "student", "student"
    INSTRUCTOR = "instructor", "instructor"
    ADMIN = "admin", "admin"


class AccountQuerySet(models.QuerySet["User"]):
    """Accounts by what they may do."""

    def admins(self) -> Self:
        """Return the accounts that manage the site."""
        return self.filter(role=Role.ADMIN, is_active=True)


class AccountManager(UserManager["User"]):
    """Makes accounts; whoever asks for a superuser gets an admin."""

    use_in_migrations = False

    def get_queryset(self) -> AccountQuerySet:
        """Return all accounts."""
        return AccountQuerySet(self.model, using=self._db)

    def create_superuser(
        self,
        username: str,
        email: str | None = None,
        password: str | None = None,
        **extra_fields: Any,
    ) -> "User":
        """Make an admin; what ``createsuperuser`` calls."""
        extra_fields.setdefault("role", Role.ADMIN)
        return super().create_superuser(username, email, password, **extra_fields)


class User(AbstractUser):  # type: ignore[django-manager-missing] # of knox's tokens
    """An account; quotas that are not set are the site's."""

    public_id = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    email = models.EmailField("e-mail address", blank=True)
    role = models.CharField(max_length=16, choices=Role, default=Role.STUDENT)
    storage_quota_mib = models.PositiveIntegerField(null=True, blank=True)
    max_active_jobs = models.PositiveIntegerField(null=True, blank=True)
    max_gpus = models.PositiveIntegerField(
        null=True, blank=True, help_text="GPUs of one job; empty: no limit of its own"
    )

    objects: ClassVar[AccountManager] = AccountManager()

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Keep Django's admin flags in step with the role, which alone decides."""
        self.is_staff = self.is_superuser = self.role == Role.ADMIN
        fields = kwargs.get("update_fields")
        if fields is not None and "role" in fields:
            kwargs["update_fields"] = {*fields, "is_staff", "is_superuser"}
        super().save(*args, **kwargs)


class ApiToken(AbstractAuthToken):  # type: ignore[misc] # knox is not typed
    """A named, expiring token of a REST client; only its hash is kept."""

    public_id = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    name = models.CharField(max_length=80)
    last_used_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-created"]
        verbose_name = "API token"

    def __str__(self) -> str:
        return self.name


class IdempotencyKey(models.Model):
    """A request that was answered, so that its repetition gets the same answer.

    The row is written in the transaction of the act itself: a key without its act, or an act
    without its key, cannot be seen by anybody.
    """

    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="idempotency_keys")
    scope = models.CharField(max_length=80, help_text="what was asked for, for instance a route")
    key = models.CharField(max_length=255)
    fingerprint = models.CharField(max_length=64, help_text="SHA-256 of the request")
    answer = models.JSONField(null=True)
    created_at = models.DateTimeField(db_index=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["user", "scope", "key"], name="idempotency_key_once")
        ]

    def __str__(self) -> str:
        return f"{self.scope} {self.key}"
