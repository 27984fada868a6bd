"""The problem as arrays: equal requests are one class, equal hosts one kind.

All sizes are integers: thousandths of a core, MiB, thousandths of a GPU. ``H`` hosts, ``G`` the
most GPUs on one, ``C`` classes of requests, ``K`` kinds of hosts, ``M`` GPU models.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cluster.core.errors import BadProblemError
from cluster.core.resources import (
    WHOLE_GPU_MILLI,
    ClusterSnapshot,
    GpuUuid,
    HostState,
    ResourceRequest,
    Spread,
)

Ints = NDArray[np.int64]
Flags = NDArray[np.uint8]

#: GPUs of one host are the bits of one integer.
MAX_GPUS = 62


class HostArrays(NamedTuple):
    """What hosts have free before a plan is made.

    ``share`` and ``gpu_memory`` are -1 where there is no GPU or it takes no work; ``used`` is 1
    where something runs already; ``kind`` numbers hosts that are equal in every respect;
    ``total`` holds CPU, memory and GPU share of the whole host, for the balance of use.
    """

    cpu: Ints  # [H]
    memory: Ints  # [H]
    share: Ints  # [H, G]
    gpu_memory: Ints  # [H, G]
    model: Ints  # [H, G]
    used: Flags  # [H]
    kind: Ints  # [H]
    zone: Ints  # [H]
    total: Ints  # [H, 3]


class ClassArrays(NamedTuple):
    """What one replica of each class asks for.

    ``accepts`` says which GPU models will do, ``fits`` whether one replica fits on an untouched
    host of a kind, ``fetch`` what such a host must fetch first, in MiB.
    """

    cpu: Ints  # [C]
    memory: Ints  # [C]
    gpus: Ints  # [C]
    share: Ints  # [C]
    gpu_memory: Ints  # [C]
    accepts: Flags  # [C, M]
    fits: Flags  # [C, K]
    fetch: Ints  # [C, K]


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """A placement problem in arrays; see :func:`pack`.

    Attributes:
        request_class: Class of each request, [N].
        replicas: Replicas of each request, [N].
        kinds: For each kind its hosts, in the snapshot's order.
        gpu_memory_total: Memory of each GPU, claimed or not, in MiB, [H, G]; -1 for no GPU.
    """

    requests: Sequence[ResourceRequest]
    hosts: tuple[HostState, ...]
    host: HostArrays
    classes: ClassArrays
    request_class: Ints
    replicas: Ints
    kinds: tuple[Ints, ...]
    gpu_memory_total: Ints

    @property
    def counts(self) -> Ints:
        """Return how many replicas each class has, [C]."""
        counted = np.bincount(
            self.request_class, weights=self.replicas, minlength=len(self.classes.cpu)
        )
        return counted.astype(np.int64)

    def gpus_of(self, host: int, mask: int) -> tuple[GpuUuid, ...]:
        """Return the GPUs that the bits of ``mask`` stand for."""
        if not mask:
            return ()
        return tuple(
            gpu.uuid for index, gpu in enumerate(self.hosts[host].gpus) if mask >> index & 1
        )


def pack(requests: Sequence[ResourceRequest], snapshot: ClusterSnapshot) -> Packing:
    """Return the problem in arrays.

    Raises:
        BadProblemError: If a size is negative, a host name or a request's key comes twice, or a
            host has more than 62 GPUs.
    """
    _refuse(requests, snapshot.hosts)
    representatives, request_class = _classes(requests)
    models = sorted({gpu.model for host in snapshot.hosts for gpu in host.gpus})
    host = _host_arrays(snapshot.hosts, models, _host_sets(representatives))
    kinds = tuple(
        np.flatnonzero(host.kind == kind) for kind in range(int(host.kind.max(initial=-1)) + 1)
    )
    return Packing(
        requests=requests,
        hosts=snapshot.hosts,
        host=host,
        classes=_class_arrays(representatives, snapshot.hosts, host, kinds, models),
        request_class=request_class,
        replicas=np.array([request.replicas for request in requests], dtype=np.int64),
        kinds=kinds,
        gpu_memory_total=_gpu_memory(snapshot.hosts, host.share.shape[1]),
    )


def movable(request: ResourceRequest) -> bool:
    """Return whether each replica may lie anywhere, whatever the others do."""
    return request.spread is Spread.ANY and not request.anti_affinity and not request.same_zone


def _refuse(requests: Sequence[ResourceRequest], hosts: Sequence[HostState]) -> None:
    _once("host", (host.name for host in hosts))
    _once("request", (request.key for request in requests))
    for request in requests:
        if (
            request.cpu_millis < 0
            or request.memory_mib < 0
            or request.gpus < 0
            or request.replicas < 1
            or (request.gpu_memory_mib or 0) < 0
            or not 0 <= (request.gpu_share_milli or 0) <= WHOLE_GPU_MILLI
        ):
            raise BadProblemError(f"request {request.key} asks for less than nothing")
    for host in hosts:
        if len(host.gpus) > MAX_GPUS:
            raise BadProblemError(f"host {host.name} has more than {MAX_GPUS} GPUs")


def _once(what: str, names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise BadProblemError(f"{what} {name} comes twice")
        seen.add(name)


def _classes(requests: Sequence[ResourceRequest]) -> tuple[list[ResourceRequest], Ints]:
    """Return one request of each class, and each request's class."""
    number: dict[tuple[object, ...], int] = {}
    representatives: list[ResourceRequest] = []
    request_class = np.empty(len(requests), dtype=np.int64)
    for index, request in enumerate(requests):
        key = (
            request.cpu_millis,
            request.memory_mib,
            request.gpus,
            request.gpu_memory_mib,
            request.gpu_share_milli,
            request.gpu_model,
            request.gpu_models,
            request.hosts_allowed,
            request.hosts_excluded,
            request.data_mib,
            request.data_hosts,
            request.image_mib,
            request.image_hosts,
        )
        found = number.setdefault(key, len(number))
        if found == len(representatives):
            representatives.append(request)
        request_class[index] = found
    return representatives, request_class


