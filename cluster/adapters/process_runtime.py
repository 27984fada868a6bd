"""Containers without a container engine: one process tree each, kept by a shim.

For one's own machine. A program runs as the portal's own user, or, where bubblewrap works, in
namespaces of its own in which it sees its files at the same paths as in a real container.
"""

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from datetime import UTC, datetime
from functools import lru_cache
from math import ceil
from pathlib import Path
from typing import Any, Final

import psutil

from cluster.adapters import process_cgroup
from cluster.errors import (
    HostRefusedError,
    HostUnreachableError,
    ImageMissingError,
    LaunchFailedError,
)
from cluster.ports import (
    JOB_ROOT,
    ContainerSpec,
    ContainerState,
    ContainerStatus,
    EngineDescription,
    HostEndpoint,
    LogLine,
)

_SHIM: Final = Path(__file__).with_name("process_shim.py")
_POLL_S: Final = 0.2
_START_TIMEOUT_S: Final = 20
_STREAMS: Final = {"o": "stdout", "e": "stderr"}
#: Parts of the machine that a program needs to run at all; nothing of /home, /root or /var.
_SYSTEM: Final = (
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/alternatives",
    "/etc/ssl",
    "/etc/localtime",
    "/etc/nsswitch.conf",
    "/etc/resolv.conf",
    "/etc/hosts",
)
#: Where CUDA reads how GPUs are connected.
_GPU_SYSTEM: Final = ("/sys/bus/pci", "/sys/devices", "/sys/module")


