"""Docker's multiplexed log stream: eight-byte headers, then text with the engine's timestamps."""

import socket
import struct
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from queue import Empty, Full, Queue
from threading import Event, Thread
from typing import Final

import requests

from cluster.adapters.docker_runtime.connection import socket_of
from cluster.ports import LogLine

_HEADER: Final = struct.Struct(">BxxxL")
_STREAMS: Final = {1: "stdout", 2: "stderr"}
_CHUNK: Final = 1 << 16
_AHEAD: Final = 32
_LINE_BYTES: Final = 64 * 1024
_SECOND: Final = 10**9
#: How far apart two lines may be out of order; the base of a cursor stays this far behind.
_DISORDER_NS: Final = 5 * _SECOND
_WINDOW: Final = 200_000


class Stream:
    """Reads an open response in a thread of its own, so that its reader can look up in between.

    A read with a time limit is no way out: after one the buffered response is unusable.
    """

    def __init__(self, response: requests.Response) -> None:
        self._response = response
        self._chunks: Queue[bytes | Exception] = Queue(maxsize=_AHEAD)
        self._closed = Event()
        Thread(target=self._read, daemon=True, name="docker-log").start()

    def frames(self, *, heartbeat_s: float) -> Iterator[tuple[str, bytes] | None]:
        """Yield ``(stream, bytes)`` of each frame, ``None`` where nothing came for a while.

        Raises:
            ConnectionError: If the stream breaks, or ends in the middle of a frame.
        """
        pending = bytearray()
        while True:
            try:
                chunk = self._chunks.get(timeout=heartbeat_s)
            except Empty:
                yield None
                continue
            if isinstance(chunk, Exception):
                raise ConnectionError(str(chunk)) from chunk
            if not chunk:
                if pending:
                    raise ConnectionError("the log stream ended in the middle of a frame")
                return
            pending += chunk
            start = 0
            while len(pending) - start >= _HEADER.size:
                kind, length = _HEADER.unpack_from(pending, start)
                end = start + _HEADER.size + length
                if len(pending) < end:
                    break
                yield _STREAMS.get(kind, "stdout"), bytes(pending[start + _HEADER.size : end])
                start = end
            del pending[:start]

    def close(self) -> None:
        """End the reading, also where the thread waits for bytes that never come."""
        self._closed.set()
        waiting = socket_of(self._response)
        if waiting is not None:
            with suppress(OSError):
                waiting.shutdown(socket.SHUT_RDWR)

    def _read(self) -> None:
        end: bytes | Exception = b""
        try:
            while chunk := self._response.raw.read1(_CHUNK):
                if not self._put(chunk):
                    break
        except Exception as error:  # noqa: BLE001 - whatever broke it, the reader must hear of it
            end = error
        self._put(end)
        self._response.close()

    def _put(self, chunk: bytes | Exception) -> bool:
        while not self._closed.is_set():
            with suppress(Full):
                self._chunks.put(chunk, timeout=0.5)
                return True
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """How far a log was read.

    The engine can leave out what is older than a moment, and its log is not quite in the order
    of its timestamps: two streams are stamped before they are written. So a position is a base
    that lies well behind, and how many of the lines from there on were read.

    Attributes:
        base_ns: Lines stamped before this moment were all read.
        count: How many of the others were read, in the log's own order.
        total: How many were read since the log's beginning.
    """

    base_ns: int = 0
    count: int = 0
    total: int = 0

    @classmethod
    def parse(cls, cursor: str) -> "Position":
        """Return the position of a cursor; the beginning where it is empty."""
        if not cursor:
            return cls()
        base, count, total = (int(word) for word in cursor.split(":"))
        return cls(base_ns=base, count=count, total=total)

    def __str__(self) -> str:
        return f"{self.base_ns}:{self.count}:{self.total}"


