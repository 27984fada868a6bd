"""What people type into the pages of simulations and the placement lab."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from django import forms
from django.conf import settings
from django.core.files.uploadedfile import UploadedFile

from cluster.core.errors import FileProblem
from cluster.core.placement.files import decoded
from cluster.core.placement.problem import Objective
from jobs.models import PlacementRun, SimulationRun
from jobs.question import (
    MAX_FILE_BYTES,
    MAX_POLICIES,
    MAX_SEARCH_S,
    METHODS,
    HostsAdded,
    PlacementQuestion,
    Recorded,
    SimulationQuestion,
    TextFile,
)
from jobs.selectors.placement_examples import PlacementExample
from jobs.services.placements import files_of

_MIB_PER_GIB: Final = 1024
_EXAMPLES: Final = "docs/examples"
#: Windows of history by name: words, and how long before now they begin.
WINDOWS: Final = {
    "day": ("the last 24 hours", timedelta(days=1)),
    "week": ("the last 7 days", timedelta(days=7)),
    "month": ("the last 30 days", timedelta(days=30)),
}
#: What each objective wants, in words that a student understands.
OBJECTIVES: Final = {
    Objective.HOSTS: "as few machines as possible",
    Objective.BALANCE: "all machines equally used",
    Objective.FRAGMENTATION: "as little useless GPU left as possible",
    Objective.GPU: "as much GPU placed as possible",
    Objective.MOVE: "as few bytes moved as possible",
}


class SimulationForm(forms.Form):
    """A what-if question; :meth:`question` is what the service takes.

    The policies are rows of two equally named inputs, a placer and a queue, so that a row more
    needs no script.
    """

    name = forms.CharField(max_length=120, required=False)
    source = forms.ChoiceField(
        choices=[
            ("recorded", "Recorded jobs"),
            ("file", "A file"),
            ("example", "The example"),
            ("kept", "As before"),
        ],
        widget=forms.RadioSelect,
    )
    window = forms.ChoiceField(label="Jobs submitted in", required=False)
    since = forms.DateTimeField(
        label="From", required=False, widget=forms.DateTimeInput({"type": "datetime-local"})
    )
    until = forms.DateTimeField(
        label="Until", required=False, widget=forms.DateTimeInput({"type": "datetime-local"})
    )
    workload = forms.FileField(
        label="Workload", required=False, allow_empty_file=True,
        widget=forms.FileInput({"accept": ".csv,.json,.txt"}),
    )  # fmt: skip
    hosts = forms.FileField(
        label="Hosts", required=False, allow_empty_file=True,
        widget=forms.FileInput({"accept": ".csv,.json"}),
    )  # fmt: skip
    like = forms.UUIDField(required=False, widget=forms.HiddenInput)
    without = forms.CharField(
        label="Leave out", required=False, max_length=20_000,
        help_text="Names of hosts, with commas.",
    )  # fmt: skip
    add_count = forms.IntegerField(
        label="Add hosts", min_value=0, max_value=1000, required=False, initial=0
    )
    add_like = forms.CharField(
        label="Like", required=False, max_length=200,
        help_text="The name of a host; empty for the sizes below.",
    )  # fmt: skip
    add_cpus = forms.IntegerField(label="CPU cores", min_value=1, max_value=4096, required=False)
    add_memory_gib = forms.IntegerField(
        label="Memory", min_value=1, max_value=65_536, required=False
    )
    add_gpus = forms.IntegerField(label="GPUs", min_value=0, max_value=62, required=False)
    add_gpu_model = forms.CharField(label="GPU model", max_length=80, required=False)
    add_gpu_memory_gib = forms.IntegerField(
        label="Memory of each GPU", min_value=0, max_value=4096, required=False
    )
    seed = forms.IntegerField(min_value=0, max_value=2**31 - 1, required=False, initial=0)

    #: Faults of what is no field of its own.
    policies = forms.CharField(required=False, widget=forms.HiddenInput)
    added = forms.CharField(required=False, widget=forms.HiddenInput)

    def __init__(
        self,
        data: Any = None,
        files: Any = None,
        *,
        placers: Sequence[str],
        queues: Sequence[str],
        initial: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(data, files, initial=initial)
        self.placers, self.queues = placers, queues
        choices = [(name, words) for name, (words, _) in WINDOWS.items()]
        self.fields["window"].choices = [*choices, ("between", "from … until …")]  # type: ignore[attr-defined]
        self.policy_rows = self._policy_rows((initial or {}).get("policies", ()))

    def _policy_rows(self, given: Sequence[str]) -> list[tuple[str, str]]:
        if self.is_bound:
            data: Any = self.data
            rows = list(zip(data.getlist("placer"), data.getlist("queue"), strict=False))
        else:
            rows = [(name.partition("+")[0], name.partition("+")[2]) for name in given]
        return (rows + [("", "")] * MAX_POLICIES)[:MAX_POLICIES]

    def clean_policies(self) -> tuple[str, ...]:
        """Return the rows that name a placer."""
        return tuple(
            f"{placer}+{queue}" if queue else placer for placer, queue in self.policy_rows if placer
        )

    def clean_workload(self) -> TextFile | None:
        """Return the file as text."""
        return text_of(self.cleaned_data["workload"])

    def clean_hosts(self) -> TextFile | None:
        """Return the file as text."""
        return text_of(self.cleaned_data["hosts"])

    def clean(self) -> dict[str, Any]:
        """Refuse what lacks what its source needs."""
        values: dict[str, Any] = super().clean() or {}
        source = values.get("source")
        if source == "file" and not values.get("workload") and "workload" not in self.errors:
            self.add_error("workload", "Choose the file.")
        if source == "kept" and not values.get("like"):
            self.add_error("source", "The simulation before is not named; choose another source.")
        if source == "recorded" and values.get("window") == "between":
            for field in ("since", "until"):
                if not values.get(field) and field not in self.errors:
                    self.add_error(field, "Choose a moment.")
        return values

    def question(self, *, now: datetime) -> SimulationQuestion:
        """Return what is asked, once it is valid."""
        values = self.cleaned_data
        workload, hosts = self._files(now)
        names = (name.strip() for name in values["without"].split(","))
        return SimulationQuestion(
            name=values["name"],
            workload=workload,
            hosts=hosts,
            without=tuple(dict.fromkeys(name for name in names if name)),
            added=self._added(),
            policies=values["policies"],
            seed=values["seed"] or 0,
        )

    def _files(self, now: datetime) -> tuple[TextFile | Recorded | UUID, TextFile | UUID | None]:
        values = self.cleaned_data
        source, hosts = values["source"], values["hosts"]
        if source == "example":
            return _example("course.csv"), hosts or _example("hosts.json")
        if source == "file":
            return values["workload"], hosts
        if source == "kept":
            return values["like"], hosts or values["like"]
        if values["window"] in WINDOWS:
            since, until = now - WINDOWS[values["window"]][1], now
        else:
            since, until = values["since"], values["until"]
        return Recorded(since=since, until=until), hosts

    def _added(self) -> HostsAdded | None:
        values = self.cleaned_data
        if not values["add_count"]:
            return None
        return HostsAdded(
            count=values["add_count"],
            like=values["add_like"].strip(),
            cpu_millis=1000 * (values["add_cpus"] or 0),
            memory_mib=_MIB_PER_GIB * (values["add_memory_gib"] or 0),
            gpus=values["add_gpus"] or 0,
            gpu_model=values["add_gpu_model"].strip(),
            gpu_memory_mib=_MIB_PER_GIB * (values["add_gpu_memory_gib"] or 0),
        )


def initial_of_simulation(run: SimulationRun) -> dict[str, Any]:
    """Return the form's values for asking again with something changed."""
    return {
        "name": run.name,
        "source": "kept",
        "like": run.public_id,
        "policies": run.policies,
        "seed": run.seed,
    }


