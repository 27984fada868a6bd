"""Containers on a Docker engine, reached over its API; nothing of ours is installed there."""

import io
import re
import tarfile
from collections.abc import Callable, Generator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import docker
import requests
import urllib3
from docker.errors import APIError, DockerException, ImageNotFound, NotFound, TLSParameterError
from docker.tls import TLSConfig
from docker.types import DeviceRequest, LogConfig
from docker.types import Mount as DockerMount

from cluster.adapters.docker_stream import LineAssembler, Stream
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
_TMPFS: Final = {"/tmp": "rw,nosuid,nodev,size=1g,mode=1777"}  # noqa: S108 - inside the container
_HEARTBEAT_S: Final = 0.5
_PROBE_ROOT: Final = "/starling-probe"
_UNREACHABLE: Final = (
    requests.exceptions.ConnectionError,
    requests.exceptions.Timeout,
    requests.exceptions.ChunkedEncodingError,
    urllib3.exceptions.HTTPError,
    TimeoutError,
    ConnectionError,
)
_GPU_WORDS: Final = ("could not select device driver", "nvidia", "device driver")
_TOOLKIT: Final = (
    "install the NVIDIA driver and the NVIDIA Container Toolkit on it, run "
    "'nvidia-ctk runtime configure --runtime=docker', and restart Docker"
)


