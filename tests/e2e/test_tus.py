"""A stock client, a real server, and connections that break."""

from __future__ import annotations

import gzip
import hashlib
import http.client
import io
import json
import os
import random
import socket
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest
from tusclient.client import TusClient
from tusclient.exceptions import TusCommunicationError
from tusclient.uploader import Uploader

ROOT = Path(__file__).parent.parent.parent
MIB = 1 << 20
PEOPLE = """
from django.utils import timezone
from knox.crypto import create_token_string, hash_token
from portal.models import ApiToken, User
for name in ("ada", "bob"):
    user = User.objects.create_user(name)
    _, token = ApiToken.objects.create(user=user, expiry=None, name="test")
    print("TOKEN", name, token)
"""


@dataclass(frozen=True)
class Portal:
    url: str
    state: Path
    process: psutil.Process
    environment: dict[str, str]
    tokens: dict[str, str]

    def client(self, user: str = "ada") -> TusClient:
        return TusClient(
            f"{self.url}/api/v1/uploads/", headers={"Authorization": f"Token {self.tokens[user]}"}
        )

    def manage(self, *words: str, stdin: str = "") -> str:
        done = subprocess.run(  # noqa: PLW1510 - its words matter more than its number
            [sys.executable, "manage.py", *words],
            cwd=ROOT, env=self.environment, input=stdin, capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    def rows(self, expression: str) -> object:
        """Return the value of an expression over the models, as JSON carries it."""
        program = f"import json; from jobs.models import *; print('=', json.dumps({expression}))"
        out = self.manage("shell", "--no-imports", "-c", program)
        return json.loads(next(line[1:] for line in out.splitlines() if line.startswith("=")))

    def rss_mib(self) -> float:
        return self.process.memory_info().rss / MIB


@pytest.fixture(scope="module")
def portal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Portal]:
    state = tmp_path_factory.mktemp("state")
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("STARLING")
    } | {
        "DJANGO_SETTINGS_MODULE": "portal.settings.test",
        "STARLING_TEST_STATE": str(state),
        "DATABASE_URL": f"sqlite:///{state}/db.sqlite3",
    }
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    draft = Portal(f"http://127.0.0.1:{port}", state, psutil.Process(), environment, {})
    draft.manage("migrate", "-v0")
    out = draft.manage("shell", "--no-imports", "-c", PEOPLE)
    tokens = dict(line.split()[1:] for line in out.splitlines() if line.startswith("TOKEN"))
    server = subprocess.Popen(
        [sys.executable, "-m", "uvicorn", "portal.asgi:application", "--lifespan", "off",
         "--port", str(port), "--log-level", "warning"],
        cwd=ROOT, env=environment,
    )  # fmt: skip
    try:
        wait_until(lambda: answers(port), "the server answers")
        yield Portal(draft.url, state, psutil.Process(server.pid), environment, tokens)
    finally:
        server.terminate()
        server.wait(20)


