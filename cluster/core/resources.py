"""The values that sensing, deciding and acting exchange: readings, capacities, requests, plans."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Final, NewType

HostName = NewType("HostName", str)
GpuUuid = NewType("GpuUuid", str)
#: A whole GPU, in thousandths of its compute.
WHOLE_GPU_MILLI: Final = 1000


class Reading(StrEnum):
    """Why a reading has no value; a chart draws a gap and says the word."""

    UNSUPPORTED = "unsupported"
    STALE = "stale"
    LOST = "lost"


class GpuHealth(StrEnum):
    """What a GPU may be used for."""

    OK = "ok"
    DEGRADED = "degraded"
    DRAINING = "draining"
    QUARANTINED = "quarantined"
    STALE = "stale"

    @property
    def takes_work(self) -> bool:
        """Return whether new work may be placed on such a GPU."""
        return self in {GpuHealth.OK, GpuHealth.DEGRADED}


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuReading:
    """One observation of one GPU; ``None`` is "the device cannot say", 0 is a reading.

    Attributes:
        uuid: The driver's identity of the GPU; an index is never an identity.
        utilization_pct: Share of the driver's last sample period in which at least one kernel
            ran. It says nothing about how many multiprocessors were busy.
        memory_utilization_pct: Share of that period in which memory was read or written; it says
            nothing about how full it is.
        power_w, power_limit_w: Watts.
        temperature_c, slowdown_c: Degrees Celsius, now and where the driver slows the GPU down.
        throttle_mask: NVML's reasons why the clock is not higher, as bits.
        ecc_uncorrected: Since the driver was loaded.
        remap_pending, remap_failed: Whether memory rows wait for a reset to be replaced, or
            cannot be.
        parent: For a MIG slice, the UUID of its GPU.
        divided: Whether it is divided into MIG slices, which are devices of their own.
        why: For a field without a value, the word why (field name to :class:`Reading`).
        processes: Memory used in MiB by container id; the empty id is a foreign process.
        shares: Percent of the GPU's multiprocessors by container id, where the driver can say.
        strangers: The programs that no container of this host runs, in words.
        xids: The last XID errors: seconds since 1970, and NVIDIA's number. Told again and again.
    """

    uuid: GpuUuid
    model: str
    index: int
    memory_total_mib: int | None = None
    memory_used_mib: int | None = None
    memory_reserved_mib: int | None = None
    utilization_pct: float | None = None
    memory_utilization_pct: float | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    temperature_c: float | None = None
    slowdown_c: float | None = None
    clock_mhz: float | None = None
    clock_max_mhz: float | None = None
    fan_pct: float | None = None
    throttle_mask: int | None = None
    ecc_corrected: int | None = None
    ecc_uncorrected: int | None = None
    remapped_rows: int | None = None
    remap_pending: int | None = None
    remap_failed: int | None = None
    lost: bool = False
    parent: str = ""
    divided: bool = False
    why: Mapping[str, str] = field(default_factory=dict)
    processes: Mapping[str, int | None] = field(default_factory=dict)
    shares: Mapping[str, float] = field(default_factory=dict)
    strangers: tuple[str, ...] = ()
    xids: tuple[tuple[float, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuLink:
    """How two GPUs of one host are joined.

    Attributes:
        kind: ``nvlink``, or what they have in common: ``board``, ``switch``, ``switches``,
            ``bridge``, ``node``, ``system``; nearest first.
        links: How many NVLinks.
    """

    first: GpuUuid
    second: GpuUuid
    kind: str
    links: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerReading:
    """What one container used; rates are over the time since the reading before.

    Attributes:
        cpu_pct: Percent of one core: 200 is two cores busy.
        memory_mib: Working set, page cache that can be dropped not counted.
    """

    container_id: str
    cpu_pct: float | None = None
    memory_mib: float | None = None
    read_bytes_s: float | None = None
    write_bytes_s: float | None = None
    receive_bytes_s: float | None = None
    transmit_bytes_s: float | None = None
    processes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HostReading:
    """One second of one host, as its probe saw it.

    Attributes:
        cpu_pressure_pct, memory_pressure_pct, io_pressure_pct: How much of the last ten seconds
            some task waited for it.
        gpu_error: What is wrong with the driver, in words; ``gpu_trouble`` says it in one:
            ``hang``, ``crash``, ``mismatch``, ``permission``, ``driver``, ``released``.
        boot: Changes with every start of the machine.
        topology: How its GPUs are joined; ``None`` in most seconds, since it rarely changes.
        pci_gpus: NVIDIA GPUs on the bus, whatever the driver says.
    """

    observed_at: datetime
    cpu_pct: float | None = None
    cpu_count: int | None = None
    memory_total_mib: int | None = None
    memory_used_mib: int | None = None
    disk_total_mib: int | None = None
    disk_used_mib: int | None = None
    read_bytes_s: float | None = None
    write_bytes_s: float | None = None
    receive_bytes_s: float | None = None
    transmit_bytes_s: float | None = None
    load_1m: float | None = None
    cpu_pressure_pct: float | None = None
    memory_pressure_pct: float | None = None
    io_pressure_pct: float | None = None
    gpus: tuple[GpuReading, ...] = ()
    gpu_error: str = ""
    gpu_trouble: str = ""
    driver: str = ""
    boot: str = ""
    topology: tuple[GpuLink, ...] | None = None
    pci_gpus: int | None = None
    simulated: bool = False
    containers: tuple[ContainerReading, ...] = ()


#: The numbers of each reading: what a probe may say, and what is kept of it.
HOST_FIELDS: Final = (
    "cpu_pct",
    "cpu_count",
    "memory_total_mib",
    "memory_used_mib",
    "disk_total_mib",
    "disk_used_mib",
    "read_bytes_s",
    "write_bytes_s",
    "receive_bytes_s",
    "transmit_bytes_s",
    "load_1m",
    "cpu_pressure_pct",
    "memory_pressure_pct",
    "io_pressure_pct",
)
GPU_FIELDS: Final = (
    "memory_total_mib",
    "memory_used_mib",
    "utilization_pct",
    "memory_utilization_pct",
    "power_w",
    "power_limit_w",
    "temperature_c",
    "clock_mhz",
    "fan_pct",
)
#: What a probe says of a GPU beside them: it decides on health and is not drawn.
GPU_STATE_FIELDS: Final = (
    "memory_reserved_mib",
    "slowdown_c",
    "clock_max_mhz",
    "throttle_mask",
    "ecc_corrected",
    "ecc_uncorrected",
    "remapped_rows",
    "remap_pending",
    "remap_failed",
)
CONTAINER_FIELDS: Final = (
    "cpu_pct",
    "memory_mib",
    "read_bytes_s",
    "write_bytes_s",
    "receive_bytes_s",
    "transmit_bytes_s",
    "processes",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuState:
    """A GPU as placement sees it: what it has, what is claimed, whether it takes work."""

    uuid: GpuUuid
    model: str
    memory_total_mib: int
    memory_claimed_mib: int = 0
    share_claimed_milli: int = 0
    claims: int = 0
    exclusive: bool = False
    health: GpuHealth = GpuHealth.OK
    reason: str = ""

    @property
    def free(self) -> bool:
        """Return whether nothing is claimed on it and it takes work."""
        return self.claims == 0 and self.health.takes_work

    @property
    def memory_free_mib(self) -> int:
        """Return what may still be claimed of its memory, in MiB."""
        return 0 if self.exclusive else self.memory_total_mib - self.memory_claimed_mib

    @property
    def share_free_milli(self) -> int:
        """Return what may still be claimed of its compute, in thousandths of the GPU.

        A claim that states memory alone takes one thousandth, so that the GPU is no longer whole.
        """
        if self.exclusive:
            return 0
        return max(0, WHOLE_GPU_MILLI - max(self.share_claimed_milli, self.claims))


@dataclass(frozen=True, slots=True, kw_only=True)
class HostState:
    """A host as placement sees it; capacities are what jobs may have, claims what they hold.

    Attributes:
        zone: What it shares a fast network with: a switch, a rack; empty for nothing known.
    """

    name: HostName
    cpu_millis: int
    memory_mib: int
    cpu_claimed_millis: int = 0
    memory_claimed_mib: int = 0
    gpus: tuple[GpuState, ...] = ()
    schedulable: bool = True
    reason: str = ""
    zone: str = ""

    @property
    def cpu_free_millis(self) -> int:
        """Return the CPU not claimed, in thousandths of a core."""
        return self.cpu_millis - self.cpu_claimed_millis

    @property
    def memory_free_mib(self) -> int:
        """Return the memory not claimed, in MiB."""
        return self.memory_mib - self.memory_claimed_mib


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSnapshot:
    """All hosts at one moment."""

    taken_at: datetime
    hosts: tuple[HostState, ...] = ()


class Spread(StrEnum):
    """How the replicas of one request lie to each other."""

    ANY = "any"
    PACK = "pack"
    SPREAD = "spread"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceRequest:
    """What one job asks for; every replica gets the same, all replicas or none.

    Attributes:
        key: Who asks; returned in the plan.
        gpus: GPUs per replica.
        gpu_memory_mib: Memory on each GPU that is enough, so that it may be shared; ``None``
            for not stated.
        gpu_share_milli: Share of each GPU's compute in thousandths, 1000 for the whole GPU;
            ``None`` for not stated. With neither share nor memory, whole GPUs are asked for.
        gpu_model: Only GPUs whose model name contains this, any case; empty for any.
        gpu_models: Only GPUs of exactly these models; empty for any.
        hosts_allowed: Only these hosts; ``None`` for any.
        hosts_excluded: Never these, for instance after a failure there.
        spread: How the replicas lie to each other.
        anti_affinity: Requests of one label never share a host; empty for none.
        same_zone: All replicas in one zone (:attr:`HostState.zone`).
        data_mib, data_hosts: What a host must fetch before it can start, unless it is one of
            these; the same for the image.
    """

    key: str
    cpu_millis: int
    memory_mib: int
    replicas: int = 1
    gpus: int = 0
    gpu_memory_mib: int | None = None
    gpu_share_milli: int | None = None
    gpu_model: str = ""
    gpu_models: frozenset[str] = frozenset()
    hosts_allowed: frozenset[HostName] | None = None
    hosts_excluded: frozenset[HostName] = frozenset()
    spread: Spread = Spread.ANY
    anti_affinity: str = ""
    same_zone: bool = False
    data_mib: int = 0
    data_hosts: frozenset[HostName] = frozenset()
    image_mib: int = 0
    image_hosts: frozenset[HostName] = frozenset()

    @property
    def whole_gpus(self) -> bool:
        """Return whether each GPU is for this request alone."""
        if self.gpu_share_milli is None:
            return self.gpu_memory_mib is None
        return self.gpu_share_milli >= WHOLE_GPU_MILLI

    @property
    def share_milli(self) -> int:
        """Return what it takes of each GPU's compute; memory alone takes a thousandth."""
        return WHOLE_GPU_MILLI if self.whole_gpus else max(1, self.gpu_share_milli or 0)

    def accepts_model(self, model: str) -> bool:
        """Return whether a GPU of this model will do."""
        named = not self.gpu_models or model in self.gpu_models
        return named and self.gpu_model.lower() in model.lower()

    def fetch_mib(self, host: HostName) -> int:
        """Return what the host must fetch before a replica can start there, in MiB."""
        data = 0 if host in self.data_hosts else self.data_mib
        return data + (0 if host in self.image_hosts else self.image_mib)


