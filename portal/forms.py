"""What people type into pages, as values that services take."""

import json
import re
import shlex
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Final
from uuid import UUID

from django import forms

from jobs.models import CodeBundle, Dataset, DatasetVersion, Environment, JobTemplate
from jobs.specification import DatasetChoice, JobSpecification
from portal.models import User
from portal.services import MAX_TOKEN_DAYS, TOKEN_DAYS

_MIB_PER_GIB: Final = 1024
_SPAN: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(d|h|min|m|s)[a-z]*", re.IGNORECASE)
_CLOCK: Final = re.compile(r"(\d+):([0-5]\d)(?::([0-5]\d))?")
_SECONDS: Final = {"d": 86_400, "h": 3600, "min": 60, "m": 60, "s": 1}

#: Which field of the job form shows the fault of which field of the services.
_FIELD_OF: Final = {
    "cpu_millis": "cpus",
    "memory_mib": "memory_gib",
    "gpu_memory_mib": "gpu_memory_gib",
    "shm_mib": "shm_gib",
    "walltime_s": "walltime",
    "content": "code",
    "filename": "code",
    "resources": None,
}


def add_errors(form: forms.Form, fields: Mapping[str, Sequence[str]]) -> None:
    """Put what a service refused next to the fields; what no field stands for goes on top."""
    for name, texts in fields.items():
        target = _FIELD_OF.get(name, name)
        for text in texts:
            form.add_error(target if target in form.fields else None, text)


class SpanField(forms.CharField):
    """A length of time in words, ``1 h 30 min`` or ``1:30``; cleans to whole seconds."""

    def clean(self, value: Any) -> Any:
        """Return the seconds.

        Raises:
            ValidationError: If it is not a length of time.
        """
        text = str(super().clean(value)).strip()
        clock = _CLOCK.fullmatch(text)
        if clock:
            hours, minutes, seconds = (int(part or 0) for part in clock.groups())
            return hours * 3600 + minutes * 60 + seconds
        found = _SPAN.findall(text)
        if not found or _SPAN.sub("", text).strip(" ,"):
            raise forms.ValidationError("Write a length of time such as 30 min, 2 h or 1 h 30 min.")
        return round(sum(float(count) * _SECONDS[unit.lower()] for count, unit in found))


def in_words(seconds: int) -> str:
    """Return seconds as :class:`SpanField` takes them."""
    words = []
    for unit, size in (("h", 3600), ("min", 60), ("s", 1)):
        count, seconds = divmod(seconds, size)
        if count:
            words.append(f"{count} {unit}")
    return " ".join(words) or "0 s"


class ProfileForm(forms.ModelForm):  # type: ignore[type-arg] # not subscriptable when it runs
    """One's own name; the e-mail address has a page of its own, where it is verified."""

    class Meta:
        model = User
        fields = ("first_name", "last_name")
        widgets = {
            "first_name": forms.TextInput({"autocomplete": "given-name"}),
            "last_name": forms.TextInput({"autocomplete": "family-name"}),
        }


class TokenForm(forms.Form):
    """A token to be made."""

    name = forms.CharField(
        max_length=80, help_text="Where it is used, for instance a computer's name."
    )
    days = forms.IntegerField(
        label="Lifetime in days", min_value=1, max_value=MAX_TOKEN_DAYS, initial=TOKEN_DAYS
    )


class DatasetForm(forms.Form):
    """What may change about a dataset; its versions never do."""

    name = forms.CharField(max_length=120)
    description = forms.CharField(
        max_length=4000, required=False, widget=forms.Textarea({"rows": 3})
    )
    is_shared = forms.BooleanField(label="Everybody may see it and train on it", required=False)

    def __init__(self, data: Any, *, dataset: Dataset, may_share: bool) -> None:
        values = {
            "name": dataset.name,
            "description": dataset.description,
            "is_shared": dataset.is_shared,
        }
        super().__init__(data, initial=values)
        if not may_share:
            del self.fields["is_shared"]


