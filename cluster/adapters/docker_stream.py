"""Docker's multiplexed log stream: eight-byte headers, then text with the engine's timestamps."""

import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from queue import Empty, Full, Queue
from threading import Event, Thread
from typing import Final

import requests

from cluster.ports import LogLine

_HEADER: Final = struct.Struct(">BxxxL")
_STREAMS: Final = {1: "stdout", 2: "stderr"}
_CHUNK: Final = 1 << 16
_AHEAD: Final = 32


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
        pending = b""
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
            while len(pending) >= _HEADER.size:
                kind, length = _HEADER.unpack_from(pending)
                end = _HEADER.size + length
                if len(pending) < end:
                    break
                yield _STREAMS.get(kind, "stdout"), pending[_HEADER.size : end]
                pending = pending[end:]

    def close(self) -> None:
        """End the reading, also where the thread waits for bytes that never come."""
        self._closed.set()
        connection = getattr(self._response.raw, "_connection", None)
        waiting = getattr(connection, "sock", None)
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


class LineAssembler:
    """Makes lines with cursors from frames.

    A line's cursor is its timestamp in nanoseconds and how many lines with that timestamp came
    up to it; following on from there, that many of the same timestamp are skipped.
    """

    def __init__(self, *, since_ns: int, skip: int) -> None:
        self._since_ns = since_ns
        self._skip = skip
        self._at_ns = 0
        self._count = 0
        self._partial: dict[str, tuple[int, bytes]] = {}

    def feed(self, stream: str, frame: bytes) -> Iterator[LogLine]:
        """Take one frame: a timestamp, a space, and a line or a part of one."""
        stamp, _, text = frame.partition(b" ")
        at_ns = nanoseconds(stamp.decode("ascii", "replace"))
        started_ns, before = self._partial.pop(stream, (at_ns, b""))
        whole = before + text
        if whole.endswith(b"\n"):
            yield from self._line(stream, started_ns, whole[:-1])
        else:
            self._partial[stream] = (started_ns, whole)

    def flush(self) -> Iterator[LogLine]:
        """Yield what had no line end when the stream ended."""
        for stream, (at_ns, rest) in self._partial.items():
            yield from self._line(stream, at_ns, rest)
        self._partial.clear()

    def _line(self, stream: str, at_ns: int, text: bytes) -> Iterator[LogLine]:
        if at_ns != self._at_ns:
            self._at_ns, self._count = at_ns, 0
        self._count += 1
        if at_ns < self._since_ns or (at_ns == self._since_ns and self._count <= self._skip):
            return
        yield LogLine(
            at=datetime.fromtimestamp(at_ns / 1e9, tz=UTC),
            stream=stream,
            text=text.decode("utf-8", "replace"),
            cursor=f"{at_ns}:{self._count}",
        )


def nanoseconds(stamp: str) -> int:
    """Return an RFC 3339 timestamp as nanoseconds since 1970; 0 where it is none."""
    whole, _, fraction = stamp.rstrip("Z").partition(".")
    try:
        seconds = int(datetime.fromisoformat(whole + "+00:00").timestamp())
    except ValueError:
        return 0
    return seconds * 10**9 + int((fraction or "0").ljust(9, "0")[:9])
