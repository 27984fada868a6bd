"""First fit: every request in queue order takes the first hosts that hold it."""

from collections.abc import Iterator, Sequence
from typing import overload

from cluster.core.placement.room import Room, shortage
from cluster.core.resources import (
    ClusterSnapshot,
    Deferral,
    HostState,
    Placement,
    Plan,
    ReplicaPlacement,
    ResourceRequest,
)


class FirstFit:
    """Places what fits where it first fits; what does not waits and is overtaken.

    A gang is placed whole or not at all. Whole-GPU requests take free GPUs in the host's order;
    shared requests fill the fullest GPU that still has the memory, so that whole GPUs stay free.
    """

    name = "first-fit"

    def place(self, requests: Sequence[ResourceRequest], snapshot: ClusterSnapshot) -> Plan:
        """Return the plan; see :class:`cluster.core.placement.problem.Placer`."""
        rooms = _Rooms(snapshot.hosts)
        placements: list[Placement] = []
        deferred: list[Deferral] = []
        for request in requests:
            replicas = _gang(request, rooms)
            if replicas:
                placements.append(
                    Placement(
                        key=request.key,
                        replicas=replicas,
                        reason="the first host with room: " + replicas[0].host,
                    )
                )
            else:
                deferred.append(shortage(request, rooms))
        return Plan(placements=tuple(placements), deferred=tuple(deferred))


class _Rooms(Sequence[Room]):
    """The rooms of hosts, made when they are looked at: most plans look at few."""

    def __init__(self, hosts: Sequence[HostState]) -> None:
        self._hosts = hosts
        self._made: list[Room] = []

    def __len__(self) -> int:
        return len(self._hosts)

    @overload
    def __getitem__(self, index: int) -> Room: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Room]: ...

    def __getitem__(self, index: int | slice) -> Room | Sequence[Room]:
        return list(self)[index]

    def __iter__(self) -> Iterator[Room]:
        for row, host in enumerate(self._hosts):
            if row == len(self._made):
                self._made.append(Room(host))
            yield self._made[row]


def _gang(request: ResourceRequest, rooms: Sequence[Room]) -> tuple[ReplicaPlacement, ...]:
    """Take room for every replica, or give all of it back and return nothing."""
    taken: list[tuple[Room, ReplicaPlacement]] = []
    for rank in range(request.replicas):
        for room in rooms:
            gpus = room.fit(request)
            if gpus is not None:
                room.take(request, gpus)
                taken.append((room, ReplicaPlacement(rank=rank, host=room.host.name, gpus=gpus)))
                break
        else:
            for room, placement in taken:
                room.give_back(request, placement.gpus)
            return ()
    return tuple(placement for _, placement in taken)
