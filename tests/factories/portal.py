"""Accounts and tokens."""

from __future__ import annotations

from typing import Any

import factory
from factory.django import DjangoModelFactory

from portal.models import Role, User

PASSWORD = "correct-horse-battery"


class UserFactory(DjangoModelFactory[User]):
    """A student with the password :data:`PASSWORD`; traits make others of them."""

    class Meta:
        model = User
        skip_postgeneration_save = True

    class Params:
        instructor = factory.Trait(role=Role.INSTRUCTOR)
        admin = factory.Trait(role=Role.ADMIN)
        inactive = factory.Trait(is_active=False)

    username = factory.Sequence(lambda n: f"user{n}")
    email = factory.LazyAttribute(lambda user: f"{user.username}@example.org")

    @classmethod
    def _create(cls, model_class: type[User], *args: Any, **kwargs: Any) -> User:
        password = kwargs.pop("password", PASSWORD)
        user = model_class(*args, **kwargs)
        user.set_password(password)
        user.save()
        return user
