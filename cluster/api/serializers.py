"""Hosts and GPUs as REST clients see them."""

from typing import Any

from django.utils import timezone
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from cluster import selectors
from cluster.api.base import StrictSerializer
from cluster.models import Gpu, GpuHealthEvent, Host, HostMode, capacity


class FindingSerializer(serializers.Serializer):
    """One thing that is wrong with a GPU now, and what to do about it."""

    fault = serializers.CharField()
    health = serializers.CharField(help_text="what it makes of the GPU")
    text = serializers.CharField()
    advice = serializers.CharField()


class GpuSerializer(serializers.ModelSerializer[Gpu]):
    """One GPU; ``reading`` has only what the device can say."""

    host = serializers.CharField(source="host.name", read_only=True)
    health = serializers.SerializerMethodField()
    health_text = serializers.SerializerMethodField()
    findings = serializers.SerializerMethodField()
    reading = serializers.JSONField(source="last_reading", read_only=True)

    class Meta:
        model = Gpu
        fields = [
            "uuid",
            "host",
            "model",
            "index",
            "memory_total_mib",
            "health",
            "health_text",
            "findings",
            "parent_uuid",
            "is_enabled",
            "is_simulated",
            "reported_at",
            "reading",
        ]
        read_only_fields = fields

    def get_health(self, gpu: Gpu) -> str:
        """Return what the GPU may be used for now."""
        return selectors.gpu_health(gpu, now=timezone.now())[0].value

    def get_health_text(self, gpu: Gpu) -> str:
        """Return why the health is not ok."""
        return selectors.gpu_health(gpu, now=timezone.now())[1]

    @extend_schema_field(FindingSerializer(many=True))
    def get_findings(self, gpu: Gpu) -> list[dict[str, str]]:
        """Return what is wrong with it now, the worst first, and what to do about each."""
        return selectors.gpu_findings(gpu, now=timezone.now())


class GpuHealthEventSerializer(serializers.ModelSerializer[GpuHealthEvent]):
    """One change of what a GPU may be used for."""

    class Meta:
        model = GpuHealthEvent
        fields = ["at", "health", "faults", "text", "advice"]
        read_only_fields = fields


class GpuHealthEventsSerializer(serializers.Serializer):
    """The last changes of a GPU's health, newest first."""

    events = GpuHealthEventSerializer(many=True)


class HostSerializer(serializers.ModelSerializer[Host]):
    """One host for everybody who is signed in: no endpoint, no file names."""

    cpu_millis = serializers.SerializerMethodField(help_text="thousandths of a core for jobs")
    memory_mib = serializers.SerializerMethodField(help_text="MiB for jobs")
    containers = serializers.IntegerField(source="holders", read_only=True)
    takes_work = serializers.SerializerMethodField()
    why_not = serializers.SerializerMethodField()
    gpus = GpuSerializer(many=True, read_only=True)

    class Meta:
        model = Host
        fields = [
            "name",
            "mode",
            "connection",
            "connection_at",
            "takes_work",
            "why_not",
            "cpu_millis",
            "memory_mib",
            "containers",
            "probed_at",
            "is_simulated",
            "gpus",
        ]
        read_only_fields = fields

    def get_cpu_millis(self, host: Host) -> int:
        """Return what jobs may have of its cores."""
        return capacity(host)[0]

    def get_memory_mib(self, host: Host) -> int:
        """Return what jobs may have of its memory."""
        return capacity(host)[1]

    def get_takes_work(self, host: Host) -> bool:
        """Return whether new containers may be placed there."""
        return not selectors.why_unschedulable(host)

    def get_why_not(self, host: Host) -> str:
        """Return why it takes no new work; empty when it does."""
        return selectors.why_unschedulable(host)


class EngineSerializer(serializers.Serializer):
    """What a host's engine says of itself."""

    kind = serializers.CharField()
    version = serializers.CharField()
    operating_system = serializers.CharField()
    cpu_millis = serializers.IntegerField()
    memory_mib = serializers.IntegerField()
    cgroup_version = serializers.IntegerField()
    takes_gpus = serializers.BooleanField()
    clock_offset_s = serializers.FloatField(allow_null=True)
    warnings = serializers.ListField(child=serializers.CharField())


class AdminHostSerializer(HostSerializer):
    """One host for admins: how it is reached, and what its engine says."""

    engine = serializers.SerializerMethodField()

    class Meta(HostSerializer.Meta):
        fields = [
            *HostSerializer.Meta.fields,
            "url",
            "tls_ca",
            "tls_cert",
            "tls_key",
            "shares_files",
            "connection_text",
            "probe_text",
            "engine",
        ]
        read_only_fields = fields

    @extend_schema_field(EngineSerializer(allow_null=True))
    def get_engine(self, host: Host) -> dict[str, Any] | None:
        """Return the answer to the last connection test; null before the first."""
        return host.engine or None


class NewHostSerializer(StrictSerializer):
    """A host to be registered."""

    name = serializers.RegexField(
        r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\Z",
        max_length=63,
        help_text="lower-case letters, digits and hyphens; not at the ends a hyphen",
        error_messages={
            "invalid": "use lower-case letters, digits and hyphens; not at the ends a hyphen"
        },
    )
    url = serializers.CharField(
        max_length=255,
        help_text="unix:///var/run/docker.sock, tcp://host:2376 or process://local",
    )
    tls_ca = serializers.CharField(max_length=255, required=False, allow_blank=True)
    tls_cert = serializers.CharField(max_length=255, required=False, allow_blank=True)
    tls_key = serializers.CharField(max_length=255, required=False, allow_blank=True)
    shares_files = serializers.BooleanField(default=True)
    cpu_millis = serializers.IntegerField(default=0, min_value=0, max_value=2**31 - 1)
    memory_mib = serializers.IntegerField(default=0, min_value=0, max_value=2**31 - 1)


class HostModeSerializer(StrictSerializer):
    """What a host is let do."""

    mode = serializers.ChoiceField(choices=HostMode.choices)


class GpuSwitchSerializer(StrictSerializer):
    """Whether jobs may have a GPU."""

    is_enabled = serializers.BooleanField()
