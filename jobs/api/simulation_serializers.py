"""Simulations and trials of placement as REST clients see and send them."""

from typing import Any

from rest_framework import serializers
from rest_framework.exceptions import ValidationError

from cluster.api.base import StrictSerializer
from cluster.core.placement.problem import Objective
from jobs.models import PlacementRun, RunState, SimulationRun
from jobs.question import (
    MAX_FILE_BYTES,
    MAX_SEARCH_S,
    METHODS,
    HostsAdded,
    PlacementQuestion,
    Recorded,
    SimulationQuestion,
    TextFile,
)
from jobs.selectors.placement_examples import placement_examples

_INT32 = 2**31 - 1
_COMMON = [
    "id",
    "owner",
    "name",
    "state",
    "progress_pct",
    "progress_text",
    "error",
    "seed",
    "created_at",
    "started_at",
    "finished_at",
]


class SimulationSerializer(serializers.ModelSerializer[SimulationRun]):
    """A simulation in a list."""

    id = serializers.UUIDField(source="public_id", read_only=True)
    owner = serializers.CharField(source="owner.username", read_only=True)
    policies = serializers.ListField(child=serializers.CharField(), read_only=True)
    source: Any = serializers.DictField(read_only=True, help_text="where its files are from")

    class Meta:
        model = SimulationRun
        fields = [*_COMMON, "policies", "job_count", "source"]
        read_only_fields = fields


class SimulationDetailSerializer(SimulationSerializer):
    """A simulation with its hosts and its answer."""

    hosts = serializers.ListField(child=serializers.DictField(), read_only=True)
    result = serializers.DictField(
        read_only=True, help_text="rows, figures and changes; empty until the first policy is done"
    )

    class Meta(SimulationSerializer.Meta):
        fields = [*SimulationSerializer.Meta.fields, "hosts", "result"]
        read_only_fields = fields


class HostsAddedSerializer(StrictSerializer):
    """Hosts that are not there."""

    count = serializers.IntegerField(min_value=1, max_value=1000)
    like = serializers.CharField(
        max_length=200, required=False, help_text="one of the hosts; else give the sizes"
    )
    cpu_millis = serializers.IntegerField(min_value=1, max_value=_INT32, required=False)
    memory_mib = serializers.IntegerField(min_value=1, max_value=_INT32, required=False)
    gpus = serializers.IntegerField(min_value=0, max_value=62, required=False)
    gpu_model = serializers.CharField(max_length=80, required=False)
    gpu_memory_mib = serializers.IntegerField(min_value=0, max_value=_INT32, required=False)


