"""Uploads become versions of datasets; names, sharing and deletion of datasets."""

import re
import unicodedata
from collections.abc import Iterable
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final
from uuid import UUID, uuid4

from django.conf import settings
from django.contrib.auth import get_user_model
from django.db import connection, transaction
from django.db.models import Max

from jobs import dispatch, storage
from jobs.errors import (
    InvalidInputError,
    NotFoundError,
    NotPossibleNowError,
    QuotaExceededError,
    UploadGoneError,
    UploadLockedError,
    UploadOffsetError,
)
from jobs.lifecycle import ACTIVE
from jobs.models import (
    Content,
    Dataset,
    DatasetVersion,
    JobDataset,
    JobEvent,
    Upload,
    VersionState,
)
from jobs.models.dataset import UploadState
from jobs.models.ownership import administers, sees_all
from jobs.selectors.datasets import storage_quota_bytes, storage_used_bytes
from jobs.signals import dataset_changed

_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_NAME_CHARS: Final = 120
_MIB: Final = 1 << 20


# --- uploads --------------------------------------------------------------------------------


def upload_create(
    *,
    owner: Any,
    dataset_name: str,
    filename: str,
    length_bytes: int,
    sha256: str = "",
    now: datetime,
) -> Upload:
    """Make room for a file; its bytes come by :func:`upload_append`.

    Args:
        dataset_name: Of the owner's dataset that gets a new version, or is made by it; empty for
            the file's name without its ending.
        sha256: What the sender says the whole file's sum is; empty when it does not say.

    Raises:
        InvalidInputError: By field, with what to do.
        QuotaExceededError: If it does not fit in what the owner may still store.
    """
    filename = storage.safe_filename(filename)
    name = dataset_name_cleaned(dataset_name or _stem(filename))
    _check_length(length_bytes)
    sha256 = sha256.strip().lower()
    if sha256 and not _SHA256.fullmatch(sha256):
        raise InvalidInputError({"sha256": ["Give the SHA-256 sum as 64 hexadecimal digits."]})
    with transaction.atomic():
        # Two uploads that begin at once take turns here; each sees the other's claim on the quota.
        get_user_model().objects.select_for_update().get(pk=owner.pk)
        _check_quota(owner, length_bytes)
        return Upload.objects.create(
            owner=owner,
            dataset_name=name,
            filename=filename,
            length_bytes=length_bytes,
            sha256=sha256,
            created_at=now,
            expires_at=now + _upload_lifetime(),
        )


def upload_append(
    *,
    upload_id: UUID,
    actor: Any,
    offset: int,
    chunks: Iterable[bytes],
    receipt: storage.Receipt = storage.NO_CHECKSUM,
    now: datetime,
) -> Upload:
    """Write a part of the file; with its last byte the upload becomes a version.

    The bytes that arrived before ``chunks`` broke off are kept, unless the part has a checksum.

    Raises:
        NotFoundError: If there is no such upload that the actor may write to.
        UploadGoneError: If it takes no more bytes.
        UploadLockedError: If another request writes to it now.
        UploadOffsetError: If the part does not begin where the bytes so far end.
        InvalidInputError: If more bytes come than were announced.
        ChecksumMismatchError: If the part is not what its checksum says.
        StorageFullError: If the disk is full.
    """
    _open_upload(upload_id, actor, now)
    try:
        with storage.UploadFile.held(upload_id) as file:
            # Asked again now that nobody else writes.
            upload = _open_upload(upload_id, actor, now)
            if offset != upload.offset_bytes:
                raise UploadOffsetError(offset=offset, expected=upload.offset_bytes)
            _let_database_go()
            end = file.append(
                chunks,
                offset=offset,
                room=upload.length_bytes - offset,
                receipt=receipt,
                note=partial(_note_offset, upload, expires_at=now + _upload_lifetime()),
            )
            upload.offset_bytes = end
            if end == upload.length_bytes:
                upload_finish(upload=upload, now=now)
            return upload
    except storage.Busy as error:
        raise UploadLockedError(
            "another window or program is sending this upload; wait for it, or stop it"
        ) from error


@transaction.atomic
def upload_finish(*, upload: Upload, now: datetime) -> DatasetVersion:
    """Make the received file the newest version of its dataset, to be unpacked."""
    dataset, _ = Dataset.objects.get_or_create(
        owner_id=upload.owner_id, name=upload.dataset_name, defaults={"created_at": now}
    )
    version = _next_version(
        dataset, now, original_name=upload.filename, upload_bytes=upload.length_bytes
    )
    moved = Upload.objects.filter(pk=upload.pk, state=UploadState.RECEIVING).update(
        state=UploadState.COMPLETE, version=version
    )
    if not moved:
        raise UploadGoneError("the upload was given up meanwhile; begin a new one")
    upload.state, upload.version = UploadState.COMPLETE, version
    dispatch.request_unpacking(version.public_id)
    return version


