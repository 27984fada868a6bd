"""Signing up, signing in, and getting back in."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.core import mail
from django.test import Client
from django.urls import reverse

from portal.models import Role, User
from tests.factories.portal import PASSWORD, UserFactory

NEW = {"username": "grace", "password1": "long enough words", "password2": "long enough words"}


def sign_in(client: Client, login: str, password: str = PASSWORD) -> Any:
    return client.post(reverse("account_login"), {"login": login, "password": password})


def test_a_stranger_becomes_a_student_without_an_e_mail_address(client: Client, db: None) -> None:
    answer = client.post(reverse("account_signup"), NEW)

    user = User.objects.get()
    assert answer.status_code == 302, answer.context["form"].errors
    assert (user.username, user.role, user.is_staff, user.email) == ("grace", "student", False, "")


@pytest.mark.parametrize("extra", [{"role": "admin"}, {"is_superuser": "on"}, {"is_staff": "on"}])
def test_nobody_makes_themselves_an_admin(client: Client, db: None, extra: dict[str, str]) -> None:
    client.post(reverse("account_signup"), NEW | extra)

    assert User.objects.get().role == Role.STUDENT


def test_sign_up_can_be_closed(client: Client, db: None, settings: Any) -> None:
    settings.SIGNUP_OPEN = False

    client.post(reverse("account_signup"), NEW)

    assert not User.objects.exists()


@pytest.mark.parametrize("login", ["ada", "ada@example.org"])
def test_people_sign_in_by_name_or_address(client: Client, student: User, login: str) -> None:
    answer = sign_in(client, login)

    assert answer.status_code == 302
    assert client.session["_auth_user_id"] == str(student.pk)


def test_an_account_that_is_switched_off_stays_out(client: Client, student: User) -> None:
    student.is_active = False
    student.save()

    sign_in(client, "ada")

    assert "_auth_user_id" not in client.session


def test_an_account_that_is_switched_off_loses_its_pages_at_once(
    client: Client, student: User
) -> None:
    sign_in(client, "ada")
    assert client.get("/api/v1/me/").status_code == 200
    student.is_active = False
    student.save()

    assert client.get("/api/v1/me/").status_code == 401


def test_a_new_password_ends_the_sessions_of_the_old(client: Client, student: User) -> None:
    sign_in(client, "ada")
    student.set_password("another long password")
    student.save()

    assert client.get("/api/v1/me/").status_code == 401


def test_guessing_is_slowed_down(client: Client, student: User) -> None:
    for _ in range(12):
        answer = sign_in(client, "ada", "wrong")
    answer = sign_in(client, "ada")

    assert "_auth_user_id" not in client.session
    assert answer.status_code in {200, 429}


def test_a_forgotten_password_is_replaced_by_mail(client: Client, student: User) -> None:
    client.post(reverse("account_reset_password"), {"email": student.email})
    link = re.search(r"https?://[^/\s]+(/\S+)", mail.outbox[0].body)
    assert link is not None
    page = client.get(link.group(1), follow=True)
    form = page.redirect_chain[-1][0]

    answer = client.post(form, {"password1": "a fresh new start", "password2": "a fresh new start"})

    student.refresh_from_db()
    assert answer.status_code == 302
    assert student.check_password("a fresh new start")


def test_a_reset_does_not_tell_who_has_an_account(client: Client, db: None) -> None:
    UserFactory(username="ada")

    known = client.post(reverse("account_reset_password"), {"email": "ada@example.org"})
    unknown = client.post(reverse("account_reset_password"), {"email": "no@example.org"})

    assert (known.status_code, known.headers["Location"]) == (
        unknown.status_code,
        unknown.headers["Location"],
    )
