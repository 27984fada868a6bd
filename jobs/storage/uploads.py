"""The bytes of an upload on their way to disk; one writer at a time."""

import errno
import hashlib
import hmac
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Self
from uuid import UUID

from jobs.errors import ChecksumMismatchError, InvalidInputError, StorageFullError
from jobs.storage.locks import locked
from jobs.storage.paths import upload_path

#: So much is received between two notes of how far it has come.
_NOTED_BYTES: Final = 16 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """What a part of an upload must be.

    Attributes:
        algorithm: ``sha1`` or ``sha256``; empty when the sender gave no checksum.
        digest: The sum of the part's bytes.
    """

    algorithm: str = ""
    digest: bytes = b""


#: Of a part whose sender gave no checksum.
NO_CHECKSUM: Final = Receipt()


class UploadFile:
    """An upload's file, held against other writers.

    What is noted is on disk: the file may hold more after a crash, and the next part writes over
    that.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @classmethod
    @contextmanager
    def held(cls, upload_id: UUID) -> Iterator[Self]:
        """Hold the file of an upload.

        Raises:
            Busy: If another request writes to it.
        """
        with locked(upload_path(upload_id), wait=False) as descriptor:
            yield cls(descriptor)

    def append(
        self,
        chunks: Iterable[bytes],
        *,
        offset: int,
        room: int,
        receipt: Receipt,
        note: Callable[[int], None],
    ) -> int:
        """Write a part at ``offset``; return where it ends.

        Args:
            chunks: May break off with an exception; what came before it is kept, unless there is
                a checksum, which a part cut short cannot have.
            offset: Where the part begins.
            room: How many bytes may still come.
            receipt: The part's checksum, if it has one.
            note: Called with the new offset once the bytes before it are on disk.

        Raises:
            InvalidInputError: If more bytes come than there is room for.
            ChecksumMismatchError: If the part is not what its checksum says.
            StorageFullError: If the disk is full.
        """
        digest = hashlib.new(receipt.algorithm) if receipt.algorithm else None
        os.lseek(self._descriptor, offset, os.SEEK_SET)
        written = noted = 0
        try:
            for chunk in chunks:
                if written + len(chunk) > room:
                    raise InvalidInputError(
                        {"length": ["More bytes arrived than were announced; begin a new upload."]}
                    )
                self._write(chunk)
                written += len(chunk)
                if digest is not None:
                    digest.update(chunk)
                elif written - noted >= _NOTED_BYTES:
                    noted = self._settle(offset, written, note)
        finally:
            if digest is None and written > noted:
                self._settle(offset, written, note)
        if digest is not None:
            if not hmac.compare_digest(digest.digest(), receipt.digest):
                raise ChecksumMismatchError(
                    "this part arrived with other bytes than it was sent with; send it again"
                )
            self._settle(offset, written, note)
        return offset + written

    def _write(self, chunk: bytes) -> None:
        rest = memoryview(chunk)
        try:
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
        except OSError as error:
            if error.errno not in {errno.ENOSPC, errno.EDQUOT}:
                raise
            raise StorageFullError(
                "the portal's disk is full; tell its administrators and go on later"
            ) from error

    def _settle(self, offset: int, written: int, note: Callable[[int], None]) -> int:
        os.fdatasync(self._descriptor)
        note(offset + written)
        return written
