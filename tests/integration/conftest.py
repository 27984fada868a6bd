"""People, and clients that speak for them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest
from asgiref.sync import sync_to_async
from django.core.cache import cache
from django.db import connections
from django.test import Client
from rest_framework.test import APIClient

from portal.models import User
from tests.factories.portal import UserFactory


@pytest.fixture(autouse=True)
def _empty_cache() -> None:
    """Rate limits and cached answers of one test never meet another."""
    cache.clear()


@pytest.fixture
async def own_connections(transactional_db: None) -> AsyncIterator[None]:
    """Close what the threads of an asynchronous test opened, so that its database can go."""
    yield
    await sync_to_async(connections.close_all)()


@pytest.fixture
def student(db: None) -> User:
    return UserFactory(username="ada")


@pytest.fixture
def other_student(db: None) -> User:
    return UserFactory(username="bob")


@pytest.fixture
def instructor(db: None) -> User:
    return UserFactory(username="ines", instructor=True)


@pytest.fixture
def admin(db: None) -> User:
    return UserFactory(username="root", admin=True)


@pytest.fixture
def api() -> Callable[[User | None], APIClient]:
    """Return a REST client that is signed in as the user, or as nobody."""

    def client(user: User | None = None) -> APIClient:
        made = APIClient()
        if user is not None:
            made.force_authenticate(user)
        return made

    return client


@pytest.fixture
def browser() -> Callable[[User | None], Client]:
    """Return a client with a session of the user, as a browser has, or without one."""

    def client(user: User | None = None) -> Client:
        made = Client()
        if user is not None:
            made.force_login(user, backend="django.contrib.auth.backends.ModelBackend")
        return made

    return client
