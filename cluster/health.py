"""Takes what probes say of hosts and GPUs, and keeps what may be done with each GPU, and why."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from operator import attrgetter
from typing import Any, Final

from django.db import transaction
from django.db.models import Q

from cluster.core.policy.gpu_state import (
    FAULTS,
    Health,
    HealthMemory,
    Observation,
    classify,
    cleared,
    held_faults,
    is_fresh,
    is_unremarkable,
    memory_from_json,
    memory_to_json,
)
from cluster.core.resources import (
    GPU_FIELDS,
    GPU_STATE_FIELDS,
    HOST_FIELDS,
    GpuHealth,
    GpuReading,
    HostReading,
)
from cluster.models import Gpu, GpuClaim, GpuHealthEvent, Host
from cluster.readings import write_readings

logger = logging.getLogger(__name__)

_KEPT: Final = GPU_FIELDS + GPU_STATE_FIELDS
_kept = attrgetter(*_KEPT)
#: What of a GPU is not another with every reading.
_rare = attrgetter(
    "host_id",
    "model",
    "index",
    "memory_total_mib",
    "is_simulated",
    "parent_uuid",
    "health",
    "health_text",
)
_WRITTEN: Final = (
    "host",
    "model",
    "index",
    "memory_total_mib",
    "is_simulated",
    "parent_uuid",
    "last_reading",
    "reported_at",
    "health",
    "health_text",
    "health_memory",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostReport:
    """What a probe saw of its host, and which containers there run jobs of ours."""

    host_name: str
    reading: HostReading
    containers: frozenset[str] = frozenset()


def probe_report(*, host_name: str, reading: HostReading, now: datetime) -> None:
    """Store what one host's probe saw; see :func:`probe_reports`."""
    probe_reports([HostReport(host_name=host_name, reading=reading)], now=now)


def is_calm(report: HostReport) -> bool:
    """Return whether nothing that a report says could be wrong with a GPU that was fine."""
    fine = HealthMemory(known=True)
    return all(is_unremarkable(fine, _observation(report, gpu)) for gpu in report.reading.gpus)


@transaction.atomic
def readings_refresh(reports: Sequence[HostReport], *, now: datetime) -> None:
    """Store the readings of hosts and GPUs that are known and fine, and judge nothing."""
    hosts = {report.host_name: _host_reading(report.reading) for report in reports}
    gpus = {str(gpu.uuid): _last_reading(gpu) for one in reports for gpu in one.reading.gpus}
    write_readings(Host, hosts, key="name", column="probed_at", now=now)
    write_readings(Gpu, gpus, key="uuid", column="reported_at", now=now)


@transaction.atomic
def probe_reports(reports: Sequence[HostReport], *, now: datetime) -> list[str]:
    """Store what the probes of several hosts saw, at the cost of a few statements.

    Unknown GPUs become rows, known ones move; one that is not mentioned is judged by that. A host
    that is not registered any more is left out.

    Returns:
        The hosts of which nothing is wrong, GPUs included.
    """
    hosts = {
        host.name: host
        for host in Host.objects.filter(name__in=[report.host_name for report in reports])
    }
    reports = [report for report in reports if report.host_name in hosts]
    if not reports:
        return []
    for report in reports:
        _host_report(hosts[report.host_name], report.reading)
    readings = {report.host_name: _host_reading(report.reading) for report in reports}
    write_readings(Host, readings, key="name", column="probed_at", now=now)
    rows = _rows(hosts.values(), reports)
    there: dict[int, list[Gpu]] = {}
    for gpu in rows.values():
        there.setdefault(gpu.host_id, []).append(gpu)
    judged = _Judged()
    for report in reports:
        host = hosts[report.host_name]
        for gpu, reading in _pairs(host, report.reading, rows, there.get(host.pk, ())):
            judged.add(gpu, report, reading, now=now)
    write_readings(Gpu, judged.fresh, key="uuid", column="reported_at", now=now)
    _store(judged.changed, judged.events, now=now)
    return [report.host_name for report in reports if report.host_name not in judged.uneasy]


