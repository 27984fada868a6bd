"""Sends files and archives of any size with constant memory, on both kinds of server."""

import mimetypes
import re
import zipfile
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from datetime import datetime
from pathlib import PurePosixPath
from typing import Any, BinaryIO, Final

from asgiref.sync import sync_to_async
from django.core.handlers.asgi import ASGIRequest
from django.http import HttpResponseBase, StreamingHttpResponse
from django.utils.http import content_disposition_header
from rest_framework.request import Request
from rest_framework.response import Response

from jobs.errors import NotFoundError

BLOCK_BYTES: Final = 256 * 1024
_RANGE: Final = re.compile(r"bytes=(\d{0,18})-(\d{0,18})\Z", re.ASCII)
#: What a browser may show as it is; any other file of a stranger is only ever saved.
_SHOWN: Final = frozenset(
    {"image/png", "image/jpeg", "image/gif", "image/webp", "image/bmp", "text/plain", "text/csv"}
)


def streamed(
    request: Request, blocks: Iterator[bytes], *, content_type: str, status: int = 200
) -> StreamingHttpResponse:
    """Return a response that reads its blocks one by one.

    Django under ASGI would first collect a plain iterator whole, and under WSGI an asynchronous
    one; so each server gets its own kind.
    """
    is_async = isinstance(request._request, ASGIRequest)  # noqa: SLF001 - no public way to ask
    content: Any = _asynchronous(blocks) if is_async else blocks
    return StreamingHttpResponse(content, status=status, content_type=content_type)


async def _asynchronous(blocks: Iterator[bytes]) -> AsyncIterator[bytes]:
    following: Callable[..., Any] = sync_to_async(next, thread_sensitive=False)
    try:
        while (block := await following(blocks, None)) is not None:
            yield block
    finally:
        close = getattr(blocks, "close", None)
        if close is not None:
            await sync_to_async(close, thread_sensitive=False)()


def file_response(
    request: Request, file: BinaryIO, *, path: str, attachment: bool = True
) -> HttpResponseBase:
    """Return a file, or the part of it that the header ``Range`` asks for.

    Takes over ``file`` and closes it. A range that cannot be had is a 416; several ranges at
    once, which nobody has to support, are answered with the whole file.
    """
    size = file.seek(0, 2)
    wanted = _wanted(request.headers.get("Range", ""), size)
    if wanted is None:
        file.close()
        return Response(
            {
                "code": "range_not_satisfiable",
                "message": f"The file has {size} bytes; ask for a part of them.",
                "fields": {},
            },
            status=416,
            headers={"Content-Range": f"bytes */{size}"},
        )
    first, last, is_part = wanted
    guessed = mimetypes.guess_type(path)[0] or ""
    answer = streamed(
        request,
        _Blocks(file, first, last - first + 1),
        content_type=guessed if guessed in _SHOWN else "application/octet-stream",
        status=206 if is_part else 200,
    )
    answer["Content-Length"] = str(last - first + 1)
    answer["Accept-Ranges"] = "bytes"
    answer["X-Content-Type-Options"] = "nosniff"
    answer["Content-Disposition"] = str(
        content_disposition_header(attachment, PurePosixPath(path).name)
    )
    if is_part:
        answer["Content-Range"] = f"bytes {first}-{last}/{size}"
    return answer


def _wanted(header: str, size: int) -> tuple[int, int, bool] | None:
    """Return first and last byte and whether that is a part; ``None`` for an impossible range."""
    match = _RANGE.match(header.replace(" ", ""))
    if match is None or match.group(1) == match.group(2) == "":
        return 0, size - 1, False
    start, end = match.groups()
    if start == "":
        first, last = max(0, size - int(end)), size - 1
    else:
        first, last = int(start), min(int(end), size - 1) if end else size - 1
    return (first, last, True) if first <= last else None


class _Blocks:
    """A part of a file, block by block; closed even if nobody ever asked for the first block."""

    def __init__(self, file: BinaryIO, first: int, length: int) -> None:
        self._file, self._left = file, length
        file.seek(first)

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        block = self._file.read(min(BLOCK_BYTES, self._left)) if self._left > 0 else b""
        if not block:
            self.close()
            raise StopIteration
        self._left -= len(block)
        return block

    def close(self) -> None:
        self._file.close()


class _Outlet:
    """A file that cannot seek; what is written waits until it is taken."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def write(self, block: bytes) -> int:
        self._parts.append(bytes(block))
        return len(block)

    def flush(self) -> None:
        """Nothing to do: there is no buffer beneath."""

    def close(self) -> None:
        """Nothing to do: nothing was opened."""

    def take(self) -> bytes:
        taken, self._parts = b"".join(self._parts), []
        return taken


def zipped(
    members: Iterable[tuple[str, datetime]], open_member: Callable[[str], BinaryIO]
) -> Iterator[bytes]:
    """Yield a ZIP archive, block by block, of files opened one at a time.

    Args:
        members: Path in the archive, and when it was changed.
        open_member: Opens the file of a path; what has vanished meanwhile is named in a note at
            the archive's end instead of spoiling the rest.
    """
    outlet, missing = _Outlet(), []
    with zipfile.ZipFile(outlet, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for path, changed_at in members:
            try:
                file = open_member(path)
            except NotFoundError:
                missing.append(path)
                continue
            stamp = max(changed_at.timetuple()[:6], (1980, 1, 1, 0, 0, 0))
            entry = zipfile.ZipInfo(path, date_time=stamp)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o644 << 16
            with file, archive.open(entry, "w", force_zip64=True) as sink:
                while block := file.read(BLOCK_BYTES):
                    sink.write(block)
                    yield outlet.take()
        if missing:
            archive.writestr("MISSING-FILES.txt", "\n".join(missing) + "\n")
    yield outlet.take()
