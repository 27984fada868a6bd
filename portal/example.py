"""The example job: the digits template, submitted as any student would."""

from datetime import datetime
from typing import Any, Final

from jobs import services
from jobs.models import Dataset, DatasetVersion, Job, JobTemplate, VersionState
from jobs.specification import DatasetChoice, JobSpecification

TEMPLATE: Final = "digits-keras"


def submit(*, owner: Any, now: datetime, name: str = "Digits, the example") -> Job:
    """Submit the digits template for ``owner`` through the public services.

    Raises:
        JobsError: If something it needs is missing; the text says what.
    """
    template = JobTemplate.objects.select_related("environment").get(slug=TEMPLATE)
    code = services.code_create(
        owner=owner, filename="train.py", content=template.script.encode(), now=now
    )
    return services.job_submit(
        owner=owner,
        now=now,
        specification=JobSpecification(
            name=name,
            environment=template.environment.slug,
            code=code.public_id,
            parameters={item["name"]: item["default"] for item in template.parameters},
            datasets=(DatasetChoice(version=_digits(owner).public_id, name="digits"),),
            cpu_millis=template.cpu_millis,
            memory_mib=template.memory_mib,
            walltime_s=template.walltime_s,
            template=template.slug,
        ),
    )


def _digits(owner: Any) -> DatasetVersion:
    return DatasetVersion.objects.filter(
        dataset__in=Dataset.objects.for_user(owner),
        dataset__name="digits",
        state=VersionState.READY,
    ).latest("number")
