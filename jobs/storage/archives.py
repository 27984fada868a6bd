"""Unpacking archives that strangers made: every member is read, checked and written by us."""

import re
import tarfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, BinaryIO, Final

from jobs.errors import ArchiveTooLargeError, UnsafeArchiveError
from jobs.storage.contents import CHUNK, Tree
from jobs.storage.names import member_path, readable
from jobs.storage.streams import ForwardStream

_KIND: Final = re.compile(
    r"\.(?:(?P<zip>zip)|tar|tar\.(?P<long>gz|xz|bz2)|t(?P<short>gz|xz|bz2?))$", re.IGNORECASE
)
# A list of a zip's members longer than this is not an honest archive's.
_ZIP_LIST_BYTES: Final = 256 << 20
_ZIP_METHODS: Final = frozenset({zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2})
_ZIP_ENTRY: Final = b"PK\x01\x02"
_TAR_BLOCK: Final = 512
_UTF8_NAME: Final = 0x800
_ENCRYPTED: Final = 0x1
_S_IFMT, _S_IFREG, _S_IFDIR, _S_IFLNK = 0o170000, 0o100000, 0o040000, 0o120000


def is_archive(filename: str) -> bool:
    """Return whether a file of this name is unpacked; any other is kept as it is."""
    return _KIND.search(filename) is not None


def unpack(source: Path, filename: str, tree: Tree) -> None:
    """Write the files of an archive into ``tree``.

    Folders come with their files (an empty one is nothing), permissions and times are dropped,
    archives within are kept as files.

    Raises:
        UnsafeArchiveError: If a member cannot be written without harm, or the archive is damaged.
        ArchiveTooLargeError: If it holds more than the tree may.
    """
    kind = _KIND.search(filename)
    if kind is None:
        raise ValueError(f"{filename} is not named as an archive")
    with source.open("rb") as file, _as_damaged(filename):
        if kind["zip"]:
            _unpack_zip(file, tree)
        else:
            compression = (kind["long"] or kind["short"] or "").lower()
            _unpack_tar(file, "bz2" if compression == "bz" else compression, tree)
    if not tree.file_count:
        raise UnsafeArchiveError("the archive holds no file; pack it again and look inside first")


@contextmanager
def _as_damaged(filename: str) -> Iterator[None]:
    """Say in our words what the readers of the standard library say in theirs, or trip over."""
    try:
        yield
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, NotImplementedError) as error:
        raise UnsafeArchiveError(
            f"{filename} is damaged or not such an archive ({error}); pack it again and upload it"
        ) from error
    except (ValueError, LookupError, ArithmeticError, RuntimeError, MemoryError) as error:
        raise UnsafeArchiveError(
            f"{filename} has contradicting headers and cannot be read; pack it again"
        ) from error


# --- zip ------------------------------------------------------------------------------------


class _GuardedZip:
    """A zip's file for :class:`zipfile.ZipFile`, which reads the whole list of members at once."""

    def __init__(self, file: BinaryIO, max_files: int) -> None:
        self._file = file
        self._max_files = max_files

    def read(self, size: int = -1) -> bytes:
        if size > _ZIP_LIST_BYTES:
            raise UnsafeArchiveError("the archive's list of members is absurdly long")
        raw = self._file.read(size)
        # Counted before zipfile makes an object of each; folders count here too.
        if raw.startswith(_ZIP_ENTRY) and raw.count(_ZIP_ENTRY) > 2 * self._max_files + 10:
            raise ArchiveTooLargeError(
                f"it holds more than {self._max_files:,} files; pack many small files into fewer"
            )
        return raw

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def _unpack_zip(file: BinaryIO, tree: Tree) -> None:
    guarded: Any = _GuardedZip(file, tree.limits.max_files)
    with zipfile.ZipFile(guarded) as archive:
        for member in archive.infolist():
            path = _zip_path(member)
            if path is None or _is_zip_folder(member):
                continue
            _check_zip_member(member)
            with archive.open(member) as content:
                tree.add(path, _exactly(content, member.file_size, path))


