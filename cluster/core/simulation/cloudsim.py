"""The elementary model of CloudSim, so that finish times can be compared number by number.

One datacenter of hosts with processing elements; virtual machines that share a host by space or
by time; cloudlets (programs of a length in million instructions) that share a virtual machine by
space or by time. CloudSim counts whole instructions and looks at its machines only at events, no
closer together than a minimal gap; both leave traces in its finish times, and both are here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from cluster.core.simulation.engine import Engine

#: CloudSim's smallest step of the clock; machines are created, and acknowledge it one step later.
TICK_S: Final = 0.001
#: What it adds to a step before it looks again, and until when it looks at every event.
_SLACK_S: Final = 0.01
_WARM_UP_S: Final = 0.111
_MILLION: Final = 1_000_000


class Sharing(StrEnum):
    """How those inside share what is around them."""

    SPACE = "space-shared"
    TIME = "time-shared"


@dataclass(frozen=True, slots=True, kw_only=True)
class SimHost:
    """A host with ``pes`` processing elements of ``mips`` million instructions a second each."""

    id: int
    pes: int
    mips: float
    ram_mib: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SimVm:
    """A virtual machine that asks for ``pes`` elements of ``mips`` each."""

    id: int
    pes: int
    mips: float
    ram_mib: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Cloudlet:
    """A program: ``length_mi`` million instructions on each of ``pes`` elements of ``vm``."""

    id: int
    length_mi: int
    pes: int
    vm: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Hosts, virtual machines in the order they are created, cloudlets in that of submission."""

    name: str
    host_scheduler: Sharing
    vm_scheduler: Sharing
    hosts: tuple[SimHost, ...]
    vms: tuple[SimVm, ...]
    cloudlets: tuple[Cloudlet, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudletTimes:
    """When a cloudlet ran; ``None`` where it never started or never ended."""

    id: int
    start_s: float | None
    finish_s: float | None


def run_scenario(scenario: Scenario) -> tuple[CloudletTimes, ...]:
    """Return when each cloudlet starts and ends, in the order of the scenario.

    A cloudlet never starts if no host could take its machine, or if it asks for more elements
    than a space-shared machine has.
    """
    datacenter = _Datacenter(scenario)
    datacenter.run()
    return tuple(
        CloudletTimes(id=task.cloudlet.id, start_s=task.start_s, finish_s=task.finish_s)
        for task in datacenter.tasks
    )


def machines_of(scenario: Scenario) -> Mapping[int, int | None]:
    """Return for each virtual machine the host that takes it, ``None`` where none can.

    The host with the most free MIPS is tried first. It is the only one that is tried in earnest:
    where its elements do not suffice after all, the machine is not created.
    """
    rooms = [_HostRoom(host, scenario.host_scheduler) for host in scenario.hosts]
    chosen: dict[int, int | None] = {}
    for vm in scenario.vms:
        by_room = sorted(rooms, key=lambda room: -room.mips)
        suitable = [room for room in by_room if room.mips > 0 and room.suits(vm)]
        taken = bool(suitable) and suitable[0].take(vm)
        chosen[vm.id] = suitable[0].host.id if taken else None
    return chosen


class _HostRoom:
    """What is free on a host while machines are created."""

    def __init__(self, host: SimHost, sharing: Sharing) -> None:
        self.host, self.sharing = host, sharing
        self.mips = host.pes * host.mips
        self.pes = host.pes
        self.ram_mib = host.ram_mib

    def suits(self, vm: SimVm) -> bool:
        enough = self.mips >= vm.pes * vm.mips and self.ram_mib >= vm.ram_mib
        return enough and self.host.mips >= vm.mips

    def take(self, vm: SimVm) -> bool:
        if self.sharing is Sharing.SPACE and self.pes < vm.pes:
            return False
        self.mips -= vm.pes * vm.mips
        self.ram_mib -= vm.ram_mib
        self.pes -= vm.pes
        return True


@dataclass(slots=True, eq=False)
class _Task:
    """A cloudlet under way; instructions are counted whole, as CloudSim does."""

    cloudlet: Cloudlet
    done: int = 0
    start_s: float | None = None
    finish_s: float | None = None

    @property
    def total(self) -> int:
        return self.cloudlet.length_mi * self.cloudlet.pes * _MILLION

    @property
    def left_mi(self) -> int:
        return max(0, self.total - self.done) // _MILLION

    def advance(self, instructions: int) -> None:
        self.done = min(self.done + instructions, self.total)


@dataclass(slots=True)
class _Machine:
    """A virtual machine at work."""

    vm: SimVm
    sharing: Sharing
    running: list[_Task] = field(default_factory=list)
    waiting: list[_Task] = field(default_factory=list)
    looked_s: float = 0.0
    #: What one element gives each running cloudlet; as of the last look.
    mips: float = 0.0

    def submit(self, task: _Task, now_s: float) -> float | None:
        """Take a cloudlet; return how long it is thought to run, ``None`` if it has to wait."""
        if self.sharing is Sharing.SPACE and task.cloudlet.pes > self._free_pes():
            self.waiting.append(task)
            return None
        self._start(task, now_s)
        return task.cloudlet.length_mi / self.mips

    def look(self, now_s: float) -> float | None:
        """Bring the machine up to ``now_s``; return when something is to happen next."""
        self._share()
        span = now_s - self.looked_s
        self.looked_s = now_s
        for task in self.running:
            task.advance(int(span * (self.mips * task.cloudlet.pes) * _MILLION))
        ended = [task for task in self.running if not task.left_mi]
        for task in ended:
            task.finish_s = now_s
        self.running = [task for task in self.running if task.left_mi]
        self._wake(now_s)
        return min((self._end(task, now_s) for task in self.running), default=None)

    def _share(self) -> None:
        wanted = sum(task.cloudlet.pes for task in self.running)
        self.mips = self.vm.pes * self.vm.mips / max(wanted, self.vm.pes)

    def _wake(self, now_s: float) -> None:
        """Start the first that fits, and only one: CloudSim wakes one cloudlet a look."""
        if self.sharing is Sharing.TIME:
            return
        for task in self.waiting:
            if task.cloudlet.pes <= self._free_pes():
                self.waiting.remove(task)
                self._start(task, now_s)
                return

    def _start(self, task: _Task, now_s: float) -> None:
        task.start_s = now_s
        self.running.append(task)

    def _free_pes(self) -> int:
        return self.vm.pes - sum(task.cloudlet.pes for task in self.running)

    def _end(self, task: _Task, now_s: float) -> float:
        end_s = now_s + task.left_mi / (self.mips * task.cloudlet.pes)
        return now_s + TICK_S if end_s - now_s < TICK_S else end_s


class _Datacenter:
    """Looks at all machines whenever one of them may have something to tell."""

    def __init__(self, scenario: Scenario) -> None:
        hosted = machines_of(scenario)
        self.machines = {
            vm.id: _Machine(vm, scenario.vm_scheduler)
            for vm in scenario.vms
            if hosted[vm.id] is not None
        }
        self.tasks = [_Task(cloudlet) for cloudlet in scenario.cloudlets]
        self._looked_s = 0.0
        self._engine: Engine[_Task | None] = Engine()

    def run(self) -> None:
        for task in self.tasks:
            if task.cloudlet.vm in self.machines:
                self._engine.schedule(TICK_S, task)
        while len(self._engine):
            submitted = self._engine.pop()
            self._look()
            if submitted is not None:
                self._submit(submitted)

    def _submit(self, task: _Task) -> None:
        now_s = self._engine.now_s
        runs_s = self.machines[task.cloudlet.vm or 0].submit(task, now_s)
        if runs_s is not None:
            self._engine.schedule(now_s + runs_s, None)

    def _look(self) -> None:
        now_s = self._engine.now_s
        if _WARM_UP_S <= now_s < self._looked_s + TICK_S:
            return
        ends = [machine.look(now_s) for machine in self.machines.values()]
        coming = [end_s for end_s in ends if end_s is not None]
        if coming:
            next_s = max(min(coming), now_s + TICK_S + _SLACK_S)
            self._engine.schedule(now_s + (next_s - now_s), None)
        self._looked_s = now_s
