"""The environments and templates that come with the product."""

import hashlib
import json
import tomllib
from pathlib import Path
from typing import Any, Final, TypeVar

from django.db import models, transaction

from jobs.models import Environment, JobTemplate

LIBRARY: Final = Path(__file__).resolve().parent.parent / "library"
_M = TypeVar("_M", bound=models.Model)


@transaction.atomic
def shipped_load() -> int:
    """Bring the rows up to the files; return how many were made or changed.

    What an admin has changed in a row stays as it is.
    """
    shelf = tomllib.loads((LIBRARY / "library.toml").read_text())
    changed = 0
    for entry in shelf["environments"]:
        changed += _bring(Environment, entry.pop("slug"), entry)
    environments = {row.slug: row for row in Environment.objects.all()}
    for entry in shelf["templates"]:
        values = dict(entry)
        values["script"] = (LIBRARY / values.pop("file")).read_text()
        values["environment"] = environments[values["environment"]]
        changed += _bring(JobTemplate, values.pop("slug"), values)
    return changed


def _bring(model: type[_M], slug: str, values: dict[str, Any]) -> bool:
    new = _sum(values)
    row: Any = model._default_manager.filter(slug=slug).first()  # noqa: SLF001 - Django's public name
    if row is None:
        model._default_manager.create(slug=slug, shipped=new, **values)  # noqa: SLF001
        return True
    if (
        row.shipped in {"", new}
        or _sum({name: getattr(row, name) for name in values}) != row.shipped
    ):
        return False
    for name, value in values.items():
        setattr(row, name, value)
    row.shipped = new
    row.save()
    return True


def _sum(values: dict[str, Any]) -> str:
    plain = {
        name: value.slug if isinstance(value, Environment) else value
        for name, value in values.items()
    }
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()
