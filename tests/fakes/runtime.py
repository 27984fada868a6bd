"""A container engine in memory, whose clock and programs a test moves, and that can break off."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from cluster.errors import HostUnreachableError
from cluster.ports import (
    ContainerSpec,
    ContainerState,
    ContainerStatus,
    EngineDescription,
    LogLine,
)

MIB = 2**20


class Killed(BaseException):
    """Stands for kill -9: nobody may catch it but the test."""


@dataclass
class FakeContainer:
    spec: ContainerSpec
    state: ContainerState = ContainerState.CREATED
    exit_code: int | None = None
    oom_killed: bool = False
    asked_to_end: int = 0

    def status(self) -> ContainerStatus:
        return ContainerStatus(
            name=self.spec.name,
            container_id=f"id-{self.spec.name}",
            state=self.state,
            labels=dict(self.spec.labels),
            exit_code=self.exit_code,
            oom_killed=self.oom_killed,
        )


@dataclass
class FakeRuntime:
    """Keeps the promises of a runtime on one host; a test scripts what goes wrong.

    Attributes:
        heeds_term: Whether programs end when they are asked to (with 143) or only when killed.
        silent: Whether no call is answered.
        calls: Names of the calls that came, in order.
        started: How often each name was really started.
        interrupt: Called before and after the effect of every call; may raise.
        refusals: Errors that the next starts raise, first to last.
    """

    name: str = "local"
    heeds_term: bool = True
    silent: bool = False
    containers_by_name: dict[str, FakeContainer] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    started: Counter[str] = field(default_factory=Counter)
    refusals: list[Exception] = field(default_factory=list)
    interrupt: Callable[[], None] = lambda: None

    def describe(self) -> EngineDescription:
        self._called("describe")
        return EngineDescription(
            kind="fake",
            version="1",
            operating_system="test",
            cpu_millis=8000,
            memory_mib=17_408,
            cgroup_version=2,
            takes_gpus=True,
        )

    def start(self, spec: ContainerSpec) -> ContainerStatus:
        self._called("start")
        if self.refusals:
            raise self.refusals.pop(0)
        found = self.containers_by_name.setdefault(spec.name, FakeContainer(spec=spec))
        # A real engine creates first and starts then; one may end between the two.
        self.interrupt()
        if found.state is ContainerState.CREATED:
            found.state = ContainerState.RUNNING
            self.started[spec.name] += 1
        self.interrupt()
        return found.status()

    def inspect(self, name: str) -> ContainerStatus | None:
        self._called("inspect")
        found = self.containers_by_name.get(name)
        return None if found is None else found.status()

    def containers(self, labels: Mapping[str, str]) -> tuple[ContainerStatus, ...]:
        self._called("containers")
        return tuple(
            found.status()
            for found in self.containers_by_name.values()
            if labels.items() <= found.spec.labels.items()
        )

    def terminate(self, name: str) -> None:
        self._called("terminate")
        found = self.containers_by_name.get(name)
        if found is not None and found.state is ContainerState.RUNNING:
            found.asked_to_end += 1
            if self.heeds_term:
                self.exit(name, 143)
        self.interrupt()

    def kill(self, name: str) -> None:
        self._called("kill")
        found = self.containers_by_name.get(name)
        if found is not None and found.state is ContainerState.RUNNING:
            self.exit(name, 137)
        self.interrupt()

    def remove(self, name: str) -> None:
        self._called("remove")
        self.containers_by_name.pop(name, None)
        self.interrupt()

    def logs(self, name: str, *, after: str = "") -> Iterator[LogLine | None]:
        self._called("logs")
        yield from ()

    def exit(self, name: str, exit_code: int, *, oom_killed: bool = False) -> None:
        """Let a program end."""
        found = self.containers_by_name[name]
        found.state, found.exit_code = ContainerState.EXITED, exit_code
        found.oom_killed = oom_killed

    def exit_all(self, exit_code: int, *, oom_killed: bool = False) -> None:
        """Let every program that runs end."""
        for name in self.running:
            self.exit(name, exit_code, oom_killed=oom_killed)

    @property
    def running(self) -> list[str]:
        """Return the names of the containers that run."""
        return [
            name
            for name, found in self.containers_by_name.items()
            if found.state is ContainerState.RUNNING
        ]

    def adopt_stranger(self, labels: Mapping[str, str], *, name: str = "stranger") -> None:
        """Let a container run that nobody asked for."""
        spec = ContainerSpec(name=name, image="x", python="x", command=("x",), labels=dict(labels))
        self.containers_by_name[name] = FakeContainer(spec=spec, state=ContainerState.RUNNING)

    def _called(self, name: str) -> None:
        self.calls.append(name)
        self.interrupt()
        if self.silent:
            raise HostUnreachableError(self.name, detail="timed out after 10 s")