def answers(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("OPTIONS", "/api/v1/uploads/")
        return connection.getresponse().status == 204
    except OSError:
        return False
    finally:
        connection.close()


def wait_until(happened: Callable[[], bool], what: str, timeout_s: float = 30) -> None:
    deadline = time.monotonic() + timeout_s
    while not happened():
        assert time.monotonic() < deadline, f"not within {timeout_s:g} s: {what}"
        time.sleep(0.05)


def begin(portal: Portal, length: int, **metadata: str) -> Uploader:
    """Return an uploader of the stock client whose upload has begun and holds nothing yet."""
    uploader = portal.client().uploader(
        file_stream=io.BytesIO(b"\0" * length) if length < MIB else Zeros(length),  # type: ignore[arg-type]
        metadata={"filename": "data.bin", "dataset": "d"} | metadata,
    )
    uploader.set_url(uploader.create_url())
    return uploader


class Zeros(io.RawIOBase):
    """As many zeros as one likes, without the memory."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.length, self.at = length, 0

    def seek(self, offset: int, whence: int = 0) -> int:
        self.at = offset + {0: 0, 1: self.at, 2: self.length}[whence]
        return self.at

    def tell(self) -> int:
        return self.at

    def read(self, size: int = -1) -> bytes:
        left = self.length - self.at
        size = left if size is None or size < 0 else min(size, left)
        self.at += size
        return bytes(size)


def part(portal: Portal, url: str, offset: int, length: int, user: str = "ada") -> socket.socket:
    """Open a connection and announce a part; the caller sends as much of it as it likes."""
    at = urlsplit(url)
    connection = socket.create_connection((at.hostname, at.port), timeout=60)
    head = (
        f"PATCH {at.path} HTTP/1.1\r\nHost: {at.netloc}\r\n"
        f"Authorization: Token {portal.tokens[user]}\r\nTus-Resumable: 1.0.0\r\n"
        f"Content-Type: application/offset+octet-stream\r\n"
        f"Upload-Offset: {offset}\r\nContent-Length: {length}\r\n\r\n"
    )
    connection.sendall(head.encode())
    return connection


def status_of(connection: socket.socket) -> int:
    with http.client.HTTPResponse(connection) as answer:
        answer.begin()
        answer.read()
        return answer.status


def test_a_gigabyte_with_a_cut_in_the_middle(portal: Portal, tmp_path: Path) -> None:
    size, piece = 1024 * MIB, random.Random(7).randbytes(4 * MIB)
    path = tmp_path / "gigabyte.bin"
    digest = hashlib.sha256()
    with path.open("wb") as file:
        for _ in range(size // len(piece)):
            file.write(piece)
            digest.update(piece)
    # The quiet state: first requests load code that stays.
    begin(portal, 1000).upload()
    before = peak = portal.rss_mib()

    file = path.open("rb")
    uploader = portal.client().uploader(
        file_stream=file,
        chunk_size=64 * MIB,
        metadata={"filename": path.name, "dataset": "big", "sha256": digest.hexdigest()},
    )
    uploader.set_url(uploader.create_url())
    assert uploader.url is not None
    # One part of the whole file; the connection breaks after 600 of its 1024 MiB.
    connection = part(portal, uploader.url, 0, size)
    for sent in range(150):
        connection.sendall(piece)
        if sent % 10 == 0:
            peak = max(peak, portal.rss_mib())
    connection.close()

    # What arrived before the cut is kept, to the last byte that the server read.
    wait_until(lambda: uploader.get_offset() >= 590 * MIB, "the bytes before the cut are kept")
    wait_until(lambda: not is_held(portal, uploader), "the broken connection is noticed")
    uploader.offset = uploader.get_offset()
    while uploader.offset < size:
        uploader.upload_chunk()
        peak = max(peak, portal.rss_mib())
    file.close()

    assert peak - before < 100
    portal.manage("unpack_datasets")
    version = portal.rows(
        "list(DatasetVersion.objects.filter(dataset__name='big')"
        ".values_list('state', 'error', 'upload_sha256', 'content__size_bytes'))"
    )
    assert version == [["ready", "", digest.hexdigest(), size]]
    for kept in portal.state.rglob("gigabyte.bin"):
        kept.unlink()


def is_held(portal: Portal, uploader: Uploader) -> bool:
    """Return whether a request still writes to the upload: an empty part is refused then."""
    assert uploader.url is not None
    with part(portal, uploader.url, uploader.get_offset(), 0) as connection:
        return status_of(connection) == 423


def test_two_tabs_send_the_same_upload_at_once(portal: Portal) -> None:
    uploader = begin(portal, 4 * MIB)
    assert uploader.url is not None
    first = part(portal, uploader.url, 0, 4 * MIB)
    first.sendall(bytes(MIB))
    wait_until(lambda: is_held(portal, uploader), "the first tab is heard")

    with part(portal, uploader.url, 0, 4 * MIB) as second:
        second.sendall(bytes(4 * MIB))
        assert status_of(second) == 423

    first.sendall(bytes(3 * MIB))
    assert status_of(first) == 204
    first.close()


def test_a_server_that_is_killed_keeps_what_it_noted(portal: Portal) -> None:
    """A second server on the same state, so that the first one lives on."""
    uploader = begin(portal, 64 * MIB)
    assert uploader.url is not None
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    doomed = subprocess.Popen(
        [sys.executable, "-m", "uvicorn", "portal.asgi:application", "--lifespan", "off",
         "--port", str(port), "--log-level", "warning"],
        cwd=ROOT, env=portal.environment,
    )  # fmt: skip
    try:
        wait_until(lambda: answers(port), "the second server answers")
        there = f"http://127.0.0.1:{port}{urlsplit(uploader.url).path}"
        with part(portal, there, 0, 64 * MIB) as connection:
            connection.sendall(bytes(40 * MIB))
            wait_until(lambda: uploader.get_offset() >= 32 * MIB, "the first 32 MiB are noted")
            doomed.kill()
    finally:
        doomed.kill()
        doomed.wait(20)

    uploader.offset = uploader.get_offset()
    assert 32 * MIB <= uploader.offset < 64 * MIB
    uploader.upload()
    assert uploader.get_offset() == 64 * MIB


def test_the_stock_client_resumes_and_checks_its_parts(portal: Portal) -> None:
    content = random.Random(3).randbytes(5 * MIB)
    uploader = portal.client().uploader(
        file_stream=io.BytesIO(content),
        chunk_size=2 * MIB,
        metadata={"filename": "r.bin", "dataset": "resumed"},
        upload_checksum=True,
    )
    uploader.upload_chunk()

    again = portal.client().uploader(
        file_stream=io.BytesIO(content), url=uploader.url, chunk_size=2 * MIB, upload_checksum=True
    )

    assert again.offset == 2 * MIB
    again.upload()
    portal.manage("unpack_datasets")
    assert portal.rows(
        "list(DatasetVersion.objects.filter(dataset__name='resumed')"
        ".values_list('state', 'upload_sha256'))"
    ) == [["ready", hashlib.sha256(content).hexdigest()]]


def test_a_refusal_is_heard_though_the_client_is_still_sending(portal: Portal) -> None:
    uploader = begin(portal, 8 * MIB)
    assert uploader.url is not None

    with part(portal, uploader.url, 5, 8 * MIB) as connection:
        connection.sendall(bytes(8 * MIB))
        assert status_of(connection) == 409
    with part(portal, uploader.url, 0, 8 * MIB, user="bob") as connection:
        connection.sendall(bytes(8 * MIB))
        assert status_of(connection) == 404
    assert uploader.get_offset() == 0


def test_a_file_larger_than_the_quota_is_refused_before_a_byte_is_sent(portal: Portal) -> None:
    # The quota is 20 GiB; what is announced counts, though not a byte of it has come.
    begin(portal, 9 * 1024 * MIB)
    begin(portal, 9 * 1024 * MIB)

    with pytest.raises(TusCommunicationError) as refused:
        begin(portal, 9 * 1024 * MIB)

    assert refused.value.status_code == 413
    assert json.loads(refused.value.response_content)["code"] == "quota_exceeded"


def test_an_unpacker_that_is_killed_is_followed_by_one_that_begins_anew(portal: Portal) -> None:
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w") as archive:
        for name in ("first", "second"):
            member = tarfile.TarInfo(name)
            member.size = 400 * MIB
            archive.addfile(member, Zeros(member.size))  # type: ignore[arg-type]
    content = gzip.compress(plain.getbuffer(), 1)
    portal.client().uploader(
        file_stream=io.BytesIO(content), metadata={"filename": "zeros.tar.gz", "dataset": "zeros"}
    ).upload()
    states = "list(DatasetVersion.objects.filter(dataset__name='zeros').values_list('state'))"
    unpacker = subprocess.Popen(
        [sys.executable, "manage.py", "unpack_datasets"], cwd=ROOT, env=portal.environment
    )

    staging = portal.state / "staging"
    wait_until(lambda: any(staging.glob("*/files/first")), "the first file is being written")
    unpacker.kill()
    unpacker.wait(20)

    assert portal.rows(states) == [["unpacking"]]
    portal.manage("unpack_datasets")
    assert portal.rows(states) == [["ready"]]
    assert not any(staging.iterdir())
    assert not any((portal.state / "run").glob("unpack-*-*-*-*-*.lock"))
