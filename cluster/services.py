"""Every write of hosts, GPUs and claims."""

import logging
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import Sum

from cluster.adapters import registry
from cluster.core.placement.score_weights import ScoreWeights
from cluster.errors import ClusterError, HostInUseError, HostRefusedError, NoRoomError
from cluster.models import (
    Allocation,
    AllocationState,
    Gpu,
    GpuClaim,
    Host,
    HostConnection,
    HostMode,
    PlacementWeights,
    capacity,
)
from cluster.ports import EngineDescription
from cluster.selectors import gpu_health, why_unschedulable

logger = logging.getLogger(__name__)
_CLAIMING = (AllocationState.HELD, AllocationState.QUARANTINED)


def check_endpoint(url: str) -> str:
    """Return why ``url`` cannot be a host's endpoint; empty when it can."""
    parts = urlsplit(url)
    if parts.scheme == "process":
        return "" if parts.netloc == "local" else "write process://local"
    if parts.scheme == "unix":
        whole = url.startswith("unix:///") and len(parts.path) > 1
        return "" if whole else "write unix:///path/to/docker.sock, with three slashes"
    if parts.scheme == "tcp":
        try:
            port = parts.port
        except ValueError:
            port = None
        return "" if parts.hostname and port else "write tcp://host:2376, with the port"
    if parts.scheme == "ssh":
        return "ssh:// endpoints are not supported yet; use tcp:// with TLS"
    return "begin with unix://, tcp:// or process://"


def host_create(*, name: str, url: str, **fields: Any) -> Host:
    """Register a host; it takes work once a connection test has passed.

    Raises:
        ValidationError: If the name or the endpoint is not usable; keyed by field.
    """
    host = Host(name=name, url=url, **fields)
    host.full_clean()
    problem = endpoint_problem(host)
    if problem:
        raise ValidationError({"url": problem})
    host.save()
    return host


def endpoint_problem(host: Host) -> str:
    """Return why a host cannot be reached as it is written down; empty when it may be."""
    return check_endpoint(host.url) or _tls_problem(host)


def _tls_problem(host: Host) -> str:
    given = [bool(host.tls_ca), bool(host.tls_cert), bool(host.tls_key)]
    if urlsplit(host.url).scheme != "tcp":
        return "TLS files belong to tcp:// endpoints only" if any(given) else ""
    if not all(given):
        return "a tcp:// endpoint needs all three TLS files: CA, certificate and key"
    return ""


def host_test(*, host_id: int, now: datetime) -> EngineDescription:
    """Ask a host's engine what it is, and store the answer or the failure.

    Raises:
        HostUnreachableError: If it did not answer in time.
        HostRefusedError: If it will not be used; the text says what to do.
    """
    host = Host.objects.get(pk=host_id)
    try:
        engine = registry.runtime_for(host.endpoint).describe()
    except HostRefusedError as error:
        host_connection(
            host_id=host_id, connection=HostConnection.REFUSED, text=str(error), now=now
        )
        raise
    except ClusterError as error:
        host_connection(
            host_id=host_id, connection=HostConnection.UNREACHABLE, text=str(error), now=now
        )
        raise
    Host.objects.filter(pk=host_id).update(
        engine={
            "kind": engine.kind,
            "version": engine.version,
            "operating_system": engine.operating_system,
            "cpu_millis": engine.cpu_millis,
            "memory_mib": engine.memory_mib,
            "cgroup_version": engine.cgroup_version,
            "takes_gpus": engine.takes_gpus,
            "clock_offset_s": engine.clock_offset_s,
            "warnings": list(engine.warnings),
        }
    )
    host_connection(host_id=host_id, connection=HostConnection.UP, text="", now=now)
    return engine


