"""The simulated hosts: what is free on them, and which requests could start now.

The snapshot that placers see is kept up to date host by host, never built anew; beside it stand
arrays that tell for every shape of request how many of it each host could take at most. With them
a pass in which nothing can start costs nothing, and a placer is shown only what could.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Final

import numpy as np
from numpy.typing import NDArray

from cluster.core.errors import BadProblemError
from cluster.core.policy.claims import claimed, released
from cluster.core.policy.queue import Place
from cluster.core.resources import (
    ClusterSnapshot,
    HostName,
    HostState,
    Plan,
    ReplicaPlacement,
    ResourceRequest,
)

Ints = NDArray[np.int64]
#: What makes two requests of one shape; see :func:`shape_of`.
Shape = tuple[object, ...]
_LOST: Final = "lost"
_MANY: Final = 1 << 30
#: Rows of shapes that do not wait at the moment are kept up to this many rows in all.
_KEPT: Final = 256


def shape_of(request: ResourceRequest) -> Shape:
    """Return what decides on which hosts one replica fits."""
    return (
        request.cpu_millis,
        request.memory_mib,
        request.gpus,
        request.share_milli if request.gpus else 0,
        request.gpu_memory_mib or 0,
        request.gpu_model,
        request.gpu_models,
        request.hosts_allowed,
        request.hosts_excluded,
    )


class SimulatedCluster:
    """Hosts and what is claimed on them.

    Raises:
        BadProblemError: If two hosts have one name.
    """

    def __init__(self, snapshot: ClusterSnapshot) -> None:
        self._taken_at: datetime = snapshot.taken_at
        self._hosts = list(snapshot.hosts)
        self._row: dict[HostName, int] = {host.name: row for row, host in enumerate(self._hosts)}
        if len(self._row) < len(self._hosts):
            raise BadProblemError("two hosts have one name")
        self._snapshot: ClusterSnapshot | None = snapshot
        self.free = FreeArrays(self._hosts)
        self.shapes = ShapeRows(self.free)

    @property
    def hosts(self) -> Sequence[HostState]:
        """Return the hosts as they are now."""
        return self._hosts

    @property
    def snapshot(self) -> ClusterSnapshot:
        """Return all hosts as they are now; the same object until something changes."""
        if self._snapshot is None:
            self._snapshot = ClusterSnapshot(taken_at=self._taken_at, hosts=tuple(self._hosts))
        return self._snapshot

    def row_of(self, host: HostName) -> int:
        """Return the host's place in the arrays."""
        return self._row[host]

    def has(self, host: HostName) -> bool:
        """Return whether there is such a host."""
        return host in self._row

    def claim(self, request: ResourceRequest, replicas: Iterable[ReplicaPlacement]) -> None:
        """Take room for replicas.

        Raises:
            BadProblemError: If there is not so much free: a bug in a placer.
        """
        for replica in replicas:
            row = self._row[replica.host]
            self._refuse(self._hosts[row], request, replica)
            self._put(row, claimed(self._hosts[row], request, replica.gpus))

    def release(self, request: ResourceRequest, replicas: Iterable[ReplicaPlacement]) -> None:
        """Give the room of replicas back."""
        for replica in replicas:
            row = self._row[replica.host]
            self._put(row, released(self._hosts[row], request, replica.gpus))

    def set_up(self, host: HostName, *, up: bool) -> None:
        """Let a host take work, or none."""
        row = self._row[host]
        old = self._hosts[row]
        self._put(
            row,
            HostState(
                name=old.name,
                cpu_millis=old.cpu_millis,
                memory_mib=old.memory_mib,
                cpu_claimed_millis=old.cpu_claimed_millis,
                memory_claimed_mib=old.memory_claimed_mib,
                gpus=old.gpus,
                schedulable=up,
                reason="" if up else _LOST,
                zone=old.zone,
            ),
        )

    def filtered(self, place: Place, *, hosts_alone: bool = False) -> Place:
        """Return ``place`` for what can start now.

        Requests that fit nowhere at this moment are left out of the plan unseen, and of many
        equal ones no more are shown than could fit, the first in the queue: no plan of any placer
        could have used the others. Other snapshots than the cluster's own are passed on as they
        are.

        Args:
            hosts_alone: The placer judges each host by itself, so that hosts on which nothing
                fits need not be shown either.
        """

        def filtered_place(requests: Sequence[ResourceRequest], snapshot: ClusterSnapshot) -> Plan:
            if snapshot is not self._snapshot:
                return place(requests, snapshot)
            shown = self._candidates(requests)
            if not shown:
                return Plan()
            return place(shown, self._fitting(shown) if hosts_alone else snapshot)

        return filtered_place

    def _candidates(self, requests: Sequence[ResourceRequest]) -> list[ResourceRequest]:
        left = self.shapes.room()
        shown: list[ResourceRequest] = []
        for request in requests:
            if not left:
                break
            row = self.shapes.row_of(request)
            if left.get(row, 0) >= request.replicas:
                shown.append(request)
                left[row] -= request.replicas
                if not left[row]:
                    del left[row]
        return shown

    def _fitting(self, shown: Sequence[ResourceRequest]) -> ClusterSnapshot:
        wanted = sorted({self.shapes.row_of(request) for request in shown})
        fitting = np.flatnonzero(self.shapes.slots[wanted].any(axis=0))
        hosts = tuple(self._hosts[row] for row in fitting.tolist())
        return ClusterSnapshot(taken_at=self._taken_at, hosts=hosts)

    def _put(self, row: int, host: HostState) -> None:
        self._hosts[row] = host
        self._snapshot = None
        self.free.read(row, host)
        self.shapes.refresh(row)

    @staticmethod
    def _refuse(host: HostState, request: ResourceRequest, replica: ReplicaPlacement) -> None:
        gpus = {gpu.uuid: gpu for gpu in host.gpus}
        chosen = [gpus.get(uuid) for uuid in replica.gpus]
        enough = (
            host.schedulable
            and host.cpu_free_millis >= request.cpu_millis
            and host.memory_free_mib >= request.memory_mib
            and len(set(replica.gpus)) == request.gpus
        )
        for gpu in chosen:
            enough = (
                enough
                and gpu is not None
                and gpu.health.takes_work
                and gpu.share_free_milli >= request.share_milli
                and gpu.memory_free_mib >= (request.gpu_memory_mib or 0)
            )
        if not enough:
            raise BadProblemError(
                f"the placer put {request.key} on {host.name}, which has no room for it"
            )


