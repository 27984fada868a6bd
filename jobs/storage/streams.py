"""Compressed streams read forwards only, in bounded memory, whatever they claim."""

import bz2
import io
import lzma
import zlib
from collections.abc import Callable
from typing import BinaryIO, Final, Protocol

from jobs.errors import ArchiveTooLargeError, UnsafeArchiveError

_PIECE: Final = 1 << 16
# xz -9 needs 65 MiB; more is not an honest archive's need.
_XZ_MEMORY: Final = 256 << 20
# No header of an honest tar and no single read of ours is longer.
_LONGEST_READ: Final = 8 << 20


class _Decompressor(Protocol):
    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...

    @property
    def needs_input(self) -> bool: ...

    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...


class _Gzip:
    """zlib's object, which keeps its unread input apart, in the shape of bz2's and lzma's."""

    def __init__(self) -> None:
        self._inner = zlib.decompressobj(wbits=31)

    @property
    def eof(self) -> bool:
        return self._inner.eof

    @property
    def unused_data(self) -> bytes:
        return self._inner.unused_data

    @property
    def needs_input(self) -> bool:
        return not self._inner.unconsumed_tail

    def decompress(self, data: bytes, max_length: int, /) -> bytes:
        return self._inner.decompress(self._inner.unconsumed_tail + data, max_length)


class _Plain:
    """No compression at all."""

    eof = False
    unused_data = b""
    needs_input = True

    def decompress(self, data: bytes, max_length: int, /) -> bytes:  # noqa: ARG002 - as its siblings
        return data


def _xz() -> _Decompressor:
    return lzma.LZMADecompressor(memlimit=_XZ_MEMORY)


DECOMPRESSORS: Final[dict[str, Callable[[], _Decompressor]]] = {
    "": _Plain,
    "gz": _Gzip,
    "xz": _xz,
    "bz2": bz2.BZ2Decompressor,
}


class ForwardStream(io.RawIOBase):
    """The decompressed bytes of a file: read and skip forwards, never back.

    Attributes:
        last_read: What the latest read returned; after a tar's end, its closing block.
    """

    def __init__(self, file: BinaryIO, compression: str, *, max_bytes: int) -> None:
        super().__init__()
        self._file = file
        self._make = DECOMPRESSORS[compression]
        self._decompressor = self._make()
        self._max_bytes = max_bytes
        self._buffer = b""
        self._position = 0
        self._ended = False
        self.last_read = b""

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Skip to ``offset``; what tarfile asks for is always ahead.

        Raises:
            UnsafeArchiveError: If it lies behind: only a forged archive leads back.
        """
        if whence != io.SEEK_SET or offset < self._position:
            raise UnsafeArchiveError("the archive is damaged: its parts are out of order")
        while self._position < offset and self._take(min(_PIECE, offset - self._position)):
            pass
        return self._position

    def read(self, size: int | None = -1) -> bytes:
        """Return exactly ``size`` bytes, fewer only at the end."""
        if size is None or not 0 <= size <= _LONGEST_READ:
            raise UnsafeArchiveError("the archive is damaged: a header claims an absurd length")
        pieces = []
        while size and (piece := self._take(size)):
            pieces.append(piece)
            size -= len(piece)
        self.last_read = b"".join(pieces)
        return self.last_read

    def _take(self, size: int) -> bytes:
        while not self._buffer and not self._ended:
            self._fill()
        piece, self._buffer = self._buffer[:size], self._buffer[size:]
        self._position += len(piece)
        if self._position > self._max_bytes:
            raise ArchiveTooLargeError(
                f"unpacked it holds more than {self._max_bytes / 2**20:,.0f} MiB;"
                " leave out what is not needed or split the dataset"
            )
        return piece

    def _fill(self) -> None:
        try:
            if self._decompressor.eof:
                self._next_stream()
                return
            # Asked again without new input while it still has some: its own buffer stays small.
            raw = self._file.read(_PIECE) if self._decompressor.needs_input else b""
            ended = self._decompressor.needs_input and not raw
            self._buffer = self._decompressor.decompress(raw, _PIECE)
        except (OSError, EOFError, ValueError, zlib.error, lzma.LZMAError) as error:
            raise UnsafeArchiveError(
                f"the archive is damaged and cannot be decompressed ({error})"
            ) from error
        if ended and not self._buffer and not self._decompressor.eof:
            if not isinstance(self._decompressor, _Plain):
                raise UnsafeArchiveError("the archive ends too early; upload it again")
            self._ended = True

    def _next_stream(self) -> None:
        """Go on with what follows a finished stream: another one, or padding to the end."""
        rest = self._decompressor.unused_data.lstrip(b"\0")
        while not rest:
            raw = self._file.read(_PIECE)
            if not raw:
                self._ended = True
                return
            rest = raw.lstrip(b"\0")
        self._decompressor = self._make()
        self._buffer = self._decompressor.decompress(rest, _PIECE)
