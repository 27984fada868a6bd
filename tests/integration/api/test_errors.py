"""Every refusal has one shape, and says what to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.test import Client
from rest_framework import exceptions as rest
from rest_framework.test import APIClient

from cluster import errors as cluster
from jobs import errors as jobs
from portal.api.exceptions import STATUSES, handle
from portal.models import User

Api = Callable[[User | None], APIClient]


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (jobs.InvalidInputError({"name": ["too long"]}), 400, "invalid"),
        (jobs.NotFoundError("job", 7), 404, "not_found"),
        (jobs.NotPossibleNowError("it has ended"), 409, "conflict"),
        (jobs.UploadGoneError("over"), 410, "gone"),
        (jobs.QuotaExceededError("full", limit=1, used=1, asked=1), 403, "quota_exceeded"),
        (jobs.ChecksumMismatchError("other bytes"), 400, "checksum_mismatch"),
        (cluster.HostUnreachableError("a"), 504, "host_unreachable"),
        (cluster.HostRefusedError("a", detail="no"), 502, "host_refused"),
        (cluster.HostInUseError("a", holders=2), 409, "host_in_use"),
        (rest.Throttled(wait=3), 429, "throttled"),
        (rest.NotAuthenticated(), 401, "not_authenticated"),
        (rest.PermissionDenied(), 403, "permission_denied"),
        (rest.ParseError(), 400, "parse_error"),
        (rest.MethodNotAllowed("PUT"), 405, "method_not_allowed"),
        (rest.UnsupportedMediaType("text/x"), 415, "unsupported_media_type"),
        (ValidationError({"url": "write a port"}), 400, "invalid"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else str(value),
)
def test_an_error_becomes_its_status_and_the_one_shape(
    error: Exception, status: int, code: str
) -> None:
    answer = handle(error, {})

    assert answer is not None
    assert (answer.status_code, answer.data["code"]) == (status, code)
    assert {"code", "message", "fields"} <= set(answer.data)
    assert answer.data["message"][-1] in ".!?"


def test_what_is_not_in_the_table_is_a_bug_and_stays_one() -> None:
    assert handle(KeyError("oops"), {}) is None


def test_no_row_of_the_table_hides_behind_an_earlier_one() -> None:
    for index, (kind, status) in enumerate(STATUSES):
        shadow = [s for earlier, s in STATUSES[:index] if issubclass(kind, earlier)]
        assert shadow in ([], [status]), kind


def test_unsatisfiable_says_what_would_fit() -> None:
    error = jobs.UnsatisfiableError("no", fields={"gpus": ["at most 2"]}, fits={"gpus": 2})

    answer = handle(error, {})

    assert answer is not None
    assert answer.status_code == 422
    assert answer.data["fits"] == {"gpus": 2}


def test_a_view_may_answer_with_the_numbers_of_its_protocol() -> None:
    class View:
        error_statuses = {jobs.ChecksumMismatchError: 460}

    answer = handle(jobs.ChecksumMismatchError("other bytes"), {"view": View()})

    assert answer is not None
    assert answer.status_code == 460


def test_nested_fields_are_named_by_their_path() -> None:
    error = rest.ValidationError({"datasets": [{}, {"name": ["use letters"]}], "name": ["a", "b"]})

    answer = handle(error, {})

    assert answer is not None
    assert answer.data["fields"] == {"datasets.1.name": ["use letters"], "name": ["a", "b"]}


def test_an_address_that_leads_nowhere_answers_in_json(api: Api, student: User) -> None:
    for path in ("/api/nothing/", "/api/v1/jobs", "/api/v1/jobs/not-an-id/"):
        answer = api(student).post(path)

        assert answer.status_code == 404, path
        assert answer.json()["code"] == "not_found"


def test_a_bug_answers_in_json_and_tells_no_secret(
    api: Api, student: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("SECRET_CANARY")

    monkeypatch.setattr("jobs.selectors.job_list", broken)
    client = Client(raise_request_exception=False)
    client.force_login(student, backend="django.contrib.auth.backends.ModelBackend")

    answer = client.get("/api/v1/jobs/")

    assert answer.status_code == 500
    assert answer.json()["code"] == "internal_error"
    assert b"SECRET_CANARY" not in answer.content


def test_a_parameter_with_a_typing_error_is_refused(api: Api, student: User) -> None:
    answer = api(student).get("/api/v1/jobs/", {"state": "failed"})

    assert answer.status_code == 400
    assert "status" in answer.json()["fields"]["state"][0]


def test_an_unknown_field_is_refused(api: Api, student: User) -> None:
    answer = api(student).post("/api/v1/tokens/", {"name": "laptop", "dayz": 3})

    assert answer.status_code == 400
    assert "days" in answer.json()["fields"]["dayz"][0]


@pytest.mark.parametrize("body", ["[]", '"text"', "null", "{", "\xff", '{"name": NaN}'])
def test_a_body_that_is_no_object_is_refused(api: Api, student: User, body: str) -> None:
    answer = api(student).post(
        "/api/v1/jobs/", body.encode("latin-1"), content_type="application/json"
    )

    assert answer.status_code == 400
    assert set(answer.json()) == {"code", "message", "fields"}


def test_a_session_needs_the_csrf_token(student: User) -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(student, backend="django.contrib.auth.backends.ModelBackend")

    answer = client.post("/api/v1/tokens/", {"name": "x"}, content_type="application/json")

    assert answer.status_code == 403
    assert "CSRF" in answer.json()["message"]