class FreeArrays:
    """What is free on each host, as arrays; -1 where there is no GPU or no work is taken."""

    def __init__(self, hosts: Sequence[HostState]) -> None:
        width = max((len(host.gpus) for host in hosts), default=0) or 1
        shape = (len(hosts), width)
        models = sorted({gpu.model for host in hosts for gpu in host.gpus})
        self.models = {model: number for number, model in enumerate(models)}
        self.names: list[HostName] = [host.name for host in hosts]
        self.cpu: Ints = np.zeros(len(hosts), np.int64)
        self.memory: Ints = np.zeros(len(hosts), np.int64)
        self.share: Ints = np.full(shape, -1, np.int64)
        self.gpu_memory: Ints = np.full(shape, -1, np.int64)
        self.model: Ints = np.zeros(shape, np.int64)
        for row, host in enumerate(hosts):
            self.model[row, : len(host.gpus)] = [self.models[gpu.model] for gpu in host.gpus]
            self.read(row, host)

    def read(self, row: int, host: HostState) -> None:
        """Take over the state of one host."""
        up = host.schedulable
        self.cpu[row] = host.cpu_free_millis if up else -1
        self.memory[row] = host.memory_free_mib if up else -1
        for column, gpu in enumerate(host.gpus):
            works = up and gpu.health.takes_work
            self.share[row, column] = gpu.share_free_milli if works else -1
            self.gpu_memory[row, column] = gpu.memory_free_mib if works else -1