class LineAssembler:
    """Makes lines with cursors from the frames of one reading that began at a position."""

    def __init__(self, position: Position) -> None:
        self._base_ns = position.base_ns
        self._skip = position.count
        self._total = position.total
        self._count = 0
        self._latest_ns = 0
        self._floor_ns = 0
        self._clock_stepped = False
        self._stamps: deque[int] = deque()
        self._partial: dict[str, tuple[int, bytes]] = {}

    @property
    def position(self) -> Position:
        """Return where another reading would go on."""
        if self._count < self._skip:
            return Position(base_ns=self._base_ns, count=self._skip, total=self._total)
        return Position(base_ns=self._base_ns, count=self._count, total=self._total)

    def feed(self, stream: str, frame: bytes) -> Iterator[LogLine]:
        """Take one frame: a timestamp, a space, and a line or a part of one."""
        stamp, _, text = frame.partition(b" ")
        at_ns, rest = self._partial.get(
            stream, (nanoseconds(stamp.decode("ascii", "replace")), b"")
        )
        # Noted also while its pieces are told: the base may not pass a line that goes on.
        self._partial[stream] = (at_ns, b"")
        rest += text
        ended = rest.endswith(b"\n")
        if ended:
            rest = rest[:-1]
        while len(rest) > _LINE_BYTES:
            end = cut(rest)
            yield from self._line(stream, at_ns, rest[:end])
            rest = rest[end:]
        if ended:
            yield from self._line(stream, at_ns, rest)
            del self._partial[stream]
        else:
            self._partial[stream] = (at_ns, rest)

    def flush(self) -> Iterator[LogLine]:
        """Yield what has no line end; only where nothing can follow any more."""
        pending, self._partial = self._partial, {}
        for stream, (at_ns, rest) in pending.items():
            if rest:
                yield from self._line(stream, at_ns, rest)

    def _line(self, stream: str, at_ns: int, text: bytes) -> Iterator[LogLine]:
        skipped = self._count < self._skip
        if at_ns < self._base_ns:
            if skipped:
                return
            # The host's clock was set back: only the number of lines is still a measure.
            self._clock_stepped = True
            self._base_ns, self._count = 0, self._total
        self._count += 1
        self._stamps.append(at_ns)
        self._latest_ns = max(self._latest_ns, at_ns)
        if skipped:
            return
        self._skip = 0
        self._total += 1
        self._advance()
        yield LogLine(
            at=datetime.fromtimestamp(at_ns / _SECOND, tz=UTC),
            stream=stream,
            text=text.decode("utf-8", "replace"),
            cursor=str(self.position),
        )

    def _advance(self) -> None:
        """Move the base along, so that another reading has little to skip."""
        if self._clock_stepped:
            self._stamps.clear()
            return
        while len(self._stamps) > _WINDOW:
            self._floor_ns = max(self._floor_ns, self._stamps.popleft() + 1)
        if self._latest_ns - self._base_ns < 2 * _DISORDER_NS and self._count < 2 * _WINDOW:
            return
        base = max(self._floor_ns, self._latest_ns - _DISORDER_NS)
        base = min([base, *(at_ns for at_ns, _ in self._partial.values())])
        if base > self._base_ns and base >= self._floor_ns:
            self._base_ns = base
            self._stamps = deque(stamp for stamp in self._stamps if stamp >= base)
            self._count = len(self._stamps)


def cut(text: bytes) -> int:
    """Return where to cut a line that is too long: at its limit, but in no character."""
    end = _LINE_BYTES
    while end > _LINE_BYTES - 4 and text[end] & 0xC0 == 0x80:
        end -= 1
    return end


def nanoseconds(stamp: str) -> int:
    """Return an RFC 3339 timestamp as nanoseconds since 1970; 0 where it is none."""
    whole, _, fraction = stamp.rstrip("Z").partition(".")
    try:
        seconds = int(datetime.fromisoformat(whole + "+00:00").timestamp())
    except ValueError:
        return 0
    return seconds * 10**9 + int((fraction or "0").ljust(9, "0")[:9])
