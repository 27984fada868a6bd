"""What every test has: a fixed clock, a fixed seed, and a network that ends at this machine."""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

TESTS = Path(__file__).parent
_connect = socket.socket.connect


def _only_this_machine(self: socket.socket, address: object) -> None:
    if self.family in {socket.AF_INET, socket.AF_INET6}:
        host = str(address[0])  # type: ignore[index]
        if host != "localhost" and not ipaddress.ip_address(host).is_loopback:
            raise RuntimeError(f"a test tried to reach {host}; tests talk to this machine only")
    return _connect(self, address)  # type: ignore[arg-type]


socket.socket.connect = _only_this_machine  # type: ignore[method-assign,assignment]


def in_ci() -> bool:
    """Return whether a missing service is a failure and not a skip."""
    return os.environ.get("CI", "").lower() == "true"


def require(present: object, what: str) -> None:
    """Skip where ``what`` is missing on a developer's machine; fail where CI must have it."""
    if present:
        return
    if in_ci():
        pytest.fail(f"{what} is missing, and CI must have it")
    pytest.skip(f"{what} is missing")


@pytest.fixture
def now() -> datetime:
    return datetime(2026, 3, 2, 9, 0, tzinfo=UTC)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)


@pytest.fixture(scope="session")
def django_db_setup(django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    """End what threads of a test server have left open, or the test database cannot be dropped."""
    yield
    with django_db_blocker.unblock():
        from django.db import connection

        if connection.vendor == "postgresql":
            with connection.cursor() as cursor:
                cursor.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    "WHERE datname = current_database() AND pid <> pg_backend_pid()"
                )
