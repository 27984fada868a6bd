"""Every runtime there is, each with a folder to work in, and no trace left of what it ran."""

from __future__ import annotations

import os
import sys
import textwrap
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from cluster.adapters.docker_runtime import DockerRuntime
from cluster.adapters.process_runtime import ProcessRuntime, bubblewrap_works
from cluster.ports import (
    LABEL_INSTANCE,
    ContainerRuntime,
    ContainerSpec,
    ContainerStatus,
    HostEndpoint,
    LogLine,
    Mount,
)
from tests.conftest import require
from tests.fakes.engines import docker_address

IMAGE = os.environ.get("STARLING_TEST_IMAGE", "starling/base:latest")
UID = 64000


@dataclass
class Bench:
    """One runtime and what a test needs to run programs on it."""

    kind: str
    runtime: ContainerRuntime
    folder: Path
    labels: dict[str, str] = field(
        default_factory=lambda: {LABEL_INSTANCE: f"contract-{uuid.uuid4().hex[:12]}"}
    )

    @property
    def isolated(self) -> bool:
        """Whether programs cannot touch more than their mounts."""
        return self.kind != "plain"

    @property
    def work(self) -> Path:
        return self.folder / "work"

    def spec(self, program: str = "pass", **changes: Any) -> ContainerSpec:
        """Write the program to the working folder and return what starts it."""
        self.work.mkdir(exist_ok=True)
        (self.work / "main.py").write_text(textwrap.dedent(program))
        if self.kind == "docker" and os.geteuid() == 0:
            for path in [self.work, *self.work.rglob("*")]:
                os.chown(path, UID, UID)
        mounts = (
            Mount(source=str(self.work), target="/job/work", read_only=False),
            *changes.pop("mounts", ()),
        )
        values: dict[str, Any] = {
            "name": f"starling-{uuid.uuid4().hex[:16]}",
            "image": IMAGE,
            "python": sys.executable,
            "command": ("python", "main.py"),
            "environment": {"PYTHONUNBUFFERED": "1"},
            "labels": self.labels,
            "user": f"{UID}:{UID}" if os.geteuid() == 0 else f"{os.geteuid()}:{os.getegid()}",
            "memory_mib": 512,
        }
        return ContainerSpec(**(values | changes), mounts=mounts)

    def run(self, program: str, **changes: Any) -> tuple[ContainerStatus, list[LogLine]]:
        """Run a program to its end and return how it ended and what it said."""
        spec = self.spec(program, **changes)
        self.runtime.start(spec)
        return self.ended(spec.name)

    def ended(self, name: str) -> tuple[ContainerStatus, list[LogLine]]:
        """Wait until the program has ended: the end of its output is that moment."""
        lines = [line for line in self.runtime.logs(name) if line is not None]
        status = self.runtime.inspect(name)
        assert status is not None
        assert status.state == "exited"
        return status, lines

    def says(self, name: str, text: str) -> LogLine:
        """Wait until the program says a line."""
        for line in self.runtime.logs(name):
            if line is not None and line.text == text:
                return line
        raise AssertionError(f"{name} ended and never said {text!r}")


@pytest.fixture(
    params=["plain", "sandbox", pytest.param("docker", marks=pytest.mark.docker)],
)
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    runtime: ContainerRuntime
    if request.param == "docker":
        address = docker_address()
        require(address, "a Docker engine")
        runtime = DockerRuntime(HostEndpoint(name="engine", url=address), instance="contract")
    else:
        sandbox = request.param == "sandbox"
        require(not sandbox or bubblewrap_works(), "a working bubblewrap")
        runtime = ProcessRuntime(
            HostEndpoint(name="local", url="process://local"),
            state_dir=tmp_path / "state",
            allowed=True,
            sandbox=sandbox,
        )
    made = Bench(kind=request.param, runtime=runtime, folder=tmp_path)
    yield made
    for status in runtime.containers(made.labels):
        runtime.remove(status.name)