class DockerRuntime:
    """Keeps the promises of :class:`cluster.ports.ContainerRuntime` on one Docker engine."""

    def __init__(self, endpoint: HostEndpoint, *, instance: str) -> None:
        self.endpoint = endpoint
        self.instance = instance
        self._lock = Lock()
        self._client: docker.DockerClient | None = None

    def describe(self) -> EngineDescription:
        found = self._ask(lambda client: client.info())
        version = self._ask(lambda client: client.version())
        api = tuple(int(part) for part in str(version.get("ApiVersion", "0.0")).split("."))
        if api < MINIMUM_API:
            raise HostRefusedError(
                self.endpoint.name,
                detail=f"its Docker Engine {version.get('Version')} is too old (API "
                f"{version.get('ApiVersion')}); install Docker Engine 19.03 or newer",
            )
        warnings = [str(text) for text in found.get("Warnings") or []]
        offset = _clock_offset(str(found.get("SystemTime", "")))
        if offset is not None and abs(offset) > 5:
            warnings.append(
                f"Its clock is {offset:+.0f} s off; switch time synchronisation on "
                "('timedatectl set-ntp true')."
            )
        takes_gpus = _takes_gpus(found)
        return EngineDescription(
            kind="docker",
            version=str(version.get("Version", "")),
            operating_system=str(found.get("OperatingSystem", "")),
            cpu_millis=1000 * int(found.get("NCPU", 0)),
            memory_mib=int(found.get("MemTotal", 0)) // 2**20,
            cgroup_version=int(found.get("CgroupVersion") or 1),
            takes_gpus=takes_gpus,
            clock_offset_s=offset,
            warnings=tuple(warnings),
        )

    def start(self, spec: ContainerSpec) -> ContainerStatus:
        status = self.inspect(spec.name)
        if status is None:
            status = self._create(spec)
        if status.state is ContainerState.CREATED:
            self._start_created(spec)
            status = self.inspect(spec.name)
        if status is None:
            raise LaunchFailedError(self.endpoint.name, detail="it was removed while it started")
        return status

    def inspect(self, name: str) -> ContainerStatus | None:
        try:
            found = self._ask(lambda client: client.api.inspect_container(name))
        except NotFound:
            return None
        return _status(found)

    def containers(self, labels: Mapping[str, str]) -> tuple[ContainerStatus, ...]:
        wanted = [f"{key}={value}" for key, value in labels.items()]
        rows = self._ask(lambda client: client.api.containers(all=True, filters={"label": wanted}))
        found: list[ContainerStatus] = []
        for row in rows:
            status = self.inspect(row["Id"])
            if status is not None:
                found.append(status)
        return tuple(found)

    def terminate(self, name: str) -> None:
        self._signal(name, "SIGTERM")

    def kill(self, name: str) -> None:
        self._signal(name, "SIGKILL")

    def remove(self, name: str) -> None:
        try:
            self._ask(lambda client: client.api.remove_container(name, v=True, force=True))
        except NotFound:
            return
        except APIError as error:
            # Another removal of the same container is under way.
            if error.status_code != 409:
                raise self._translated(error) from error

    def logs(self, name: str, *, after: str = "") -> Generator[LogLine | None, None, None]:
        since_ns, seen = _parse_cursor(after)
        while True:
            status = self.inspect(name)
            if status is None:
                return
            for line in self._follow(name, since_ns=since_ns, skip=seen):
                if line is not None:
                    since_ns, seen = _parse_cursor(line.cursor)
                yield line
            # The engine ends the stream when the container has; a restarted engine ends it too.
            ended = self.inspect(name)
            if ended is None or ended.state is not ContainerState.RUNNING:
                # What came between the end of the stream and the end of the container.
                yield from self._follow(name, since_ns=since_ns, skip=seen)
                return

    def _follow(
        self, name: str, *, since_ns: int, skip: int
    ) -> Generator[LogLine | None, None, None]:
        stream = Stream(self._open_log(name, since_ns))
        assembler = LineAssembler(since_ns=since_ns, skip=skip)
        try:
            for frame in stream.frames(heartbeat_s=_HEARTBEAT_S):
                if frame is None:
                    yield None
                else:
                    yield from assembler.feed(*frame)
            yield from assembler.flush()
        except _UNREACHABLE as error:
            raise HostUnreachableError(self.endpoint.name, detail=_brief(error)) from error
        finally:
            stream.close()

    def _open_log(self, name: str, since_ns: int) -> requests.Response:
        def opened(client: docker.DockerClient) -> requests.Response:
            api = client.api
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
            # A stream has no end by time; only its opening does.
            response = api.get(
                api._url("/containers/{0}/logs", name),  # noqa: SLF001 - the SDK rounds "since"
                params=parameters,
                stream=True,
                timeout=(self.endpoint.timeout_s, None),
            )
            api._raise_for_status(response)  # noqa: SLF001
            return response  # type: ignore[no-any-return]

        return self._ask(opened)

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
        self.remove(name)
        with_gpus = self.describe().takes_gpus
        try:
            self._ask(
                lambda client: client.api.create_container(
                    image=image,
                    command=["python3", "-m", "cluster.probe", "--docker"],
                    working_dir=_PROBE_ROOT,
                    name=name,
                    labels={label: version, "starling.instance-probe": self.instance},
                    host_config=self._probe_host_config(client, with_gpus=with_gpus),
                )
            )
            self._ask(lambda client: client.api.put_archive(name, "/", package_archive(folder)))
            self._ask(lambda client: client.api.start(name))
        except ImageNotFound as error:
            raise ImageMissingError(self.endpoint.name, image=image) from error
        except APIError as error:
            if error.status_code != 409:
                raise self._translated(error) from error

    def _probe_host_config(self, client: docker.DockerClient, *, with_gpus: bool) -> dict[str, Any]:
        gpus = [DeviceRequest(driver="nvidia", count=-1, capabilities=[["utility"]])]
        config: dict[str, Any] = client.api.create_host_config(
            binds={"/sys/fs/cgroup": {"bind": "/sys/fs/cgroup", "mode": "ro"}},
            pid_mode="host",
            network_mode="none",
            mem_limit=256 * 2**20,
            cap_drop=["ALL"],
            # Reading other users' /proc entries, and nothing else.
            cap_add=["SYS_PTRACE", "DAC_READ_SEARCH"],
            security_opt=["no-new-privileges"],
            init=True,
            restart_policy={"Name": "unless-stopped"},
            device_requests=gpus if with_gpus else None,
            log_config=LogConfig(type="json-file", config={"max-size": "4m", "max-file": "2"}),
        )
        return config

    def follow_lines(self, name: str) -> Generator[LogLine | None, None, None]:
        """Follow a container's output from now on; what it printed before is left out."""
        since = int(datetime.now(tz=UTC).timestamp() * 1e9)
        yield from self._follow(name, since_ns=since, skip=0)

    def _create(self, spec: ContainerSpec) -> ContainerStatus:
        network = spec.network or self._network()
        try:
            self._ask(
                lambda client: client.api.create_container(
                    image=spec.image,
                    command=[
                        "python3" if part == "python" and not i else part
                        for i, part in enumerate(spec.command)
                    ],
                    name=spec.name,
                    user=spec.user or None,
                    environment={
                        "HOME": "/tmp",  # noqa: S108 - inside the container
                        "LANG": "C.UTF-8",
                        **spec.environment,
                    },
                    labels=dict(spec.labels),
                    working_dir=spec.working_dir,
                    host_config=self._host_config(client, spec, network),
                )
            )
        except ImageNotFound as error:
            raise ImageMissingError(self.endpoint.name, image=spec.image) from error
        except APIError as error:
            if error.status_code == 404 and "image" in str(error).lower():
                raise ImageMissingError(self.endpoint.name, image=spec.image) from error
            if error.status_code != 409:
                raise self._launch_error(error) from error
        status = self.inspect(spec.name)
        if status is None:
            raise LaunchFailedError(self.endpoint.name, detail="it was removed while it started")
        return status

    def _host_config(
        self, client: docker.DockerClient, spec: ContainerSpec, network: str
    ) -> dict[str, Any]:
        gpus = (
            [DeviceRequest(driver="nvidia", device_ids=list(spec.gpus), capabilities=[["gpu"]])]
            if spec.gpus
            else None
        )
        # JSON makes a short line several times longer; twice the quota and a second file for it.
        log_size = f"{max(8, 2 * spec.log_limit_mib)}m"
        config: dict[str, Any] = client.api.create_host_config(
            mounts=[
                DockerMount(
                    target=mount.target,
                    source=mount.source,
                    type="bind",
                    read_only=mount.read_only,
                )
                for mount in spec.mounts
            ],
            network_mode=network,
            mem_limit=spec.memory_mib * 2**20,
            memswap_limit=spec.memory_mib * 2**20,
            nano_cpus=spec.cpu_millis * 10**6,
            pids_limit=spec.pids_limit,
            shm_size=spec.shm_mib * 2**20,
            cap_drop=["ALL"],
            security_opt=["no-new-privileges"],
            read_only=True,
            tmpfs=_TMPFS,
            init=True,
            device_requests=gpus,
            log_config=LogConfig(type="json-file", config={"max-size": log_size, "max-file": "2"}),
        )
        return config

    def _start_created(self, spec: ContainerSpec) -> None:
        try:
            self._ask(lambda client: client.api.start(spec.name))
        except APIError as error:
            translated = self._launch_error(error)
            # A container that could not start is of no use to the next try.
            self.remove(spec.name)
            raise translated from error

    def _network(self) -> str:
        """Return the network of jobs, made once: its containers do not reach one another."""
        try:
            self._ask(lambda client: client.api.inspect_network(NETWORK))
        except NotFound:
            try:
                self._ask(
                    lambda client: client.api.create_network(
                        NETWORK,
                        driver="bridge",
                        check_duplicate=True,
                        options={"com.docker.network.bridge.enable_icc": "false"},
                        labels={"starling.network": "jobs"},
                    )
                )
            except APIError as error:
                if error.status_code != 409:
                    raise self._translated(error) from error
        return NETWORK

    def _signal(self, name: str, number: str) -> None:
        try:
            self._ask(lambda client: client.api.kill(name, signal=number))
        except NotFound:
            return
        except APIError as error:
            # 409: it has ended already.
            if error.status_code != 409:
                raise self._translated(error) from error

    def _ask(self, question: Callable[[docker.DockerClient], _T]) -> _T:
        """Ask the engine; connection trouble becomes one of our own errors.

        Raises:
            HostUnreachableError: If it did not answer in time.
            HostRefusedError: If it refuses us.
            APIError: If it answers with an error, for the caller to judge.
        """
        try:
            return question(self._connected())
        except APIError:
            raise
        except _UNREACHABLE as error:
            self._forget()
            raise self._connection_error(error) from error
        except DockerException as error:
            self._forget()
            raise self._connection_error(error) from error

    def _connected(self) -> docker.DockerClient:
        with self._lock:
            if self._client is None:
                self._client = docker.DockerClient(
                    base_url=self.endpoint.url,
                    version="auto",
                    timeout=self.endpoint.timeout_s,
                    tls=self._tls(),
                    max_pool_size=64,
                )
            return self._client

    def _tls(self) -> TLSConfig | bool:
        if urlsplit(self.endpoint.url).scheme != "tcp":
            return False
        try:
            return TLSConfig(
                client_cert=(self.endpoint.tls_cert, self.endpoint.tls_key),
                ca_cert=self.endpoint.tls_ca,
                verify=True,
            )
        except TLSParameterError as error:
            raise HostRefusedError(
                self.endpoint.name,
                detail="the CA, certificate or key file cannot be read; check their paths",
            ) from error

    def _forget(self) -> None:
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close()

    def _connection_error(self, error: Exception) -> ClusterError:
        text = str(error)
        name = self.endpoint.name
        if "PermissionError" in text or "Permission denied" in text:
            return HostRefusedError(
                name,
                detail="the portal's user may not open the Docker socket; add it to the group "
                "docker ('usermod -aG docker USER') and start the portal again",
            )
        if "certificate verify failed" in text:
            return HostRefusedError(
                name, detail="its certificate was not signed by the given CA; check the CA file"
            )
        if "certificate required" in text or "bad certificate" in text:
            return HostRefusedError(
                name, detail="it wants a client certificate signed by its own CA; check the files"
            )
        return HostUnreachableError(name, detail=_brief(error))

    def _translated(self, error: APIError) -> ClusterError:
        return LaunchFailedError(self.endpoint.name, detail=_brief(error))

    def _launch_error(self, error: APIError) -> ClusterError:
        text = str(error.explanation or error)
        if any(word in text for word in _GPU_WORDS):
            return GpuUnavailableError(self.endpoint.name, detail=f"{text}; {_TOOLKIT}")
        return LaunchFailedError(self.endpoint.name, detail=text)


