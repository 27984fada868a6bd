"""What a placement takes of a host, added to or taken off its state."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

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


def claimed(host: HostState, request: ResourceRequest, gpus: Sequence[GpuUuid]) -> HostState:
    """Return the host with one more replica of ``request`` on it."""
    return _moved(host, request, gpus, 1)


def released(host: HostState, request: ResourceRequest, gpus: Sequence[GpuUuid]) -> HostState:
    """Return the host with one replica of ``request`` less on it."""
    return _moved(host, request, gpus, -1)


def with_claims(snapshot: ClusterSnapshot, held: Iterable[Held]) -> ClusterSnapshot:
    """Return the snapshot as it is once all of ``held`` has started."""
    return _all_moved(snapshot, held, 1)


def without_claims(snapshot: ClusterSnapshot, held: Iterable[Held]) -> ClusterSnapshot:
    """Return the snapshot as it is once all of ``held`` has ended."""
    return _all_moved(snapshot, held, -1)


def _all_moved(snapshot: ClusterSnapshot, held: Iterable[Held], sign: int) -> ClusterSnapshot:
    hosts = list(snapshot.hosts)
    index: dict[HostName, int] = {host.name: row for row, host in enumerate(hosts)}
    for request, replicas in held:
        for replica in replicas:
            row = index.get(replica.host)
            if row is not None:
                hosts[row] = _moved(hosts[row], request, replica.gpus, sign)
    return ClusterSnapshot(taken_at=snapshot.taken_at, hosts=tuple(hosts))


def _moved(
    host: HostState, request: ResourceRequest, gpus: Sequence[GpuUuid], sign: int
) -> HostState:
    return replace(
        host,
        cpu_claimed_millis=host.cpu_claimed_millis + sign * request.cpu_millis,
        memory_claimed_mib=host.memory_claimed_mib + sign * request.memory_mib,
        gpus=tuple(_moved_gpu(gpu, request, sign) if gpu.uuid in gpus else gpu for gpu in host.gpus)
        if gpus
        else host.gpus,
    )


def _moved_gpu(gpu: GpuState, request: ResourceRequest, sign: int) -> GpuState:
    if request.whole_gpus:
        memory, share = gpu.memory_total_mib, request.share_milli
    else:
        memory, share = request.gpu_memory_mib or 0, request.gpu_share_milli or 0
    return replace(
        gpu,
        claims=gpu.claims + sign,
        exclusive=sign > 0 if request.whole_gpus else gpu.exclusive,
        memory_claimed_mib=gpu.memory_claimed_mib + sign * memory,
        share_claimed_milli=gpu.share_claimed_milli + sign * share,
    )
