"""Stands between a process "container" and the rest: starts it, keeps its output, knows its end.

Run as ``python -I -S process_shim.py FOLDER``; standard library only, imports nothing of the
project. It detaches at once and so survives whoever started it. In FOLDER it reads
``spec.json`` and writes ``shim.json`` (its own and the program's pid), ``log`` (one JSON array a
line: nanoseconds since 1970, "o" or "e", text) and at the end ``exit.json``. While it lives it
holds a lock on ``alive``, so that a reused pid can never be mistaken for it.

Signals: TERM is passed on to the program; USR1 ends the whole tree.
"""

import ctypes
import fcntl
import json
import os
import resource
import selectors
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
LINE_BYTES = 64 * 1024
WATCH_S = 0.25
DRAIN_S = 2.0
MIB = 1024 * 1024
OPEN_FILES = 65_536


def prctl(option: int, value: int) -> None:
    """Set a process attribute of Linux; what this kernel cannot do is left undone."""
    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def write_atomically(path: Path, value: dict[str, object]) -> None:
    """Replace a JSON file so that a reader sees the old or the new one, whole."""
    draft = path.with_suffix(".draft")
    with draft.open("w") as stream:
        json.dump(value, stream)
        stream.flush()
        os.fsync(stream.fileno())
    draft.rename(path)


def parents() -> dict[int, int]:
    """Return {pid: parent pid} of every process that is there now."""
    found: dict[int, int] = {}
    for entry in os.listdir("/proc"):  # noqa: PTH208 - names are enough, four times a second
        if entry.isdigit():
            try:
                stat = Path("/proc", entry, "stat").read_text(errors="replace")
            except OSError:
                continue
            found[int(entry)] = int(stat.rpartition(")")[2].split()[1])
    return found


def descendants(root: int) -> list[int]:
    """Return the pids below ``root``, parents before children."""
    children: dict[int, list[int]] = {}
    for pid, parent in parents().items():
        children.setdefault(parent, []).append(pid)
    found: list[int] = []
    front = [root]
    while front:
        front = [child for pid in front for child in children.get(pid, ())]
        found.extend(front)
    return found


def resident_mib(pids: list[int]) -> float:
    """Return the memory of the processes together, shared pages counted once where it matters."""
    page = resource.getpagesize()
    total = 0
    for pid in pids:
        try:
            total += int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * page
        except (OSError, IndexError, ValueError):
            continue
    return total / MIB


def proportional_mib(pids: list[int]) -> float:
    """Return the memory of the processes with shared pages divided among their sharers."""
    total_kib = 0
    for pid in pids:
        try:
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total_kib += int(line.split()[1])
        except (OSError, ValueError):
            continue
    return total_kib / 1024


class Output:
    """The program's two streams in one file, in the order in which they arrived.

    At least ``limit_bytes`` of what the program says are kept. The file takes up to eight times
    that where the lines are very short, because each is kept with its moment.
    """

    def __init__(self, path: Path, limit_bytes: int) -> None:
        self._file = path.open("ab", buffering=0)
        self._text_left = limit_bytes
        self._file_left = 8 * limit_bytes
        self._partial = {"o": b"", "e": b""}
        self._dropped = 0

    def feed(self, stream: str, chunk: bytes) -> None:
        """Take bytes; whole lines are written, the rest waits for its line end."""
        *lines, rest = (self._partial[stream] + chunk).split(b"\n")
        *pieces, rest = pieces_of(rest)
        self._partial[stream] = rest
        self._write(stream, [piece for line in lines for piece in pieces_of(line)] + pieces)

    def close(self) -> None:
        """Write what has no line end, and how much was dropped."""
        for stream, rest in self._partial.items():
            if rest:
                self._write(stream, [rest])
        if self._dropped:
            self._text_left = self._file_left = LINE_BYTES
            dropped, self._dropped = self._dropped, 0
            self._write("e", [f"[{dropped} more lines were not kept]".encode()])
        with suppress(OSError):
            os.fsync(self._file.fileno())
        self._file.close()

    def _write(self, stream: str, lines: list[bytes]) -> None:
        now = time.time_ns()
        records = []
        for line in lines:
            text = line.decode("utf-8", "replace")
            record = json.dumps([now, stream, text], ensure_ascii=False)
            size = len(line) + 1
            if self._dropped or self._text_left < size or self._file_left < len(record):
                self._dropped += 1
                continue
            self._text_left -= size
            self._file_left -= len(record)
            records.append(record.encode("utf-8", "replace") + b"\n")
        if records:
            self._append(b"".join(records), len(records))

    def _append(self, block: bytes, lines: int) -> None:
        """Write a block whole or not at all: half a record would spoil those after it."""
        before = self._file.tell()
        try:
            if self._file.write(block) == len(block):
                return
        except OSError:
            pass
        with suppress(OSError):
            self._file.truncate(before)
        self._dropped += lines