@dataclass(slots=True)
class _Judged:
    """What is to be written of GPUs: whole rows, readings alone, and events."""

    changed: list[Gpu] = field(default_factory=list)
    fresh: dict[str, dict[str, Any]] = field(default_factory=dict)
    events: list[tuple[Gpu, Health]] = field(default_factory=list)
    uneasy: set[str] = field(default_factory=set)

    def add(
        self, gpu: Gpu, report: HostReport, reading: GpuReading | None, *, now: datetime
    ) -> None:
        before, new = _identity(gpu), gpu._state.adding  # noqa: SLF001 - Django's word for it
        health = _judge(gpu, report, reading, now=now)
        if _apply(gpu, health) or new:
            self.events.append((gpu, health))
        if reading is None or health.findings or not gpu.is_enabled:
            self.uneasy.add(report.host_name)
        if new or _identity(gpu) != before or gpu.reported_at != now:
            self.changed.append(gpu)
        else:
            self.fresh[gpu.uuid] = gpu.last_reading


@transaction.atomic
def probes_silent(texts: Mapping[str, str], *, now: datetime) -> None:
    """Note of hosts, by name and in words, that their probes say nothing; no job is touched."""
    hosts = list(Host.objects.filter(name__in=texts))
    rows = Gpu.objects.select_for_update().filter(host__in=hosts).order_by("pk")
    gpus = list(rows.select_related(None))
    names = {host.pk: host.name for host in hosts}
    events: list[tuple[Gpu, Health]] = []
    for host in hosts:
        Host.objects.filter(pk=host.pk).update(probe_text=texts[host.name][:500])
    for gpu in gpus:
        observation = Observation(
            at=now, reading=None, trouble="silent", trouble_text=texts[names[gpu.host_id]]
        )
        judged = classify(memory_from_json(gpu.health_memory), observation)
        if _apply(gpu, judged):
            events.append((gpu, judged))
    _store(gpus, events, now=now)


def _host_report(host: Host, reading: HostReading) -> None:
    rare: dict[str, Any] = {
        "probe_text": _host_words(reading)[:500],
        "is_simulated": reading.simulated,
    }
    if reading.topology is not None:
        rare["gpu_links"] = [
            [link.first, link.second, link.kind, link.links] for link in reading.topology
        ]
    new = {name: value for name, value in rare.items() if getattr(host, name) != value}
    if new:
        Host.objects.filter(pk=host.pk).update(**new)


def _host_reading(reading: HostReading) -> dict[str, Any]:
    values = {name: getattr(reading, name) for name in HOST_FIELDS}
    return {name: value for name, value in values.items() if value is not None}


def _host_words(reading: HostReading) -> str:
    if reading.gpu_error or reading.pci_gpus is None or reading.gpu_trouble:
        return reading.gpu_error
    listed = sum(not gpu.parent and not gpu.lost for gpu in reading.gpus)
    if reading.simulated or reading.pci_gpus <= listed:
        return ""
    return f"the bus has {reading.pci_gpus} NVIDIA GPUs, the driver lists {listed}"


def _rows(hosts: Iterable[Host], reports: Sequence[HostReport]) -> dict[str, Gpu]:
    """Return the GPUs of these hosts and readings, locked in one order, by UUID."""
    uuids = [gpu.uuid for report in reports for gpu in report.reading.gpus]
    wanted = Q(host__in=[host.pk for host in hosts]) | Q(uuid__in=uuids)
    rows = Gpu.objects.select_for_update().filter(wanted).order_by("pk").defer("last_reading")
    return {gpu.uuid: gpu for gpu in rows}


def _pairs(
    host: Host, reading: HostReading, rows: Mapping[str, Gpu], there: Iterable[Gpu]
) -> list[tuple[Gpu, GpuReading | None]]:
    """Return each GPU of a host with what was read of it, if it was mentioned."""
    found: list[tuple[Gpu, GpuReading | None]] = []
    for one in reading.gpus:
        gpu = rows.get(one.uuid)
        if gpu is None:
            # Nobody can tell what such a GPU has: it is taken up when it can be read.
            if not one.memory_total_mib or one.lost:
                continue
            gpu = Gpu(uuid=one.uuid, memory_total_mib=one.memory_total_mib)
        if gpu.host_id != host.pk:
            gpu.host = host
        gpu.is_simulated = reading.simulated
        found.append((gpu, one))
    mentioned = {one.uuid for one in reading.gpus}
    found += [
        (gpu, None)
        for gpu in there
        if gpu.uuid not in mentioned and gpu.host_id == host.pk and not _forgotten(gpu, reading)
    ]
    return found


