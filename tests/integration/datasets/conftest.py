"""A state folder of its own, and files on their way through it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest

from jobs import services
from jobs.models import DatasetVersion
from portal.models import User


@pytest.fixture(autouse=True)
def state(settings: object, tmp_path: Path) -> Path:
    settings.STATE_DIR = tmp_path / "state"  # type: ignore[attr-defined]
    return tmp_path / "state"


@pytest.fixture
def receive(now: datetime) -> Callable[..., DatasetVersion]:
    """Return what uploads bytes whole, as far as the version that waits to be unpacked."""

    def receive_(
        owner: User,
        content: bytes,
        filename: str = "data.csv",
        name: str = "digits",
        sha256: str = "",
    ) -> DatasetVersion:
        upload = services.upload_create(
            owner=owner,
            dataset_name=name,
            filename=filename,
            length_bytes=len(content),
            sha256=sha256,
            now=now,
        )
        upload = services.upload_append(
            upload_id=upload.public_id, actor=owner, offset=0, chunks=[content], now=now
        )
        assert upload.version is not None
        return upload.version

    return receive_


@pytest.fixture
def unpack(now: datetime) -> Callable[[DatasetVersion], DatasetVersion]:
    """Return what unpacks a version and reads it again."""

    def unpack_(version: DatasetVersion) -> DatasetVersion:
        assert services.dataset_unpack(version_id=version.public_id, now=now)
        version.refresh_from_db()
        return version

    return unpack_


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
