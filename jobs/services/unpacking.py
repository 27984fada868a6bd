"""From the received file to the content; runs beside the workers when it may take long."""

import errno
import logging
import os
import subprocess
import sys
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final
from uuid import UUID

from django.conf import settings
from django.db.models import F, ProtectedError, Q

from jobs import dispatch, storage
from jobs.errors import ArchiveTooLargeError, UnsafeArchiveError, UploadGoneError
from jobs.models import CodeBundle, Content, DatasetVersion, Upload, VersionState
from jobs.models.dataset import UploadState
from jobs.selectors.datasets import storage_quota_bytes, storage_used_bytes
from jobs.services.datasets import content_for, upload_finish, version_settle

logger = logging.getLogger(__name__)

#: What a worker unpacks itself; it is done in a second or two, far within a task's time.
BRIEF: Final = storage.UnpackLimits(max_bytes=64 << 20, max_files=2000)
_BRIEF_UPLOAD_BYTES: Final = 16 << 20
#: How many unpackers run beside the workers at once, on one machine.
_PLACES: Final = 2
#: How often a version's unpacking is begun before the file itself is held to be the fault.
_STARTS: Final = 3
_LEFTOVER_AGE: Final = timedelta(hours=24)
_ROW_AGE: Final = timedelta(days=7)

_unpackers: list[subprocess.Popen[bytes]] = []


def dataset_unpack(*, version_id: UUID, now: datetime, brief: bool = False) -> bool:
    """Check and unpack a received version; return whether there is nothing left to do.

    One process at a time works on a version; one that is killed leaves nothing but the received
    file, and the next begins anew.

    Args:
        brief: Whether to leave what would take long as it is, and return ``False``.
    """
    with suppress(storage.Busy), storage.locked(_lock(version_id), wait=False) as descriptor:
        version = (
            DatasetVersion.objects.filter(public_id=version_id, state=VersionState.UNPACKING)
            .select_related("dataset__owner", "upload")
            .first()
        )
        if version is None:
            return True
        if brief and version.upload_bytes > _BRIEF_UPLOAD_BYTES:
            return False
        if not brief and _count_start(descriptor) > _STARTS:
            _fail(version, "unpacking it ended the unpacking program several times")
        elif not _unpack(version, brief=brief, now=now):
            return False
        _lock(version_id).unlink(missing_ok=True)
    return True


def unpack_pending(*, now: datetime) -> int:
    """Unpack what waits, one after the other; return how many. Where enough others do, none."""
    for place in range(_PLACES):
        with suppress(storage.Busy):
            return _drain(_place(place), now)
    return 0


def unpacker_start() -> None:
    """Start a program that unpacks what waits, in a session of its own: no task waits for it.

    Where enough of them run, none is started: each goes on until nothing waits.
    """
    _unpackers[:] = [process for process in _unpackers if process.poll() is None]
    if len(_unpackers) >= _PLACES or not _has_free_place():
        return
    _unpackers.append(
        subprocess.Popen(  # noqa: S603 - our own program, no argument from outside
            [sys.executable, str(Path(settings.BASE_DIR, "manage.py")), "unpack_datasets"],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    )


def sweep_uploads(*, now: datetime) -> None:
    """Repair and tidy: nudge what waits, give up what was left alone, remove what nobody has."""
    _finish_received(now)
    for version in DatasetVersion.objects.filter(state=VersionState.UNPACKING):
        dispatch.request_unpacking(version.public_id)
    _expire_uploads(now)
    _remove_stray_files(now)
    for content in Content.objects.filter(versions=None):
        content_collect(sha256=content.sha256)
    _remove_unused_code(now)


def content_collect(*, sha256: str) -> bool:
    """Remove a content that no version has; return whether it was removed."""
    trash = storage.staging_dir() / f"trash-{sha256}"
    with storage.locked(storage.contents_lock(), wait=True):
        if DatasetVersion.objects.filter(content__sha256=sha256).exists():
            return False
        Content.objects.filter(sha256=sha256, versions=None).delete()
        folder = storage.content_dir(sha256).parent
        # Out of the way at once, so that the same content can come again while this is removed.
        storage.remove_tree(trash)
        trash.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):
            folder.rename(trash)
    storage.remove_tree(trash)
    storage.remove_tree(storage.preview_dir(sha256))
    logger.info("content removed", extra={"sha256": sha256})
    return True


