"""Uploads that begin, end and meet at the same moment."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from threading import Barrier
from typing import TypeVar

import pytest
from django.db import connection

from jobs import selectors, services, storage
from jobs.errors import QuotaExceededError, UploadLockedError, UploadOffsetError
from jobs.models import Content, DatasetVersion, Upload
from portal.models import User
from tests.conftest import require
from tests.factories.portal import UserFactory

pytestmark = [pytest.mark.postgres, pytest.mark.django_db(transaction=True)]
T = TypeVar("T")
THREADS = 8


@pytest.fixture(autouse=True)
def _postgres_and_a_state_folder(settings: object, tmp_path: Path) -> None:
    require(connection.vendor == "postgresql", "PostgreSQL (DATABASE_URL)")
    settings.STATE_DIR = tmp_path / "state"  # type: ignore[attr-defined]


@pytest.fixture
def owner() -> User:
    return UserFactory(username="ada", storage_quota_mib=10)


def at_once(acts: list[Callable[[], T]]) -> list[T | Exception]:
    """Do all acts at the same moment, each in a thread of its own; return what came of each."""
    barrier = Barrier(len(acts))

    def run(act: Callable[[], T]) -> T | Exception:
        try:
            barrier.wait(30)
            return act()
        except (QuotaExceededError, UploadLockedError, UploadOffsetError) as error:
            return error
        finally:
            connection.close()

    with ThreadPoolExecutor(len(acts)) as pool:
        return list(pool.map(run, acts))


def upload(owner: User, now: datetime, length: int = 6, name: str = "d") -> Upload:
    return services.upload_create(
        owner=owner, dataset_name=name, filename="d.csv", length_bytes=length, now=now
    )


def send(made: Upload, owner: User, now: datetime, content: bytes = b"abcdef") -> Upload:
    return services.upload_append(
        upload_id=made.public_id, actor=owner, offset=0, chunks=[content], now=now
    )


def test_uploads_that_begin_at_once_stay_within_the_quota(owner: User, now: datetime) -> None:
    results = at_once([lambda: upload(owner, now, 4 << 20)] * THREADS)

    refused = [r for r in results if isinstance(r, QuotaExceededError)]
    assert len(refused) == THREADS - 2
    assert selectors.storage_used_bytes(owner) == 8 << 20


def test_uploads_of_one_name_that_end_at_once_are_versions_in_a_row(
    owner: User, now: datetime
) -> None:
    made = [upload(owner, now) for _ in range(THREADS)]

    at_once([lambda one=one: send(one, owner, now) for one in made])  # type: ignore[misc]

    numbers = DatasetVersion.objects.order_by("number").values_list("number", flat=True)
    assert list(numbers) == list(range(1, THREADS + 1))


def test_one_upload_sent_by_many_tabs_becomes_one_version(owner: User, now: datetime) -> None:
    made = upload(owner, now)

    results = at_once([lambda: send(made, owner, now)] * THREADS)

    assert sum(isinstance(result, Upload) for result in results) == 1
    assert DatasetVersion.objects.count() == 1


def test_the_same_content_unpacked_at_once_is_stored_once(owner: User, now: datetime) -> None:
    versions = [send(upload(owner, now, name=f"d{n}"), owner, now).version for n in range(THREADS)]

    at_once(
        [
            lambda version=version: services.dataset_unpack(version_id=version.public_id, now=now)  # type: ignore[misc]
            for version in versions
        ]
    )

    assert set(DatasetVersion.objects.values_list("state", flat=True)) == {"ready"}
    content = Content.objects.get()
    assert storage.content_index(content.sha256).is_file()


def test_content_that_comes_again_while_it_is_removed_is_whole(owner: User, now: datetime) -> None:
    for round_ in range(5):
        old = send(upload(owner, now, name=f"old{round_}"), owner, now).version
        new = send(upload(owner, now, name=f"new{round_}"), owner, now).version
        assert old is not None
        assert new is not None
        services.dataset_unpack(version_id=old.public_id, now=now)
        old.refresh_from_db()
        assert old.content is not None
        sha256 = old.content.sha256
        services.dataset_delete(dataset_id=old.dataset.public_id, actor=owner, now=now)

        at_once(
            [
                lambda sha256=sha256: services.content_collect(sha256=sha256),  # type: ignore[misc]
                lambda new=new: services.dataset_unpack(version_id=new.public_id, now=now),  # type: ignore[misc]
            ]
        )

        new.refresh_from_db()
        assert [e.path for e in selectors.version_files(new).entries] == ["d.csv"]
        services.dataset_delete(dataset_id=new.dataset.public_id, actor=owner, now=now)