class ShapeRows:
    """For every shape of request that waits, how many replicas each host could take at most.

    ``slots`` is of shape ``(n_shapes, n_hosts)``, ``total`` its sums. Rows are kept up to date
    when their shape no longer waits, since it will come again, but only so many of them.
    """

    def __init__(self, free: FreeArrays) -> None:
        self._free = free
        self._row: dict[Shape, int] = {}
        self._count: list[int] = []
        self._idle: dict[int, None] = {}
        self._by_key: dict[str, int] = {}
        hosts = len(free.cpu)
        self.slots: Ints = np.zeros((0, hosts), np.int64)
        self.total: Ints = np.zeros(0, np.int64)
        self._shapes: list[Shape] = []
        # Per shape: CPU, memory, GPUs, share, GPU memory, replicas of the smallest gang.
        self._sizes: Ints = np.zeros((0, 5), np.int64)
        self._gang: Ints = np.zeros(0, np.int64)
        self._accepts: NDArray[np.bool_] = np.zeros((0, max(1, len(free.models))), np.bool_)
        self._allowed: NDArray[np.bool_] = np.zeros((0, hosts), np.bool_)

    def row_of(self, request: ResourceRequest) -> int:
        """Return the row of a request that waits."""
        return self._by_key[request.key]

    def add(self, request: ResourceRequest) -> None:
        """Count a request that waits from now on."""
        shape = shape_of(request)
        row = self._row.get(shape)
        if row is None:
            row = self._row[shape] = self._new_row(request, shape)
        self._idle.pop(row, None)
        self._by_key[request.key] = row
        self._count[row] += 1
        self._gang[row] = min(self._gang[row], request.replicas)

    def remove(self, request: ResourceRequest) -> None:
        """Count a request that waits no longer."""
        row = self._by_key.pop(request.key)
        self._count[row] -= 1
        if not self._count[row]:
            self._idle[row] = None
            self._gang[row] = _MANY

    def room(self) -> dict[int, int]:
        """Return for each shape that waits and fits how many replicas could start at most."""
        fitting = np.flatnonzero(self.total >= self._gang)
        return dict(zip(fitting.tolist(), self.total[fitting].tolist(), strict=True))

    def any_fits(self) -> bool:
        """Return whether something that waits could start now."""
        return bool((self.total >= self._gang).any())

    def refresh(self, host: int) -> None:
        """Take over what is free on one host."""
        used = slice(0, len(self._count))
        fresh = self._slots(used, slice(host, host + 1))[:, 0]
        self.total[used] += fresh - self.slots[used, host]
        self.slots[used, host] = fresh

    def _new_row(self, request: ResourceRequest, shape: Shape) -> int:
        row = self._unused() if len(self._count) >= _KEPT and self._idle else self._grow()
        self._shapes[row] = shape
        self._count[row] = 0
        self._gang[row] = _MANY
        self._sizes[row] = (
            request.cpu_millis,
            request.memory_mib,
            request.gpus,
            request.share_milli if request.gpus else 0,
            request.gpu_memory_mib or 0,
        )
        for model, number in self._free.models.items():
            self._accepts[row, number] = request.accepts_model(model)
        self._allowed[row] = _allowed(request, self._free.names)
        fresh = self._slots(slice(row, row + 1), slice(None))[0]
        self.slots[row] = fresh
        self.total[row] = fresh.sum()
        return row

    def _unused(self) -> int:
        """Return the row of the shape that has not waited for the longest time."""
        row = next(iter(self._idle))
        del self._idle[row], self._row[self._shapes[row]]
        return row

    def _grow(self) -> int:
        row = len(self._count)
        self._count.append(0)
        self._shapes.append(())
        if row >= len(self.total):
            more = max(16, row)
            self.slots = _longer(self.slots, more, 0)
            self.total = _longer(self.total, more, -1)
            self._sizes = _longer(self._sizes, more, 0)
            self._gang = _longer(self._gang, more, _MANY)
            self._accepts = np.concatenate(
                [self._accepts, np.zeros((more, self._accepts.shape[1]), np.bool_)]
            )
            self._allowed = np.concatenate(
                [self._allowed, np.zeros((more, self._allowed.shape[1]), np.bool_)]
            )
        return row

    def _slots(self, rows: slice, hosts: slice) -> Ints:
        """Return how many replicas of some shapes fit at most on some hosts, ``(rows, hosts)``."""
        free, sizes = self._free, self._sizes[rows]
        cpu, memory, gpus, share, gpu_memory = (sizes[:, column, None] for column in range(5))
        fits = np.minimum(
            free.cpu[None, hosts] // np.maximum(cpu, 1),
            free.memory[None, hosts] // np.maximum(memory, 1),
        )
        up = free.cpu[None, hosts] >= 0
        fits = np.where(cpu == 0, free.memory[None, hosts] // np.maximum(memory, 1), fits)
        fits = np.where(memory == 0, free.cpu[None, hosts] // np.maximum(cpu, 1), fits)
        fits = np.where((cpu == 0) & (memory == 0), _MANY, fits)
        if gpus.any():
            fits = np.where(
                gpus > 0,
                np.minimum(fits, self._gpu_slots(rows, hosts, gpus, share, gpu_memory)),
                fits,
            )
        return np.where(up & self._allowed[rows, hosts], np.clip(fits, 0, _MANY), 0)

    def _gpu_slots(
        self, rows: slice, hosts: slice, gpus: Ints, share: Ints, gpu_memory: Ints
    ) -> Ints:
        free = self._free
        free_share = free.share[None, hosts]  # (1, n_hosts, n_gpus)
        on_card = free_share // np.maximum(share, 1)[:, :, None]
        if gpu_memory.any():
            wanted = gpu_memory[:, :, None]
            by_memory = free.gpu_memory[None, hosts] // np.maximum(wanted, 1)
            on_card = np.where(wanted > 0, np.minimum(on_card, by_memory), on_card)
        fitting = self._accepts[rows][:, free.model[hosts]] & (on_card > 0)
        room = np.where(fitting, on_card, 0).sum(axis=2)
        return np.where(fitting.sum(axis=2) >= gpus, room // np.maximum(gpus, 1), 0)


def _longer(array: Ints, more: int, value: int) -> Ints:
    return np.concatenate([array, np.full((more, *array.shape[1:]), value, np.int64)])


def _allowed(request: ResourceRequest, names: Sequence[HostName]) -> NDArray[np.bool_]:
    if request.hosts_allowed is None and not request.hosts_excluded:
        return np.ones(len(names), np.bool_)
    allowed = request.hosts_allowed
    return np.array(
        [
            (allowed is None or name in allowed) and name not in request.hosts_excluded
            for name in names
        ],
        np.bool_,
    )