def _host_sets(requests: Sequence[ResourceRequest]) -> list[frozenset[str]]:
    """Return the sets of hosts that requests tell apart, in the order they come."""
    sets: dict[frozenset[str], None] = {}
    for request in requests:
        for chosen in (
            request.hosts_allowed,
            request.hosts_excluded,
            request.data_hosts,
            request.image_hosts,
        ):
            if chosen:
                sets[frozenset(chosen)] = None
    return list(sets)


def _host_arrays(
    hosts: Sequence[HostState], models: Sequence[str], sets: Sequence[frozenset[str]]
) -> HostArrays:
    width = max((len(host.gpus) for host in hosts), default=0) or 1
    shape = (len(hosts), width)
    share, memory = np.full(shape, -1, np.int64), np.full(shape, -1, np.int64)
    model = np.full(shape, -1, np.int64)
    total = np.zeros((len(hosts), 3), np.int64)
    column = {name: index for index, name in enumerate(models)}
    numbers: dict[tuple[object, ...], int] = {}
    zones: dict[str, int] = {}
    kind, zone = np.empty(len(hosts), np.int64), np.empty(len(hosts), np.int64)
    for row, host in enumerate(hosts):
        for index, gpu in enumerate(host.gpus):
            if gpu.memory_claimed_mib > gpu.memory_total_mib:
                raise BadProblemError(f"more memory is claimed on GPU {gpu.uuid} than it has")
            model[row, index] = column[gpu.model]
            if gpu.health.takes_work and host.schedulable:
                share[row, index] = gpu.share_free_milli
                memory[row, index] = gpu.memory_free_mib
        total[row] = (host.cpu_millis, host.memory_mib, WHOLE_GPU_MILLI * len(host.gpus))
        zone[row] = zones.setdefault(host.zone, len(zones))
        kind[row] = numbers.setdefault(
            (
                host.schedulable,
                host.cpu_millis,
                host.memory_mib,
                host.cpu_claimed_millis,
                host.memory_claimed_mib,
                host.zone,
                tuple(model[row]),
                tuple(share[row]),
                tuple(memory[row]),
                _in_use(host),
                tuple(host.name in chosen for chosen in sets),
            ),
            len(numbers),
        )
    return HostArrays(
        cpu=np.array([_free(host, host.cpu_free_millis) for host in hosts], np.int64),
        memory=np.array([_free(host, host.memory_free_mib) for host in hosts], np.int64),
        share=share,
        gpu_memory=memory,
        model=model,
        used=np.array([_in_use(host) for host in hosts], np.uint8),
        kind=kind,
        zone=zone,
        total=total,
    )


