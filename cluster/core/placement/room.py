"""What is left of one host while a plan is made, and why a request does not fit."""

from collections.abc import Sequence

from cluster.core.errors import BadProblemError
from cluster.core.placement import sentences
from cluster.core.placement.sentences import Short
from cluster.core.resources import (
    WHOLE_GPU_MILLI,
    Constraint,
    Deferral,
    GpuState,
    GpuUuid,
    HostState,
    ResourceRequest,
)


class Room:
    """The free part of a host; what a plan takes is taken at once.

    Raises:
        BadProblemError: If more is claimed on the host than it has of a GPU's memory.
    """

    def __init__(self, host: HostState, *, empty: bool = False) -> None:
        self.host = host
        self.cpu_millis = host.cpu_millis if empty else host.cpu_free_millis
        self.memory_mib = host.memory_mib if empty else host.memory_free_mib
        self.free_mib: dict[GpuUuid, int] = {}
        self.free_milli: dict[GpuUuid, int] = {}
        self.gpus: dict[GpuUuid, GpuState] = {gpu.uuid: gpu for gpu in host.gpus}
        for gpu in host.gpus:
            if gpu.memory_claimed_mib > gpu.memory_total_mib:
                raise BadProblemError(f"more memory is claimed on GPU {gpu.uuid} than it has")
            self.free_mib[gpu.uuid] = gpu.memory_total_mib if empty else gpu.memory_free_mib
            self.free_milli[gpu.uuid] = WHOLE_GPU_MILLI if empty else gpu.share_free_milli

    def admits(self, request: ResourceRequest) -> bool:
        """Return whether the request may run on this host at all, room or not."""
        name = self.host.name
        allowed = request.hosts_allowed is None or name in request.hosts_allowed
        return allowed and name not in request.hosts_excluded

    def fit(self, request: ResourceRequest) -> tuple[GpuUuid, ...] | None:
        """Return the GPUs that one replica would get, or ``None`` where it does not fit."""
        if not (self.host.schedulable and self.admits(request)):
            return None
        if request.cpu_millis > self.cpu_millis or request.memory_mib > self.memory_mib:
            return None
        candidates = self.candidates(request)
        if len(candidates) < request.gpus:
            return None
        return tuple(candidates[: request.gpus])

    def candidates(self, request: ResourceRequest) -> list[GpuUuid]:
        """Return the GPUs with room for one replica's share, the preferred first."""
        wanted = [
            uuid
            for uuid, gpu in self.gpus.items()
            if gpu.health.takes_work and request.accepts_model(gpu.model)
        ]
        fitting = [
            uuid
            for uuid in wanted
            if self.free_milli[uuid] >= request.share_milli
            and self.free_mib[uuid] >= (request.gpu_memory_mib or 0)
        ]
        if request.whole_gpus:
            return fitting
        return sorted(fitting, key=lambda uuid: (self.free_milli[uuid], self.free_mib[uuid]))

    def take(self, request: ResourceRequest, gpus: Sequence[GpuUuid]) -> None:
        """Take one replica's share."""
        self._move(request, gpus, sign=-1)

    def give_back(self, request: ResourceRequest, gpus: Sequence[GpuUuid]) -> None:
        """Give one replica's share back."""
        self._move(request, gpus, sign=1)

    def _move(self, request: ResourceRequest, gpus: Sequence[GpuUuid], *, sign: int) -> None:
        self.cpu_millis += sign * request.cpu_millis
        self.memory_mib += sign * request.memory_mib
        for uuid in gpus:
            whole = self.gpus[uuid].memory_total_mib
            amount = whole if request.whole_gpus else (request.gpu_memory_mib or 0)
            self.free_mib[uuid] += sign * amount
            self.free_milli[uuid] += sign * request.share_milli


def shortage(request: ResourceRequest, rooms: Sequence[Room]) -> Deferral:
    """Return the constraint that binds: the last filter no host passes, with its numbers.

    The filters are asked in the order in which a person would mend them: is there a host, does
    it answer, may the job go there, has it the kind of GPU, then how much is free.
    """
    if not rooms:
        return sentences.no_host(request)
    allowed = [room for room in rooms if room.admits(request)]
    if not allowed:
        return sentences.not_allowed(request, len(rooms))
    up = [room for room in allowed if room.host.schedulable]
    ever = feasible(request, allowed)
    if not up or (ever and not feasible(request, up)):
        down = [room.host for room in allowed if not room.host.schedulable]
        counts = {"hosts": len(allowed), "hosts_up": len(up)}
        return sentences.hosts_down(request, down, counts, ever=ever)
    constraint, text, evidence = _short(request, up)
    return Deferral(key=request.key, constraint=constraint, text=text, ever=ever, evidence=evidence)


def feasible(request: ResourceRequest, rooms: Sequence[Room]) -> bool:
    """Return whether the hosts could hold the whole gang when nothing else ran on them."""
    replicas_left = request.replicas
    for room in rooms:
        if not room.admits(request):
            continue
        empty = Room(room.host, empty=True)
        while replicas_left and (gpus := _fit_anyway(empty, request)) is not None:
            empty.take(request, gpus)
            replicas_left -= 1
    return replicas_left == 0


def _fit_anyway(room: Room, request: ResourceRequest) -> tuple[GpuUuid, ...] | None:
    """Return the GPUs a replica would get if the host and its GPUs took work."""
    if request.cpu_millis > room.cpu_millis or request.memory_mib > room.memory_mib:
        return None
    wanted = [
        uuid
        for uuid, gpu in room.gpus.items()
        if request.accepts_model(gpu.model)
        and room.free_mib[uuid] >= (request.gpu_memory_mib or 0)
        and room.free_milli[uuid] >= request.share_milli
    ]
    return tuple(wanted[: request.gpus]) if len(wanted) >= request.gpus else None


def _short(request: ResourceRequest, rooms: Sequence[Room]) -> Short:
    found = _gpu_short(request, rooms) if request.gpus else None
    if found is not None:
        return found
    for constraint, asked, free in (
        (Constraint.CPU, request.cpu_millis, max(room.cpu_millis for room in rooms)),
        (Constraint.MEMORY, request.memory_mib, max(room.memory_mib for room in rooms)),
    ):
        if asked > free:
            return sentences.amount_short(constraint, asked, free)
    return sentences.shape_short(request)


def _gpu_short(request: ResourceRequest, rooms: Sequence[Room]) -> Short | None:
    """Return what is wrong about the GPUs alone, or ``None`` when some host has enough free."""
    of_model = [
        [gpu for gpu in room.host.gpus if request.accepts_model(gpu.model)] for room in rooms
    ]
    if not any(of_model) and (request.gpu_model or request.gpu_models):
        return sentences.model_missing(request)
    most_free = max(len(room.candidates(request)) for room in rooms)
    if most_free >= request.gpus:
        return None
    return sentences.gpus_short(
        request,
        free=most_free,
        healthy=max(sum(gpu.health.takes_work for gpu in gpus) for gpus in of_model),
        present=max(len(gpus) for gpus in of_model),
    )
