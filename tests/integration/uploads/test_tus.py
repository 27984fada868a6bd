from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable
from datetime import timedelta
from email.utils import parsedate_to_datetime
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone
from rest_framework.test import APIClient

from jobs import storage
from jobs.models import DatasetVersion, Upload
from jobs.models.dataset import UploadState
from portal.models import User
from tests.factories.datasets import UploadFactory

pytestmark = pytest.mark.django_db
Api = Callable[[User | None], APIClient]
LIST = "/api/v1/uploads/"
PART = "application/offset+octet-stream"


def b64(value: str | bytes) -> str:
    return base64.b64encode(value.encode() if isinstance(value, str) else value).decode()


def metadata(**pairs: str) -> str:
    return ",".join(f"{key} {b64(value)}" for key, value in pairs.items())


def begin(client: APIClient, length: object = 6, body: bytes = b"", **headers: str) -> Any:
    sent = {
        "Tus-Resumable": "1.0.0",
        "Upload-Length": str(length),
        "Upload-Metadata": metadata(filename="data.csv", dataset="pets"),
    } | {name.replace("_", "-"): value for name, value in headers.items()}
    kind = PART if body else "text/plain"
    return client.generic(
        "POST", LIST, body, content_type=kind, headers={k: v for k, v in sent.items() if v}
    )


def send(client: APIClient, url: str, offset: object, body: bytes, **headers: str) -> Any:
    sent = {"Tus-Resumable": "1.0.0", "Upload-Offset": str(offset)} | {
        name.replace("_", "-"): value for name, value in headers.items()
    }
    content_type = sent.pop("Content-Type", PART)
    return client.generic(
        "PATCH", url, body, content_type=content_type, headers={k: v for k, v in sent.items() if v}
    )


def offset(client: APIClient, url: str) -> int:
    answer = client.head(url, headers={"Tus-Resumable": "1.0.0"})
    assert answer.status_code == 200
    return int(answer["Upload-Offset"])


@pytest.fixture
def client(api: Api, student: User) -> APIClient:
    return api(student)


@pytest.fixture
def url(client: APIClient) -> str:
    return str(begin(client)["Location"])


def test_what_is_spoken_here(api: Api) -> None:
    answer = api(None).options(LIST)

    assert answer.status_code == 204
    assert answer["Tus-Resumable"] == answer["Tus-Version"] == "1.0.0"
    assert set(answer["Tus-Extension"].split(",")) == {
        "creation", "creation-with-upload", "termination", "checksum", "expiration",
    }  # fmt: skip
    assert answer["Tus-Checksum-Algorithm"] == "sha1,sha256"
    assert int(answer["Tus-Max-Size"]) > 0


def test_a_file_in_two_parts_becomes_a_version(client: APIClient) -> None:
    answer = begin(client)
    assert answer.status_code == 201
    url = answer["Location"]
    assert url.startswith("http://testserver/api/v1/uploads/")
    assert parsedate_to_datetime(answer["Upload-Expires"]) > timezone.now()

    first = send(client, url, 0, b"a,b")
    assert (first.status_code, first["Upload-Offset"]) == (204, "3")
    assert offset(client, url) == 3

    last = send(client, url, 3, b"\n1,")
    version = DatasetVersion.objects.get()
    assert (last.status_code, last["Upload-Offset"]) == (204, "6")
    assert last["Starling-Dataset"] == f"{version.dataset.public_id}/1"
    assert version.dataset.name == "pets"
    assert client.get(url).json() | {"expires_at": None} == {
        "id": str(Upload.objects.get().public_id),
        "dataset": "pets",
        "filename": "data.csv",
        "length_bytes": 6,
        "offset_bytes": 6,
        "state": "complete",
        "expires_at": None,
        "dataset_id": str(version.dataset.public_id),
        "version": 1,
    }


