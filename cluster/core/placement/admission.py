"""Whether a request could ever be placed, asked when it is submitted."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from cluster.core.placement.room import Room, feasible
from cluster.core.resources import ClusterSnapshot, ResourceRequest

_NOWHERE: Final = (
    "No host can run this environment. Choose another one, or ask an admin to install it."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """The answer to "could any host ever hold this?".

    Attributes:
        shortfalls: Field of the request to a sentence; empty when it can be held.
        fits: The most of each field that one host has, as far as hosts are known.
    """

    shortfalls: Mapping[str, str] = field(default_factory=dict)
    fits: Mapping[str, int] = field(default_factory=dict)

    @property
    def possible(self) -> bool:
        """Return whether the request can wait for its turn instead of being refused."""
        return not self.shortfalls


def admit(request: ResourceRequest, snapshot: ClusterSnapshot) -> Admission:
    """Return whether the hosts could hold ``request`` when nothing else ran on them.

    A host that is down or drained counts, since it may come back; a cluster whose hosts have
    not reported yet admits everything, since nothing is known about it.
    """
    rooms = [Room(host, empty=True) for host in snapshot.hosts if host.cpu_millis > 0]
    if not rooms:
        return Admission()
    fits = _most(request, rooms)
    allowed = [room for room in rooms if room.admits(request)]
    if not allowed:
        return Admission(shortfalls={"environment": _NOWHERE}, fits=fits)
    if feasible(request, allowed):
        return Admission(fits=fits)
    return Admission(shortfalls=_shortfalls(request, fits), fits=fits)


def _most(request: ResourceRequest, rooms: list[Room]) -> dict[str, int]:
    gpus = [[gpu for gpu in room.host.gpus if request.accepts_model(gpu.model)] for room in rooms]
    return {
        "cpu_millis": max(room.host.cpu_millis for room in rooms),
        "memory_mib": max(room.host.memory_mib for room in rooms),
        "gpus": max(len(of_host) for of_host in gpus),
        "gpu_memory_mib": max(
            (gpu.memory_total_mib for of_host in gpus for gpu in of_host), default=0
        ),
    }


def _shortfalls(request: ResourceRequest, fits: Mapping[str, int]) -> dict[str, str]:
    found: dict[str, str] = {}
    if request.cpu_millis > fits["cpu_millis"]:
        found["cpu_millis"] = f"The largest host has {fits['cpu_millis'] / 1000:g} cores."
    if request.memory_mib > fits["memory_mib"]:
        found["memory_mib"] = f"The largest host gives jobs {fits['memory_mib']} MiB of memory."
    if request.gpus > fits["gpus"]:
        kind = f" of model {request.gpu_model!r}" if request.gpu_model else ""
        most = fits["gpus"]
        found["gpus"] = (
            f"The host with the most has {most} GPU(s){kind}."
            if most
            else (f"No host has a GPU{kind}.")
        )
    elif (request.gpu_memory_mib or 0) > fits["gpu_memory_mib"]:
        found["gpu_memory_mib"] = f"The largest GPU has {fits['gpu_memory_mib']} MiB."
    if not found:
        found["resources"] = "No single host has all of this together. Ask for less of something."
    return found
