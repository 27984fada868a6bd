"""Problems for the placement lab: checked, and stored to be placed beside the workers."""

from dataclasses import asdict
from datetime import datetime
from typing import Any, Final

from django.db import transaction

from cluster.core.errors import CoreError
from cluster.core.placement.files import problem_from_texts
from cluster.core.resources import ClusterSnapshot, ResourceRequest
from jobs import dispatch
from jobs.errors import InvalidInputError
from jobs.models import PlacementRun
from jobs.question import MAX_SEARCH_S, METHODS, PlacementQuestion, TextFile
from jobs.services.runs import refuse_too_many

#: A lab looks at problems that a person can look at.
MAX_HOSTS: Final = 400
MAX_REQUESTS: Final = 4000


def placement_create(*, owner: Any, question: PlacementQuestion, now: datetime) -> PlacementRun:
    """Store a problem that can be placed, and ask for it to be placed.

    Raises:
        InvalidInputError: With a sentence for each field; of a file with row and column.
        QuotaExceededError: If too many of the owner's wait already.
    """
    refuse_too_many(PlacementRun.objects.filter(owner=owner))
    if question.method not in METHODS:
        raise InvalidInputError({"method": [f"Choose one of: {', '.join(METHODS)}."]})
    if not 0.1 <= question.seconds <= MAX_SEARCH_S:
        raise InvalidInputError({"seconds": [f"Choose from 0.1 to {MAX_SEARCH_S:g} seconds."]})
    hosts, requests = problem_of(question.hosts, question.requests)
    with transaction.atomic():
        run = PlacementRun.objects.create(
            owner=owner,
            name=question.name.strip()[:120] or question.requests.name[:120],
            problem={
                "hosts": asdict(question.hosts),
                "requests": None
                if question.requests == question.hosts
                else asdict(question.requests),
                "host_count": len(hosts.hosts),
                "gpu_count": sum(len(host.gpus) for host in hosts.hosts),
                "request_count": len(requests),
            },
            objective=question.objective,
            method=question.method,
            seconds=question.seconds,
            seed=question.seed,
            created_at=now,
        )
        dispatch.request_runs()
    return run


def files_of(run: PlacementRun) -> tuple[TextFile, TextFile]:
    """Return the files with a run's hosts and requests; the same twice where one is both."""
    hosts = TextFile(**run.problem["hosts"])
    other = run.problem["requests"]
    return hosts, hosts if other is None else TextFile(**other)


def problem_of(
    hosts: TextFile, requests: TextFile
) -> tuple[ClusterSnapshot, tuple[ResourceRequest, ...]]:
    """Return the problem that two files state.

    Raises:
        InvalidInputError: If one is too large, or something in it is wrong.
    """
    for field, file in (("hosts", hosts), ("requests", requests)):
        if file.problem:
            raise InvalidInputError({field: [file.problem]})
    try:
        found = problem_from_texts(
            hosts=hosts.text,
            hosts_file=hosts.name,
            requests=requests.text,
            requests_file=requests.name,
        )
    except CoreError as problem:
        is_other = requests != hosts and str(problem).startswith(requests.name)
        field = "requests" if is_other else "hosts"
        raise InvalidInputError({field: [str(problem)]}) from problem
    if len(found[0].hosts) > MAX_HOSTS or len(found[1]) > MAX_REQUESTS:
        sizes = f"{len(found[0].hosts):,} and {len(found[1]):,}"
        most = f"{MAX_HOSTS} hosts and {MAX_REQUESTS:,} requests"
        text = f"The lab takes up to {most}, these are {sizes}; use manage.py place."
        raise InvalidInputError({"requests": [text]})
    return found