def test_a_head_answer_is_not_kept_by_caches(client: APIClient, url: str) -> None:
    answer = client.head(url, headers={"Tus-Resumable": "1.0.0"})

    assert answer["Cache-Control"] == "no-store"
    assert answer["Upload-Length"] == "6"


def test_the_first_part_may_come_with_the_beginning(client: APIClient) -> None:
    answer = begin(client, body=b"abc")

    assert (answer.status_code, answer["Upload-Offset"]) == (201, "3")
    assert offset(client, answer["Location"]) == 3


@pytest.mark.parametrize("algorithm", ["sha1", "sha256"])
def test_a_part_with_a_wrong_checksum_is_not_taken(
    client: APIClient, url: str, algorithm: str
) -> None:
    sum_ = f"{algorithm} {b64(hashlib.new(algorithm, b'abc').digest())}"

    wrong = send(client, url, 0, b"abX", Upload_Checksum=sum_)
    assert (wrong.status_code, wrong.json()["code"]) == (460, "checksum_mismatch")
    assert offset(client, url) == 0

    assert send(client, url, 0, b"abc", Upload_Checksum=sum_).status_code == 204


@pytest.mark.parametrize("given", ["md5 abc=", "sha1 ***", "sha1"])
def test_a_checksum_that_cannot_be_read(client: APIClient, url: str, given: str) -> None:
    answer = send(client, url, 0, b"abc", Upload_Checksum=given)

    assert answer.status_code in {400, 460}
    assert offset(client, url) == 0


def test_a_part_that_begins_elsewhere(client: APIClient, url: str) -> None:
    answer = send(client, url, 2, b"abc")

    assert (answer.status_code, answer.json()["code"]) == (409, "offset_mismatch")


def test_a_part_of_another_media_type(client: APIClient, url: str) -> None:
    answer = send(client, url, 0, b"abc", Content_Type="application/octet-stream")

    assert answer.status_code == 415


@pytest.mark.parametrize("version", ["", "0.2.2"])
def test_another_version_of_the_protocol(client: APIClient, url: str, version: str) -> None:
    for answer in (
        begin(client, Tus_Resumable=version),
        send(client, url, 0, b"a", Tus_Resumable=version),
        client.head(url, headers={"Tus-Resumable": version} if version else {}),
    ):
        assert answer.status_code == 412
        assert answer["Tus-Version"] == "1.0.0"


@pytest.mark.parametrize("given", ["", "-1", "x", "1.5", "٣", "9" * 30])
def test_a_number_that_is_none(client: APIClient, url: str, given: str) -> None:
    assert send(client, url, given, b"a").status_code == 400
    assert begin(client, length=given).status_code == 400


def test_a_file_that_is_too_large(client: APIClient, settings: Any) -> None:
    answer = begin(client, length=(settings.STARLING["UPLOAD_MAX_MIB"] << 20) + 1)

    assert (answer.status_code, answer.json()["code"]) == (413, "too_large")


def test_a_file_that_is_larger_than_the_quota_left(client: APIClient, student: User) -> None:
    student.storage_quota_mib = 1
    student.save()

    answer = begin(client, length=2 << 20)

    assert answer.status_code == 413
    assert answer.json() | {"message": ""} == {
        "code": "quota_exceeded", "message": "", "fields": {},
        "limit": 1 << 20, "used": 0, "asked": 2 << 20,
    }  # fmt: skip


def test_more_bytes_than_announced(client: APIClient, url: str) -> None:
    answer = send(client, url, 0, b"1234567")

    assert (answer.status_code, answer.json()["code"]) == (400, "invalid")
    assert not DatasetVersion.objects.exists()


def test_two_tabs_at_once(client: APIClient, url: str) -> None:
    with storage.UploadFile.held(Upload.objects.get().public_id):
        answer = send(client, url, 0, b"abc")

    assert (answer.status_code, answer.json()["code"]) == (423, "locked")