def package_archive(folder: Path) -> bytes:
    """Return a tar of the probe's package, importable as ``cluster.probe`` and nothing else."""
    members = {"cluster/__init__.py": b""}
    members |= {f"cluster/probe/{path.name}": path.read_bytes() for path in folder.glob("*.py")}
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content in sorted(members.items()):
            member = tarfile.TarInfo(_PROBE_ROOT.lstrip("/") + "/" + name)
            member.size, member.mode = len(content), 0o644
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def _status(found: Mapping[str, Any]) -> ContainerStatus:
    state = found["State"]
    word = str(state.get("Status", ""))
    if word == "created":
        kind = ContainerState.CREATED
    elif word in {"running", "paused", "restarting", "removing"}:
        kind = ContainerState.RUNNING
    else:
        kind = ContainerState.EXITED
    ended = kind is ContainerState.EXITED
    return ContainerStatus(
        name=str(found["Name"]).lstrip("/"),
        container_id=str(found["Id"]),
        state=kind,
        labels=dict(found["Config"].get("Labels") or {}),
        exit_code=int(state["ExitCode"]) if ended else None,
        oom_killed=bool(state.get("OOMKilled")) if ended else False,
        started_at=_moment(str(state.get("StartedAt", ""))),
        finished_at=_moment(str(state.get("FinishedAt", ""))) if ended else None,
        error=str(state.get("Error", "")),
    )


def _moment(text: str) -> datetime | None:
    """Return the engine's time; its nanoseconds are cut, and year 1 is "never"."""
    found = re.match(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(\.\d+)?(Z|[+-]\d\d:\d\d)$", text)
    if found is None or text.startswith("0001"):
        return None
    fraction = (found[2] or ".0")[:7]
    return datetime.fromisoformat(f"{found[1]}{fraction.ljust(7, '0')}{found[3]}").astimezone(UTC)


def _clock_offset(system_time: str) -> float | None:
    there = _moment(system_time)
    return None if there is None else (there - datetime.now(tz=UTC)).total_seconds()


def _takes_gpus(found: Mapping[str, Any]) -> bool:
    runtimes = found.get("Runtimes") or {}
    discovered = " ".join(str(device) for device in found.get("DiscoveredDevices") or [])
    return "nvidia" in runtimes or "nvidia.com/gpu" in discovered


def _parse_cursor(cursor: str) -> tuple[int, int]:
    at, _, count = cursor.partition(":")
    return (int(at), int(count)) if at else (0, 0)


def _brief(error: Exception) -> str:
    text = str(getattr(error, "explanation", None) or error)
    return text if len(text) <= 300 else text[:300] + "…"
