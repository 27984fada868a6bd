"""Environments, templates, code and jobs as REST clients see and send them."""

import math
from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers
from rest_framework.exceptions import ValidationError

from cluster.api.base import StrictSerializer
from jobs.lifecycle import VERDICTS, JobStatus, Reason
from jobs.models import (
    Attempt,
    CodeBundle,
    Environment,
    Job,
    JobDataset,
    JobEvent,
    JobTemplate,
    OutputFile,
    Replica,
)

_INT32 = 2**31 - 1


class EnvironmentSerializer(serializers.ModelSerializer[Environment]):
    """A set of software that programs run in."""

    hosts: Any = serializers.SlugRelatedField(
        slug_field="name", many=True, read_only=True, help_text="none: every host"
    )

    class Meta:
        model = Environment
        fields = ["slug", "name", "description", "framework", "uses_gpus", "staff_only", "hosts"]
        read_only_fields = fields


class TemplateParameterSerializer(serializers.Serializer):
    """A hyper-parameter that a template offers."""

    name = serializers.CharField()
    default = serializers.JSONField()
    help = serializers.CharField(required=False)


class TemplateSerializer(serializers.ModelSerializer[JobTemplate]):
    """A script with sensible defaults."""

    environment: Any = serializers.SlugRelatedField(slug_field="slug", read_only=True)
    parameters = TemplateParameterSerializer(many=True, read_only=True)

    class Meta:
        model = JobTemplate
        fields = [
            "slug",
            "title",
            "description",
            "environment",
            "script",
            "parameters",
            "dataset_hint",
            "default_dataset",
            "cpu_millis",
            "memory_mib",
            "gpus",
            "walltime_s",
        ]
        read_only_fields = fields


class CodeSerializer(serializers.ModelSerializer[CodeBundle]):
    """A program that somebody brought."""

    id = serializers.UUIDField(source="public_id", read_only=True)
    owner = serializers.CharField(source="owner.username", read_only=True)

    class Meta:
        model = CodeBundle
        fields = [
            "id",
            "owner",
            "kind",
            "filename",
            "entrypoint",
            "sha256",
            "size_bytes",
            "created_at",
        ]
        read_only_fields = fields


class NewCodeSerializer(StrictSerializer):
    """A program to be brought: a script, a notebook, or an archive with several files."""

    file = serializers.FileField(
        help_text=".py, .ipynb or .zip, at most 50 MB", allow_empty_file=False, max_length=255
    )


class PendingSerializer(serializers.Serializer):
    """Why a job waits."""

    code = serializers.CharField(source="pending_code")
    text = serializers.CharField(source="pending_text", allow_blank=True)
    evidence = serializers.JSONField(source="pending_evidence")
    position = serializers.IntegerField(source="pending_position", allow_null=True)
    start_earliest = serializers.DateTimeField(
        source="pending_start_earliest", allow_null=True, help_text="one in ten starts before"
    )
    start_p50 = serializers.DateTimeField(source="pending_start_p50", allow_null=True)
    start_p90 = serializers.DateTimeField(
        source="pending_start_p90", allow_null=True, help_text="one in ten starts later"
    )
    alternatives = serializers.JSONField(
        source="pending_alternatives", help_text="what would start it sooner, and when"
    )
    at = serializers.DateTimeField(source="pending_at", allow_null=True)


class CandidateSerializer(serializers.Serializer):
    """A host that was weighed; the least score is the best."""

    host = serializers.CharField()
    score = serializers.FloatField()
    parts = serializers.DictField(child=serializers.FloatField(), help_text="they add up to it")
    chosen = serializers.BooleanField(default=False)


class DecisionSerializer(serializers.Serializer):
    """Why an attempt runs where it runs; without `candidates` where nothing was broken down."""

    attempt = serializers.IntegerField(source="number")
    placer = serializers.CharField(source="decision.placer", default="")
    objective = serializers.CharField(source="decision.objective", default="")
    reason = serializers.CharField(source="decision.reason", default="")
    proven = serializers.BooleanField(
        source="decision.proven", default=False, help_text="no plan could have been better"
    )
    seconds = serializers.FloatField(source="decision.seconds", default=None, allow_null=True)
    candidates = CandidateSerializer(source="decision.candidates", many=True, default=list)