def test_giving_up(client: APIClient, url: str) -> None:
    sent = {"Tus-Resumable": "1.0.0"}

    assert client.delete(url, headers=sent).status_code == 204
    assert client.delete(url, headers=sent).status_code == 410
    assert client.head(url, headers=sent).status_code == 410
    assert send(client, url, 0, b"abc").status_code == 410


def test_left_alone_for_too_long(client: APIClient, url: str) -> None:
    Upload.objects.update(expires_at=timezone.now() - timedelta(seconds=1))

    assert client.head(url, headers={"Tus-Resumable": "1.0.0"}).status_code == 410
    assert send(client, url, 0, b"abc").status_code == 410


def test_metadata_that_cannot_be_read(client: APIClient) -> None:
    answer = begin(client, Upload_Metadata="filename ***")

    assert (answer.status_code, list(answer.json()["fields"])) == (400, ["Upload-Metadata"])


def test_a_length_that_is_said_later_is_refused(client: APIClient) -> None:
    assert begin(client, Upload_Defer_Length="1").status_code == 400


def test_a_client_that_can_only_post(client: APIClient, url: str) -> None:
    answer = client.generic(
        "POST",
        url,
        b"abc",
        content_type=PART,
        headers={
            "Tus-Resumable": "1.0.0",
            "Upload-Offset": "0",
            "X-HTTP-Method-Override": "PATCH",
        },
    )

    assert answer.status_code == 204
    assert offset(client, url) == 3


class TestWho:
    @pytest.fixture
    def theirs(self, student: User) -> str:
        upload = UploadFactory(owner=student, expires_at=timezone.now() + timedelta(hours=1))
        return reverse("v1:upload-detail", kwargs={"public_id": upload.public_id})

    def statuses(self, client: APIClient, url: str) -> list[int]:
        sent = {"Tus-Resumable": "1.0.0"}
        return [
            client.get(url).status_code,
            client.head(url, headers=sent).status_code,
            send(client, url, 0, b"abc").status_code,
            client.delete(url, headers=sent).status_code,
        ]

    def test_nobody_in_particular(self, api: Api, theirs: str) -> None:
        assert self.statuses(api(None), theirs) == [401] * 4
        assert begin(api(None)).status_code == 401

    def test_another_student(self, api: Api, theirs: str, other_student: User) -> None:
        assert self.statuses(api(other_student), theirs) == [404] * 4

    def test_an_instructor_looks(self, api: Api, theirs: str, instructor: User) -> None:
        assert self.statuses(api(instructor), theirs) == [200, 200, 404, 404]

    def test_an_admin_does_all(self, api: Api, theirs: str, admin: User) -> None:
        assert self.statuses(api(admin), theirs) == [200, 200, 204, 204]


class TestSession:
    @pytest.fixture
    def tab(self, student: User) -> Client:
        tab = Client(enforce_csrf_checks=True)
        tab.force_login(student, backend="django.contrib.auth.backends.ModelBackend")
        tab.cookies["csrftoken"] = "a" * 32
        return tab

    def test_another_site_cannot_send(self, tab: Client, student: User) -> None:
        upload = UploadFactory(owner=student, expires_at=timezone.now() + timedelta(hours=1))
        url = reverse("v1:upload-detail", kwargs={"public_id": upload.public_id})
        sent = {"Tus-Resumable": "1.0.0", "Upload-Offset": "0"}

        for method in ("PATCH", "DELETE"):
            answer = tab.generic(method, url, b"abc", content_type=PART, headers=sent)
            assert answer.status_code == 403
        assert begin(tab).status_code == 403  # type: ignore[arg-type]

        upload.refresh_from_db()
        assert (upload.offset_bytes, upload.state) == (0, UploadState.RECEIVING)

    def test_our_page_sends_with_its_token(self, tab: Client) -> None:
        answer = begin(tab, X_CSRFToken="a" * 32)  # type: ignore[arg-type]

        assert answer.status_code == 201
        part = send(tab, answer["Location"], 0, b"abc", X_CSRFToken="a" * 32)  # type: ignore[arg-type]
        assert part.status_code == 204
