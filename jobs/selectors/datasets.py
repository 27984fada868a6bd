"""Reading datasets: who sees which, what is in them, and how much a user stores."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, Final
from uuid import UUID

from django.conf import settings
from django.db.models import Max, Prefetch, QuerySet, Sum

from jobs import storage
from jobs.errors import NotFoundError, NotPossibleNowError
from jobs.models import CodeBundle, Content, Dataset, DatasetVersion, OutputFile, Upload
from jobs.models.dataset import DatasetQuerySet, UploadState, VersionState
from jobs.models.job import Job

#: So far into a content's list a preview looks for things to show.
_LOOKED_AT: Final = 20_000
_TABLES, _ARRAYS, _TEXTS, _IMAGES = 3, 3, 3, 24
_TABLE_ENDINGS: Final = (".csv", ".tsv")
_ARRAY_ENDINGS: Final = (".npz", ".npy")
_TEXT_ENDINGS: Final = (".txt", ".md", ".json", ".jsonl", ".yaml", ".yml", ".xml", ".rst", ".log")
_IMAGE_ENDINGS: Final = (".png", ".jpg", ".jpeg", ".gif", ".bmp", ".webp")


@dataclass(frozen=True, slots=True, kw_only=True)
class FilePage:
    """Some of a version's files, in the order of their paths."""

    entries: tuple[storage.FileEntry, ...]
    has_more: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionPreview:
    """A first look into a version.

    Attributes:
        images: Paths of images, a few of every folder; each has a thumbnail
            (:func:`version_thumbnail`).
    """

    tables: tuple[storage.TablePreview, ...] = ()
    arrays: tuple[storage.ArraysPreview, ...] = ()
    texts: tuple[storage.TextPreview, ...] = ()
    images: tuple[str, ...] = ()


def storage_quota_bytes(user: Any) -> int:
    """Return how much the user may store."""
    mib = user.storage_quota_mib
    return int(settings.STARLING["STORAGE_QUOTA_MIB"] if mib is None else mib) << 20


def storage_used_bytes(user: Any) -> int:
    """Return how much the user stores: datasets, uploads under way, code, and jobs' files.

    A content counts once however many versions have it; an upload counts in full from its
    beginning, so that several at once cannot exceed together what each alone would not.
    """
    versions = DatasetVersion.objects.filter(dataset__owner=user)
    bundles = CodeBundle.objects.filter(owner=user).values("sha256")
    return (
        _total(Content.objects.filter(pk__in=versions.values("content")), "size_bytes")
        + _total(versions.filter(state=VersionState.UNPACKING), "upload_bytes")
        + _total(Upload.objects.filter(owner=user, state=UploadState.RECEIVING), "length_bytes")
        + sum(int(row["largest"]) for row in bundles.annotate(largest=Max("size_bytes")))
        + _total(OutputFile.objects.filter(attempt__job__owner=user), "size_bytes")
    )


def _total(rows: QuerySet[Any], field: str) -> int:
    return int(rows.aggregate(total=Sum(field))["total"] or 0)


def dataset_list(user: Any) -> DatasetQuerySet:
    """Return the datasets that the user may see, newest first, with owner and versions."""
    versions = DatasetVersion.objects.select_related("content").order_by("-number")
    return (
        Dataset.objects.for_user(user)
        .select_related("owner")
        .prefetch_related(Prefetch("versions", queryset=versions))
    )


def dataset_get(user: Any, public_id: UUID) -> Dataset:
    """Return a dataset that the user may see.

    Raises:
        NotFoundError: If there is none.
    """
    dataset = dataset_list(user).filter(public_id=public_id).first()
    if dataset is None:
        raise NotFoundError("dataset", public_id)
    return dataset


def version_get(user: Any, dataset_id: UUID, number: int) -> DatasetVersion:
    """Return a version, by its number, of a dataset that the user may see.

    Raises:
        NotFoundError: If there is none.
    """
    version = (
        _visible_versions(user)
        .filter(dataset__public_id=dataset_id, number=number)
        .select_related("dataset__owner", "content")
        .first()
    )
    if version is None:
        raise NotFoundError("dataset version", f"{dataset_id}/{number}")
    return version


