"""What a job's specification must be before it becomes a job; every fault is named by its field."""

import json
import math
import re
import unicodedata
from collections import defaultdict
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Final

from django.conf import settings

from jobs import storage
from jobs.errors import InvalidInputError
from jobs.models import (
    CodeBundle,
    Dataset,
    DatasetVersion,
    Environment,
    VersionState,
)
from jobs.selectors.environments import environment_list
from jobs.specification import JobSpecification

_MOUNT_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_PARAMETER_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
_SLUG: Final = re.compile(r"[A-Za-z0-9_-]{0,50}")
_MAX_ARGUMENTS: Final = 200
_MAX_PARAMETERS: Final = 100
_MAX_DATASETS: Final = 32
_MAX_TEXT_BYTES: Final = 64 * 1024
_MAX_MIB: Final = 16_777_216
_MAX_INTEGER: Final = 2**63


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The rows a specification speaks of, all of them the owner's to use.

    Attributes:
        versions: Name under which the program finds it, and the dataset version.
    """

    environment: Environment
    code: CodeBundle
    versions: list[tuple[str, DatasetVersion]]


class _Problems(defaultdict[str, list[str]]):
    def __init__(self) -> None:
        super().__init__(list)

    def add(self, field: str, sentence: str) -> None:
        self[field].append(sentence)


def check_specification(*, owner: Any, specification: JobSpecification) -> Parts:
    """Return the rows a specification speaks of.

    Raises:
        InvalidInputError: With every fault that was found, by field, and what to do.
    """
    problems = _Problems()
    _check_words(specification, problems)
    _check_amounts(owner, specification, problems)
    _check_arguments(specification, problems)
    _check_parameters(specification, problems)
    environment = _environment(owner, specification, problems)
    code = _code(owner, specification, problems)
    versions = _versions(owner, specification, problems)
    if problems or environment is None or code is None:
        raise InvalidInputError(problems)
    return Parts(environment=environment, code=code, versions=versions)


def _check_words(specification: JobSpecification, problems: _Problems) -> None:
    name = specification.name.strip()
    if not 1 <= len(name) <= 120 or not _is_one_line(name):
        problems.add("name", "Give the job a name of 1 to 120 characters on one line.")
    if len(specification.gpu_model) > 80 or not _is_one_line(specification.gpu_model):
        problems.add("gpu_model", "Name a GPU model in at most 80 characters.")
    if not _SLUG.fullmatch(specification.template):
        problems.add("template", "Name a template by its slug, or leave it empty.")


def _check_amounts(owner: Any, specification: JobSpecification, problems: _Problems) -> None:
    max_walltime_s = 3600 * int(settings.STARLING["MAX_WALLTIME_H"])
    for field, low, high, unit in (
        ("cpu_millis", 100, 1_024_000, "thousandths of a core"),
        ("memory_mib", 64, _MAX_MIB, "MiB"),
        ("gpus", 0, 64, "GPUs"),
        ("walltime_s", 10, max_walltime_s, "seconds"),
        ("max_retries", 0, 10, "retries"),
    ):
        if not low <= getattr(specification, field) <= high:
            problems.add(field, f"Ask for {low} to {high} {unit}.")
    for field in ("gpu_memory_mib", "shm_mib"):
        value = getattr(specification, field)
        if value is not None and not 1 <= value <= _MAX_MIB:
            problems.add(field, "Ask for at least 1 MiB, or leave it empty.")
    if (specification.shm_mib or 0) > specification.memory_mib:
        problems.add("shm_mib", "Shared memory counts as memory: ask for no more than that.")
    if owner.max_gpus is not None and specification.gpus > owner.max_gpus:
        problems.add("gpus", f"Your jobs may ask for {owner.max_gpus} GPUs at most.")


def _check_arguments(specification: JobSpecification, problems: _Problems) -> None:
    arguments = specification.arguments
    if len(arguments) > _MAX_ARGUMENTS:
        problems.add("arguments", f"Give at most {_MAX_ARGUMENTS} arguments.")
    elif not all(_is_text(argument) for argument in arguments):
        problems.add("arguments", "Leave out NUL characters and broken Unicode.")
    elif sum(len(argument.encode()) for argument in arguments) > _MAX_TEXT_BYTES:
        problems.add("arguments", "Together at most 64 KiB; put longer texts into a file.")


def _check_parameters(specification: JobSpecification, problems: _Problems) -> None:
    parameters = specification.parameters
    if len(parameters) > _MAX_PARAMETERS:
        problems.add("parameters", f"Give at most {_MAX_PARAMETERS} parameters.")
        return
    for name, value in parameters.items():
        sentence = _parameter_problem(name, value)
        if sentence:
            problems.add("parameters", sentence)
    if "parameters" not in problems and len(json.dumps(parameters)) > _MAX_TEXT_BYTES:
        problems.add("parameters", "Together at most 64 KiB; put longer texts into a file.")


def _parameter_problem(name: str, value: Any) -> str:
    if not _PARAMETER_NAME.fullmatch(name):
        return f"{name[:64]!r} is not a name: begin with a letter, then letters, digits, - and _."
    match value:
        case bool():
            return ""
        case int():
            return "" if abs(value) <= _MAX_INTEGER else f"{name}: the number is too large."
        case float():
            return "" if math.isfinite(value) else f"{name}: give a finite number."
        case str():
            return "" if _is_text(value) else f"{name}: leave out NUL and broken Unicode."
        case _:
            return f"{name}: give a text, a number, or true or false."


def _environment(
    owner: Any, specification: JobSpecification, problems: _Problems
) -> Environment | None:
    usable = {environment.slug: environment for environment in environment_list(user=owner)}
    found = usable.get(specification.environment)
    if found is None:
        names = ", ".join(usable) or "there is none yet; an admin can add one"
        problems.add("environment", f"Choose an environment that you may use: {names}.")
    return found


def _code(owner: Any, specification: JobSpecification, problems: _Problems) -> CodeBundle | None:
    found = CodeBundle.objects.for_user(owner).filter(public_id=specification.code).first()
    if found is None:
        problems.add("code", "There is no such code, or it is not yours; send the program first.")
        return None
    entrypoint = specification.entrypoint
    if not entrypoint and not found.entrypoint:
        problems.add("entrypoint", "Say which file of the code is to be run, for instance main.py.")
    if entrypoint and not _has_file(found, entrypoint):
        problems.add("entrypoint", f"There is no file {entrypoint[:255]!r} in the code.")
    return found


def _has_file(code: CodeBundle, path: str) -> bool:
    pure = PurePosixPath(path)
    if not _is_text(path) or len(path) > 255 or pure.is_absolute() or ".." in pure.parts:
        return False
    return (storage.code_dir(code.sha256) / pure).is_file()


def _versions(
    owner: Any, specification: JobSpecification, problems: _Problems
) -> list[tuple[str, DatasetVersion]]:
    choices = specification.datasets
    if len(choices) > _MAX_DATASETS:
        problems.add("datasets", f"Choose at most {_MAX_DATASETS} datasets.")
        return []
    if len({choice.name for choice in choices}) < len(choices):
        problems.add("datasets", "Give every dataset a name of its own.")
    found = {
        version.public_id: version
        for version in DatasetVersion.objects.filter(
            public_id__in=[choice.version for choice in choices],
            dataset__in=Dataset.objects.for_user(owner),
        ).select_related("dataset")
    }
    chosen: list[tuple[str, DatasetVersion]] = []
    for choice in choices:
        version = found.get(choice.version)
        if not _MOUNT_NAME.fullmatch(choice.name):
            problems.add(
                "datasets",
                f"{choice.name[:64]!r} is not a name for a folder: use letters, digits, dots, "
                "hyphens and underscores, at most 64.",
            )
        if version is None:
            problems.add("datasets", f"There is no dataset version {choice.version}.")
        elif version.state != VersionState.READY:
            problems.add(
                "datasets", f"{version} is {VersionState(version.state).label}, not ready."
            )
        else:
            chosen.append((choice.name, version))
    return chosen


def _is_text(value: str) -> bool:
    """Return whether a database and a command line can carry the text."""
    return "\0" not in value and not any("\ud800" <= char <= "\udfff" for char in value)


def _is_one_line(value: str) -> bool:
    return _is_text(value) and not any(unicodedata.category(char) == "Cc" for char in value)
