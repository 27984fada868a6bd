"""Logs, metrics, samples and the live cluster as REST clients see them; for the schema mostly."""

from rest_framework import serializers


class LogPageSerializer(serializers.Serializer):
    """Consecutive lines of one replica's output."""

    attempt = serializers.IntegerField(allow_null=True, help_text="null: none has begun")
    rank = serializers.IntegerField()
    first = serializers.IntegerField(help_text="number of the first line here; counted from 1")
    lines = serializers.ListField(
        child=serializers.ListField(child=serializers.JSONField()),
        help_text='each [milliseconds since 1970, "o" for stdout or "e" for stderr, text]',
    )
    next_line = serializers.IntegerField(help_text="the number the next stored line will get")
    dropped_lines = serializers.IntegerField(help_text="lines past the log quota, not kept")
    is_complete = serializers.BooleanField(help_text="nothing more will come")


class LogSearchSerializer(serializers.Serializer):
    """Where a text is in a log."""

    lines = serializers.ListField(child=serializers.IntegerField(), help_text="numbers of lines")


class MetricSerializer(serializers.Serializer):
    """One metric of one replica."""

    rank = serializers.IntegerField()
    name = serializers.CharField()
    points = serializers.ListField(
        child=serializers.ListField(child=serializers.FloatField(allow_null=True)),
        help_text="each [step, value or null, milliseconds since 1970]",
    )


class MetricsSerializer(serializers.Serializer):
    """Every metric of an attempt."""

    series = MetricSerializer(many=True)


class SeriesSerializer(serializers.Serializer):
    """What one subject measured."""

    subject = serializers.CharField()
    resolution_s = serializers.IntegerField(help_text="seconds that one sample stands for")
    samples = serializers.ListField(
        child=serializers.ListField(child=serializers.JSONField()),
        help_text="each [milliseconds since 1970, values by name]; empty values are a gap",
    )


class ReplicaSeriesSerializer(SeriesSerializer):
    """What one container of a job used."""

    rank = serializers.IntegerField()
    host = serializers.CharField()


class JobSamplesSerializer(serializers.Serializer):
    """What the containers of an attempt used."""

    series = ReplicaSeriesSerializer(many=True)


class LiveGpuSerializer(serializers.Serializer):
    """One GPU now."""

    uuid = serializers.CharField()
    index = serializers.IntegerField()
    model = serializers.CharField()
    parent_uuid = serializers.CharField(
        allow_blank=True, help_text="of a MIG slice: its GPU; else empty"
    )
    memory_total_mib = serializers.IntegerField()
    health = serializers.CharField()
    health_text = serializers.CharField(allow_blank=True)
    is_simulated = serializers.BooleanField()
    values = serializers.JSONField(help_text="only what is known")


class LiveHostSerializer(serializers.Serializer):
    """One host now."""

    name = serializers.CharField()
    mode = serializers.CharField()
    connection = serializers.CharField()
    connection_at = serializers.DateTimeField(allow_null=True)
    probed_at = serializers.DateTimeField(allow_null=True)
    is_simulated = serializers.BooleanField()
    schedulable = serializers.BooleanField()
    reason = serializers.CharField(allow_blank=True)
    cpu_millis = serializers.IntegerField()
    memory_mib = serializers.IntegerField()
    cpu_claimed_millis = serializers.IntegerField()
    memory_claimed_mib = serializers.IntegerField()
    values = serializers.JSONField(help_text="the last reading; only what is known")
    gpus = LiveGpuSerializer(many=True)


class ClusterSerializer(serializers.Serializer):
    """The whole cluster now."""

    at = serializers.DateTimeField()
    hosts = LiveHostSerializer(many=True)