def _has_free_place() -> bool:
    for place in range(_PLACES):
        with suppress(storage.Busy), storage.locked(_place(place), wait=False):
            return True
    return False


def _place(number: int) -> Path:
    return storage.unpacking_lock(f"place-{number}")


def _drain(place: Path, now: datetime) -> int:
    """Unpack until nothing waits, and look once more after giving the place back.

    What was received between the last look and the giving back found every place taken.
    """
    tried: set[UUID] = set()
    while True:
        with storage.locked(place, wait=False):
            while (version_id := _next_waiting(tried)) is not None:
                tried.add(version_id)
                dataset_unpack(version_id=version_id, now=now)
        if _next_waiting(tried) is None:
            return len(tried)


def _next_waiting(tried: set[UUID]) -> UUID | None:
    waiting = DatasetVersion.objects.filter(state=VersionState.UNPACKING).order_by("created_at")
    return waiting.exclude(public_id__in=tried).values_list("public_id", flat=True).first()


def _unpack(version: DatasetVersion, *, brief: bool, now: datetime) -> bool:
    """Settle a version; return ``False`` where it is too much for ``brief``."""
    upload = getattr(version, "upload", None)
    source = storage.upload_path(upload.public_id) if upload is not None else None
    if upload is None or source is None or not source.is_file():
        _fail(version, "the received file is gone")
        return True
    full = _limits(version)
    limits = _briefly(full) if brief else full
    sha256 = storage.file_sha256(source)
    try:
        _check_announced(upload, sha256)
        _build(version, source, sha256, limits, now)
    except (UnsafeArchiveError, OSError) as error:
        if isinstance(error, ArchiveTooLargeError) and limits != full:
            return False
        _fail(version, _why(version, error), sha256)
    source.unlink(missing_ok=True)
    return True


def _briefly(limits: storage.UnpackLimits) -> storage.UnpackLimits:
    return storage.UnpackLimits(
        max_bytes=min(limits.max_bytes, BRIEF.max_bytes),
        max_files=min(limits.max_files, BRIEF.max_files),
    )


def _check_announced(upload: Upload, sha256: str) -> None:
    if upload.sha256 and upload.sha256 != sha256:
        raise UnsafeArchiveError(
            f"the bytes that arrived are not those that were sent (SHA-256 is {sha256},"
            f" announced was {upload.sha256})"
        )


def _build(
    version: DatasetVersion,
    source: Path,
    sha256: str,
    limits: storage.UnpackLimits,
    now: datetime,
) -> None:
    with storage.Tree.building(str(version.public_id), limits) as tree:
        if storage.is_archive(version.original_name):
            storage.unpack(source, version.original_name, tree)
        else:
            tree.adopt(storage.safe_filename(version.original_name), source, sha256)
        summary = tree.seal()
        with storage.locked(storage.contents_lock(), wait=True):
            tree.publish_content(storage.content_dir(summary.sha256).parent)
            content = content_for(summary, now=now)
            version_settle(version=version, content=content, error="", upload_sha256=sha256)
    logger.info(
        "dataset version ready",
        extra={"version": version.public_id, "files": summary.file_count, "sha256": summary.sha256},
    )


def _limits(version: DatasetVersion) -> storage.UnpackLimits:
    owner = version.dataset.owner
    # The received file counts as used until it is unpacked and gone.
    left = storage_quota_bytes(owner) - storage_used_bytes(owner) + version.upload_bytes
    return storage.UnpackLimits(
        max_bytes=max(0, min(settings.STARLING["UNPACK_MAX_MIB"] << 20, left)),
        max_files=settings.STARLING["UNPACK_MAX_FILES"],
    )