def pieces_of(line: bytes) -> list[bytes]:
    """Cut a line that is too long; the last piece may be short, and no character is cut."""
    pieces = []
    while len(line) > LINE_BYTES:
        end = LINE_BYTES
        while end > LINE_BYTES - 4 and line[end] & 0xC0 == 0x80:
            end -= 1
        pieces.append(line[:end])
        line = line[end:]
    return [*pieces, line]


class Shim:
    """One program, from its start to its proven end."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.spec = json.loads((folder / "spec.json").read_text())
        self.output = Output(folder / "log", self.spec["log_limit_bytes"])
        self.selector = selectors.DefaultSelector()
        self.child: subprocess.Popen[bytes] | None = None
        self.pid = 0
        self.returncode: int | None = None
        self.oom_killed = False
        self.must_kill = False

    def start(self) -> None:
        """Start the program; raises OSError where it cannot be."""
        spec = self.spec
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        child = subprocess.Popen(  # noqa: S603 - the program is the job
            spec["argv"],
            cwd=spec["cwd"],
            env=spec["environment"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=self._prepare,  # noqa: PLW1509 - there is one thread
        )
        self.child, self.pid = child, child.pid
        for name, stream in (("o", child.stdout), ("e", child.stderr)):
            if stream is not None:
                os.set_blocking(stream.fileno(), False)
                self.selector.register(stream.fileno(), selectors.EVENT_READ, name)

    def _prepare(self) -> None:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGCHLD, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, OPEN_FILES)), hard))
        for folder in sorted(set(self.spec["cgroups"].values())):
            Path(folder, "cgroup.procs").write_text("0")
        if self.spec["cpus"]:
            os.sched_setaffinity(0, self.spec["cpus"])
        os.nice(5)

    def program(self) -> int:
        """Return the pid that a polite request to end goes to: past the sandbox's own two."""
        pids = [self.pid]
        for _ in range(self.spec["wrappers"]):
            below = [pid for pid, parent in parents().items() if parent == pids[-1]]
            if not below:
                break
            pids.append(below[0])
        return pids[-1]

    def terminate(self, *_: object) -> None:
        """Pass TERM on."""
        with suppress(ProcessLookupError):
            os.kill(self.program(), signal.SIGTERM)

    def kill(self, *_: object) -> None:
        """Note that the tree must end; the loop does it."""
        self.must_kill = True

    def kill_tree(self) -> None:
        """End every descendant, and return only when none is left.

        A process that the kernel cannot end yet keeps its container running: what it holds, a
        GPU for instance, is not free.
        """
        pause = 0.01
        while pids := descendants(os.getpid()):
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self.reap()
            self.pump(pause)
            pause = min(WATCH_S, pause * 1.5)

    def reap(self) -> None:
        """Collect what has ended; only the program's own end matters."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self.pid:
                self.returncode = os.waitstatus_to_exitcode(status)

    def pump(self, timeout: float) -> None:
        """Move output for at most ``timeout`` seconds, or as long as there is none."""
        if not self.selector.get_map():
            time.sleep(timeout)
            return
        for key, _ in self.selector.select(timeout):
            try:
                chunk = os.read(key.fd, 1 << 16)
            except BlockingIOError:
                continue
            if chunk:
                self.output.feed(key.data, chunk)
            else:
                self.selector.unregister(key.fileobj)

    def run(self) -> None:
        """Watch until the program has ended, end what it left behind, and keep the last words."""
        watch_at = time.monotonic()
        while self.returncode is None:
            self.pump(WATCH_S if self.selector.get_map() else 0.05)
            if self.must_kill:
                self.kill_tree()
            if time.monotonic() >= watch_at:
                self.watch()
                watch_at = time.monotonic() + WATCH_S
            self.reap()
        self.kill_tree()
        until = time.monotonic() + DRAIN_S
        while self.selector.get_map() and time.monotonic() < until:
            self.pump(0.1)
        self.oom_killed = self.oom_killed or self.killed_by_kernel()
        self.output.close()
        for folder in set(self.spec["cgroups"].values()):
            with suppress(OSError):
                Path(folder).rmdir()

    def watch(self) -> None:
        """End the tree when it uses more than it asked for and the kernel does not see to it."""
        guarded = self.spec["cgroups"]
        if "memory" in guarded and "pids" in guarded:
            return
        pids = descendants(os.getpid())
        memory_mib = self.spec["memory_mib"]
        if "memory" not in guarded and resident_mib(pids) > memory_mib:
            self.oom_killed = self.oom_killed or proportional_mib(pids) > memory_mib
        too_many = "pids" not in guarded and len(pids) > self.spec["pids_limit"]
        if too_many:
            self.output.feed("e", b"[ended: more processes than allowed]\n")
        if self.oom_killed or too_many:
            self.kill_tree()

    def killed_by_kernel(self) -> bool:
        """Return whether the kernel ended a process for want of memory in its group."""
        folder = self.spec["cgroups"].get("memory")
        if folder is None:
            return False
        for name in ("memory.events", "memory.oom_control"):
            with suppress(OSError):
                for line in Path(folder, name).read_text().splitlines():
                    if line.startswith("oom_kill ") and int(line.split()[1]):
                        return True
        return False


def detach() -> int:
    """Leave the starter: it waits for one line on its standard input's end of the pipe."""
    read_end, write_end = os.pipe()
    if os.fork():
        os.close(write_end)
        with os.fdopen(read_end) as answer:
            text = answer.read()
        if text != "ok":
            os.write(2, (text or "the shim died before the program started").encode())
            os._exit(1)
        os._exit(0)
    os.close(read_end)
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)
    return write_end