class JobSerializer(serializers.ModelSerializer[Job]):
    """A job in a list."""

    id = serializers.UUIDField(source="public_id", read_only=True)
    owner = serializers.CharField(source="owner.username", read_only=True)
    environment = serializers.CharField(source="environment.slug", read_only=True)
    reason = serializers.CharField(read_only=True, help_text="for programs; empty: none yet")
    template = serializers.CharField(read_only=True, help_text="slug; empty: none")
    status_words = serializers.SerializerMethodField(help_text="the status as a sentence's end")
    reason_words = serializers.SerializerMethodField(help_text="why it ended, for people")
    advice = serializers.SerializerMethodField(help_text="what to do next; may be empty")
    pending = serializers.SerializerMethodField(help_text="why it waits; null when it does not")

    class Meta:
        model = Job
        fields = [
            "id",
            "name",
            "owner",
            "status",
            "status_words",
            "reason",
            "reason_words",
            "reason_text",
            "advice",
            "pending",
            "environment",
            "template",
            "gpus",
            "submitted_at",
            "started_at",
            "finished_at",
        ]
        read_only_fields = fields

    def get_status_words(self, job: Job) -> str:
        """Return the status for people."""
        return JobStatus(job.status).words

    def get_reason_words(self, job: Job) -> str:
        """Return why it, or its last attempt, ended."""
        return VERDICTS[Reason(job.reason)].words if job.reason else ""

    def get_advice(self, job: Job) -> str:
        """Return what the owner can do about it."""
        return VERDICTS[Reason(job.reason)].advice if job.reason else ""

    @extend_schema_field(PendingSerializer(allow_null=True))
    def get_pending(self, job: Job) -> Any:
        """Return why it waits."""
        return PendingSerializer(job).data if job.status == JobStatus.PENDING else None


class JobDatasetSerializer(serializers.ModelSerializer[JobDataset]):
    """A dataset version in a job."""

    version = serializers.UUIDField(source="version.public_id", read_only=True)
    dataset = serializers.CharField(source="version.dataset.name", read_only=True)
    number = serializers.IntegerField(source="version.number", read_only=True)

    class Meta:
        model = JobDataset
        fields = ["name", "version", "dataset", "number"]
        read_only_fields = fields


class ReplicaSerializer(serializers.ModelSerializer[Replica]):
    """One container of an attempt."""

    id = serializers.UUIDField(source="public_id", read_only=True)
    host = serializers.CharField(source="host_name", read_only=True)
    log_is_complete = serializers.SerializerMethodField()

    class Meta:
        model = Replica
        fields = [
            "id",
            "rank",
            "host",
            "status",
            "exit_code",
            "oom_killed",
            "error",
            "started_at",
            "finished_at",
            "log_is_complete",
        ]
        read_only_fields = fields

    def get_log_is_complete(self, replica: Replica) -> bool:
        """Return whether the very last line of its output is stored."""
        return replica.log_complete_at is not None


class AttemptSerializer(serializers.ModelSerializer[Attempt]):
    """One try at a job."""

    reason = serializers.CharField(read_only=True, help_text="why it ended; empty: it has not")
    replicas = ReplicaSerializer(many=True, read_only=True)

    class Meta:
        model = Attempt
        fields = [
            "number",
            "reason",
            "reason_text",
            "placement_text",
            "created_at",
            "started_at",
            "finished_at",
            "replicas",
        ]
        read_only_fields = fields


class JobDetailSerializer(JobSerializer):
    """A job with everything that was asked for and every attempt."""

    stop_reason = serializers.CharField(
        read_only=True, help_text="why it is being ended; empty: it is not"
    )
    code = serializers.UUIDField(source="code.public_id", read_only=True)
    arguments = serializers.ListField(child=serializers.CharField(), read_only=True)
    parameters = serializers.DictField(child=serializers.JSONField(), read_only=True)
    datasets = JobDatasetSerializer(source="job_datasets", many=True, read_only=True)
    attempts = AttemptSerializer(many=True, read_only=True)
    cloned_from = serializers.SerializerMethodField()

    class Meta(JobSerializer.Meta):
        fields = [
            *JobSerializer.Meta.fields,
            "code",
            "entrypoint",
            "arguments",
            "parameters",
            "datasets",
            "cpu_millis",
            "memory_mib",
            "gpu_memory_mib",
            "gpu_model",
            "shm_mib",
            "walltime_s",
            "max_retries",
            "cloned_from",
            "stop_reason",
            "attempts",
        ]
        read_only_fields = fields

    @extend_schema_field(serializers.UUIDField(allow_null=True))
    def get_cloned_from(self, job: Job) -> str | None:
        """Return the job that this one was made from."""
        return str(job.cloned_from.public_id) if job.cloned_from else None


class DatasetChoiceSerializer(StrictSerializer):
    """A dataset version, and the name under which the program finds it."""

    version = serializers.UUIDField(help_text="id of a version that is ready")
    name = serializers.RegexField(
        r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z",
        help_text="the files are at $STARLING_DATA_DIR/<name>",
        error_messages={"invalid": "use letters, digits, dots and hyphens, at most 64"},
    )


