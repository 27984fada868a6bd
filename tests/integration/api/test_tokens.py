"""Tokens: shown once, kept as a hash, ended at once."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
from django.utils import timezone
from rest_framework.test import APIClient

from jobs.errors import InvalidInputError, QuotaExceededError
from portal import services
from portal.models import ApiToken, User

Api = Callable[[User | None], APIClient]


def speak(secret: str, scheme: str = "Token") -> APIClient:
    client = APIClient()
    client.credentials(HTTP_AUTHORIZATION=f"{scheme} {secret}")
    return client


def make(user: User, *, days: int = 1, name: str = "laptop") -> tuple[ApiToken, str]:
    return services.token_create(user=user, name=name, days=days, now=timezone.now())


def test_a_token_is_shown_once_and_its_hash_is_kept(api: Api, student: User) -> None:
    made = api(student).post("/api/v1/tokens/", {"name": "laptop", "days": 7})
    listed = api(student).get("/api/v1/tokens/").json()["results"]

    secret = made.json()["token"]
    assert made.status_code == 201
    assert secret.startswith("stl_")
    assert secret not in str(listed)
    assert secret not in str(ApiToken.objects.values_list())
    assert listed[0]["id"] == made.json()["id"]


@pytest.mark.parametrize("scheme", ["Token", "Bearer", "bearer"])
def test_a_token_speaks_for_its_owner(student: User, scheme: str) -> None:
    token, secret = make(student)

    answer = speak(secret, scheme).get("/api/v1/me/")

    token.refresh_from_db()
    assert answer.json()["username"] == student.username
    assert token.last_used_at is not None


def test_a_token_that_has_expired_says_so(student: User) -> None:
    token, secret = make(student)
    ApiToken.objects.filter(pk=token.pk).update(expiry=timezone.now() - timedelta(seconds=1))

    answer = speak(secret).get("/api/v1/me/")

    assert answer.status_code == 401
    assert "expired" in answer.json()["message"]
    assert ApiToken.objects.filter(pk=token.pk).exists()


def test_a_revoked_token_opens_nothing_from_then_on(api: Api, student: User) -> None:
    token, secret = make(student)

    revoked = api(student).delete(f"/api/v1/tokens/{token.public_id}/")

    assert revoked.status_code == 204
    assert speak(secret).get("/api/v1/me/").status_code == 401


def test_an_account_that_is_switched_off_loses_its_tokens_at_once(student: User) -> None:
    _, secret = make(student)
    student.is_active = False
    student.save()

    assert speak(secret).get("/api/v1/me/").status_code == 401


def test_a_demoted_admin_loses_the_rights_of_the_token_at_once(admin: User) -> None:
    _, secret = make(admin)
    body = {"name": "h", "url": "process://local"}
    assert speak(secret).post("/api/v1/hosts/", body).status_code == 201
    admin.role = "student"
    admin.save()

    assert speak(secret).post("/api/v1/hosts/", {**body, "name": "i"}).status_code == 403


def test_nobody_sees_or_revokes_the_token_of_another(api: Api, student: User, admin: User) -> None:
    token, _ = make(student)

    assert api(admin).get("/api/v1/tokens/").json()["results"] == []
    assert api(admin).delete(f"/api/v1/tokens/{token.public_id}/").status_code == 404


@pytest.mark.parametrize("secret", ["x", "stl_" + "a" * 64, "ä" * 3, "a b", ""])
def test_a_wrong_token_is_a_401_and_never_more(db: None, secret: str) -> None:
    client = APIClient()
    client.credentials(HTTP_AUTHORIZATION=f"Token {secret}")

    answer = client.get("/api/v1/me/")

    assert answer.status_code == 401
    assert "WWW-Authenticate" in answer.headers


def test_two_living_tokens_of_one_owner_have_different_names(student: User) -> None:
    make(student)

    with pytest.raises(InvalidInputError, match="of this name"):
        make(student)


def test_there_is_an_end_to_how_many(student: User, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "MAX_TOKENS", 2)
    make(student, name="a")
    make(student, name="b")

    with pytest.raises(QuotaExceededError):
        make(student, name="c")


@pytest.mark.parametrize("body", [{}, {"name": ""}, {"name": "x", "days": 0}, {"name": "x\0"}])
def test_a_token_needs_a_name_and_a_lifetime(api: Api, student: User, body: dict) -> None:
    assert api(student).post("/api/v1/tokens/", body).status_code == 400


def test_what_expired_long_ago_is_swept(student: User) -> None:
    token, _ = make(student)
    living, _ = make(student, name="living")
    now = timezone.now()
    ApiToken.objects.filter(pk=token.pk).update(expiry=now - timedelta(days=31))

    services.sweep(now=now)

    assert list(ApiToken.objects.all()) == [living]