def host_connection(*, host_id: int, connection: HostConnection, text: str, now: datetime) -> None:
    """Store whether a host answers; ``connection_at`` moves only when that changes."""
    changed = (
        Host.objects.filter(pk=host_id)
        .exclude(connection=connection)
        .update(connection=connection, connection_text=text[:500], connection_at=now)
    )
    if changed:
        logger.info("host connection changed", extra={"host_id": host_id, "to": connection.value})
    else:
        Host.objects.filter(pk=host_id).exclude(connection_text=text[:500]).update(
            connection_text=text[:500]
        )


def host_silent(*, host_id: int, text: str, now: datetime) -> None:
    """Note that a host did not answer, and leave it alone for a while: 2 s, 4 s, … 60 s."""
    host_connection(host_id=host_id, connection=HostConnection.UNREACHABLE, text=text, now=now)
    host = Host.objects.get(pk=host_id)
    pause = min(60, 2 ** min(host.silences + 1, 6))
    Host.objects.filter(pk=host_id).update(
        silences=min(host.silences + 1, 100), quiet_until=now + timedelta(seconds=pause)
    )


def host_answered(*, host_id: int) -> None:
    """Note that a host answers; the pauses begin anew with its next silence."""
    Host.objects.filter(pk=host_id, silences__gt=0).update(silences=0, quiet_until=None)


def host_set_mode(*, host_id: int, mode: HostMode) -> None:
    """Let a host take work, take none, or become empty."""
    host = Host.objects.get(pk=host_id)
    host.mode = mode
    # Saved and not updated in place, so that the audit sees who did it.
    host.save(update_fields=["mode"])


@transaction.atomic
def host_remove(*, host_id: int, is_gone: bool = False) -> None:
    """Forget a host that holds nothing.

    Args:
        is_gone: An admin's word that the machine will never be back, so that nothing can run
            there any more; then quarantined claims go with it.

    Raises:
        HostInUseError: If a claim on it is still held or, unless it is gone, quarantined.
    """
    host = Host.objects.select_for_update().get(pk=host_id)
    claiming = (AllocationState.HELD,) if is_gone else _CLAIMING
    holders = host.allocations.filter(state__in=claiming).count()
    if holders:
        raise HostInUseError(host.name, holders=holders)
    GpuClaim.objects.filter(allocation__host=host).delete()
    host.allocations.all().delete()
    host.delete()


@transaction.atomic
def allocation_create(
    *,
    holder: UUID,
    host_name: str,
    cpu_millis: int,
    memory_mib: int,
    gpus: Sequence[tuple[str, int | None]],
    now: datetime,
) -> Allocation:
    """Claim room on a host, checked again under its row's lock.

    Args:
        holder: The replica's public id; a second claim of the same holder returns the first.
        gpus: UUID and memory in MiB of each GPU, in the program's order; ``None`` for the whole
            GPU.

    Raises:
        NoRoomError: If the host or a GPU no longer has the room; nothing is claimed then.
    """
    host = Host.objects.select_for_update().filter(name=host_name).first()
    if host is None:
        raise NoRoomError(host_name, resource="the host is gone")
    existing = Allocation.objects.filter(holder=holder).first()
    if existing is not None:
        return existing
    unschedulable = why_unschedulable(host)
    if unschedulable:
        raise NoRoomError(host_name, resource=unschedulable)
    _check_host_room(host, cpu_millis=cpu_millis, memory_mib=memory_mib)
    allocation = Allocation.objects.create(
        holder=holder, host=host, cpu_millis=cpu_millis, memory_mib=memory_mib, created_at=now
    )
    # In one order, whatever the program's is: others lock several GPUs at once too.
    list(Gpu.objects.select_for_update().filter(uuid__in=[uuid for uuid, _ in gpus]).order_by("pk"))
    for position, (uuid, amount) in enumerate(gpus):
        _gpu_claim(allocation, uuid, amount, position=position, now=now)
    return allocation


