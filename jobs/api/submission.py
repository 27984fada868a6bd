"""Makes a job's specification of what a REST client sent."""

from datetime import datetime
from typing import Any, Final
from uuid import UUID

from jobs import selectors, services
from jobs.errors import InvalidInputError
from jobs.models import Dataset, JobTemplate, VersionState
from jobs.specification import DatasetChoice, JobSpecification

_TEMPLATE_AMOUNTS: Final = ("cpu_millis", "memory_mib", "gpus", "walltime_s")


def specification_of(*, user: Any, values: dict[str, Any], now: datetime) -> JobSpecification:
    """Return the specification, with what is left out taken from the template.

    Raises:
        InvalidInputError: If the template is not there, or the script cannot be kept.
    """
    template = _template(user, values.get("template"))
    wanted = {**_of_template(user, template), **values}
    wanted.pop("template", None)
    script = wanted.pop("script", "")
    if template is not None:
        offered = {p["name"]: p["default"] for p in template.parameters}
        wanted["parameters"] = offered | values.get("parameters", {})
    return JobSpecification(
        **{
            **wanted,
            "code": values.get("code") or _code_of(user, script, now=now),
            "arguments": tuple(wanted.get("arguments", ())),
            "datasets": tuple(_choices(wanted.get("datasets", ()))),
            "template": template.slug if template else "",
        }
    )


def _template(user: Any, slug: str | None) -> JobTemplate | None:
    if slug is None:
        return None
    found = selectors.template_list(user=user).filter(slug=slug).first()
    if found is None:
        raise InvalidInputError({"template": ["There is no such template; templates/ lists them."]})
    return found


def _of_template(user: Any, template: JobTemplate | None) -> dict[str, Any]:
    if template is None:
        return {}
    return {
        "environment": template.environment.slug,
        "script": template.script,
        "datasets": _default_datasets(user, template.default_dataset),
        **{name: getattr(template, name) for name in _TEMPLATE_AMOUNTS},
    }


def _default_datasets(user: Any, name: str) -> list[dict[str, Any]]:
    if not name:
        return []
    dataset = Dataset.objects.for_user(user).filter(name=name, is_shared=True).first()
    version = dataset and dataset.versions.filter(state=VersionState.READY).first()
    return [{"version": version.public_id, "name": name}] if version else []


def _code_of(user: Any, script: str, *, now: datetime) -> UUID:
    bundle = services.code_create(owner=user, filename="main.py", content=script.encode(), now=now)
    return bundle.public_id


def _choices(given: Any) -> list[DatasetChoice]:
    return [DatasetChoice(version=row["version"], name=row["name"]) for row in given]
