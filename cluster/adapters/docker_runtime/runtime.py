"""Containers on a Docker engine, reached over its API; nothing of ours is installed there."""

import time
from collections.abc import Callable, Generator, Mapping
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import quote

import requests
from docker.errors import APIError, ImageNotFound, NotFound

from cluster.adapters.docker_runtime.connection import BROKEN, Api, Connection, brief
from cluster.adapters.docker_runtime.options import (
    PROBE_ROOT,
    environment,
    job_options,
    probe_archive,
    probe_options,
    program,
)
from cluster.adapters.docker_runtime.stream import LineAssembler, Position, Stream
from cluster.adapters.docker_runtime.translation import (
    cdi_gpus,
    clock_offset,
    status_of,
    takes_gpus,
)
from cluster.errors import (
    ClusterError,
    GpuUnavailableError,
    HostRefusedError,
    HostUnreachableError,
    ImageMissingError,
    LaunchFailedError,
)
from cluster.ports import (
    ContainerSpec,
    ContainerState,
    ContainerStatus,
    EngineDescription,
    HostEndpoint,
    LogLine,
)

_T = TypeVar("_T")

MINIMUM_API: Final = (1, 40)
NETWORK: Final = "starling-jobs"
_HEARTBEAT_S: Final = 0.5
_LOOK_S: Final = 0.1
_CLOCK_OFF_S: Final = 5
_GPU_WORDS: Final = ("device driver", "nvidia", "cdi device", "unresolvable")
_TOOLKIT: Final = (
    "install the NVIDIA driver and the NVIDIA Container Toolkit on it, run "
    "'nvidia-ctk runtime configure --runtime=docker', and restart Docker"
)