def upload_abandon(*, upload_id: UUID, actor: Any) -> None:
    """Give an upload up and free its bytes.

    Raises:
        NotFoundError: If there is no such upload that the actor may change.
        UploadGoneError: If it is complete or given up already.
    """
    upload = _writable_upload(upload_id, actor)
    moved = Upload.objects.filter(pk=upload.pk, state=UploadState.RECEIVING).update(
        state=UploadState.ABANDONED
    )
    if not moved:
        raise UploadGoneError("the upload is complete or was given up already")
    storage.upload_path(upload_id).unlink(missing_ok=True)


def _open_upload(upload_id: UUID, actor: Any, now: datetime) -> Upload:
    upload = _writable_upload(upload_id, actor)
    if upload.state != UploadState.RECEIVING:
        raise UploadGoneError("the upload is complete or was given up; begin a new one")
    if upload.expires_at <= now:
        raise UploadGoneError("the upload was left alone for too long; begin a new one")
    return upload


def _writable_upload(upload_id: UUID, actor: Any) -> Upload:
    upload = Upload.objects.filter(public_id=upload_id).first()
    if upload is None or not (upload.owner_id == actor.pk or administers(actor)):
        raise NotFoundError("upload", upload_id)
    return upload


def _note_offset(upload: Upload, offset: int, *, expires_at: datetime) -> None:
    moved = Upload.objects.filter(pk=upload.pk, state=UploadState.RECEIVING).update(
        offset_bytes=offset, expires_at=expires_at
    )
    if not moved:
        raise UploadGoneError("the upload was given up meanwhile; begin a new one")
    upload.expires_at = expires_at
    _let_database_go()


def _let_database_go() -> None:
    """Give the connection back while bytes arrive: a slow line would hold it for minutes."""
    if not connection.in_atomic_block:
        connection.close()


def _upload_lifetime() -> timedelta:
    return timedelta(hours=settings.STARLING["UPLOAD_EXPIRES_H"])


def _check_length(length_bytes: int) -> None:
    largest_mib = settings.STARLING["UPLOAD_MAX_MIB"]
    if length_bytes <= 0:
        raise InvalidInputError({"length": ["The file is empty; choose another."]})
    if length_bytes > largest_mib * _MIB:
        raise InvalidInputError(
            {"length": [f"A file may have at most {largest_mib:,} MiB; split it into several."]}
        )


def _check_quota(owner: Any, asked: int) -> None:
    used, limit = storage_used_bytes(owner), storage_quota_bytes(owner)
    if used + asked > limit:
        raise QuotaExceededError(
            f"{asked / _MIB:,.1f} MiB do not fit: {used / _MIB:,.1f} of {limit / _MIB:,.0f} MiB are"
            " used; delete datasets or the files of old jobs, or ask for a larger quota",
            limit=limit,
            used=used,
            asked=asked,
        )


# --- datasets -------------------------------------------------------------------------------


def dataset_name_cleaned(name: str) -> str:
    """Return a dataset's name with single spaces.

    Raises:
        InvalidInputError: If it is empty, too long or cannot be shown.
    """
    name = " ".join(name.split())
    if not name:
        raise InvalidInputError({"dataset": ["Give the dataset a name."]})
    if len(name) > _NAME_CHARS:
        raise InvalidInputError({"dataset": [f"Use at most {_NAME_CHARS} characters."]})
    if any(unicodedata.category(c) in {"Cc", "Cs", "Cn"} for c in name):
        raise InvalidInputError({"dataset": ["Use only characters that can be shown."]})
    return name


def dataset_create_from_path(
    *,
    owner: Any,
    name: str,
    path: Path,
    description: str = "",
    is_shared: bool = False,
    now: datetime,
) -> DatasetVersion:
    """Make a version of a file or folder of this machine; the same content makes none twice.

    Raises:
        InvalidInputError: If there is nothing at ``path``, or the owner may not share.
        UnsafeArchiveError: If a name in the folder cannot be kept.
    """
    name = dataset_name_cleaned(name)
    _check_may_share(owner, wanted=is_shared)
    limits = storage.UnpackLimits(
        max_bytes=settings.STARLING["UNPACK_MAX_MIB"] * _MIB,
        max_files=settings.STARLING["UNPACK_MAX_FILES"],
    )
    with storage.Tree.building(f"import-{uuid4()}", limits) as tree:
        for relative, source in _files_at(path):
            with source.open("rb") as file:
                tree.add(relative, storage.file_chunks(file))
        summary = tree.seal()
        with storage.locked(storage.contents_lock(), wait=True), transaction.atomic():
            tree.publish_content(storage.content_dir(summary.sha256).parent)
            content = content_for(summary, now=now)
            dataset, _ = Dataset.objects.update_or_create(
                owner=owner,
                name=name,
                defaults={"description": description, "is_shared": is_shared},
                create_defaults={
                    "description": description,
                    "is_shared": is_shared,
                    "created_at": now,
                },
            )
            latest = dataset.versions.order_by("-number").first()
            if latest is not None and latest.content_id == content.pk:
                return latest
            return _next_version(
                dataset, now, original_name=path.name, content=content, state=VersionState.READY
            )


