"""Keeps the portal's processes running: restarts with back-off, an ordered stop, no orphans."""

import ctypes
import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final

_PR_SET_PDEATHSIG: Final = 1
_STABLE_S: Final = 30.0
_MAX_PAUSE_S: Final = 30.0
_STOP_S: Final = 10.0
_LOG_BYTES: Final = 10 * 2**20


class AlreadyRunningError(Exception):
    """Another supervisor has this state folder."""

    def __init__(self, state_dir: Path) -> None:
        super().__init__(
            f"The portal runs already on {state_dir}. Stop it first (Ctrl-C where it runs), or "
            "choose another folder with STARLING_STATE."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """One process to keep running.

    Attributes:
        ready: Asked until it says yes before the next program is started; ``None`` for at once.
    """

    name: str
    command: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    ready: Callable[[], bool] | None = None
    stop_signal: signal.Signals = signal.SIGTERM


def pause_before_restart(failures: int) -> float:
    """Return how many seconds to wait before a program is started again: 0.5, 1, 2, … 30."""
    return min(_MAX_PAUSE_S, 0.5 * float(2 ** max(0, failures - 1)))


class _Child:
    """One program's current process."""

    def __init__(self, program: Program, log: Path, echo: Callable[[str, str], None]) -> None:
        self.program = program
        self.log = log
        self.echo = echo
        self.process: subprocess.Popen[bytes] | None = None
        self.started_at = 0.0
        self.restart_at = 0.0
        self.failures = 0
        self.restarts = 0

    def start(self) -> None:
        parent = os.getpid()

        def tie_to_parent() -> None:
            # The kernel ends the child when its parent is gone, even when that was killed.
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
            if os.getppid() != parent:
                os._exit(1)

        self.process = subprocess.Popen(  # noqa: S603 - our own programs
            list(self.program.command),
            env={**os.environ, **self.program.environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=tie_to_parent,  # noqa: PLW1509 - only prctl and getppid
        )
        self.started_at = time.monotonic()
        threading.Thread(target=self._copy, args=(self.process.stdout,), daemon=True).start()

    def _copy(self, stream: IO[bytes] | None) -> None:
        if stream is None:
            return
        if self.log.exists() and self.log.stat().st_size > _LOG_BYTES:
            self.log.replace(self.log.with_suffix(".log.1"))
        with self.log.open("ab") as file:
            for line in stream:
                file.write(line)
                file.flush()
                self.echo(self.program.name, line.decode("utf-8", "replace").rstrip())


class Supervisor:
    """Runs programs until it is told to stop."""

    def __init__(
        self,
        programs: Sequence[Program],
        *,
        state_dir: Path,
        echo: Callable[[str, str], None],
    ) -> None:
        self._state_dir = state_dir
        self._echo = echo
        self._logs = state_dir / "logs"
        self._stop = threading.Event()
        self._children = [
            _Child(program, self._logs / f"{program.name}.log", echo) for program in programs
        ]
        self._lock: int | None = None

    def run(self, *, on_ready: Callable[[], None] | None = None) -> None:
        """Start everything in order, keep it running, and end it in the opposite order.

        The calling thread must be the one that started the process: a child is ended by the
        kernel when the thread that made it ends.

        Raises:
            AlreadyRunningError: If another supervisor has this state folder.
        """
        self._take_lock()
        self._logs.mkdir(parents=True, exist_ok=True)
        try:
            for child in self._children:
                if self._stop.is_set():
                    return
                self._begin(child)
            if on_ready is not None and not self._stop.is_set():
                on_ready()
            while not self._stop.wait(0.25):
                self._look()
        finally:
            self._end_all()
            self._tell()
            if self._lock is not None:
                os.close(self._lock)

    def stop(self) -> None:
        """Ask for the end."""
        self._stop.set()

    def _take_lock(self) -> None:
        run = self._state_dir / "run"
        run.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(run / "up.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise AlreadyRunningError(self._state_dir) from error

    def _begin(self, child: _Child) -> None:
        child.start()
        self._tell()
        ready = child.program.ready
        until = time.monotonic() + 30
        while ready is not None and not ready() and not self._stop.is_set():
            if child.process is not None and child.process.poll() is not None:
                self._look()
            if time.monotonic() > until:
                self._echo("up", f"{child.program.name} is slow to answer; going on without it")
                return
            time.sleep(0.05)

    def _look(self) -> None:
        now = time.monotonic()
        changed = False
        for child in self._children:
            process = child.process
            if process is not None and process.poll() is not None:
                if now - child.started_at > _STABLE_S:
                    child.failures = 0
                child.failures += 1
                pause = pause_before_restart(child.failures)
                child.restart_at = now + pause
                child.process = None
                changed = True
                self._echo(
                    "up",
                    f"{child.program.name} ended ({_end(process.returncode)}); "
                    f"starting it again in {pause:g} s",
                )
            elif process is None and child.started_at and now >= child.restart_at:
                child.restarts += 1
                child.start()
                changed = True
        if changed:
            self._tell()

    def _end_all(self) -> None:
        for child in reversed(self._children):
            process = child.process
            if process is None or process.poll() is not None:
                continue
            process.send_signal(child.program.stop_signal)
            try:
                process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                # Its whole session: a worker's own children are not left behind.
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(_STOP_S)

    def _tell(self) -> None:
        """Write what runs, for ``doctor`` and for whoever asks."""
        facts = {
            "pid": os.getpid(),
            "children": {
                child.program.name: {
                    "pid": child.process.pid if child.process is not None else None,
                    "alive": child.process is not None and child.process.poll() is None,
                    "restarts": child.restarts,
                }
                for child in self._children
            },
        }
        draft = self._state_dir / "run" / f".up-{os.getpid()}.json"
        draft.write_text(json.dumps(facts))
        draft.rename(self._state_dir / "run" / "up.json")


def _end(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"


def running(state_dir: Path) -> bool:
    """Return whether a supervisor has this state folder now."""
    try:
        descriptor = os.open(state_dir / "run" / "up.lock", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def refuse_second(state_dir: Path) -> None:
    """Do nothing where no supervisor has this state folder.

    Raises:
        AlreadyRunningError: If one has it.
    """
    if running(state_dir):
        raise AlreadyRunningError(state_dir)


def python_module(*arguments: str) -> list[str]:
    """Return a command that runs a module under this interpreter."""
    return [sys.executable, "-m", *arguments]
