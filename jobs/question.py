"""What a person asks of the simulator or the placement lab; pages and REST both fill these."""

import re
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

from cluster.core.placement.problem import Objective

#: How many policies are compared at once.
MAX_POLICIES: Final = 4
#: The largest file that is taken, in bytes.
MAX_FILE_BYTES: Final = 20 << 20
#: The longest search of the lab, in seconds.
MAX_SEARCH_S: Final = 10.0
#: Which parts of the placer a trial of the lab uses, and what the page says about each.
METHODS: Final = {
    "full": "everything: swarm, local search, prices of the relaxed program",
    "swarm": "the swarm alone, from the heuristics",
    "cold": "the swarm alone, from nothing",
}


#: What no database keeps in a text: null characters and halves of pairs, also as JSON spells them.
_UNKEEPABLE: Final = re.compile(r"[\x00\ud800-\udfff]|\\u0000|\\u[dD][89a-fA-F]")


@dataclass(frozen=True, slots=True, kw_only=True)
class TextFile:
    """A file that somebody sent, as text."""

    name: str
    text: str

    @property
    def problem(self) -> str:
        """Return in one line why it is not even looked at; empty where nothing is wrong."""
        if len(self.text) > MAX_FILE_BYTES:
            return f"{self.name} is larger than {MAX_FILE_BYTES >> 20} MiB; split it."
        found = _UNKEEPABLE.search(self.text)
        if found is None:
            return ""
        row = self.text.count("\n", 0, found.start())
        return f"{self.name}, row {row}: holds a character that no text has ({found[0]!r})."


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """The jobs that were submitted to this portal in a time."""

    since: datetime
    until: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class HostsAdded:
    """Hosts that are not there: ``count`` like ``like``, or else of the given size.

    Attributes:
        like: Name of one of the hosts; empty for the sizes.
        gpu_memory_mib: Of each GPU.
    """

    count: int
    like: str = ""
    cpu_millis: int = 0
    memory_mib: int = 0
    gpus: int = 0
    gpu_model: str = ""
    gpu_memory_mib: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationQuestion:
    """What would have been: a workload, hosts, and the policies to compare.

    Attributes:
        workload: A file, a time of our own history, or the simulation whose workload it is.
        hosts: A file, the simulation whose hosts they are, or ``None`` for the hosts of now.
        without: Names of hosts that are not there.
        policies: ``placer`` or ``placer+queue``; the first is what the others are compared to.
    """

    name: str
    workload: TextFile | Recorded | UUID
    hosts: TextFile | UUID | None = None
    without: tuple[str, ...] = ()
    added: HostsAdded | None = None
    policies: tuple[str, ...] = ()
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementQuestion:
    """A placement problem for the lab.

    Attributes:
        hosts, requests: Files; one JSON may be both.
        method: One of :data:`METHODS`.
    """

    name: str
    hosts: TextFile
    requests: TextFile
    objective: Objective = Objective.HOSTS
    method: str = "full"
    seconds: float = 3.0
    seed: int = 0