class ProcessRuntime:
    """Keeps the promises of :class:`cluster.ports.ContainerRuntime` with plain processes."""

    def __init__(
        self, endpoint: HostEndpoint, *, state_dir: Path, allowed: bool, sandbox: bool = True
    ) -> None:
        self.endpoint = endpoint
        self._root = state_dir / "processes"
        self._state_dir = state_dir
        self._allowed = allowed
        self._sandbox = sandbox and bubblewrap_works()

    def describe(self) -> EngineDescription:
        self._check_allowed()
        memory = psutil.virtual_memory()
        warnings = (
            ()
            if self._sandbox
            else (
                "Programs run without a sandbox of their own: install bubblewrap, or use Docker.",
            )
        )
        return EngineDescription(
            kind="process",
            version="bubblewrap" if self._sandbox else "plain",
            operating_system=" ".join(os.uname()[::2][:2]),
            cpu_millis=1000 * (os.cpu_count() or 1),
            memory_mib=memory.total // 2**20,
            cgroup_version=0,
            takes_gpus=True,
            clock_offset_s=0.0,
            warnings=warnings,
        )

    def start(self, spec: ContainerSpec) -> ContainerStatus:
        self._check_allowed()
        if not os.access(spec.python, os.X_OK) or not Path(spec.python).is_file():
            raise ImageMissingError(self.endpoint.name, image=spec.python or "an interpreter")
        folder = self._folder(spec.name)
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with _locked(folder / "starting"):
            if not (folder / "shim.json").exists() and not (folder / "exit.json").exists():
                self._launch(spec, folder)
        status = self.inspect(spec.name)
        if status is None:
            raise LaunchFailedError(self.endpoint.name, detail="it was removed while it started")
        return status

    def inspect(self, name: str) -> ContainerStatus | None:
        return self._status(self._folder(name))

    def containers(self, labels: Mapping[str, str]) -> tuple[ContainerStatus, ...]:
        if not self._root.is_dir():
            return ()
        found = [self._status(folder) for folder in sorted(self._root.iterdir())]
        return tuple(
            status
            for status in found
            if status is not None and labels.items() <= status.labels.items()
        )

    def terminate(self, name: str) -> None:
        self._signal(name, signal.SIGTERM)

    def kill(self, name: str) -> None:
        folder = self._folder(name)
        self._signal(name, signal.SIGUSR1)
        if folder.exists() and not _alive(folder):
            self._kill_strays(name)

    def remove(self, name: str) -> None:
        folder = self._folder(name)
        if not folder.exists():
            return
        until = time.monotonic() + self.endpoint.timeout_s
        while _alive(folder) or self._kill_strays(name):
            self.kill(name)
            if time.monotonic() > until:
                raise HostUnreachableError(self.endpoint.name, detail=f"{name} does not end")
            time.sleep(0.05)
        process_cgroup.remove((_read_json(folder / "spec.json") or {}).get("cgroups", {}))
        # The log goes last but one and the folder last: half a removal is still a removal.
        shutil.rmtree(folder, ignore_errors=True)

    def logs(self, name: str, *, after: str = "") -> Generator[LogLine | None, None, None]:
        path = self._folder(name) / "log"
        offset = int(after or 0)
        while (status := self.inspect(name)) is not None:
            came = False
            for line in _read_from(path, offset):
                came = True
                offset = int(line.cursor)
                yield line
            if came:
                continue
            # Whatever was written before the end was seen is now read.
            if status.state is ContainerState.EXITED:
                return
            yield None
            time.sleep(_POLL_S)

    def _check_allowed(self) -> None:
        if not self._allowed:
            raise HostRefusedError(
                self.endpoint.name,
                detail="the process runtime runs programs as the portal's own user and is "
                "switched off; set STARLING_PROCESS_RUNTIME=yes on your own machine",
            )

    def _folder(self, name: str) -> Path:
        if not name or "/" in name or name.startswith("."):
            raise ValueError(f"not a container name: {name!r}")
        return self._root / name

    def _launch(self, spec: ContainerSpec, folder: Path) -> None:
        wrapped = self._wrapped(spec, folder) if self._sandbox else self._plain(spec, folder)
        limits = process_cgroup.Limits(
            memory_mib=spec.memory_mib, cpu_millis=spec.cpu_millis, pids=spec.pids_limit
        )
        groups = process_cgroup.make(spec.name, limits)
        record = {
            **wrapped,
            "labels": dict(spec.labels),
            "memory_mib": spec.memory_mib,
            "pids_limit": spec.pids_limit,
            "log_limit_bytes": spec.log_limit_mib * 2**20,
            "cgroups": groups,
            "cpus": [] if "cpu" in groups else _some_cpus(spec.cpu_millis),
            "specification": asdict(spec) | {"environment": sorted(spec.environment)},
        }
        path = folder / "spec.json"
        path.touch(mode=0o600)
        path.write_text(json.dumps(record, default=str))
        try:
            started = subprocess.run(  # noqa: S603 - our own program with our own arguments
                [sys.executable, "-I", "-S", str(_SHIM), str(folder)],
                capture_output=True,
                timeout=_START_TIMEOUT_S,
                check=False,
                text=True,
            )
        except subprocess.TimeoutExpired as error:
            raise HostUnreachableError(self.endpoint.name, detail="the shim hangs") from error
        if started.returncode:
            # What could not start is of no use to the next try.
            self.remove(spec.name)
            raise LaunchFailedError(self.endpoint.name, detail=started.stderr.strip()[-500:])

    def _plain(self, spec: ContainerSpec, folder: Path) -> dict[str, Any]:
        """Return the program with every path below /job replaced by where the files are."""
        places = {mount.target: mount.source for mount in spec.mounts}
        scratch = folder / "tmp"
        scratch.mkdir(exist_ok=True)
        data = folder / "data"
        data.mkdir(exist_ok=True)
        for target, source in places.items():
            if target.startswith(f"{JOB_ROOT}/data/"):
                link = data / target.rpartition("/")[2]
                with suppress(FileExistsError):
                    link.symlink_to(source)
        places.setdefault(f"{JOB_ROOT}/data", str(data))

        def real(text: str) -> str:
            for target in sorted(places, key=len, reverse=True):
                if text == target or text.startswith(target + "/"):
                    return places[target] + text[len(target) :]
            return text

        environment = {
            name: ":".join(real(part) for part in value.split(":")) if JOB_ROOT in value else value
            for name, value in spec.environment.items()
        }
        return {
            "argv": [real(part) for part in _program(spec)],
            "cwd": real(spec.working_dir),
            "environment": _scrubbed(spec, environment, home=str(scratch), tmp=str(scratch)),
            "wrappers": 0,
        }

    def _wrapped(self, spec: ContainerSpec, folder: Path) -> dict[str, Any]:
        """Return the program inside bubblewrap, with its files where a container has them."""
        argv = [
            "bwrap",
            "--unshare-pid",
            "--unshare-ipc",
            "--unshare-uts",
            "--die-with-parent",
            "--cap-drop",
            "ALL",
            "--proc",
            "/proc",
            "--dev",
            "/dev",
            "--size",
            str(spec.memory_mib * 2**20),
            "--tmpfs",
            "/tmp",  # noqa: S108 - inside the sandbox
            "--perms",
            "1777",
            "--size",
            str(spec.shm_mib * 2**20),
            "--tmpfs",
            "/dev/shm",  # noqa: S108 - inside the sandbox
        ]
        for path in [*_SYSTEM, *_interpreter_roots(spec.python)]:
            argv += ["--ro-bind-try", path, path]
        for device in sorted(Path("/dev").glob("nvidia*")) if spec.gpus else ():
            argv += ["--dev-bind-try", str(device), str(device)]
        for path in _GPU_SYSTEM if spec.gpus else ():
            argv += ["--ro-bind-try", path, path]
        for mount in sorted(spec.mounts, key=lambda mount: mount.target):
            argv += ["--ro-bind" if mount.read_only else "--bind", mount.source, mount.target]
        names = folder / "passwd"
        names.write_text(f"student:x:{os.getuid()}:{os.getgid()}::/tmp:/bin/sh\n")
        argv += ["--ro-bind", str(names), "/etc/passwd", "--remount-ro", "/"]
        argv += ["--chdir", spec.working_dir, "--", *_program(spec)]
        return {
            "argv": argv,
            "cwd": "/",
            "environment": _scrubbed(spec, spec.environment, home="/tmp", tmp="/tmp"),  # noqa: S108
            "wrappers": 2,
        }

    def _status(self, folder: Path) -> ContainerStatus | None:
        spec = _read_json(folder / "spec.json")
        shim = _read_json(folder / "shim.json")
        # Asked before exit.json is read: a shim writes that file and only then lets go.
        alive = _alive(folder)
        ended = _read_json(folder / "exit.json")
        if spec is None or (shim is None and ended is None):
            return None
        state = ContainerState.RUNNING if alive and ended is None else ContainerState.EXITED
        return ContainerStatus(
            name=folder.name,
            container_id=folder.name,
            state=state,
            labels=spec["labels"],
            exit_code=ended["exit_code"] if ended else None,
            oom_killed=bool(ended and ended["oom_killed"]),
            started_at=_moment(shim["started_at"]) if shim else None,
            finished_at=_moment(ended["finished_at"]) if ended else None,
            error=ended["error"] if ended else "",
        )

    def _kill_strays(self, name: str) -> bool:
        """End what a shim that was itself killed left behind; return whether there was any."""
        record = _read_json(self._folder(name) / "spec.json") or {}
        strays = process_cgroup.members(record.get("cgroups", {}))
        strays |= {process.pid for process in psutil.process_iter() if _belongs(process, name)}
        for pid in strays:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return bool(strays)

    def _signal(self, name: str, number: signal.Signals) -> None:
        folder = self._folder(name)
        shim = _read_json(folder / "shim.json")
        if shim is not None and _alive(folder):
            with suppress(ProcessLookupError):
                os.kill(int(shim["pid"]), number)