class PlacementForm(forms.Form):
    """A trial of the lab; :meth:`question` is what the service takes."""

    source = forms.ChoiceField(
        choices=[("example", "An example"), ("file", "Files"), ("kept", "The same again")],
        widget=forms.RadioSelect,
    )
    example = forms.ChoiceField(required=False, widget=forms.RadioSelect)
    hosts = forms.FileField(
        label="Hosts", required=False, allow_empty_file=True,
        widget=forms.FileInput({"accept": ".csv,.json"}),
    )  # fmt: skip
    requests = forms.FileField(
        label="Requests", required=False, allow_empty_file=True,
        widget=forms.FileInput({"accept": ".csv,.json"}),
        help_text="Empty where the first file has both.",
    )  # fmt: skip
    like = forms.UUIDField(required=False, widget=forms.HiddenInput)
    objective = forms.ChoiceField(
        label="What is wanted", choices=[(o.value, words) for o, words in OBJECTIVES.items()]
    )
    method = forms.ChoiceField(label="What is at work", choices=list(METHODS.items()))
    seconds = forms.FloatField(min_value=0.1, max_value=MAX_SEARCH_S, initial=5)
    seed = forms.IntegerField(min_value=0, max_value=2**31 - 1, required=False, initial=0)

    def __init__(
        self,
        data: Any = None,
        files: Any = None,
        *,
        examples: Sequence[PlacementExample],
        initial: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(data, files, initial=initial)
        self._examples: Mapping[str, PlacementExample] = {one.slug: one for one in examples}
        self.fields["example"].choices = [(one.slug, one.title) for one in examples]  # type: ignore[attr-defined]

    def clean_hosts(self) -> TextFile | None:
        """Return the file as text."""
        return text_of(self.cleaned_data["hosts"])

    def clean_requests(self) -> TextFile | None:
        """Return the file as text."""
        return text_of(self.cleaned_data["requests"])

    def clean(self) -> dict[str, Any]:
        """Refuse what lacks what its source needs."""
        values: dict[str, Any] = super().clean() or {}
        source = values.get("source")
        if source == "example" and not values.get("example") and "example" not in self.errors:
            self.add_error("example", "Choose one of the examples.")
        if source == "file" and not values.get("hosts") and "hosts" not in self.errors:
            self.add_error("hosts", "Choose the file with the hosts.")
        if source == "kept" and not values.get("like"):
            self.add_error("source", "The trial before is not named; choose another source.")
        return values

    def question(self, before: PlacementRun | None) -> PlacementQuestion:
        """Return what is asked, once it is valid.

        Args:
            before: The trial whose problem is taken again.
        """
        values = self.cleaned_data
        if before is not None:
            name, (hosts, requests) = before.name, files_of(before)
        elif values["source"] == "example":
            example = self._examples[values["example"]]
            name, hosts, requests = example.title, example.file, example.file
        else:
            hosts, requests = values["hosts"], values["requests"] or values["hosts"]
            name = requests.name
        return PlacementQuestion(
            name=name,
            hosts=hosts,
            requests=requests,
            objective=Objective(values["objective"]),
            method=values["method"],
            seconds=values["seconds"],
            seed=values["seed"] or 0,
        )


def text_of(file: "UploadedFile[Any] | None") -> TextFile | None:
    """Return what was sent as text.

    Raises:
        ValidationError: If it is too large or no text.
    """
    if file is None:
        return None
    name = file.name or "file"
    if (file.size or 0) > MAX_FILE_BYTES:
        raise forms.ValidationError(f"{name} is larger than {MAX_FILE_BYTES >> 20} MiB; split it.")
    try:
        return TextFile(name=name, text=decoded(file.read(), name))
    except FileProblem as problem:
        raise forms.ValidationError(str(problem)) from problem


def _example(name: str) -> TextFile:
    path = settings.BASE_DIR / _EXAMPLES / name
    return TextFile(name=name, text=path.read_text(encoding="utf-8"))
