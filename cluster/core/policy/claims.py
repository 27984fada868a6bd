"""What a placement takes of a host, added to or taken off its state."""

from collections.abc import Iterable, Sequence

from cluster.core.resources import (
    ClusterSnapshot,
    GpuState,
    GpuUuid,
    HostName,
    HostState,
    ReplicaPlacement,
    ResourceRequest,
)

#: A request and where its replicas lie.
Held = tuple[ResourceRequest, Sequence[ReplicaPlacement]]


class _Change:
    """What is added to one host, taken together before the host is written anew."""

    def __init__(self) -> None:
        self.cpu_millis = self.memory_mib = 0
        #: By GPU: claims, share in thousandths, memory in MiB, whole claims.
        self.gpus: dict[GpuUuid, list[int]] = {}

    def add(self, request: ResourceRequest, gpus: Sequence[GpuUuid], sign: int) -> None:
        self.cpu_millis += sign * request.cpu_millis
        self.memory_mib += sign * request.memory_mib
        if not gpus:
            return
        whole = request.whole_gpus
        share = request.share_milli if whole else request.gpu_share_milli or 0
        memory = 0 if whole else request.gpu_memory_mib or 0
        for uuid in gpus:
            change = self.gpus.setdefault(uuid, [0, 0, 0, 0])
            change[0] += sign
            change[1] += sign * share
            change[2] += sign * memory
            change[3] += sign * whole

    def applied(self, host: HostState) -> HostState:
        changes = self.gpus
        gpus = host.gpus
        if changes:
            gpus = tuple(
                _changed(gpu, *changes[gpu.uuid]) if gpu.uuid in changes else gpu for gpu in gpus
            )
        # Not replace(): this is the innermost part of every reservation and of every simulation.
        return HostState(
            name=host.name,
            cpu_millis=host.cpu_millis,
            memory_mib=host.memory_mib,
            cpu_claimed_millis=host.cpu_claimed_millis + self.cpu_millis,
            memory_claimed_mib=host.memory_claimed_mib + self.memory_mib,
            gpus=gpus,
            schedulable=host.schedulable,
            reason=host.reason,
            zone=host.zone,
        )


def claimed(host: HostState, request: ResourceRequest, gpus: Sequence[GpuUuid]) -> HostState:
    """Return the host with one more replica of ``request`` on it."""
    change = _Change()
    change.add(request, gpus, 1)
    return change.applied(host)


def released(host: HostState, request: ResourceRequest, gpus: Sequence[GpuUuid]) -> HostState:
    """Return the host with one replica of ``request`` less on it."""
    change = _Change()
    change.add(request, gpus, -1)
    return change.applied(host)


def with_claims(snapshot: ClusterSnapshot, held: Iterable[Held]) -> ClusterSnapshot:
    """Return the snapshot as it is once all of ``held`` has started."""
    return _all_moved(snapshot, held, 1)


def without_claims(snapshot: ClusterSnapshot, held: Iterable[Held]) -> ClusterSnapshot:
    """Return the snapshot as it is once all of ``held`` has ended."""
    return _all_moved(snapshot, held, -1)


def _all_moved(snapshot: ClusterSnapshot, held: Iterable[Held], sign: int) -> ClusterSnapshot:
    changes: dict[HostName, _Change] = {}
    for request, replicas in held:
        for replica in replicas:
            change = changes.get(replica.host)
            if change is None:
                change = changes[replica.host] = _Change()
            change.add(request, replica.gpus, sign)
    hosts = tuple(
        changes[host.name].applied(host) if host.name in changes else host
        for host in snapshot.hosts
    )
    return ClusterSnapshot(taken_at=snapshot.taken_at, hosts=hosts)


def _changed(gpu: GpuState, claims: int, share: int, memory: int, whole: int) -> GpuState:
    """Return the GPU with so many claims more; one that is claimed whole has all memory claimed."""
    exclusive = whole > 0 or (gpu.exclusive and whole == 0)
    memory += whole * gpu.memory_total_mib
    return GpuState(
        uuid=gpu.uuid,
        model=gpu.model,
        memory_total_mib=gpu.memory_total_mib,
        memory_claimed_mib=gpu.memory_claimed_mib + memory,
        share_claimed_milli=gpu.share_claimed_milli + share,
        claims=gpu.claims + claims,
        exclusive=exclusive,
        health=gpu.health,
        reason=gpu.reason,
    )