def _check_host_room(host: Host, *, cpu_millis: int, memory_mib: int) -> None:
    held = Allocation.objects.filter(host=host, state__in=_CLAIMING).aggregate(
        cpu=Sum("cpu_millis"), memory=Sum("memory_mib")
    )
    cpu_total, memory_total = capacity(host)
    if (held["cpu"] or 0) + cpu_millis > cpu_total:
        raise NoRoomError(host.name, resource="CPU")
    if (held["memory"] or 0) + memory_mib > memory_total:
        raise NoRoomError(host.name, resource="memory")


def _gpu_claim(
    allocation: Allocation, uuid: str, amount: int | None, *, position: int, now: datetime
) -> None:
    host_name = allocation.host.name
    gpu = Gpu.objects.select_for_update().filter(uuid=uuid, host=allocation.host).first()
    if gpu is None:
        raise NoRoomError(host_name, resource=f"GPU {uuid} is gone")
    health, why = gpu_health(gpu, now=now)
    if not health.takes_work:
        raise NoRoomError(host_name, resource=f"GPU {uuid} is {health}: {why}")
    claims = list(gpu.claims.filter(active=True))
    claimed_mib = sum(claim.memory_mib for claim in claims)
    if any(claim.exclusive for claim in claims) or (claims and amount is None):
        raise NoRoomError(host_name, resource=f"GPU {uuid}")
    if claimed_mib + (amount or 0) > gpu.memory_total_mib:
        raise NoRoomError(host_name, resource=f"memory of GPU {uuid}")
    GpuClaim.objects.create(
        allocation=allocation,
        gpu=gpu,
        position=position,
        exclusive=amount is None,
        memory_mib=gpu.memory_total_mib if amount is None else amount,
    )


@transaction.atomic
def allocation_release(*, holder: UUID, now: datetime, reason: str = "") -> bool:
    """Give a holder's room back once its container is proven gone; return whether it held any."""
    released = (
        Allocation.objects.filter(holder=holder)
        .exclude(state=AllocationState.RELEASED)
        .update(state=AllocationState.RELEASED, released_at=now, reason=reason)
    )
    GpuClaim.objects.filter(allocation__holder=holder, active=True).update(active=False)
    return bool(released)


def allocation_quarantine(*, holder: UUID, reason: str) -> bool:
    """Keep a holder's room claimed though its job has ended: nobody can prove it is free."""
    return bool(
        Allocation.objects.filter(holder=holder, state=AllocationState.HELD).update(
            state=AllocationState.QUARANTINED, reason=reason[:500]
        )
    )


def gpu_set_enabled(*, gpu_id: int, is_enabled: bool) -> None:
    """Let new jobs have a GPU, or keep them off it; what runs there stays."""
    gpu = Gpu.objects.get(pk=gpu_id)
    gpu.is_enabled = is_enabled
    # Saved and not updated in place, so that the audit sees who did it.
    gpu.save(update_fields=["is_enabled"])


@transaction.atomic
def placement_weights_store(
    *,
    name: str,
    weights: ScoreWeights,
    score: float,
    trained_on: dict[str, Any],
    now: datetime,
    is_active: bool,
) -> PlacementWeights:
    """Keep tuned weights under a name that is not taken yet.

    Args:
        score: GPU allocated beyond the best heuristic, in percent of all GPUs.
        is_active: Whether they are used from now on, instead of those that are now.

    Raises:
        ValidationError: If the name is taken or too long.
    """
    row = PlacementWeights(
        name=name,
        weights=weights.as_dict(),
        trained_on=trained_on,
        score=score,
        created_at=now,
    )
    row.full_clean()
    row.save()
    if is_active:
        placement_weights_activate(weights_id=row.pk)
        row.refresh_from_db()
    return row


@transaction.atomic
def placement_weights_activate(*, weights_id: int) -> None:
    """Use these weights from now on, instead of those that were used."""
    PlacementWeights.objects.filter(is_active=True).update(is_active=False)
    PlacementWeights.objects.filter(pk=weights_id).update(is_active=True)


@transaction.atomic
def placement_weights_deactivate() -> None:
    """Use the weights that come with the product from now on."""
    PlacementWeights.objects.filter(is_active=True).update(is_active=False)
