"""What is left of one host while a plan is made, and why a request does not fit."""

from collections.abc import Sequence

from cluster.core.errors import BadProblemError
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
        return Deferral(
            key=request.key,
            constraint=Constraint.NO_HOST,
            text="No host is registered yet. An admin can add one.",
            ever=False,
        )
    allowed = [room for room in rooms if room.admits(request)]
    if not allowed:
        return Deferral(
            key=request.key,
            constraint=Constraint.NOT_ALLOWED,
            text="No host may run this environment.",
            ever=False,
            evidence={"hosts": len(rooms)},
        )
    up = [room for room in allowed if room.host.schedulable]
    ever = feasible(request, allowed)
    if not up or (ever and not feasible(request, up)):
        reasons = sorted({room.host.reason for room in allowed if not room.host.schedulable})
        return Deferral(
            key=request.key,
            constraint=Constraint.HOSTS_DOWN,
            text="The hosts that could hold it take no work at the moment: "
            + ("; ".join(filter(None, reasons)) or "nobody says why")
            + ".",
            ever=ever,
            evidence={"hosts": len(allowed), "hosts_up": len(up)},
        )
    return _amount_short(request, up, ever=ever)


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


def _amount_short(request: ResourceRequest, rooms: Sequence[Room], *, ever: bool) -> Deferral:
    def deferral(constraint: Constraint, text: str, **evidence: int | str) -> Deferral:
        return Deferral(
            key=request.key, constraint=constraint, text=text, ever=ever, evidence=evidence
        )

    if request.gpus:
        found = _gpu_short(request, rooms)
        if found is not None:
            constraint, text, evidence = found
            return Deferral(
                key=request.key, constraint=constraint, text=text, ever=ever, evidence=evidence
            )
    most_cpu = max(room.cpu_millis for room in rooms)
    if request.cpu_millis > most_cpu:
        return deferral(
            Constraint.CPU,
            f"Needs {request.cpu_millis / 1000:g} cores on one host; "
            f"at most {most_cpu / 1000:g} are free on one.",
            asked_millis=request.cpu_millis,
            free_millis=most_cpu,
        )
    most_memory = max(room.memory_mib for room in rooms)
    if request.memory_mib > most_memory:
        return deferral(
            Constraint.MEMORY,
            f"Needs {request.memory_mib} MiB of memory on one host; "
            f"at most {most_memory} MiB are free on one.",
            asked_mib=request.memory_mib,
            free_mib=most_memory,
        )
    return deferral(
        Constraint.GPU if request.gpus else Constraint.CPU,
        f"No host has everything free at once for {request.replicas} replica(s): "
        f"{request.cpu_millis / 1000:g} cores, {request.memory_mib} MiB"
        + (f" and {request.gpus} GPU(s)." if request.gpus else "."),
        replicas=request.replicas,
    )


def _gpu_short(
    request: ResourceRequest, rooms: Sequence[Room]
) -> tuple[Constraint, str, dict[str, int | str]] | None:
    """Return what is wrong about the GPUs alone, or ``None`` when some host has enough free."""
    of_model = {
        room.host.name: [gpu for gpu in room.host.gpus if request.accepts_model(gpu.model)]
        for room in rooms
    }
    if not any(of_model.values()) and (request.gpu_model or request.gpu_models):
        asked = request.gpu_model or " or ".join(sorted(request.gpu_models))
        return (
            Constraint.GPU_MODEL,
            f"No host that is up has a GPU of model {asked!r}.",
            {"asked": asked},
        )
    most_free = max(len(room.candidates(request)) for room in rooms)
    if most_free >= request.gpus:
        return None
    healthy = max(sum(gpu.health.takes_work for gpu in gpus) for gpus in of_model.values())
    present = max(len(gpus) for gpus in of_model.values())
    evidence: dict[str, int | str] = {"asked": request.gpus, "free_on_one_host": most_free}
    if present >= request.gpus > healthy:
        return (
            Constraint.GPU_HEALTH,
            f"Needs {request.gpus} GPU(s) on one host; some there take no work at the moment.",
            evidence,
        )
    if request.gpu_memory_mib is not None:
        return (
            Constraint.GPU_MEMORY,
            f"Needs {request.gpus} GPU(s) with {request.gpu_memory_mib} MiB free each on one host.",
            evidence | {"asked_mib": request.gpu_memory_mib},
        )
    if not request.whole_gpus:
        share_pct = request.share_milli / 10
        return (
            Constraint.GPU_SHARE,
            f"Needs {request.gpus} GPU(s) with {share_pct:g} % free each on one host.",
            evidence | {"asked_milli": request.share_milli},
        )
    return (
        Constraint.GPU,
        f"Needs {request.gpus} free GPU(s) on one host; at most {most_free} are free on one.",
        evidence,
    )