def _zip_path(member: zipfile.ZipInfo) -> str | None:
    name = member.orig_filename
    if not member.flag_bits & _UTF8_NAME:
        # Read as CP437 by the letter of the format; most packers meant UTF-8.
        name = readable(name.encode("cp437"), fallback="cp437")
    return member_path(name.replace("\\", "/"))


def _is_zip_folder(member: zipfile.ZipInfo) -> bool:
    return (
        member.orig_filename.endswith(("/", "\\"))
        or (member.external_attr >> 16) & _S_IFMT == _S_IFDIR
    )


def _check_zip_member(member: zipfile.ZipInfo) -> None:
    name = member.orig_filename
    kind = (member.external_attr >> 16) & _S_IFMT
    if kind == _S_IFLNK:
        raise _is_link(name)
    if kind not in {0, _S_IFREG}:
        raise UnsafeArchiveError(f"the entry {name!r} is not a regular file; leave it out")
    if member.flag_bits & _ENCRYPTED:
        raise UnsafeArchiveError(
            "the archive is encrypted; pack it again without a password", member=name
        )
    if member.compress_type not in _ZIP_METHODS:
        raise UnsafeArchiveError(
            f"the entry {name!r} is compressed in a way that is not supported;"
            " pack it again with the usual method (deflate), or as tar.gz",
            member=name,
        )


# --- tar ------------------------------------------------------------------------------------


def _unpack_tar(file: BinaryIO, compression: str, tree: Tree) -> None:
    # Headers are at most a few blocks a member; a stream far above that is a bomb of headers.
    allowed = tree.limits.max_bytes + 8 * _TAR_BLOCK * tree.limits.max_files
    stream = ForwardStream(file, compression, max_bytes=allowed)
    with tarfile.TarFile(
        fileobj=stream, mode="r", encoding="utf-8", errors="surrogateescape"
    ) as archive:
        while (member := archive.next()) is not None:
            # The reader keeps every member it has seen; a million of them is too many.
            archive.members.clear()  # type: ignore[attr-defined] # documented nowhere, there ever since
            _add_tar_member(archive, member, tree)
    # tarfile takes whatever is no header for the end; a real end is a block of zeros.
    if len(stream.last_read) != _TAR_BLOCK or any(stream.last_read):
        raise UnsafeArchiveError("the archive is damaged or ends too early; upload it again")


def _add_tar_member(archive: tarfile.TarFile, member: tarfile.TarInfo, tree: Tree) -> None:
    name = readable(member.name.encode("utf-8", "surrogateescape"), fallback="latin-1")
    path = member_path(name)
    if path is None or member.isdir():
        return
    if member.issym() or member.islnk():
        raise _is_link(name)
    if not member.isreg():
        raise UnsafeArchiveError(
            f"the entry {name!r} is a device or a pipe; leave it out", member=name
        )
    if tree.size_bytes + member.size > tree.limits.max_bytes:
        raise ArchiveTooLargeError(
            f"unpacked it holds more than {tree.limits.max_bytes / 2**20:,.0f} MiB;"
            " leave out what is not needed or split the dataset",
            member=name,
        )
    content = archive.extractfile(member)
    if content is None:
        raise UnsafeArchiveError(f"the entry {name!r} has no content", member=name)
    with content:
        tree.add(path, _exactly(content, member.size, path))


def _is_link(name: str) -> UnsafeArchiveError:
    return UnsafeArchiveError(
        f"the entry {name!r} is a link; pack the file itself (tar --dereference, zip without -y)",
        member=name,
    )


def _exactly(content: IO[bytes], size: int, path: str) -> Iterator[bytes]:
    left = size
    while chunk := content.read(CHUNK):
        left -= len(chunk)
        yield chunk
    if left:
        raise UnsafeArchiveError(f"the entry {path!r} is cut short; upload it again", member=path)
