"""What-if questions: checked, and stored with everything that the answer depends on."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from django.db import transaction

from cluster import selectors as cluster_selectors
from cluster.core.errors import CoreError, FileProblem
from cluster.core.resources import (
    ClusterSnapshot,
)
from cluster.core.simulation.workload import Workload
from cluster.core.simulation.workload_files import hosts_from_text, workload_from_text
from jobs import dispatch
from jobs.errors import InvalidInputError, NotFoundError
from jobs.models import SimulationRun
from jobs.models.ownership import sees_all
from jobs.question import (
    MAX_POLICIES,
    HostsAdded,
    Recorded,
    SimulationQuestion,
    TextFile,
)
from jobs.selectors.history import recorded_window
from jobs.selectors.runs import simulation_get
from jobs.services.runs import refuse_too_many
from jobs.workloads import as_json

#: More hosts than are simulated in one go.
MAX_HOSTS: Final = 5000
_MAX_ADDED: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class _Given:
    """A workload as it is stored, and what it is from."""

    text: str
    file: str
    facts: Mapping[str, Any]


def simulation_create(*, owner: Any, question: SimulationQuestion, now: datetime) -> SimulationRun:
    """Store a question that can be answered, and ask for it to be computed.

    Raises:
        NotFoundError: If the asker may not simulate: students.
        InvalidInputError: With a sentence for each field; of a file with row and column.
        QuotaExceededError: If too many of the owner's wait already.
    """
    if not sees_all(owner):
        raise NotFoundError("page", "simulations")
    refuse_too_many(SimulationRun.objects.filter(owner=owner))
    policies = _policies(question.policies)
    hosts = _changed(_hosts(owner, question.hosts, now=now), question)
    given = _workload(owner, question.workload)
    workload = _read(given, hosts)
    with transaction.atomic():
        run = SimulationRun.objects.create(
            owner=owner,
            name=question.name.strip()[:120] or workload.name[:120],
            source={
                **given.facts,
                "hosts": _words_of_hosts(question.hosts),
                "without": list(question.without),
                "added": None if question.added is None else asdict(question.added),
            },
            workload=given.text,
            job_count=len(workload.jobs),
            hosts=hosts,
            policies=policies,
            seed=question.seed,
            created_at=now,
        )
        dispatch.request_runs()
    return run


def hosts_of(snapshot: ClusterSnapshot) -> list[dict[str, Any]]:
    """Return the hosts of a snapshot as they are stored: what they have, not what is claimed."""
    return [
        {
            "name": host.name,
            "cpu_millis": host.cpu_millis,
            "memory_mib": host.memory_mib,
            "zone": host.zone,
            "gpus": [{"model": gpu.model, "memory_mib": gpu.memory_total_mib} for gpu in host.gpus],
        }
        for host in snapshot.hosts
    ]


# What is asked


def _policies(names: Sequence[str]) -> list[str]:
    """Return the names, each one that this product has: no file is ever loaded for a page."""
    # The placers bring their compiled loops along, which most programs have no use for.
    from cluster.core.simulation.policies import policy_names

    placers, queues = policy_names()
    if not names:
        raise InvalidInputError({"policies": ["Choose at least one policy."]})
    if len(names) > MAX_POLICIES:
        raise InvalidInputError({"policies": [f"Choose at most {MAX_POLICIES} policies."]})
    for name in names:
        placer, _, queue = name.partition("+")
        if placer not in placers or (queue and queue not in queues):
            known = f"placers: {', '.join(placers)}; queues: {', '.join(queues)}"
            text = f"There is no policy {name[:80]!r}. Write placer or placer+queue; {known}."
            raise InvalidInputError({"policies": [text]})
    if len(set(names)) < len(names):
        raise InvalidInputError({"policies": ["The same policy is chosen twice; change one."]})
    return list(names)


def _hosts(owner: Any, hosts: TextFile | UUID | None, *, now: datetime) -> list[dict[str, Any]]:
    if isinstance(hosts, UUID):
        return list(simulation_get(user=owner, public_id=hosts).hosts)
    if hosts is None:
        return hosts_of(cluster_selectors.cluster_snapshot(now=now))
    _refuse_unreadable(hosts, "hosts")
    try:
        return hosts_of(hosts_from_text(hosts.text, hosts.name))
    except FileProblem as problem:
        raise InvalidInputError({"hosts": [str(problem)]}) from problem


def _changed(hosts: list[dict[str, Any]], question: SimulationQuestion) -> list[dict[str, Any]]:
    """Return the hosts without those that are left out, and with those that are added."""
    by_name = {host["name"]: host for host in hosts}
    unknown = [name for name in question.without if name not in by_name]
    if unknown:
        known = ", ".join(sorted(by_name)[:20])
        raise InvalidInputError(
            {"without": [f"There is no host {unknown[0]!r}. There are: {known or 'none'}."]}
        )
    kept = [host for host in hosts if host["name"] not in set(question.without)]
    kept += _added(by_name, question.added) if question.added else []
    if not kept:
        raise InvalidInputError(
            {"hosts": ["There is no host to run on: add some, or leave fewer out."]}
        )
    if len(kept) > MAX_HOSTS:
        raise InvalidInputError({"hosts": [f"{len(kept)} hosts; at most {MAX_HOSTS} can be."]})
    return kept


def _added(by_name: Mapping[str, Mapping[str, Any]], added: HostsAdded) -> list[dict[str, Any]]:
    if not 1 <= added.count <= _MAX_ADDED:
        raise InvalidInputError({"added": [f"Add from 1 to {_MAX_ADDED} hosts."]})
    if added.like and added.like not in by_name:
        raise InvalidInputError({"added": [f"There is no host {added.like!r} to take as a model."]})
    if not added.like and not (added.cpu_millis > 0 and added.memory_mib > 0):
        raise InvalidInputError({"added": ["Say how many cores and how much memory each has."]})
    model = by_name.get(added.like) or {
        "cpu_millis": added.cpu_millis,
        "memory_mib": added.memory_mib,
        "zone": "",
        "gpus": [{"model": added.gpu_model, "memory_mib": added.gpu_memory_mib}] * added.gpus,
    }
    names = (f"added-{number}" for number in range(1, added.count + len(by_name) + 1))
    free = [name for name in names if name not in by_name][: added.count]
    return [{**model, "name": name} for name in free]


def _workload(owner: Any, workload: TextFile | Recorded | UUID) -> _Given:
    if isinstance(workload, UUID):
        other = simulation_get(user=owner, public_id=workload)
        facts = {key: other.source[key] for key in ("kind", "file", "since", "until", "left_out")
                 if key in other.source}  # fmt: skip
        return _Given(text=other.workload, file=facts.get("file", "workload"), facts=facts)
    if isinstance(workload, TextFile):
        _refuse_unreadable(workload, "workload")
        return _Given(
            text=workload.text,
            file=workload.name,
            facts={"kind": "file", "file": workload.name},
        )
    if workload.since >= workload.until:
        raise InvalidInputError({"workload": ["The time must end after it begins."]})
    window = recorded_window(since=workload.since, until=workload.until)
    if not window.rows:
        raise InvalidInputError(
            {"workload": ["No job that was submitted in this time has run to an end."]}
        )
    name = f"{workload.since:%Y-%m-%d %H:%M} to {workload.until:%Y-%m-%d %H:%M}"
    return _Given(
        text=as_json(name, window.rows),
        file="history.json",
        facts={
            "kind": "recorded",
            "file": "history.json",
            "since": workload.since.isoformat(),
            "until": workload.until.isoformat(),
            "left_out": dict(window.left_out),
        },
    )


def _read(given: _Given, hosts: Sequence[Mapping[str, Any]]) -> Workload:
    try:
        workload = workload_from_text(given.text, given.file)
    except CoreError as problem:
        raise InvalidInputError({"workload": [str(problem)]}) from problem
    names = {host["name"] for host in hosts}
    for event in workload.host_events:
        if event.host not in names:
            raise InvalidInputError(
                {"workload": [f"It loses the host {event.host!r}, which is not there."]}
            )
    return workload


def _refuse_unreadable(file: TextFile, field: str) -> None:
    if file.problem:
        raise InvalidInputError({field: [file.problem]})


def _words_of_hosts(hosts: TextFile | UUID | None) -> str:
    if isinstance(hosts, TextFile):
        return hosts.name
    return "the hosts of now" if hosts is None else "as in the simulation before"
