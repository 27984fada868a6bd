"""Trees of files known by what is in them: written once, read-only from then on."""

import hashlib
import json
import os
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final, Self

from jobs.errors import ArchiveTooLargeError, UnsafeArchiveError
from jobs.storage.beneath import open_beneath, remove_tree
from jobs.storage.paths import staging_dir

CHUNK: Final = 1 << 20
# Up to here each file is flushed by itself; beyond, one flush of everything is cheaper.
_FLUSHED_SINGLY: Final = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class UnpackLimits:
    """How much a tree may hold."""

    max_bytes: int
    max_files: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEntry:
    """One file of a tree."""

    path: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ContentSummary:
    """What a sealed tree is.

    Attributes:
        sha256: Over the canonical list: for each file, in the order of its path's bytes,
            ``path NUL size NUL sha256 LF``. Equal trees have equal sums, whatever they came in.
    """

    sha256: str
    size_bytes: int
    file_count: int


class Tree:
    """A tree being built in a folder of its own; its list is kept on disk, not in memory."""

    def __init__(self, root: Path, limits: UnpackLimits) -> None:
        self._root = root
        self._files = root / "files"
        self._limits = limits
        self._files.mkdir(parents=True)
        self._index = sqlite3.connect(root / "index.sqlite", isolation_level=None)
        self._index.executescript(
            "PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF;"
            "CREATE TABLE entry (path BLOB PRIMARY KEY, size INTEGER, sha256 TEXT) WITHOUT ROWID;"
            "BEGIN;"
        )
        self.size_bytes = 0
        self.file_count = 0

    @classmethod
    @contextmanager
    def building(cls, name: str, limits: UnpackLimits) -> Iterator[Self]:
        """Yield an empty tree in the staging folder; nothing of it is left afterwards.

        What a killed predecessor of the same name has left is removed first.
        """
        root = staging_dir() / name
        remove_tree(root)
        tree = cls(root, limits)
        try:
            yield tree
        finally:
            tree.close()
            remove_tree(root)

    @property
    def limits(self) -> UnpackLimits:
        """Return how much the tree may hold."""
        return self._limits

    def close(self) -> None:
        """Let the list go; closing twice is not an error."""
        self._index.close()

    def add(self, path: str, chunks: Iterable[bytes]) -> FileEntry:
        """Write a file below the tree, never over another.

        Args:
            path: Relative, cleaned (see :mod:`jobs.storage.names`).
            chunks: The bytes, in pieces of any size.

        Raises:
            ArchiveTooLargeError: If the tree would hold more than its limits.
            UnsafeArchiveError: If the name is taken.
        """
        self._count_one(path)
        digest = hashlib.sha256()
        size = 0
        with self._create(path) as file:
            for chunk in chunks:
                size += len(chunk)
                self._check_bytes(self.size_bytes + size)
                file.write(chunk)
                digest.update(chunk)
            os.fchmod(file.fileno(), 0o444)
            if self.file_count <= _FLUSHED_SINGLY or size >= CHUNK:
                file.flush()
                os.fsync(file.fileno())
        return self._record(path, size, digest.hexdigest())

    def adopt(self, path: str, source: Path, sha256: str) -> FileEntry:
        """Take a file of the same file system into the tree as a second name; nothing is copied."""
        self._count_one(path)
        size = source.stat().st_size
        self._check_bytes(self.size_bytes + size)
        target = self._files / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.hardlink_to(source)
        target.chmod(0o444)
        return self._record(path, size, sha256)

    def paths(self) -> Iterator[str]:
        """Return the paths of the files so far, in the order of their bytes."""
        for (path,) in self._index.execute("SELECT path FROM entry ORDER BY path"):
            yield path.decode()

    def open(self, path: str) -> BinaryIO:
        """Open one of the tree's files for reading."""
        return open_beneath(self._files, path)

    def seal(self) -> ContentSummary:
        """Write the list, flush everything to disk and make the files read-only."""
        total = hashlib.sha256()
        with (self._root / "files.jsonl").open("w", encoding="ascii") as listing:
            rows = self._index.execute("SELECT path, size, sha256 FROM entry ORDER BY path")
            for path, size, sha256 in rows:
                total.update(b"%b\0%d\0%b\n" % (path, size, sha256.encode()))
                entry = {"path": path.decode(), "size_bytes": size, "sha256": sha256}
                listing.write(json.dumps(entry) + "\n")
            os.fchmod(listing.fileno(), 0o444)
            listing.flush()
            os.fsync(listing.fileno())
        self._index.close()
        (self._root / "index.sqlite").unlink()
        self._flush_folders()
        return ContentSummary(
            sha256=total.hexdigest(), size_bytes=self.size_bytes, file_count=self.file_count
        )

    def publish_content(self, folder: Path) -> None:
        """Move the sealed tree with its list to ``folder``, unless it is there already."""
        _rename_once(self._root, folder)

    def publish_files(self, folder: Path) -> None:
        """Move the sealed tree's files alone to ``folder``, unless they are there already."""
        # A folder that is moved gets a new "..": its mover must be allowed to write in it.
        self._files.chmod(0o755)
        _rename_once(self._files, folder)
        folder.chmod(0o555)

    def _create(self, path: str) -> BinaryIO:
        target = self._files / path
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            return target.open("xb")
        except (FileExistsError, NotADirectoryError) as error:
            raise UnsafeArchiveError(
                f"two entries of the archive have the same name {path!r};"
                " rename one of them and upload it again",
                member=path,
            ) from error

    def _count_one(self, path: str) -> None:
        if self.file_count >= self._limits.max_files:
            raise ArchiveTooLargeError(
                f"it holds more than {self._limits.max_files:,} files; pack many small files"
                " into fewer (npz, tfrecord) or split the dataset",
                member=path,
            )
        self.file_count += 1

    def _check_bytes(self, size: int) -> None:
        if size > self._limits.max_bytes:
            raise ArchiveTooLargeError(
                f"unpacked it holds more than {self._limits.max_bytes / 2**20:,.0f} MiB;"
                " leave out what is not needed or split the dataset"
            )

    def _record(self, path: str, size: int, sha256: str) -> FileEntry:
        try:
            self._index.execute("INSERT INTO entry VALUES (?, ?, ?)", (path.encode(), size, sha256))
        except sqlite3.IntegrityError as error:
            raise UnsafeArchiveError(f"the name {path!r} is there twice", member=path) from error
        self.size_bytes += size
        return FileEntry(path=path, size_bytes=size, sha256=sha256)

    def _flush_folders(self) -> None:
        if self.file_count > _FLUSHED_SINGLY:
            os.sync()
        for folder, _, _ in os.walk(self._files, topdown=False):
            if self.file_count <= _FLUSHED_SINGLY:
                _flush_folder(Path(folder))
            Path(folder).chmod(0o555)
        _flush_folder(self._root)


def _flush_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _rename_once(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        source.rename(target)
    except OSError:
        # Names are sums of contents: what is there already is the same, and whole, since it came
        # there by the same rename.
        if not target.is_dir():
            raise
    _flush_folder(target.parent)


def file_chunks(file: BinaryIO) -> Iterator[bytes]:
    """Return the rest of an open file in pieces of one MiB."""
    return iter(lambda: file.read(CHUNK), b"")


def file_sha256(path: Path) -> str:
    """Return the sum of a file's bytes, in constant memory."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def iter_entries(index: Path, *, prefix: str = "") -> Iterator[FileEntry]:
    """Return the files of a content whose paths begin with ``prefix``, in order, one at a time."""
    wanted = prefix.encode()
    with index.open(encoding="ascii") as listing:
        for line in listing:
            entry = json.loads(line)
            path = str(entry["path"]).encode()
            if path.startswith(wanted):
                yield FileEntry(**entry)
            elif path > wanted:
                return