class Constraint(StrEnum):
    """What keeps a request from being placed; the word is shown by the pages and the API."""

    NO_HOST = "no_host"
    HOSTS_DOWN = "hosts_down"
    NOT_ALLOWED = "not_allowed"
    CPU = "cpu"
    MEMORY = "memory"
    GPU = "gpu"
    GPU_MODEL = "gpu_model"
    GPU_MEMORY = "gpu_memory"
    GPU_HEALTH = "gpu_health"
    GPU_SHARE = "gpu_share"
    SPREAD = "spread"
    ANTI_AFFINITY = "anti_affinity"
    ZONE = "zone"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaPlacement:
    """One replica on one host, with the GPUs it gets (in ring order)."""

    rank: int
    host: HostName
    gpus: tuple[GpuUuid, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """A decision for a whole request; nothing is held until it is applied.

    Attributes:
        decision: What the decision rested on, for the page that explains it: JSON values only.
    """

    key: str
    replicas: tuple[ReplicaPlacement, ...]
    reason: str = ""
    decision: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Deferral:
    """A request that stays in the queue, the constraint that binds, and the numbers behind it.

    Attributes:
        ever: Whether some host could hold it when nothing else ran.
    """

    key: str
    constraint: Constraint
    text: str
    ever: bool = True
    evidence: Mapping[str, int | float | str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanReport:
    """How a plan was found.

    Attributes:
        hosts_active: Hosts that hold anything once the plan is applied.
        lower_bound: No plan that places as much can do with fewer active hosts; 0 if not asked.
        cost: The objective's cost of the plan; lower is better, and only comparable for equal
            input.
        proven: Whether no plan can be better by the objective.
        seconds: Wall time of the thinking.
        iterations: Packings that were looked at.
    """

    placer: str
    objective: str = ""
    hosts_active: int = 0
    lower_bound: int = 0
    cost: float = 0.0
    proven: bool = False
    seconds: float = 0.0
    iterations: int = 0
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The result of one scheduling pass's thinking."""

    placements: tuple[Placement, ...] = ()
    deferred: tuple[Deferral, ...] = ()
    report: PlanReport | None = None
