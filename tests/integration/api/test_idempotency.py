"""A request that is sent again is answered again, and done once."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from rest_framework.test import APIClient

from jobs.errors import InvalidInputError
from jobs.models import Job
from portal import services
from portal.errors import IdempotencyMismatchError
from portal.models import IdempotencyKey, User
from tests.integration.api.rows import make_code, make_environment, make_host

Api = Callable[[User | None], APIClient]


def once(user: User, act: Callable[[], Any], now: datetime, **fields: Any) -> services.Answer:
    return services.idempotent(
        **{
            "user": user,
            "scope": "job",
            "key": "k",
            "request_fingerprint": "f",
            "now": now,
            "act": act,
            **fields,
        }
    )


def test_the_second_gets_the_answer_of_the_first(student: User, now: datetime) -> None:
    answers = iter([{"id": 1}, {"id": 2}])

    first = once(student, lambda: next(answers), now)
    second = once(student, lambda: next(answers), now)

    assert (first.body, first.replayed) == ({"id": 1}, False)
    assert (second.body, second.replayed) == ({"id": 1}, True)


def test_another_request_with_the_key_is_refused(student: User, now: datetime) -> None:
    once(student, lambda: 1, now)

    with pytest.raises(IdempotencyMismatchError):
        once(student, lambda: 2, now, request_fingerprint="other")


@pytest.mark.parametrize("other", [{"scope": "token"}, {"key": "l"}])
def test_another_scope_or_key_is_another_request(
    student: User, now: datetime, other: dict[str, str]
) -> None:
    once(student, lambda: 1, now)

    assert once(student, lambda: 2, now, **other).body == 2


def test_two_people_never_meet_in_one_key(
    student: User, other_student: User, now: datetime
) -> None:
    once(student, lambda: 1, now)

    assert once(other_student, lambda: 2, now).body == 2


def test_an_act_that_fails_leaves_the_key_free(student: User, now: datetime) -> None:
    def fail() -> None:
        raise InvalidInputError({"name": ["too long"]})

    with pytest.raises(InvalidInputError):
        once(student, fail, now)

    assert once(student, lambda: 3, now).body == 3


def test_after_a_day_the_key_is_free_again(student: User, now: datetime) -> None:
    once(student, lambda: 1, now)
    later = now + timedelta(hours=24)

    assert once(student, lambda: 2, later, request_fingerprint="other").body == 2
    services.sweep(now=later + timedelta(hours=24))
    assert not IdempotencyKey.objects.exists()


@pytest.mark.parametrize("key", ["", "a" * 256, "a\x00b", "line\nline"])
def test_a_key_is_short_and_printable(student: User, now: datetime, key: str) -> None:
    with pytest.raises(InvalidInputError):
        once(student, lambda: 1, now, key=key)


def test_a_job_that_is_submitted_twice_is_one_job(api: Api, student: User) -> None:
    make_host()
    make_environment()
    body = {"name": "a", "environment": "tensorflow", "code": str(make_code(student).public_id)}
    client = api(student)

    first = client.post("/api/v1/jobs/", body, headers={"Idempotency-Key": "one"})
    second = client.post("/api/v1/jobs/", body, headers={"Idempotency-Key": "one"})
    other = client.post("/api/v1/jobs/", {**body, "name": "b"}, headers={"Idempotency-Key": "one"})

    assert (first.status_code, second.status_code, other.status_code) == (201, 201, 422)
    assert first.json() == second.json()
    assert second.headers["Idempotency-Replayed"] == "true"
    assert other.json()["code"] == "idempotency_mismatch"
    assert Job.objects.count() == 1
