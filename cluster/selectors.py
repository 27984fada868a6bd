"""Every read of hosts, GPUs and claims."""

from collections import defaultdict
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from django.db.models import Count, Prefetch, Q, QuerySet, Sum

from cluster.core.placement.score_weights import ScoreWeights
from cluster.core.policy.gpu_state import FAULTS, Fault, held_faults, memory_from_json
from cluster.core.resources import (
    ClusterSnapshot,
    GpuHealth,
    GpuState,
    GpuUuid,
    HostName,
    HostState,
)
from cluster.models import (
    Allocation,
    AllocationState,
    Gpu,
    GpuClaim,
    GpuHealthEvent,
    Host,
    HostConnection,
    HostMode,
    PlacementWeights,
    capacity,
)

#: A GPU that nobody has read for this long takes no new work; three reports are missing then.
STALE_AFTER: Final = timedelta(seconds=10)
_CLAIMING = (AllocationState.HELD, AllocationState.QUARANTINED)


def cluster_snapshot(*, now: datetime) -> ClusterSnapshot:
    """Return every host with what is free, computed from the claims that are held now."""
    claimed = {
        row["host"]: (row["cpu"] or 0, row["memory"] or 0)
        for row in Allocation.objects.filter(state__in=_CLAIMING)
        .values("host")
        .annotate(cpu=Sum("cpu_millis"), memory=Sum("memory_mib"))
    }
    claims: dict[int, list[GpuClaim]] = defaultdict(list)
    for claim in GpuClaim.objects.filter(active=True):
        claims[claim.gpu_id].append(claim)
    hosts = Host.objects.prefetch_related(Prefetch("gpus", Gpu.objects.order_by("index", "uuid")))
    return ClusterSnapshot(
        taken_at=now,
        hosts=tuple(_host_state(host, claimed, claims, now=now) for host in hosts),
    )


def _host_state(
    host: Host,
    claimed: dict[int, tuple[int, int]],
    claims: dict[int, list[GpuClaim]],
    *,
    now: datetime,
) -> HostState:
    cpu_millis, memory_mib = capacity(host)
    cpu_claimed, memory_claimed = claimed.get(host.pk, (0, 0))
    reason = why_unschedulable(host)
    return HostState(
        name=HostName(host.name),
        cpu_millis=cpu_millis,
        memory_mib=memory_mib,
        cpu_claimed_millis=cpu_claimed,
        memory_claimed_mib=memory_claimed,
        gpus=tuple(_gpu_state(gpu, claims.get(gpu.pk, []), now=now) for gpu in host.gpus.all()),
        schedulable=not reason,
        reason=reason,
    )


def why_unschedulable(host: Host) -> str:
    """Return in words why the host takes no new work; empty when it does."""
    if host.connection != HostConnection.UP:
        words = HostConnection(host.connection).label
        return f"{host.name} {words}"
    if host.mode != HostMode.ACTIVE:
        return f"{host.name} is {host.mode}"
    if not host.shares_files:
        return f"{host.name} does not see the portal's files"
    return ""


def gpu_health(gpu: Gpu, *, now: datetime) -> tuple[GpuHealth, str]:
    """Return a GPU's health now and why; a GPU that is not reported any more is stale."""
    if not gpu.is_enabled:
        return GpuHealth.DRAINING, "switched off by an admin"
    if gpu.health in {GpuHealth.QUARANTINED, GpuHealth.STALE}:
        return GpuHealth(gpu.health), gpu.health_text
    health = GpuHealth(gpu.health)
    # A GPU that cannot be read while its host is heard has a reason of its own.
    explained = not health.takes_work and _heard(gpu.host.probed_at, now=now)
    if not explained and not _heard(gpu.reported_at, now=now):
        return GpuHealth.STALE, "not reported for a while"
    return health, gpu.health_text


def _heard(at: datetime | None, *, now: datetime) -> bool:
    return at is not None and now - at <= STALE_AFTER


