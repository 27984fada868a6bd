"""Watches the process that talks to the driver: nothing it does, or no longer does, harms here.

It may hang in the driver, where nobody can end it, or end itself in the middle of a word. What it
said last, and how long ago it asked, is all that is looked at.
"""

import contextlib
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from cluster.probe.fields import NOTHING_HERE, RETRY_PERIODS, STALE, emptied
from cluster.probe.processes import ProcessIndex

#: In periods, of one second each: when a silent driver is said to hang, and when it is given up.
PATIENCE_PERIODS = 4.5
GIVE_UP_PERIODS = 60
_NOTHING_PERIODS = 60
#: How often reading a GPU may end the reader before it is read no more, and how many readers may
#: hang where they cannot be ended.
_CRASHES = 2
_MAX_HUNG = 3
_CRASH_SIGNALS = (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE, signal.SIGILL)


class DriverWatch:
    """Keeps a reader running and the latest it said."""

    def __init__(self, *, period_s: float = 1.0, command: Sequence[str] = ()) -> None:
        self._period_s = period_s
        self._command = list(command) or [sys.executable, "-m", "cluster.probe.gpus"]
        self._processes = ProcessIndex()
        self._lock = threading.Lock()
        # Until the first word: no GPU listed is not the same as no GPU there.
        self._said: dict[str, Any] = {"gpus": [], "error": "", "trouble": "starting"}
        self._topology: list[Any] | None = None
        self._asked_at: float | None = None
        self._place = ""
        self._reader: subprocess.Popen[bytes] | None = None
        self._hung: list[subprocess.Popen[bytes]] = []
        self._crashes: dict[str, int] = {}
        self._start_at = 0.0
        self._released = False

    def latest(self) -> dict[str, Any]:
        """Return the GPUs and what is wrong; while the driver hangs, values are stale."""
        self._look()
        with self._lock:
            said = dict(self._said)
            topology, self._topology = self._topology, None
            waited = 0.0 if self._asked_at is None else time.monotonic() - self._asked_at
            place = self._place
        found: dict[str, Any] = {"gpu_error": said["error"]}
        found |= {name: said[name] for name in ("trouble", "driver", "simulated") if said.get(name)}
        gpus = [dict(gpu) for gpu in said["gpus"]]
        if waited > PATIENCE_PERIODS * self._period_s:
            where = f" about GPU {place}" if place else ""
            found["gpu_error"] = f"the NVIDIA driver does not answer{where}, for {waited:.0f} s now"
            found["trouble"] = "hang"
        if found.get("trouble") in {"hang", "crash"} or said.get("stale"):
            gpus = [gpu if gpu.get("lost") else emptied(gpu, STALE) for gpu in gpus]
        found["gpus"] = [self._processes.attribute(gpu) for gpu in gpus]
        if topology is not None:
            found["topology"] = topology
        return found

    def release(self) -> None:
        """Let the driver go from the next look on, so that a GPU can be reset or divided."""
        self._released = True

    def take(self) -> None:
        """Read GPUs again after :meth:`release`."""
        self._released = False

    def _look(self) -> None:
        """Start what does not run, and give up what has hung for too long."""
        now = time.monotonic()
        reader = self._reader
        if self._released:
            if reader is not None:
                self._end(reader)
                self._reader, self._start_at = None, 0.0
                reader.wait()
            self._say("the probe has let the driver go for maintenance", "released")
            return
        if reader is None:
            self._hung = [one for one in self._hung if one.poll() is None]
            if now >= self._start_at and len(self._hung) < _MAX_HUNG:
                self._start()
            return
        code = reader.poll()
        if code is not None:
            self._ended(code, now)
        elif self._silent_for(now) > GIVE_UP_PERIODS * self._period_s:
            # Perhaps it cannot be ended; then it is left where it hangs, and never waited for.
            self._end(reader)
            self._hung.append(reader)
            self._reader = None
            self._start_at = now + RETRY_PERIODS * self._period_s

    def _silent_for(self, now: float) -> float:
        with self._lock:
            return 0.0 if self._asked_at is None else now - self._asked_at

    @staticmethod
    def _end(reader: "subprocess.Popen[bytes]") -> None:
        with contextlib.suppress(OSError):
            reader.kill()

    def _start(self) -> None:
        skipped = [place for place, times in self._crashes.items() if times >= _CRASHES and place]
        self._reader = subprocess.Popen(  # noqa: S603 - our own program
            [*self._command, str(self._period_s), *skipped],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
        )
        threading.Thread(target=self._listen, args=(self._reader,), daemon=True).start()

    def _ended(self, code: int, now: float) -> None:
        self._reader = None
        self._start_at = now + RETRY_PERIODS * self._period_s
        if code == NOTHING_HERE:
            self._start_at = now + _NOTHING_PERIODS * self._period_s
            return
        place = self._place
        if -code in _CRASH_SIGNALS:
            self._crashes[place] = self._crashes.get(place, 0) + 1
            if self._crashes[place] <= _CRASHES:
                self._start_at = now + self._period_s
        where = f" while GPU {place} was read" if place else ""
        ending = f"signal {-code}" if code < 0 else f"exit code {code}"
        self._say(f"the NVIDIA driver's library ended its reader{where} ({ending})", "crash")

    def _say(self, error: str, trouble: str) -> None:
        with self._lock:
            self._said = {**self._said, "error": error, "trouble": trouble, "stale": True}
            self._asked_at = None

    def _listen(self, reader: "subprocess.Popen[bytes]") -> None:
        if reader.stdout is None:
            return
        for raw in reader.stdout:
            line = raw.decode("utf-8", "replace").strip()
            if reader is not self._reader:
                return
            if line.startswith("@"):
                with self._lock:
                    self._asked_at, self._place = time.monotonic(), line[1:]
                continue
            with contextlib.suppress(ValueError):
                self._take(json.loads(line))

    def _take(self, said: dict[str, Any]) -> None:
        with self._lock:
            self._topology = said.pop("topology", self._topology)
            self._said, self._asked_at = said, None


def on_signals(watch: DriverWatch) -> None:
    """Release the driver on SIGUSR1, take it again on SIGUSR2."""

    def calling(action: Callable[[], None]) -> Callable[..., None]:
        return lambda *_: action()

    signal.signal(signal.SIGUSR1, calling(watch.release))
    signal.signal(signal.SIGUSR2, calling(watch.take))