class DockerRuntime:
    """Keeps the promises of :class:`cluster.ports.ContainerRuntime` on one Docker engine."""

    def __init__(self, endpoint: HostEndpoint, *, instance: str) -> None:
        self.endpoint = endpoint
        self.instance = instance
        self._connection = Connection(endpoint)

    def describe(self) -> EngineDescription:
        found = self._told(lambda api: api.info())
        version = self._told(lambda api: api.version())
        api = tuple(int(part) for part in str(version.get("ApiVersion", "0.0")).split("."))
        if api < MINIMUM_API:
            raise HostRefusedError(
                self.endpoint.name,
                detail=f"its Docker Engine {version.get('Version')} is too old (API "
                f"{version.get('ApiVersion')}); install Docker Engine 19.03 or newer",
            )
        warnings = [str(text) for text in found.get("Warnings") or []]
        offset = clock_offset(str(found.get("SystemTime", "")))
        if offset is not None and abs(offset) > _CLOCK_OFF_S:
            warnings.append(
                f"Its clock is {offset:+.0f} s off; switch time synchronisation on "
                "('timedatectl set-ntp true')."
            )
        return EngineDescription(
            kind="docker",
            version=str(version.get("Version", "")),
            operating_system=str(found.get("OperatingSystem", "")),
            cpu_millis=1000 * int(found.get("NCPU", 0)),
            memory_mib=int(found.get("MemTotal", 0)) // 2**20,
            cgroup_version=int(found.get("CgroupVersion") or 1),
            takes_gpus=takes_gpus(found),
            clock_offset_s=offset,
            warnings=tuple(warnings),
        )

    def start(self, spec: ContainerSpec) -> ContainerStatus:
        """Start a container; see :class:`cluster.ports.ContainerRuntime`.

        The engine starts an ended container again when it is told to, and has no way to make a
        start depend on the container's state. So only who created a container starts it; whoever
        finds it created waits for that, and starts it only if its creator did not for long.
        """
        status, ours = self.inspect(spec.name), False
        if status is None:
            ours = self._create(spec)
            status = self.inspect(spec.name)
        if status is not None and status.state is ContainerState.CREATED and not ours:
            status = self._started_by_its_creator(spec.name)
        if status is not None and status.state is ContainerState.CREATED:
            self._start_created(spec)
            status = self.inspect(spec.name)
        if status is None:
            raise LaunchFailedError(self.endpoint.name, detail="it was removed while it started")
        return status

    def inspect(self, name: str) -> ContainerStatus | None:
        try:
            found = self._connection.ask(lambda api: api.inspect_container(name))
        except NotFound:
            return None
        except APIError as error:
            raise self._translated(error) from error
        return status_of(found)

    def containers(self, labels: Mapping[str, str]) -> tuple[ContainerStatus, ...]:
        wanted = [f"{key}={value}" for key, value in labels.items()]
        rows = self._told(lambda api: api.containers(all=True, filters={"label": wanted}))
        # The list tells neither exit codes nor who ran out of memory.
        found = (self.inspect(row["Id"]) for row in rows)
        return tuple(status for status in found if status is not None)

    def terminate(self, name: str) -> None:
        self._signal(name, "SIGTERM")

    def kill(self, name: str) -> None:
        self._signal(name, "SIGKILL")

    def remove(self, name: str) -> None:
        until = time.monotonic() + self.endpoint.timeout_s
        try:
            self._connection.ask(lambda api: api.remove_container(name, v=True, force=True))
        except NotFound:
            return
        except APIError as error:
            # Another removal of the same container is under way.
            if error.status_code != HTTPStatus.CONFLICT:
                raise self._translated(error) from error
        while self.inspect(name) is not None:
            if time.monotonic() > until:
                raise HostUnreachableError(self.endpoint.name, detail=f"{name} does not go away")
            time.sleep(_LOOK_S)

    def logs(self, name: str, *, after: str = "") -> Generator[LogLine | None, None, None]:
        position = Position.parse(after)
        while (status := self.inspect(name)) is not None:
            if status.state is not ContainerState.CREATED:
                assembler = LineAssembler(position)
                yield from self._follow(name, assembler)
                if status.state is ContainerState.EXITED:
                    # It had ended before the reading began: nothing can follow.
                    yield from assembler.flush()
                    return
                position = assembler.position
            # The stream ended with the container, or the engine dropped it: look again.
            yield None
            time.sleep(_HEARTBEAT_S / 5)

    def _follow(self, name: str, assembler: LineAssembler) -> Generator[LogLine | None, None, None]:
        try:
            stream = Stream(self._open_log(name, assembler.position.base_ns))
        except NotFound:
            return
        except APIError as error:
            raise self._translated(error) from error
        try:
            for frame in stream.frames(heartbeat_s=_HEARTBEAT_S):
                if frame is None:
                    yield None
                else:
                    yield from assembler.feed(*frame)
        except BROKEN as error:
            raise HostUnreachableError(self.endpoint.name, detail=brief(error)) from error
        finally:
            stream.close()

    def _open_log(self, name: str, since_ns: int) -> requests.Response:
        parameters: dict[str, Any] = {
            "stdout": 1,
            "stderr": 1,
            "timestamps": 1,
            "follow": 1,
            "tail": "all",
        }
        if since_ns:
            # As a text: a float would lose the last digits of the nanoseconds.
            parameters["since"] = f"{since_ns // 10**9}.{since_ns % 10**9:09d}"
        return self._connection.open_stream(f"/containers/{quote(name)}/logs", parameters)

    def ensure_probe(
        self, *, name: str, image: str, folder: Path, version: str, label: str
    ) -> None:
        """Have the probe of this version running; one of another version is replaced.

        Raises:
            ImageMissingError: If its image is not on the host.
            LaunchFailedError: If the engine refuses it.
        """
        there = self.inspect(name)
        running = there is not None and there.state is ContainerState.RUNNING
        if running and there is not None and there.labels.get(label) == version:
            return
        labels = {label: version, "starling.instance-probe": self.instance}
        archive = probe_archive(folder)
        # Only trying tells whether an engine has GPUs to give.
        for with_gpus in (True, False):
            self.remove(name)
            try:
                self._start_probe(
                    name, image=image, labels=labels, archive=archive, with_gpus=with_gpus
                )
            except GpuUnavailableError:
                continue
            return

    def _start_probe(
        self, name: str, *, image: str, labels: Mapping[str, str], archive: bytes, with_gpus: bool
    ) -> None:
        try:
            self._connection.ask(
                lambda api: api.create_container(
                    image=image,
                    command=["python3", "-m", "cluster.probe", "--docker"],
                    working_dir=PROBE_ROOT,
                    name=name,
                    labels=dict(labels),
                    host_config=api.create_host_config(**probe_options(with_gpus=with_gpus)),
                )
            )
            self._connection.ask(lambda api: api.put_archive(name, "/", archive))
            self._connection.ask(lambda api: api.start(name))
        except ImageNotFound as error:
            raise ImageMissingError(self.endpoint.name, image=image) from error
        except APIError as error:
            # Conflict: another collector starts it at this moment.
            if error.status_code != HTTPStatus.CONFLICT:
                raise self._launch_error(error, with_gpus=with_gpus) from error

    def follow_lines(self, name: str) -> Generator[LogLine | None, None, None]:
        """Follow a container's output from now on; what it printed before is left out."""
        now = datetime.now(tz=UTC) + timedelta(seconds=self.describe().clock_offset_s or 0)
        since_ns = int(now.timestamp() * 1e9)
        yield from self._follow(name, LineAssembler(Position(base_ns=since_ns)))

    def _create(self, spec: ContainerSpec) -> bool:
        """Have the container there; return whether this call made it."""
        until = time.monotonic() + self.endpoint.timeout_s
        while not self._created(spec):
            # The name is taken: by now it can be seen, is about to be, or is on its way out.
            if self.inspect(spec.name) is not None:
                return False
            if time.monotonic() > until:
                raise LaunchFailedError(self.endpoint.name, detail="its name stays taken")
            time.sleep(_LOOK_S)
        return True

    def _created(self, spec: ContainerSpec) -> bool:
        network = spec.network or self._network()
        try:
            self._connection.ask(
                lambda api: api.create_container(
                    image=spec.image,
                    command=program(spec),
                    name=spec.name,
                    user=spec.user or None,
                    environment=environment(spec),
                    labels=dict(spec.labels),
                    working_dir=spec.working_dir,
                    host_config=api.create_host_config(
                        **job_options(spec, network=network, cdi=bool(spec.gpus) and self._cdi())
                    ),
                )
            )
        except ImageNotFound as error:
            raise ImageMissingError(self.endpoint.name, image=spec.image) from error
        except APIError as error:
            if error.status_code == HTTPStatus.NOT_FOUND and "image" in str(error).lower():
                raise ImageMissingError(self.endpoint.name, image=spec.image) from error
            if error.status_code == HTTPStatus.CONFLICT:
                return False
            raise self._launch_error(error, with_gpus=bool(spec.gpus)) from error
        return True

    def _started_by_its_creator(self, name: str) -> ContainerStatus | None:
        until = time.monotonic() + self.endpoint.timeout_s
        while True:
            status = self.inspect(name)
            waited = time.monotonic() > until
            if status is None or status.state is not ContainerState.CREATED or waited:
                return status
            time.sleep(_LOOK_S)

    def _cdi(self) -> bool:
        """Return whether this engine gives GPUs by CDI names and not by its own driver."""
        found = self._told(lambda api: api.info())
        return "nvidia" not in (found.get("Runtimes") or {}) and cdi_gpus(found)

    def _start_created(self, spec: ContainerSpec) -> None:
        try:
            self._connection.ask(lambda api: api.start(spec.name))
        except APIError as error:
            translated = self._launch_error(error, with_gpus=bool(spec.gpus))
            # A container that could not start is of no use to the next try.
            self.remove(spec.name)
            raise translated from error

    def _network(self) -> str:
        """Return the network of jobs, made once: its containers do not reach one another."""
        try:
            self._connection.ask(lambda api: api.inspect_network(NETWORK))
        except NotFound:
            try:
                self._connection.ask(
                    lambda api: api.create_network(
                        NETWORK,
                        driver="bridge",
                        check_duplicate=True,
                        options={"com.docker.network.bridge.enable_icc": "false"},
                        labels={"starling.network": "jobs"},
                    )
                )
            except APIError as error:
                if error.status_code != HTTPStatus.CONFLICT:
                    raise self._translated(error) from error
        return NETWORK

    def _signal(self, name: str, number: str) -> None:
        try:
            self._connection.ask(lambda api: api.kill(name, signal=number))
        except NotFound:
            return
        except APIError as error:
            # 409: it has ended already.
            if error.status_code != HTTPStatus.CONFLICT:
                raise self._translated(error) from error

    def _told(self, question: Callable[[Api], _T]) -> _T:
        """Ask what an engine in order always answers."""
        try:
            return self._connection.ask(question)
        except APIError as error:
            raise self._translated(error) from error

    def _translated(self, error: APIError) -> ClusterError:
        detail = f"its engine says: {brief(error)}"
        return HostUnreachableError(self.endpoint.name, detail=detail)

    def _launch_error(self, error: APIError, *, with_gpus: bool) -> ClusterError:
        text = brief(error)
        if with_gpus and any(word in text.lower() for word in _GPU_WORDS):
            return GpuUnavailableError(self.endpoint.name, detail=f"{text}; {_TOOLKIT}")
        return LaunchFailedError(self.endpoint.name, detail=text)