def gpu_findings(gpu: Gpu, *, now: datetime) -> list[dict[str, str]]:
    """Return what is wrong with a GPU now, the worst first, each with what to do about it."""
    found = [
        {
            "fault": fault.value,
            "health": FAULTS[fault].health.value,
            "text": text,
            "advice": FAULTS[fault].advice,
        }
        for fault, text in held_faults(memory_from_json(gpu.health_memory))
    ]
    health, text = gpu_health(gpu, now=now)
    if not gpu.is_enabled:
        advice = "Switch it on when jobs may have it again."
        found.insert(0, {"fault": "off", "health": health.value, "text": text, "advice": advice})
    elif health is GpuHealth.STALE and gpu.health != GpuHealth.STALE:
        advice = FAULTS[Fault.SILENT].advice
        found.insert(0, {"fault": "silent", "health": health.value, "text": text, "advice": advice})
    elif not found and not health.takes_work:
        # Noted by whoever set it, without the fault: an upgrade, or a hand in the database.
        advice = "Look at the GPU and its driver on the host; put it back when it is well."
        found.append({"fault": "noted", "health": health.value, "text": text, "advice": advice})
    return found


def gpu_events(gpu: Gpu, *, limit: int = 50) -> QuerySet[GpuHealthEvent]:
    """Return the last changes of a GPU's health, newest first."""
    return gpu.health_events.all()[:limit]


def host_gpu_events(host: Host, *, limit: int = 20) -> list[GpuHealthEvent]:
    """Return the last changes of the health of a host's GPUs, newest first."""
    events = GpuHealthEvent.objects.filter(gpu__host=host).select_related("gpu")
    return list(events.order_by("-at", "-id")[:limit])


def _gpu_state(gpu: Gpu, claims: list[GpuClaim], *, now: datetime) -> GpuState:
    health, reason = gpu_health(gpu, now=now)
    return GpuState(
        uuid=GpuUuid(gpu.uuid),
        model=gpu.model,
        memory_total_mib=gpu.memory_total_mib,
        memory_claimed_mib=min(gpu.memory_total_mib, sum(claim.memory_mib for claim in claims)),
        claims=len(claims),
        exclusive=any(claim.exclusive for claim in claims),
        health=health,
        reason=reason,
    )


def host_list() -> QuerySet[Host]:
    """Return all hosts with their GPUs, and ``holders``: how many claims each carries."""
    return Host.objects.prefetch_related("gpus").annotate(
        holders=Count("allocations", filter=Q(allocations__state__in=_CLAIMING))
    )


def host_get(name: str) -> Host | None:
    """Return the host of this name, if there is one."""
    return host_list().filter(name=name).first()


def gpu_list() -> QuerySet[Gpu]:
    """Return all GPUs, host by host."""
    return Gpu.objects.select_related("host").order_by("host__name", "index", "uuid")


def claims_of(holders: list[UUID]) -> dict[UUID, list[str]]:
    """Return for each holder the UUIDs of the GPUs it holds, in the order its program sees."""
    rows = (
        GpuClaim.objects.filter(allocation__holder__in=holders)
        .order_by("position")
        .values_list("allocation__holder", "gpu__uuid")
    )
    found: dict[UUID, list[str]] = defaultdict(list)
    for holder, uuid in rows:
        found[holder].append(uuid)
    return dict(found)


def hosts_to_visit(*, now: datetime) -> list[str]:
    """Return the hosts whose containers are to be looked at, those in a pause left out."""
    due = Q(quiet_until=None) | Q(quiet_until__lte=now)
    return list(Host.objects.filter(due).values_list("name", flat=True))


def placement_weights_active() -> ScoreWeights | None:
    """Return the weights of the online score that were tuned and are active, if any are."""
    row = PlacementWeights.objects.filter(is_active=True).first()
    return None if row is None else ScoreWeights.of_dict(row.weights)