def write_end(folder: Path, *, exit_code: int, oom_killed: bool = False, error: str = "") -> None:
    """Keep how the program ended; a full disk may have room again later."""
    end = {
        "exit_code": exit_code,
        "oom_killed": oom_killed,
        "finished_at": time.time(),
        "error": error,
    }
    while True:
        try:
            write_atomically(folder / "exit.json", end)
        except OSError:
            if not folder.exists():
                return
            time.sleep(1.0)
        else:
            return


def claim(folder: Path) -> bool:
    """Take the lock that says that the shim lives; return whether there is anything to do."""
    lock = os.open(folder / "alive", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return not (folder / "exit.json").exists()


def main() -> None:
    """Run one program to its end."""
    folder = Path(sys.argv[1])
    answer = detach()
    if not claim(folder):
        os.write(answer, b"ok")
        return
    shim = Shim(folder)
    signal.signal(signal.SIGTERM, shim.terminate)
    signal.signal(signal.SIGUSR1, shim.kill)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    started_at = time.time()
    try:
        shim.start()
    except (OSError, subprocess.SubprocessError) as error:
        shim.output.close()
        write_end(folder, exit_code=127, error=str(error))
        os.write(answer, str(error).encode())
        return
    write_atomically(
        folder / "shim.json",
        {"pid": os.getpid(), "program": shim.pid, "started_at": started_at},
    )
    os.write(answer, b"ok")
    os.close(answer)
    shim.run()
    code = shim.returncode or 0
    write_end(folder, exit_code=128 - code if code < 0 else code, oom_killed=shim.oom_killed)


if __name__ == "__main__":
    main()