def _files_at(path: Path) -> list[tuple[str, Path]]:
    if path.is_file():
        return [(storage.safe_filename(path.name), path)]
    found = [p for p in path.rglob("*") if p.is_file() and not p.is_symlink()]
    if not found:
        raise InvalidInputError({"path": [f"There is no file at {path}."]})
    return [(p.relative_to(path).as_posix(), p) for p in sorted(found)]


@transaction.atomic
def dataset_update(
    *,
    dataset_id: UUID,
    actor: Any,
    name: str | None = None,
    description: str | None = None,
    is_shared: bool | None = None,
) -> Dataset:
    """Change what is given; the versions never change.

    Raises:
        NotFoundError: If there is no such dataset that the actor may change.
        InvalidInputError: By field, with what to do.
    """
    dataset = _changeable(dataset_id, actor)
    if name is not None:
        dataset.name = dataset_name_cleaned(name)
        namesakes = Dataset.objects.filter(owner_id=dataset.owner_id, name=dataset.name)
        if namesakes.exclude(pk=dataset.pk).exists():
            raise InvalidInputError({"name": ["There is another dataset of this name."]})
    if description is not None:
        if len(description) > 4000:
            raise InvalidInputError({"description": ["Use at most 4,000 characters."]})
        dataset.description = description
    if is_shared is not None and is_shared != dataset.is_shared:
        _check_may_share(actor, wanted=is_shared)
        dataset.is_shared = is_shared
    dataset.save(update_fields=["name", "description", "is_shared"])
    return dataset


@transaction.atomic
def dataset_delete(*, dataset_id: UUID, actor: Any, now: datetime) -> None:
    """Remove a dataset with its versions; jobs that are over keep a note of what they used.

    The files go once no version of any dataset has them.

    Raises:
        NotFoundError: If there is no such dataset that the actor may change.
        NotPossibleNowError: If a job that is not over uses it.
    """
    dataset = _changeable(dataset_id, actor)
    uses = JobDataset.objects.filter(version__dataset=dataset).select_related("version", "job")
    active = uses.filter(job__status__in=[s.value for s in ACTIVE])
    if (first := active.first()) is not None:
        raise NotPossibleNowError(
            f"{active.values('job').distinct().count()} of the jobs that use {dataset.name} are"
            f" not over ({first.job.name}); wait for them or cancel them"
        )
    JobEvent.objects.bulk_create(
        JobEvent(
            job=use.job,
            at=now,
            code="dataset_deleted",
            text=f"The dataset {dataset.name}, version {use.version.number}, was deleted.",
            actor=actor,
        )
        for use in uses
    )
    uses.delete()
    for upload in Upload.objects.filter(version__dataset=dataset):
        path = storage.upload_path(upload.public_id)
        transaction.on_commit(partial(path.unlink, missing_ok=True))
        upload.delete()
    dataset.delete()
    dispatch.request_upload_sweep()


def _changeable(dataset_id: UUID, actor: Any) -> Dataset:
    dataset = Dataset.objects.filter(public_id=dataset_id).first()
    if dataset is None or not (dataset.owner_id == actor.pk or administers(actor)):
        raise NotFoundError("dataset", dataset_id)
    return dataset


def _check_may_share(actor: Any, *, wanted: bool) -> None:
    if wanted and not sees_all(actor):
        raise InvalidInputError(
            {"is_shared": ["Only instructors and admins share datasets; ask one of them."]}
        )


def content_for(summary: storage.ContentSummary, *, now: datetime) -> Content:
    """Return the row of a published tree; call it under the contents' lock."""
    content, _ = Content.objects.get_or_create(
        sha256=summary.sha256,
        defaults={
            "size_bytes": summary.size_bytes,
            "file_count": summary.file_count,
            "created_at": now,
        },
    )
    return content


def version_settle(
    *, version: DatasetVersion, content: Content | None, error: str, upload_sha256: str
) -> bool:
    """End a version's unpacking, for good; return whether it was still being unpacked."""
    with transaction.atomic():
        moved = DatasetVersion.objects.filter(pk=version.pk, state=VersionState.UNPACKING).update(
            state=VersionState.FAILED if content is None else VersionState.READY,
            content=content,
            error=error,
            upload_sha256=upload_sha256,
        )
        if moved:
            transaction.on_commit(
                partial(
                    dataset_changed.send_robust, sender=DatasetVersion, version_id=version.public_id
                )
            )
    return bool(moved)


def _next_version(dataset: Dataset, now: datetime, **fields: Any) -> DatasetVersion:
    # The row's lock makes the next number this transaction's own.
    Dataset.objects.select_for_update().get(pk=dataset.pk)
    latest = dataset.versions.aggregate(latest=Max("number"))["latest"] or 0
    return DatasetVersion.objects.create(
        dataset=dataset, number=latest + 1, created_at=now, **fields
    )


def _stem(filename: str) -> str:
    stem = re.sub(r"\.(tar\.)?[A-Za-z0-9]{1,5}$", "", filename)
    return stem.strip(". ") or filename