@extend_schema_field({"oneOf": [{"type": "string"}, {"type": "number"}, {"type": "boolean"}]})
class ParameterField(serializers.Field):
    """A hyper-parameter: a text, a number, or yes or no."""

    _text = serializers.CharField(allow_blank=True, trim_whitespace=False, max_length=16_384)

    def to_internal_value(self, given: Any) -> Any:
        """Return the value as it is.

        Raises:
            ValidationError: If it is not plain, or cannot be stored.
        """
        if isinstance(given, bool):
            return given
        if isinstance(given, int):
            if abs(given) < 2**63:
                return given
            raise ValidationError("a whole number must fit into 64 bits")
        if isinstance(given, float):
            if math.isfinite(given):
                return given
            raise ValidationError("a number must be finite")
        if isinstance(given, str):
            return self._text.run_validation(given)
        raise ValidationError("give a text, a number, or true or false")

    def to_representation(self, value: Any) -> Any:
        """Return the value as it is."""
        return value


class NewJobSerializer(StrictSerializer):
    """What a job asks for. Bring the program as ``code``, ``script`` or ``template``."""

    name = serializers.CharField(max_length=120)
    template = serializers.SlugField(
        required=False, help_text="fills in what the request leaves out"
    )
    environment = serializers.SlugField(required=False, help_text="may come from the template")
    code = serializers.UUIDField(required=False, help_text="id of a code bundle")
    script = serializers.CharField(
        required=False,
        trim_whitespace=False,
        max_length=1_000_000,
        help_text="a Python program as text",
    )
    entrypoint = serializers.CharField(
        required=False, allow_blank=True, max_length=255, help_text="file of the bundle to run"
    )
    arguments = serializers.ListField(
        child=serializers.CharField(allow_blank=True, trim_whitespace=False, max_length=16_384),
        required=False,
        max_length=200,
    )
    parameters = serializers.DictField(
        child=ParameterField(),
        required=False,
        help_text="each becomes --name=value after the arguments",
    )
    datasets: Any = serializers.ListSerializer(
        child=DatasetChoiceSerializer(), required=False, max_length=32
    )
    cpu_millis = serializers.IntegerField(
        required=False, min_value=100, max_value=1_024_000, help_text="thousandths of a core"
    )
    memory_mib = serializers.IntegerField(required=False, min_value=64, max_value=16_777_216)
    gpus = serializers.IntegerField(required=False, min_value=0, max_value=64)
    gpu_memory_mib = serializers.IntegerField(
        required=False,
        allow_null=True,
        min_value=1,
        max_value=16_777_216,
        help_text="enough memory on each GPU, so that it may be shared; null for whole GPUs",
    )
    gpu_model = serializers.CharField(required=False, allow_blank=True, max_length=80)
    shm_mib = serializers.IntegerField(
        required=False,
        allow_null=True,
        min_value=1,
        max_value=16_777_216,
        help_text="size of /dev/shm; null for half of the memory, at most 8 GiB",
    )
    walltime_s = serializers.IntegerField(required=False, min_value=10, max_value=_INT32)
    max_retries = serializers.IntegerField(required=False, min_value=0, max_value=10)

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Check that there is exactly one program.

        Raises:
            ValidationError: If there is none, or code and script both.
        """
        if "code" in attrs and "script" in attrs:
            raise ValidationError({"script": ["send code or script, not both"]})
        if not {"code", "script", "template"} & set(attrs):
            raise ValidationError(
                {"code": ["send the id of a code bundle, or a script, or name a template"]}
            )
        if not {"environment", "template"} & set(attrs):
            raise ValidationError({"environment": ["choose one; environments/ lists them"]})
        return attrs


class EventSerializer(serializers.ModelSerializer[JobEvent]):
    """One thing that happened to a job."""

    actor = serializers.SerializerMethodField(help_text="who caused it; null: the platform")

    class Meta:
        model = JobEvent
        fields = ["at", "source", "target", "code", "text", "actor"]
        read_only_fields = fields

    def get_actor(self, event: JobEvent) -> str | None:
        """Return the name of who caused it."""
        return event.actor.get_username() if event.actor else None


class OutputFileSerializer(serializers.ModelSerializer[OutputFile]):
    """A file that a job left."""

    attempt = serializers.IntegerField(source="attempt.number", read_only=True)

    class Meta:
        model = OutputFile
        fields = ["path", "size_bytes", "modified_at", "attempt"]
        read_only_fields = fields