def _why(version: DatasetVersion, error: UnsafeArchiveError | OSError) -> str:
    if isinstance(error, OSError):
        if error.errno not in {errno.ENOSPC, errno.EDQUOT}:
            raise error
        return "the portal's disk is full; tell its administrators"
    allowed = settings.STARLING["UNPACK_MAX_MIB"] << 20
    if isinstance(error, ArchiveTooLargeError) and _limits(version).max_bytes < allowed:
        return f"{error}; this is what your quota has left, so deleting datasets helps too"
    return str(error)


def _fail(version: DatasetVersion, why: str, sha256: str = "") -> None:
    sentence = why[:1].upper() + why[1:].rstrip(".")
    version_settle(
        version=version,
        content=None,
        error=f"{sentence}. The received file was removed; upload it again once that is mended.",
        upload_sha256=sha256,
    )
    upload = getattr(version, "upload", None)
    if upload is not None:
        storage.upload_path(upload.public_id).unlink(missing_ok=True)
    logger.info("dataset version failed", extra={"version": version.public_id, "why": why})


def _lock(version_id: UUID) -> Path:
    return storage.unpacking_lock(str(version_id))


def _count_start(descriptor: int) -> int:
    """Return which start this is; the number is kept in the lock file."""
    starts = int(os.pread(descriptor, 16, 0) or b"0") + 1
    os.pwrite(descriptor, str(starts).encode(), 0)
    return starts


def _finish_received(now: datetime) -> None:
    """Make versions of files whose server ended between their last byte and that."""
    received = Upload.objects.filter(state=UploadState.RECEIVING, offset_bytes=F("length_bytes"))
    for upload in received:
        with suppress(storage.Busy, UploadGoneError), storage.UploadFile.held(upload.public_id):
            upload_finish(upload=upload, now=now)


def _expire_uploads(now: datetime) -> None:
    for upload in Upload.objects.filter(state=UploadState.RECEIVING, expires_at__lte=now):
        with suppress(storage.Busy), storage.UploadFile.held(upload.public_id):
            moved = Upload.objects.filter(
                pk=upload.pk, state=UploadState.RECEIVING, expires_at__lte=now
            ).update(state=UploadState.ABANDONED)
            if moved:
                storage.upload_path(upload.public_id).unlink(missing_ok=True)
                logger.info("upload expired", extra={"upload": upload.public_id})
    Upload.objects.filter(state=UploadState.ABANDONED, expires_at__lte=now - _ROW_AGE).delete()


def _remove_stray_files(now: datetime) -> None:
    """Remove received files without a row that wants them, and trees that were never finished."""
    oldest = (now - _LEFTOVER_AGE).timestamp()
    wanted = {
        str(public_id)
        for public_id in Upload.objects.filter(
            Q(state=UploadState.RECEIVING) | Q(version__state=VersionState.UNPACKING)
        ).values_list("public_id", flat=True)
    }
    for path in _older(storage.upload_path(UUID(int=0)).parent, oldest):
        if path.name not in wanted:
            path.unlink(missing_ok=True)
    for path in _older(storage.staging_dir(), oldest):
        with suppress(storage.Busy), storage.locked(storage.unpacking_lock(path.name), wait=False):
            storage.remove_tree(path)
            storage.unpacking_lock(path.name).unlink(missing_ok=True)


def _remove_unused_code(now: datetime) -> None:
    """Remove bundles that no job was made of, and the files that no bundle has."""
    unused = CodeBundle.objects.filter(jobs=None, created_at__lte=now - _ROW_AGE)
    for bundle in unused:
        with storage.locked(storage.contents_lock(), wait=True):
            with suppress(ProtectedError):
                bundle.delete()
            if not CodeBundle.objects.filter(sha256=bundle.sha256).exists():
                storage.remove_tree(storage.code_dir(bundle.sha256))


def _older(folder: Path, oldest: float) -> list[Path]:
    if not folder.is_dir():
        return []
    return [path for path in folder.iterdir() if path.lstat().st_mtime < oldest]
