"""Rows of hosts, GPUs, claims on them, and leases."""

import uuid
from typing import Any

from django.core.validators import RegexValidator
from django.db import models
from django.db.models import Q

from cluster.core.resources import GpuHealth
from cluster.ports import HostEndpoint

NAME_VALIDATOR = RegexValidator(
    r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$",
    "use lower-case letters, digits and hyphens, at most 63, not at the ends a hyphen",
)


class HostMode(models.TextChoices):
    """What an admin lets a host do."""

    ACTIVE = "active", "active"
    CORDONED = "cordoned", "cordoned: runs what it has, takes nothing new"
    DRAINING = "draining", "draining: takes nothing new and will be empty"


class HostConnection(models.TextChoices):
    """Whether a host answers; only the collector and the reconcile pass write it."""

    NEW = "new", "not tried yet"
    UP = "up", "answers"
    UNREACHABLE = "unreachable", "does not answer"
    REFUSED = "refused", "refuses us"


class Host(models.Model):
    """A name and an endpoint, what is there for jobs, and how it is."""

    public_id = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    name = models.CharField(max_length=63, unique=True, validators=[NAME_VALIDATOR])
    url = models.CharField(
        "endpoint",
        max_length=255,
        help_text="unix:///var/run/docker.sock, tcp://host:2376 or process://local",
    )
    tls_ca = models.CharField(max_length=255, blank=True, help_text="path of a PEM file")
    tls_cert = models.CharField(max_length=255, blank=True, help_text="path of a PEM file")
    tls_key = models.CharField(max_length=255, blank=True, help_text="path of a PEM file")
    shares_files = models.BooleanField(
        default=True, help_text="sees the portal's state folder under the same path"
    )
    mode = models.CharField(max_length=16, choices=HostMode, default=HostMode.ACTIVE)
    connection = models.CharField(
        max_length=16, choices=HostConnection, default=HostConnection.NEW, editable=False
    )
    connection_text = models.CharField(max_length=500, blank=True, editable=False)
    connection_at = models.DateTimeField(null=True, blank=True, editable=False)
    # A host that did not answer is asked again only after a pause that grows.
    silences = models.PositiveSmallIntegerField(default=0, editable=False)
    quiet_until = models.DateTimeField(null=True, blank=True, editable=False)
    engine = models.JSONField(default=dict, blank=True, editable=False)
    cpu_millis = models.PositiveIntegerField(
        default=0, help_text="thousandths of a core that jobs may have; 0: all the engine reports"
    )
    memory_mib = models.PositiveIntegerField(
        default=0, help_text="MiB that jobs may have; 0: all the engine reports less 1 GiB or 10 %"
    )
    probed_at = models.DateTimeField(null=True, blank=True, editable=False)
    probe_text = models.CharField(max_length=500, blank=True, editable=False)
    last_reading = models.JSONField(default=dict, blank=True, editable=False)
    gpu_links = models.JSONField(
        default=list,
        blank=True,
        editable=False,
        help_text="how its GPUs are joined: [uuid, uuid, kind, NVLinks]",
    )
    is_simulated = models.BooleanField(default=False, editable=False)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name

    @property
    def endpoint(self) -> HostEndpoint:
        """Return how to reach the host, as a value for the adapters."""
        return HostEndpoint(
            name=self.name,
            url=self.url,
            tls_ca=self.tls_ca,
            tls_cert=self.tls_cert,
            tls_key=self.tls_key,
        )


class Gpu(models.Model):
    """One GPU, or one MIG slice, known by the driver's UUID."""

    uuid = models.CharField(max_length=80, unique=True)
    host = models.ForeignKey(Host, on_delete=models.CASCADE, related_name="gpus")
    model = models.CharField(max_length=120)
    index = models.PositiveSmallIntegerField(help_text="as last reported; never an identity")
    memory_total_mib = models.PositiveIntegerField()
    health = models.CharField(
        max_length=16, choices=[(h.value, h.value) for h in GpuHealth], default=GpuHealth.OK
    )
    health_text = models.CharField(max_length=500, blank=True)
    health_memory = models.JSONField(
        default=dict, blank=True, editable=False, help_text="see cluster.core.policy.gpu_state"
    )
    parent_uuid = models.CharField(
        max_length=80, blank=True, editable=False, help_text="of a MIG slice: its GPU"
    )
    is_enabled = models.BooleanField(default=True, help_text="unset to keep jobs off this GPU")
    is_simulated = models.BooleanField(default=False, editable=False)
    reported_at = models.DateTimeField(null=True, blank=True)
    last_reading = models.JSONField(default=dict, blank=True)

    class Meta:
        ordering = ["host__name", "index"]
        verbose_name = "GPU"

    def __str__(self) -> str:
        return f"{self.model} {self.uuid}"