def _gpu_memory(hosts: Sequence[HostState], width: int) -> Ints:
    total = np.full((len(hosts), width), -1, np.int64)
    for row, host in enumerate(hosts):
        for index, gpu in enumerate(host.gpus):
            total[row, index] = gpu.memory_total_mib
    return total


def _free(host: HostState, amount: int) -> int:
    return max(0, amount) if host.schedulable else -1


def _in_use(host: HostState) -> bool:
    return bool(
        host.cpu_claimed_millis
        or host.memory_claimed_mib
        or any(gpu.claims or gpu.exclusive or gpu.share_claimed_milli for gpu in host.gpus)
    )


def _class_arrays(
    requests: Sequence[ResourceRequest],
    hosts: Sequence[HostState],
    host: HostArrays,
    kinds: Sequence[Ints],
    models: Sequence[str],
) -> ClassArrays:
    first = [int(of_kind[0]) for of_kind in kinds]
    shape = (len(requests), len(kinds))
    allowed, fetch = np.ones(shape, np.uint8), np.zeros(shape, np.int64)
    for row, request in enumerate(requests):
        if request.hosts_allowed is not None or request.hosts_excluded:
            allowed[row] = [_admits(request, hosts[index]) for index in first]
        if request.data_mib or request.image_mib:
            fetch[row] = [request.fetch_mib(hosts[index].name) for index in first]
    sizes = {
        "cpu": [request.cpu_millis for request in requests],
        "memory": [request.memory_mib for request in requests],
        "gpus": [request.gpus for request in requests],
        "share": [request.share_milli if request.gpus else 0 for request in requests],
        "gpu_memory": [request.gpu_memory_mib or 0 for request in requests],
    }
    arrays = {name: np.array(values, np.int64) for name, values in sizes.items()}
    accepts = np.array(
        [[request.accepts_model(model) for model in models] for request in requests], np.uint8
    ).reshape(len(requests), len(models))
    return ClassArrays(
        **arrays,
        accepts=accepts,
        fits=_fits(arrays, accepts, host, np.array(first, np.int64), allowed),
        fetch=fetch,
    )


def _admits(request: ResourceRequest, host: HostState) -> bool:
    allowed = request.hosts_allowed is None or host.name in request.hosts_allowed
    return allowed and host.name not in request.hosts_excluded and host.schedulable


def _fits(
    wanted: dict[str, Ints], accepts: Flags, host: HostArrays, first: Ints, allowed: Flags
) -> Flags:
    """Return whether one replica of a class fits on an untouched host of a kind, [C, K]."""
    if not len(first):
        return allowed
    room = (wanted["cpu"][:, None] <= host.cpu[first]) & (
        wanted["memory"][:, None] <= host.memory[first]
    )
    suitable = np.zeros(room.shape, np.int64)
    for gpu in range(host.share.shape[1]):
        model = host.model[first, gpu]
        accepted = (
            accepts[:, np.maximum(model, 0)] if accepts.shape[1] else np.zeros(room.shape, bool)
        )
        suitable += (
            (model >= 0)
            & (accepted > 0)
            & (wanted["share"][:, None] <= host.share[first, gpu])
            & (wanted["gpu_memory"][:, None] <= host.gpu_memory[first, gpu])
        )
    enough = suitable >= wanted["gpus"][:, None]
    return (room & enough & (allowed > 0)).astype(np.uint8)