def version_list_ready(user: Any) -> QuerySet[DatasetVersion]:
    """Return the versions that the user may train on, the newest of each dataset first."""
    return (
        _visible_versions(user)
        .filter(state=VersionState.READY)
        .select_related("dataset__owner", "content")
        .order_by("dataset__name", "dataset_id", "-number")
    )


def _visible_versions(user: Any) -> QuerySet[DatasetVersion]:
    return DatasetVersion.objects.filter(dataset__in=Dataset.objects.for_user(user))


def version_jobs(user: Any, version: DatasetVersion) -> QuerySet[Job]:
    """Return the jobs with this version that the user may see, newest first."""
    return Job.objects.for_user(user).filter(datasets=version).distinct()


def version_files(
    version: DatasetVersion, *, offset: int = 0, limit: int = 100, prefix: str = ""
) -> FilePage:
    """Return a page of a version's files whose paths begin with ``prefix``.

    Raises:
        NotPossibleNowError: If the version is not ready.
    """
    entries = storage.iter_entries(storage.content_index(_sha256(version)), prefix=prefix)
    page = tuple(islice(entries, offset, offset + limit + 1))
    return FilePage(entries=page[:limit], has_more=len(page) > limit)


def version_file_open(version: DatasetVersion, path: str) -> BinaryIO:
    """Open one file of a version for reading.

    Raises:
        NotFoundError: If it has no such file.
        NotPossibleNowError: If the version is not ready.
    """
    return storage.open_beneath(storage.content_dir(_sha256(version)), path)


def version_thumbnail(version: DatasetVersion, path: str) -> Path:
    """Return the PNG file with a small picture of one of a version's images.

    Raises:
        NotFoundError: If there is no such image.
        NotPossibleNowError: If the version is not ready.
    """
    return storage.thumbnail(_sha256(version), path)


def version_preview(version: DatasetVersion) -> VersionPreview:
    """Return a first look into a version: rows, arrays, texts and images.

    Raises:
        NotPossibleNowError: If the version is not ready.
    """
    sha256 = _sha256(version)
    root = storage.content_dir(sha256)
    entries = islice(storage.iter_entries(storage.content_index(sha256)), _LOOKED_AT)
    paths = [entry.path for entry in entries]
    return VersionPreview(
        tables=tuple(storage.preview_table(root, p) for p in _few(paths, _TABLE_ENDINGS, _TABLES)),
        arrays=tuple(storage.preview_arrays(root, p) for p in _few(paths, _ARRAY_ENDINGS, _ARRAYS)),
        texts=tuple(storage.preview_text(root, p) for p in _few(paths, _TEXT_ENDINGS, _TEXTS)),
        images=_spread(_ending(paths, _IMAGE_ENDINGS), _IMAGES),
    )


def _ending(paths: Iterable[str], endings: tuple[str, ...]) -> Iterator[str]:
    return (path for path in paths if path.lower().endswith(endings))


def _few(paths: list[str], endings: tuple[str, ...], count: int) -> Iterator[str]:
    return islice(_ending(paths, endings), count)


def _spread(paths: Iterable[str], count: int) -> tuple[str, ...]:
    """Return some of the paths, taking turns between folders: a class is a folder, most often."""
    folders: dict[str, list[str]] = defaultdict(list)
    for path in paths:
        folders[str(PurePosixPath(path).parent)].append(path)
    turns = (
        folder[turn] for turn in range(count) for folder in folders.values() if turn < len(folder)
    )
    return tuple(islice(turns, count))


def _sha256(version: DatasetVersion) -> str:
    if version.state != VersionState.READY or version.content is None:
        raise NotPossibleNowError(
            f"version {version.number} of {version.dataset.name} is {version.get_state_display()}"
            " and has no files to show"
        )
    if not storage.content_index(version.content.sha256).is_file():
        raise NotPossibleNowError(
            f"the files of version {version.number} of {version.dataset.name} are not on the"
            " portal's disk; tell its administrators"
        )
    return version.content.sha256


def upload_get(user: Any, public_id: UUID) -> Upload:
    """Return an upload that the user may see.

    Raises:
        NotFoundError: If there is none.
    """
    upload = (
        Upload.objects.for_user(user)
        .filter(public_id=public_id)
        .select_related("version__dataset", "owner")
        .first()
    )
    if upload is None:
        raise NotFoundError("upload", public_id)
    return upload