class GpuHealthEvent(models.Model):
    """One change of what a GPU may be used for, with what was found and what to do."""

    gpu = models.ForeignKey(Gpu, on_delete=models.CASCADE, related_name="health_events")
    at = models.DateTimeField()
    health = models.CharField(max_length=16, choices=[(h.value, h.value) for h in GpuHealth])
    faults = models.JSONField(default=list)
    text = models.CharField(max_length=500, blank=True)
    advice = models.CharField(max_length=500, blank=True)

    class Meta:
        ordering = ["-at", "-id"]
        indexes = [models.Index(fields=["gpu", "-at"])]

    def __str__(self) -> str:
        return f"{self.gpu_id} {self.health} at {self.at:%Y-%m-%d %H:%M:%S}"


class AllocationState(models.TextChoices):
    """A claim's life; quarantined while nobody can prove that its container is gone."""

    HELD = "held", "held"
    QUARANTINED = "quarantined", "quarantined"
    RELEASED = "released", "released"


class Allocation(models.Model):
    """CPU and memory of a host that a holder (a replica's public id) has claimed."""

    holder = models.UUIDField(unique=True)
    host = models.ForeignKey(Host, on_delete=models.PROTECT, related_name="allocations")
    state = models.CharField(
        max_length=16, choices=AllocationState, default=AllocationState.HELD, db_index=True
    )
    cpu_millis = models.PositiveIntegerField()
    memory_mib = models.PositiveIntegerField()
    created_at = models.DateTimeField()
    released_at = models.DateTimeField(null=True, blank=True)
    reason = models.CharField(max_length=500, blank=True)

    class Meta:
        indexes = [models.Index(fields=["host", "state"])]

    def __str__(self) -> str:
        return f"{self.holder} on {self.host_id}: {self.state}"


class GpuClaim(models.Model):
    """A claim on one GPU, whole (exclusive) or a part of its memory."""

    allocation = models.ForeignKey(Allocation, on_delete=models.CASCADE, related_name="gpu_claims")
    gpu = models.ForeignKey(Gpu, on_delete=models.PROTECT, related_name="claims")
    position = models.PositiveSmallIntegerField(help_text="place in the order the program sees")
    exclusive = models.BooleanField(default=True)
    memory_mib = models.PositiveIntegerField()
    active = models.BooleanField(default=True)

    class Meta:
        ordering = ["position"]
        constraints = [
            # The database itself refuses to give a whole GPU twice.
            models.UniqueConstraint(
                fields=["gpu"],
                condition=Q(active=True, exclusive=True),
                name="one_exclusive_claim_per_gpu",
            ),
            models.UniqueConstraint(fields=["allocation", "gpu"], name="one_claim_per_allocation"),
        ]

    def __str__(self) -> str:
        return f"{self.gpu_id} for {self.allocation_id}"


class Lease(models.Model):
    """The right to do one thing for a while; ``fence`` grows with every new holder."""

    name = models.CharField(max_length=80, primary_key=True)
    holder = models.CharField(max_length=120, blank=True)
    fence = models.PositiveBigIntegerField(default=0)
    expires_at = models.DateTimeField()

    def __str__(self) -> str:
        return f"{self.name} #{self.fence}"


class PlacementWeights(models.Model):
    """Weights of the online score, as tuned on past arrivals; at most one row is active."""

    name = models.CharField(max_length=80, unique=True)
    weights = models.JSONField(help_text="feature of the score to its weight")
    trained_on = models.JSONField(
        default=dict, blank=True, help_text="files or window, hosts, seed and evaluations"
    )
    score = models.FloatField(
        help_text="GPU allocated beyond the best heuristic on what it was trained on, in percent"
    )
    is_active = models.BooleanField(default=False)
    created_at = models.DateTimeField()

    class Meta:
        ordering = ["-created_at"]
        verbose_name_plural = "placement weights"
        constraints = [
            models.UniqueConstraint(
                fields=["is_active"],
                condition=Q(is_active=True),
                name="one_active_placement_weights",
            )
        ]

    def __str__(self) -> str:
        return self.name


def capacity(host: Host) -> tuple[int, int]:
    """Return what jobs may have of a host: thousandths of a core, and MiB.

    The admin's figures win; else the engine's, with memory kept back for the host itself.
    """
    engine: dict[str, Any] = host.engine or {}
    reported_mib = int(engine.get("memory_mib", 0))
    keep_mib = min(1024, reported_mib // 10)
    return (
        host.cpu_millis or int(engine.get("cpu_millis", 0)),
        host.memory_mib or max(0, reported_mib - keep_mib),
    )