class JobForm(forms.Form):
    """A job as a page asks for it; :meth:`specification` is what services take.

    The rows of datasets and parameters are lists of equally named inputs, so that a row more
    needs no script. The token makes a form that is sent twice one job.
    """

    token = forms.CharField(max_length=64, widget=forms.HiddenInput)
    name = forms.CharField(max_length=120)
    source = forms.ChoiceField(
        choices=[
            ("template", "Template"),
            ("editor", "Write code"),
            ("upload", "Upload a file"),
            ("kept", "Kept program"),
        ],
        widget=forms.RadioSelect,
    )
    template = forms.SlugField(required=False, widget=forms.HiddenInput)
    script = forms.CharField(
        required=False,
        strip=False,
        widget=forms.Textarea({"class": "code", "spellcheck": "false", "rows": 18}),
    )
    file = forms.FileField(
        required=False,
        allow_empty_file=True,
        widget=forms.FileInput({"accept": ".py,.ipynb,.zip"}),
    )
    code = forms.UUIDField(required=False, widget=forms.HiddenInput)
    cloned_from = forms.UUIDField(required=False, widget=forms.HiddenInput)
    entrypoint = forms.CharField(required=False, max_length=255)
    environment = forms.ChoiceField()
    arguments = forms.CharField(required=False)
    cpus = forms.FloatField(label="CPU cores", min_value=0.1, max_value=1024)
    memory_gib = forms.FloatField(label="Memory", min_value=0.0625, max_value=16_384)
    gpus = forms.IntegerField(label="GPUs", min_value=0, max_value=64)
    gpu_memory_gib = forms.FloatField(label="Memory of each GPU", required=False, min_value=0.01)
    gpu_model = forms.CharField(label="GPU model", required=False, max_length=80)
    shm_gib = forms.FloatField(label="Shared memory", required=False, min_value=0.01)
    walltime = SpanField(label="Time limit", max_length=40)
    max_retries = forms.IntegerField(label="Retries", min_value=0, max_value=10)

    #: Faults of the rows, which are no fields of their own.
    datasets = forms.CharField(required=False, widget=forms.HiddenInput)
    parameters = forms.CharField(required=False, widget=forms.HiddenInput)

    def __init__(
        self,
        data: Any = None,
        files: Any = None,
        *,
        environments: Sequence[Environment],
        versions: Sequence[DatasetVersion],
        initial: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(data, files, initial=initial)
        self.fields["environment"].choices = [(e.slug, e.name) for e in environments]  # type: ignore[attr-defined]
        self._versions = {str(version.public_id): version for version in versions}
        given = initial or {}
        self.dataset_rows = self._rows("dataset_version", "dataset_name", given.get("datasets", []))
        self.parameter_rows = self._rows(
            "parameter_name", "parameter_value", given.get("parameters", [])
        )

    def _rows(self, first: str, second: str, given: Any) -> list[tuple[str, str]]:
        if not self.is_bound:
            return [(str(left), _shown(right)) for left, right in given]
        data: Any = self.data
        pairs = zip(data.getlist(first), data.getlist(second), strict=False)
        return [(left.strip(), right) for left, right in pairs if left.strip() or right.strip()]

    def clean_arguments(self) -> tuple[str, ...]:
        """Split the line as a shell does.

        Raises:
            ValidationError: If a quote is left open.
        """
        try:
            return tuple(shlex.split(self.cleaned_data["arguments"]))
        except ValueError as error:
            raise forms.ValidationError("A quotation mark is not closed.") from error

    def clean_datasets(self) -> tuple[DatasetChoice, ...]:
        """Return the chosen versions, each under the name typed or one made of its dataset's.

        Raises:
            ValidationError: If a row names no version that is there.
        """
        chosen = []
        for version_id, name in self.dataset_rows:
            version = self._versions.get(version_id)
            if version is None:
                raise forms.ValidationError("Choose a dataset for each name, or clear the row.")
            chosen.append(
                DatasetChoice(version=version.public_id, name=name.strip() or folder_name(version))
            )
        return tuple(chosen)

    def clean_parameters(self) -> dict[str, Any]:
        """Return the hyper-parameters: numbers, true and false are taken as such.

        Raises:
            ValidationError: If a value has no name, or a name stands twice.
        """
        found: dict[str, Any] = {}
        for name, value in self.parameter_rows:
            if not name:
                raise forms.ValidationError(f"Give the value {value.strip()[:40]!r} a name.")
            if name in found:
                raise forms.ValidationError(f"{name} stands there twice; keep one.")
            found[name] = parsed(value.strip())
        return found

    def clean(self) -> dict[str, Any]:
        """Check that the chosen way of bringing the program has a program."""
        values = super().clean() or self.cleaned_data
        missing = {
            "template": ("template", "Choose a template."),
            "editor": ("script", "Write a program first, or start from a template."),
            "upload": ("file", "Choose a .py, .ipynb or .zip file."),
            "kept": ("code", "Choose another way of bringing the program."),
        }
        field, sentence = missing.get(values.get("source", ""), ("", ""))
        # A file that was kept from an earlier try of this form need not be chosen again.
        if field == "file" and values.get("code"):
            return values
        if field and not str(values.get(field) or "").strip() and field not in self.errors:
            self.add_error(field, sentence)
        return values

    def specification(self, *, code: UUID) -> JobSpecification:
        """Return what is asked for; only after the form was found valid."""
        values = self.cleaned_data
        return JobSpecification(
            name=values["name"],
            environment=values["environment"],
            code=code,
            entrypoint=values["entrypoint"],
            arguments=values["arguments"],
            parameters=values["parameters"],
            datasets=values["datasets"],
            cpu_millis=round(values["cpus"] * 1000),
            memory_mib=round(values["memory_gib"] * _MIB_PER_GIB),
            gpus=values["gpus"],
            gpu_memory_mib=_mib(values["gpu_memory_gib"]) if values["gpus"] else None,
            gpu_model=values["gpu_model"],
            shm_mib=_mib(values["shm_gib"]),
            walltime_s=values["walltime"],
            max_retries=values["max_retries"],
            template=values["template"],
            cloned_from=values["cloned_from"],
        )


def _mib(gib: float | None) -> int | None:
    return None if gib is None else round(gib * _MIB_PER_GIB)


def _gib(mib: int | None) -> float | None:
    return None if mib is None else round(mib / _MIB_PER_GIB, 3)


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def parsed(text: str) -> Any:
    """Return a typed value: a number, true or false where it is one, else the text itself."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, bool | int | float) else text


def folder_name(version: DatasetVersion) -> str:
    """Return a name for a dataset's folder that every program can write."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", version.dataset.name).strip("-._")[:64] or "data"


def initial_of_template(
    template: JobTemplate | None, versions: Sequence[DatasetVersion]
) -> dict[str, Any]:
    """Return the form's values for a new job, from a template where one is given."""
    values: dict[str, Any] = {
        "token": uuid.uuid4().hex,
        "name": "",
        "source": "editor",
        "cpus": 1,
        "memory_gib": 2,
        "gpus": 0,
        "walltime": "1 h",
        "max_retries": 0,
    }
    if template is None:
        return values
    wanted = next((v for v in versions if _is_default(v, template)), None)
    return values | {
        "name": template.title,
        "source": "template",
        "template": template.slug,
        "script": template.script,
        "environment": template.environment.slug,
        "datasets": [(wanted.public_id, folder_name(wanted))] if wanted else [],
        "parameters": [(p["name"], p["default"]) for p in template.parameters],
        "cpus": template.cpu_millis / 1000,
        "memory_gib": _gib(template.memory_mib),
        "gpus": template.gpus,
        "walltime": in_words(template.walltime_s),
    }


def _is_default(version: DatasetVersion, template: JobTemplate) -> bool:
    dataset = version.dataset
    return bool(template.default_dataset) and (
        dataset.name == template.default_dataset and dataset.is_shared
    )


def initial_of_job(
    wanted: JobSpecification, code: CodeBundle, script: str | None
) -> dict[str, Any]:
    """Return the form's values for a job like another.

    Args:
        script: Text of the program where it is one file, to be changed in the editor; ``None``
            keeps the bundle as it is.
    """
    return {
        "token": uuid.uuid4().hex,
        "name": wanted.name,
        "source": "kept" if script is None else "editor",
        "code": code.public_id if script is None else None,
        "script": script or "",
        "template": wanted.template,
        "cloned_from": wanted.cloned_from,
        "entrypoint": wanted.entrypoint if script is None else "",
        "environment": wanted.environment,
        "arguments": shlex.join(wanted.arguments),
        "datasets": [(choice.version, choice.name) for choice in wanted.datasets],
        "parameters": list(wanted.parameters.items()),
        "cpus": wanted.cpu_millis / 1000,
        "memory_gib": _gib(wanted.memory_mib),
        "gpus": wanted.gpus,
        "gpu_memory_gib": _gib(wanted.gpu_memory_mib),
        "gpu_model": wanted.gpu_model,
        "shm_gib": _gib(wanted.shm_mib),
        "walltime": in_words(wanted.walltime_s),
        "max_retries": wanted.max_retries,
    }