def _forgotten(gpu: Gpu, reading: HostReading) -> bool:
    """Forget a simulated GPU, or a slice, that was given up on purpose and holds no job."""
    parents = {one.uuid for one in reading.gpus if not one.lost}
    given_up = (gpu.is_simulated and not reading.gpu_trouble) or gpu.parent_uuid in parents
    if not given_up or GpuClaim.objects.filter(gpu=gpu, active=True).exists():
        return False
    GpuClaim.objects.filter(gpu=gpu).delete()
    gpu.delete()
    return True


def _judge(gpu: Gpu, report: HostReport, reading: GpuReading | None, *, now: datetime) -> Health:
    if reading is not None:
        gpu.model, gpu.index = reading.model, reading.index
        gpu.parent_uuid = reading.parent
        gpu.last_reading = _last_reading(reading)
        gpu.memory_total_mib = reading.memory_total_mib or gpu.memory_total_mib
        if is_fresh(reading):
            gpu.reported_at = now
    return classify(memory_from_json(gpu.health_memory), _observation(report, reading))


def _observation(report: HostReport, reading: GpuReading | None) -> Observation:
    return Observation(
        at=report.reading.observed_at,
        reading=reading,
        trouble=report.reading.gpu_trouble,
        trouble_text=report.reading.gpu_error,
        boot=report.reading.boot,
        containers=report.containers,
    )


def _identity(gpu: Gpu) -> tuple[Any, ...]:
    """Return what of a GPU changes rarely, and is written only then."""
    return (*_rare(gpu), gpu.health_memory)


def _apply(gpu: Gpu, health: Health) -> bool:
    """Write a judgement down in the row; return whether it is another one than before."""
    faults = set(memory_from_json(gpu.health_memory).held)
    changed = gpu.health != health.health or faults != set(health.memory.held)
    gpu.health = health.health
    gpu.health_text = health.text[:500]
    gpu.health_memory = memory_to_json(health.memory)
    return changed


def _store(gpus: list[Gpu], events: list[tuple[Gpu, Health]], *, now: datetime) -> None:
    Gpu.objects.bulk_create(
        gpus,
        update_conflicts=True,
        unique_fields=["uuid"],
        update_fields=list(_WRITTEN),
        batch_size=500,
    )
    if not events:
        return
    keys = dict(
        Gpu.objects.filter(uuid__in=[gpu.uuid for gpu, _ in events]).values_list("uuid", "pk")
    )
    GpuHealthEvent.objects.bulk_create(
        [
            GpuHealthEvent(
                gpu_id=keys[gpu.uuid],
                at=now,
                health=health.health,
                faults=[finding.fault.value for finding in health.findings],
                text=health.text[:500],
                advice=health.advice[:500],
            )
            for gpu, health in events
        ]
    )
    for gpu, health in events:
        logger.info(
            "GPU health changed",
            extra={"gpu": gpu.uuid, "to": health.health.value, "why": health.text},
        )


def _last_reading(reading: GpuReading) -> dict[str, Any]:
    found = {
        name: value for name, value in zip(_KEPT, _kept(reading), strict=True) if value is not None
    }
    if reading.why:
        found["why"] = dict(reading.why)
    if reading.processes:
        found["processes"] = dict(reading.processes)
    if reading.shares:
        found["shares"] = dict(reading.shares)
    return found


@transaction.atomic
def gpu_clear(*, gpu_id: int, now: datetime) -> None:
    """Put a GPU back after an operator's word that its faults were mended.

    A fault that is still there comes back with the next reading.
    """
    gpu = Gpu.objects.select_for_update().get(pk=gpu_id)
    memory = cleared(memory_from_json(gpu.health_memory))
    gpu.health_memory = memory_to_json(memory)
    held = held_faults(memory)
    gpu.health = FAULTS[held[0][0]].health if held else GpuHealth.OK
    gpu.health_text = "; ".join(text for _, text in held)[:500]
    # Saved and not updated in place, so that the audit sees who did it.
    gpu.save(update_fields=["health", "health_text", "health_memory"])
    GpuHealthEvent.objects.create(
        gpu=gpu, at=now, health=gpu.health, text="put back by an operator"
    )
