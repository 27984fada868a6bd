"""Too many requests are refused; a cache that is down refuses nobody."""

from __future__ import annotations

from typing import Any

import pytest
from redis.exceptions import ConnectionError as RedisIsDown
from rest_framework.settings import api_settings
from rest_framework.test import APIClient

from portal.api.throttling import UserThrottle
from portal.api.tokens import MeView
from portal.models import User


@pytest.fixture
def limited(monkeypatch: pytest.MonkeyPatch, student: User) -> APIClient:
    monkeypatch.setattr(MeView, "throttle_classes", [UserThrottle])
    monkeypatch.setattr(UserThrottle, "THROTTLE_RATES", {"user": "2/min"})
    assert api_settings.DEFAULT_THROTTLE_CLASSES == []
    client = APIClient()
    client.force_authenticate(student)
    return client


def test_the_third_of_two_is_told_when_to_come_back(limited: APIClient) -> None:
    answers = [limited.get("/api/v1/me/") for _ in range(3)]

    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert answers[-1].json()["code"] == "throttled"
    assert int(answers[-1].headers["Retry-After"]) > 0


def test_without_the_cache_everybody_may(
    limited: APIClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Down:
        def get(self, *args: Any) -> None:
            raise RedisIsDown("no route")

    monkeypatch.setattr(UserThrottle, "cache", Down())

    assert limited.get("/api/v1/me/").status_code == 200