def _program(spec: ContainerSpec) -> list[str]:
    first, *rest = spec.command
    return [spec.python if first == "python" else first, *rest]


def _scrubbed(
    spec: ContainerSpec, environment: Mapping[str, str], *, home: str, tmp: str
) -> dict[str, str]:
    binaries = str(Path(spec.python).parent)
    return {
        "PATH": f"{binaries}:/usr/local/bin:/usr/bin:/bin",
        "LANG": "C.UTF-8",
        "HOME": home,
        "TMPDIR": tmp,
        "NVIDIA_VISIBLE_DEVICES": ",".join(spec.gpus) or "void",
        "CUDA_VISIBLE_DEVICES": ",".join(spec.gpus),
        **environment,
        "STARLING_CONTAINER": spec.name,
    }


@lru_cache(maxsize=64)
def _interpreter_roots(python: str) -> tuple[str, ...]:
    """Return the folders an interpreter needs: its environment's, and its base installation's."""
    answer = subprocess.run(  # noqa: S603 - the interpreter an admin registered
        [python, "-I", "-c", "import sys; print(sys.prefix); print(sys.base_prefix)"],
        capture_output=True,
        text=True,
        timeout=_START_TIMEOUT_S,
        check=False,
    )
    roots = [root for root in answer.stdout.split("\n") if root and root not in {"/usr", "/"}]
    return tuple(dict.fromkeys(roots))


@lru_cache(maxsize=1)
def bubblewrap_works() -> bool:
    """Return whether bubblewrap is installed and may make namespaces here."""
    if shutil.which("bwrap") is None:
        return False
    trial = ["bwrap", "--unshare-pid", "--ro-bind", "/", "/", "--proc", "/proc", "true"]
    with suppress(OSError, subprocess.SubprocessError):
        return subprocess.run(trial, capture_output=True, timeout=10, check=False).returncode == 0  # noqa: S603
    return False


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _alive(folder: Path) -> bool:
    """Return whether the folder's shim lives: it alone holds the lock."""
    try:
        descriptor = os.open(folder / "alive", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _belongs(process: psutil.Process, name: str) -> bool:
    """Return whether a living process was started in a container; its environment says so."""
    with suppress(psutil.Error, OSError):
        return process.environ().get("STARLING_CONTAINER") == name
    return False


def _some_cpus(cpu_millis: int) -> list[int]:
    """Return the CPUs of a program that no group limits; others than its neighbour's."""
    there = sorted(os.sched_getaffinity(0))
    wanted = ceil(cpu_millis / 1000)
    if wanted >= len(there):
        return []
    first = time.time_ns() % len(there)
    return [there[(first + step) % len(there)] for step in range(wanted)]


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_text())
    except (FileNotFoundError, NotADirectoryError, json.JSONDecodeError):
        return None
    return found if isinstance(found, dict) else None


def _read_from(path: Path, offset: int) -> Iterator[LogLine]:
    try:
        stream = path.open("rb")
    except FileNotFoundError:
        return
    with stream:
        stream.seek(offset)
        for raw in stream:
            if not raw.endswith(b"\n"):
                return
            offset += len(raw)
            try:
                at_ns, kind, text = json.loads(raw)
            except ValueError:
                # What a machine that lost its power left of a line.
                continue
            yield LogLine(
                at=datetime.fromtimestamp(at_ns / 1e9, tz=UTC),
                stream=_STREAMS[kind],
                text=text,
                cursor=str(offset),
            )


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, tz=UTC)
