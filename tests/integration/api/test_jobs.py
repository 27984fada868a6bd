"""Jobs over REST: submit, list, look at, stop, repeat, forget."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from rest_framework.test import APIClient

from jobs.lifecycle import JobStatus, Reason
from jobs.models import Job
from portal.models import User
from tests.integration.api.rows import (
    NOW,
    finish,
    make_code,
    make_dataset,
    make_environment,
    make_host,
    make_job,
    make_template,
)

Api = Callable[[User | None], APIClient]
JOBS = "/api/v1/jobs/"


@pytest.fixture
def lab(db: None) -> None:
    make_host()
    make_environment()


@pytest.mark.usefixtures("lab")
def test_a_script_as_text_becomes_a_job(api: Api, student: User) -> None:
    answer = api(student).post(
        JOBS,
        {
            "name": "hello",
            "environment": "tensorflow",
            "script": "print(1)\n",
            "arguments": ["--fast", ""],
            "parameters": {"epochs": 3, "rate": 0.1, "mode": "a b", "shuffle": True},
            "memory_mib": 512,
        },
    )

    assert answer.status_code == 201, answer.json()
    job = answer.json()
    assert (job["status"], job["owner"], job["memory_mib"]) == ("pending", "ada", 512)
    assert job["arguments"] == ["--fast", ""]
    assert job["parameters"] == {"epochs": 3, "rate": 0.1, "mode": "a b", "shuffle": True}
    assert job["pending"]["code"]
    assert api(student).get(f"{JOBS}{job['id']}/").json() == job


@pytest.mark.usefixtures("lab")
def test_a_template_fills_in_what_is_left_out(api: Api, student: User, admin: User) -> None:
    from jobs.models import Environment

    environment = Environment.objects.get()
    make_template(environment=environment, default_dataset="digits", memory_mib=777)
    dataset = make_dataset(admin, "digits", is_shared=True)

    answer = api(student).post(
        JOBS, {"name": "t", "template": "digits", "parameters": {"epochs": 9}}
    )

    job = answer.json()
    assert answer.status_code == 201, job
    assert (job["template"], job["environment"], job["memory_mib"]) == (
        "digits",
        "tensorflow",
        777,
    )
    assert job["parameters"] == {"epochs": 9}
    assert [d["version"] for d in job["datasets"]] == [str(dataset.versions.get().public_id)]


@pytest.mark.usefixtures("lab")
@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"name": ""}, "name"),
        ({"environment": "nope"}, "environment"),
        ({"script": None}, "script"),
        ({"code": "11111111-1111-1111-1111-111111111111"}, "script"),
        ({"template": "nope"}, "template"),
        ({"parameters": {"a": [1]}}, "parameters.a"),
        ({"parameters": {"a": 2**70}}, "parameters.a"),
        ({"parameters": {"a": "\ud800"}}, "parameters.a"),
        ({"parameters": {"-a": 1}}, "parameters"),
        ({"parameters": {"\ud800": 1}}, "parameters"),
        ({"\ud800": 1}, "?"),
        ({"arguments": ["a\0"]}, "arguments.0"),
        ({"cpu_millis": 1}, "cpu_millis"),
        ({"memory_mib": "lots"}, "memory_mib"),
        ({"walltime_s": 10**9}, "walltime_s"),
        ({"script": "def broken(:\n"}, None),
        ({"entrypoint": "../../etc/passwd"}, "entrypoint"),
        ({"datasets": [{"version": "x", "name": "d"}]}, "datasets.0.version"),
    ],
)
def test_what_cannot_be_is_refused_with_its_field(
    api: Api, student: User, change: dict[str, Any], field: str | None
) -> None:
    body = {"name": "a", "environment": "tensorflow", "script": "print(1)\n", **change}

    answer = api(student).post(JOBS, json.dumps(body), content_type="application/json")

    assert answer.status_code == 400, answer.content
    if field is not None:
        assert any(name.startswith(field) for name in answer.json()["fields"]), answer.json()
    assert not Job.objects.exists()


@pytest.mark.usefixtures("lab")
def test_what_no_host_could_hold_is_refused_and_says_what_would_fit(
    api: Api, student: User
) -> None:
    answer = api(student).post(
        JOBS, {"name": "a", "environment": "tensorflow", "script": "1\n", "memory_mib": 900_000}
    )

    assert answer.status_code == 422
    assert answer.json()["code"] == "unsatisfiable"
    assert answer.json()["fits"]


@pytest.mark.usefixtures("lab")
def test_code_of_somebody_else_is_not_there(api: Api, student: User, other_student: User) -> None:
    code = make_code(other_student)

    answer = api(student).post(
        JOBS, {"name": "a", "environment": "tensorflow", "code": str(code.public_id)}
    )

    assert answer.status_code == 400
    assert "code" in answer.json()["fields"]


def test_students_see_their_own_jobs_and_staff_see_all(
    api: Api, student: User, other_student: User, instructor: User, admin: User
) -> None:
    mine, other = make_job(student, "mine"), make_job(other_student, "other")

    def names(user: User) -> list[str]:
        return [job["name"] for job in api(user).get(JOBS).json()["results"]]

    assert names(student) == ["mine"]
    assert names(instructor) == names(admin) == ["other", "mine"]
    assert api(student).get(f"{JOBS}{other.public_id}/").status_code == 404
    assert api(instructor).get(f"{JOBS}{mine.public_id}/").status_code == 200


def test_pages_follow_one_another_while_jobs_are_added(api: Api, student: User) -> None:
    for index in range(5):
        make_job(student, f"job {index}")
    client = api(student)

    first = client.get(JOBS, {"limit": 2}).json()
    make_job(student, "new")
    second = client.get(first["next"]).json()
    third = client.get(second["next"]).json()

    pages = [[job["name"] for job in page["results"]] for page in (first, second, third)]
    assert pages == [["job 4", "job 3"], ["job 2", "job 1"], ["job 0"]]
    assert third["next"] is None
    assert client.get(second["previous"]).json()["results"] == first["results"]


@pytest.mark.parametrize(
    "query",
    [
        {"limit": "0"},
        {"limit": "201"},
        {"limit": "x"},
        {"cursor": "x"},
        {"cursor": "cD1hYmM="},
        {"status": "asleep"},
        {"submitted_after": "yesterday"},
        {"name": "a\0"},
    ],
)
def test_a_query_that_cannot_be_read_is_refused(
    api: Api, student: User, query: dict[str, str]
) -> None:
    make_job(student)

    answer = api(student).get(JOBS, query)

    assert answer.status_code == 400
    assert set(answer.json()["fields"]) == set(query)


def test_jobs_are_found_by_what_they_are(api: Api, student: User, instructor: User) -> None:
    make_job(student, "train digits", status=JobStatus.RUNNING)
    make_job(student, "text", template="text", submitted_at=NOW + timedelta(hours=1))
    make_job(instructor, "theirs", status=JobStatus.FAILED)

    def names(**query: Any) -> list[str]:
        answer = api(instructor).get(JOBS, query)
        return [job["name"] for job in answer.json()["results"]]

    assert names(status=["running", "failed"]) == ["theirs", "train digits"]
    assert names(name="DIGITS") == ["train digits"]
    assert names(template="text") == ["text"]
    assert names(owner="ines") == ["theirs"]
    assert names(submitted_after=(NOW + timedelta(minutes=1)).isoformat()) == ["text"]


def test_a_list_of_jobs_costs_the_same_however_long_it_is(
    api: Api, student: User, django_assert_num_queries: Any
) -> None:
    for index in range(8):
        make_job(student, f"job {index}")

    with django_assert_num_queries(1):
        api(student).get(JOBS)


def test_a_job_is_shown_with_a_fixed_number_of_queries(
    api: Api, student: User, django_assert_max_num_queries: Any
) -> None:
    job = make_job(student)
    finish(job)

    with django_assert_max_num_queries(5):
        api(student).get(f"{JOBS}{job.public_id}/")


def test_cancelling_a_waiting_job_ends_it_and_may_be_repeated(api: Api, student: User) -> None:
    job = make_job(student)
    url = f"{JOBS}{job.public_id}/cancel/"

    first, second = api(student).post(url), api(student).post(url)

    assert (first.status_code, second.status_code) == (202, 202)
    assert (second.json()["status"], second.json()["reason"]) == ("cancelled", "cancelled")


def test_an_admin_who_ends_the_job_of_another_is_named_as_the_reason(
    api: Api, student: User, admin: User
) -> None:
    job = make_job(student)

    answer = api(admin).post(f"{JOBS}{job.public_id}/cancel/")

    assert answer.json()["reason"] == Reason.FORCE_ENDED


def test_a_job_that_has_ended_cannot_be_cancelled(api: Api, student: User) -> None:
    job = make_job(student)
    finish(job)

    answer = api(student).post(f"{JOBS}{job.public_id}/cancel/")

    assert (answer.status_code, answer.json()["code"]) == (409, "conflict")


@pytest.mark.parametrize("act", ["cancel/", "rerun/", ""])
def test_an_instructor_sees_a_students_job_and_cannot_change_it(
    api: Api, student: User, instructor: User, act: str
) -> None:
    job = make_job(student)
    client = api(instructor)

    answer = (client.post if act else client.delete)(f"{JOBS}{job.public_id}/{act}")

    assert answer.status_code == 404
    assert Job.objects.filter(pk=job.pk, status=JobStatus.PENDING).exists()


def test_a_job_is_deleted_only_when_it_has_ended(api: Api, student: User) -> None:
    job = make_job(student)
    url = f"{JOBS}{job.public_id}/"

    too_early = api(student).delete(url)
    finish(job)
    deleted = api(student).delete(url)

    assert (too_early.status_code, deleted.status_code) == (409, 204)
    assert not Job.objects.exists()


@pytest.mark.usefixtures("lab")
def test_a_job_is_run_again_as_it_was(api: Api, student: User) -> None:
    code = make_code(student)
    job = make_job(student, "again", code=code, arguments=["--x"])
    finish(job)

    answer = api(student).post(f"{JOBS}{job.public_id}/rerun/")

    assert answer.status_code == 201, answer.json()
    assert answer.json()["cloned_from"] == str(job.public_id)
    assert answer.json()["arguments"] == ["--x"]


def test_the_history_tells_who_did_what(api: Api, student: User) -> None:
    job = make_job(student)
    api(student).post(f"{JOBS}{job.public_id}/cancel/")

    events = api(student).get(f"{JOBS}{job.public_id}/events/").json()["results"]

    assert (events[-1]["target"], events[-1]["actor"]) == ("cancelled", "ada")
