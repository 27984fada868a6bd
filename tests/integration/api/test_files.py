"""Files come whole, in parts and as an archive, and never from anywhere else."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from asgiref.sync import sync_to_async
from django.test import AsyncClient
from rest_framework.test import APIClient

from jobs import storage
from jobs.models import OutputFile, Replica
from portal.models import User
from tests.integration.api.rows import NOW, finish, leave_file, make_job

Api = Callable[[User | None], APIClient]
CONTENT = bytes(range(256)) * 4


@pytest.fixture
def replica(student: User) -> Replica:
    replica = finish(make_job(student, "Größe 1"))
    leave_file(replica, "model.keras", CONTENT)
    leave_file(replica, "logs/events.txt", b"hello\n")
    leave_file(replica, "empty", b"")
    return replica


def url(replica: Replica, rest: str = "files/content/") -> str:
    return f"/api/v1/jobs/{replica.attempt.job.public_id}/{rest}"


def test_files_are_listed_by_path(api: Api, student: User, replica: Replica) -> None:
    page = api(student).get(url(replica, "files/"), {"limit": 2}).json()
    rest = api(student).get(page["next"]).json()

    files = page["results"] + rest["results"]
    assert [(f["path"], f["size_bytes"]) for f in files] == [
        ("empty", 0),
        ("logs/events.txt", 6),
        ("model.keras", 1024),
    ]


def test_a_file_comes_whole_and_is_saved_not_shown(
    api: Api, student: User, replica: Replica
) -> None:
    answer = api(student).get(url(replica), {"path": "model.keras"})

    assert b"".join(answer.streaming_content) == CONTENT
    assert answer.headers["Content-Length"] == "1024"
    assert answer.headers["Content-Type"] == "application/octet-stream"
    assert answer.headers["Content-Disposition"] == 'attachment; filename="model.keras"'
    assert answer.headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize(
    ("asked", "given", "first", "last"),
    [
        ("bytes=0-0", "bytes 0-0/1024", 0, 0),
        ("bytes=100-199", "bytes 100-199/1024", 100, 199),
        ("bytes=1000-", "bytes 1000-1023/1024", 1000, 1023),
        ("bytes=-24", "bytes 1000-1023/1024", 1000, 1023),
        ("bytes=0-99999", "bytes 0-1023/1024", 0, 1023),
        ("bytes=-99999", "bytes 0-1023/1024", 0, 1023),
    ],
)
def test_a_part_of_a_file(
    api: Api, student: User, replica: Replica, asked: str, given: str, first: int, last: int
) -> None:
    answer = api(student).get(url(replica), {"path": "model.keras"}, headers={"Range": asked})

    assert answer.status_code == 206
    assert answer.headers["Content-Range"] == given
    assert b"".join(answer.streaming_content) == CONTENT[first : last + 1]


@pytest.mark.parametrize("asked", ["bytes=1024-", "bytes=9-3", "bytes=-0"])
def test_a_part_that_is_not_there(api: Api, student: User, replica: Replica, asked: str) -> None:
    answer = api(student).get(url(replica), {"path": "model.keras"}, headers={"Range": asked})

    assert answer.status_code == 416
    assert answer.headers["Content-Range"] == "bytes */1024"
    assert answer.json()["code"] == "range_not_satisfiable"


@pytest.mark.parametrize("asked", ["bytes=0-1,5-6", "lines=1-2", "bytes=-", "bytes=a-b"])
def test_what_is_no_single_range_gets_the_whole(
    api: Api, student: User, replica: Replica, asked: str
) -> None:
    answer = api(student).get(url(replica), {"path": "model.keras"}, headers={"Range": asked})

    assert answer.status_code == 200
    assert b"".join(answer.streaming_content) == CONTENT


def test_an_empty_file_is_a_file(api: Api, student: User, replica: Replica) -> None:
    answer = api(student).get(url(replica), {"path": "empty"})

    assert (answer.status_code, b"".join(answer.streaming_content)) == (200, b"")


@pytest.mark.parametrize("path", ["../secret", "/etc/passwd", "logs", "nope", "", "a\ud800"])
def test_only_files_that_are_listed(api: Api, student: User, replica: Replica, path: str) -> None:
    path = path.encode("utf-8", "replace").decode()

    assert api(student).get(url(replica), {"path": path}).status_code == 404


def test_a_file_that_became_a_link_is_not_followed(
    api: Api, student: User, replica: Replica, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("SECRET_CANARY")
    at = storage.attempt_dir(replica.attempt.job.public_id, 1, 0) / "model.keras"
    at.unlink()
    at.symlink_to(secret)

    answer = api(student).get(url(replica), {"path": "model.keras"})

    assert answer.status_code == 404


def test_the_archive_has_every_file(api: Api, student: User, replica: Replica) -> None:
    answer = api(student).get(url(replica, "archive/"))

    archive = zipfile.ZipFile(io.BytesIO(b"".join(answer.streaming_content)))
    assert archive.testzip() is None
    assert {n: archive.read(n) for n in archive.namelist()} == {
        "model.keras": CONTENT,
        "logs/events.txt": b"hello\n",
        "empty": b"",
    }
    assert "filename*=utf-8''Gr%C3%B6%C3%9Fe%201.zip" in answer.headers["Content-Disposition"]


def test_the_archive_names_what_has_vanished(api: Api, student: User, replica: Replica) -> None:
    OutputFile.objects.create(attempt=replica.attempt, path="gone", size_bytes=1, modified_at=NOW)

    answer = api(student).get(url(replica, "archive/"))

    archive = zipfile.ZipFile(io.BytesIO(b"".join(answer.streaming_content)))
    assert archive.read("MISSING-FILES.txt") == b"gone\n"
    assert archive.read("model.keras") == CONTENT


@pytest.mark.parametrize("rest", ["files/", "files/content/?path=model.keras", "archive/"])
def test_somebody_elses_files_are_not_there(
    api: Api, other_student: User, replica: Replica, rest: str
) -> None:
    assert api(other_student).get(url(replica, rest)).status_code == 404


async def test_under_asgi_a_file_comes_block_by_block(
    own_connections: None, student: User, replica: Replica
) -> None:
    leave_file_async = sync_to_async(leave_file)
    big = b"0123456789abcdef" * 65_536
    await leave_file_async(replica, "big", big)
    client = AsyncClient()
    await client.aforce_login(student, backend="django.contrib.auth.backends.ModelBackend")

    answer = await client.get(url(replica), {"path": "big"})

    blocks = [block async for block in answer.streaming_content]
    assert len(blocks) > 1
    assert b"".join(blocks) == big
