"""Datasets over REST: who sees which, what is in them, what may change."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rest_framework.test import APIClient

from jobs.models import Dataset, DatasetVersion, JobDataset
from jobs.services import dataset_create_from_path
from portal.models import User
from tests.integration.api.rows import NOW, finish, make_dataset, make_job

Api = Callable[[User | None], APIClient]
DATASETS = "/api/v1/datasets/"


@pytest.fixture
def version(student: User, tmp_path: Path) -> DatasetVersion:
    folder = tmp_path / "irises"
    (folder / "notes").mkdir(parents=True)
    (folder / "table.csv").write_text("a,b\n1,2\n3,4\n")
    (folder / "notes" / "read me.txt").write_text("hello")
    return dataset_create_from_path(owner=student, name="irises", path=folder, now=NOW)


def url(version: DatasetVersion, rest: str = "") -> str:
    return f"{DATASETS}{version.dataset.public_id}/versions/{version.number}/{rest}"


def test_a_version_with_its_files(api: Api, student: User, version: DatasetVersion) -> None:
    shown = api(student).get(url(version)).json()
    files = api(student).get(url(version, "files/")).json()
    notes = api(student).get(url(version, "files/"), {"prefix": "notes/"}).json()

    assert (shown["state"], shown["file_count"]) == ("ready", 2)
    assert [f["path"] for f in files["results"]] == ["notes/read me.txt", "table.csv"]
    assert [f["size_bytes"] for f in notes["results"]] == [5]
    assert files["has_more"] is False


def test_files_come_in_pages(api: Api, student: User, version: DatasetVersion) -> None:
    page = api(student).get(url(version, "files/"), {"offset": 0, "limit": 1}).json()

    assert (len(page["results"]), page["has_more"]) == (1, True)


def test_a_look_into_a_version(api: Api, student: User, version: DatasetVersion) -> None:
    preview = api(student).get(url(version, "preview/")).json()

    assert preview["tables"][0]["header"] == ["a", "b"]
    assert preview["texts"][0]["text"] == "hello"


def test_one_file_of_a_version(api: Api, student: User, version: DatasetVersion) -> None:
    answer = api(student).get(url(version, "files/content/"), {"path": "notes/read me.txt"})

    assert b"".join(answer.streaming_content) == b"hello"


@pytest.mark.parametrize("path", ["../files.jsonl", "nope", "", "notes"])
def test_no_other_file(api: Api, student: User, version: DatasetVersion, path: str) -> None:
    answer = api(student).get(url(version, "files/content/"), {"path": path})

    assert answer.status_code == 404


def test_a_version_that_is_not_ready_says_so(api: Api, student: User) -> None:
    version = make_dataset(student, ready=False).versions.get()

    assert api(student).get(url(version, "preview/")).status_code == 409


def test_a_dataset_is_its_owners_and_everybodys_when_shared(
    api: Api, student: User, other_student: User
) -> None:
    mine = make_dataset(student, "mine")
    make_dataset(student, "shared", is_shared=True)
    other = api(other_student)

    seen = [d["name"] for d in other.get(DATASETS).json()["results"]]

    assert seen == ["shared"]
    assert other.get(f"{DATASETS}{mine.public_id}/").status_code == 404
    assert other.get(url(mine.versions.get(), "files/")).status_code == 404


@pytest.mark.parametrize("who", ["other_student", "instructor"])
def test_only_the_owner_and_admins_change_a_dataset(
    api: Api, student: User, request: pytest.FixtureRequest, who: str
) -> None:
    dataset = make_dataset(student, is_shared=True)
    client = api(request.getfixturevalue(who))
    address = f"{DATASETS}{dataset.public_id}/"

    assert client.patch(address, {"name": "mine now"}).status_code == 404
    assert client.delete(address).status_code == 404
    assert Dataset.objects.get().name == "digits"


def test_the_owner_renames_and_deletes(api: Api, student: User) -> None:
    address = f"{DATASETS}{make_dataset(student).public_id}/"

    renamed = api(student).patch(address, {"name": "new", "description": "better"})
    deleted = api(student).delete(address)

    assert (renamed.json()["name"], renamed.json()["description"]) == ("new", "better")
    assert deleted.status_code == 204
    assert not Dataset.objects.exists()


def test_a_dataset_in_use_stays(api: Api, student: User) -> None:
    dataset = make_dataset(student)
    job = make_job(student)
    JobDataset.objects.create(job=job, version=dataset.versions.get(), name="d")
    address = f"{DATASETS}{dataset.public_id}/"

    in_use = api(student).delete(address)
    finish(job)

    assert (in_use.status_code, in_use.json()["code"]) == (409, "conflict")
    assert api(student).delete(address).status_code == 204


def test_a_list_of_datasets_costs_the_same_however_long_it_is(
    api: Api, student: User, django_assert_num_queries: Any
) -> None:
    for index in range(6):
        make_dataset(student, f"d{index}")

    with django_assert_num_queries(2):
        api(student).get(DATASETS)