class NewSimulationSerializer(StrictSerializer):
    """A question; say `since` and `until`, or `workload_text`, or `like`."""

    name = serializers.CharField(max_length=120, required=False)
    since = serializers.DateTimeField(required=False)
    until = serializers.DateTimeField(required=False)
    workload_text = serializers.CharField(
        max_length=MAX_FILE_BYTES, trim_whitespace=False, required=False, help_text="a whole file"
    )
    workload_file = serializers.CharField(
        max_length=200, default="workload", help_text="its name, for what is wrong in it"
    )
    like = serializers.UUIDField(required=False, help_text="a simulation whose workload is taken")
    hosts_text = serializers.CharField(
        max_length=MAX_FILE_BYTES, trim_whitespace=False, required=False, help_text="a whole file"
    )
    hosts_file = serializers.CharField(max_length=200, default="hosts")
    without = serializers.ListField(
        child=serializers.CharField(max_length=200), max_length=5000, default=list
    )
    added = HostsAddedSerializer(required=False)
    policies = serializers.ListField(
        child=serializers.CharField(max_length=80),
        min_length=1,
        max_length=4,
        help_text="placer, or placer+queue; the first is what the others are compared to",
    )
    seed = serializers.IntegerField(min_value=0, max_value=_INT32, default=0)

    def validate_since(self, value: Any) -> Any:
        """Refuse years that no history has."""
        return _moment(value)

    def validate_until(self, value: Any) -> Any:
        """Refuse years that no history has."""
        return _moment(value)

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Refuse a question with no workload, or with more than one."""
        has_time = "since" in attrs or "until" in attrs
        if has_time and not ("since" in attrs and "until" in attrs):
            raise ValidationError({"until": ["give both since and until"]})
        if has_time + ("workload_text" in attrs) + ("like" in attrs) != 1:
            raise ValidationError(
                {"workload_text": ["give one of: since and until, workload_text, like"]}
            )
        return attrs

    def question(self) -> SimulationQuestion:
        """Return what is asked, once it is valid."""
        values = self.validated_data
        workload: Any = values.get("like")
        hosts: Any = workload
        if "since" in values:
            workload = Recorded(since=values["since"], until=values["until"])
        elif "workload_text" in values:
            workload = TextFile(name=values["workload_file"], text=values["workload_text"])
        if "hosts_text" in values:
            hosts = TextFile(name=values["hosts_file"], text=values["hosts_text"])
        return SimulationQuestion(
            name=values.get("name", ""),
            workload=workload,
            hosts=hosts,
            without=tuple(values["without"]),
            added=HostsAdded(**values["added"]) if "added" in values else None,
            policies=tuple(values["policies"]),
            seed=values["seed"],
        )


class PlacementSerializer(serializers.ModelSerializer[PlacementRun]):
    """A trial in a list."""

    id = serializers.UUIDField(source="public_id", read_only=True)
    owner = serializers.CharField(source="owner.username", read_only=True)

    class Meta:
        model = PlacementRun
        fields = [*_COMMON, "objective", "method", "seconds"]
        read_only_fields = fields


class PlacementDetailSerializer(PlacementSerializer):
    """A trial with what it found."""

    result = serializers.DictField(
        read_only=True, help_text="rows of the placers, the bound, and the picture of the packing"
    )

    class Meta(PlacementSerializer.Meta):
        fields = [*PlacementSerializer.Meta.fields, "result"]
        read_only_fields = fields


class NewPlacementSerializer(StrictSerializer):
    """A problem for the lab: `example`, or `hosts_text` and, if it has none, `requests_text`."""

    name = serializers.CharField(max_length=120, required=False)
    example = serializers.ChoiceField(
        choices=[example.slug for example in placement_examples()], required=False
    )
    hosts_text = serializers.CharField(
        max_length=MAX_FILE_BYTES, trim_whitespace=False, required=False, help_text="a whole file"
    )
    hosts_file = serializers.CharField(max_length=200, default="hosts")
    requests_text = serializers.CharField(
        max_length=MAX_FILE_BYTES, trim_whitespace=False, required=False, help_text="a whole file"
    )
    requests_file = serializers.CharField(max_length=200, default="requests")
    objective = serializers.ChoiceField(
        choices=[objective.value for objective in Objective], default=Objective.HOSTS.value
    )
    method = serializers.ChoiceField(choices=list(METHODS), default="full")
    seconds = serializers.FloatField(min_value=0.1, max_value=MAX_SEARCH_S, default=3.0)
    seed = serializers.IntegerField(min_value=0, max_value=_INT32, default=0)

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Refuse a question with no problem, or with two."""
        if ("example" in attrs) == ("hosts_text" in attrs):
            raise ValidationError({"example": ["give either example or hosts_text"]})
        return attrs

    def question(self) -> PlacementQuestion:
        """Return what is asked, once it is valid."""
        values = self.validated_data
        if "example" in values:
            chosen = next(e for e in placement_examples() if e.slug == values["example"])
            hosts = requests = chosen.file
            name = values.get("name", chosen.title)
        else:
            name = values.get("name", "")
            hosts = requests = TextFile(name=values["hosts_file"], text=values["hosts_text"])
            if "requests_text" in values:
                requests = TextFile(name=values["requests_file"], text=values["requests_text"])
        return PlacementQuestion(
            name=name,
            hosts=hosts,
            requests=requests,
            objective=Objective(values["objective"]),
            method=values["method"],
            seconds=values["seconds"],
            seed=values["seed"],
        )


class FramesSerializer(serializers.Serializer):
    """What could be watched of a search, from one frame on."""

    state = serializers.ChoiceField(choices=RunState.choices)
    progress_text = serializers.CharField(allow_blank=True)
    first = serializers.IntegerField()
    frames = serializers.ListField(child=serializers.DictField())
    rows = serializers.ListField(child=serializers.DictField())
    bound = serializers.IntegerField(allow_null=True)


def _moment(value: Any) -> Any:
    if not 2000 <= value.year < 2200:
        raise ValidationError("must be in the years 2000 to 2199")
    return value
