"""What a role makes of an account."""

from __future__ import annotations

from portal.models import Role, User
from tests.factories.portal import UserFactory


def test_an_admin_may_use_the_admin_pages_and_others_may_not(
    admin: User, instructor: User, student: User
) -> None:
    assert [u.is_staff and u.is_superuser for u in (admin, instructor, student)] == [
        True,
        False,
        False,
    ]


def test_an_admin_who_is_demoted_loses_the_admin_pages(admin: User) -> None:
    admin.role = Role.STUDENT
    admin.save()

    admin.refresh_from_db()
    assert (admin.role, admin.is_staff, admin.is_superuser) == (Role.STUDENT, False, False)


def test_createsuperuser_makes_an_admin(db: None) -> None:
    user = User.objects.create_superuser("chief", password="long enough words")

    assert user.role == Role.ADMIN


def test_the_factory_makes_people_who_can_sign_in(db: None) -> None:
    assert UserFactory(password="secret words").check_password("secret words")
