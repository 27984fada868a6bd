"""Twenty equal requests at one moment are one job, on either database."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import django
import pytest

if __name__ == "__main__":
    django.setup()

from django.db import connection
from rest_framework.test import APIClient

from jobs.models import Job
from portal.models import IdempotencyKey, User
from tests.conftest import require
from tests.factories.portal import UserFactory
from tests.integration.api.rows import make_code, make_environment, make_host

WORKERS = 20
ROOT = Path(__file__).resolve().parent.parent.parent


def post_at_once(user: User) -> list[tuple[int, str, bool]]:
    """Send one submission from many threads; return status, job and whether it was replayed."""
    make_host()
    make_environment()
    body = {"name": "once", "environment": "tensorflow", "code": str(make_code(user).public_id)}
    barrier = Barrier(WORKERS)

    def send(_: int) -> tuple[int, str, bool]:
        client = APIClient()
        client.force_authenticate(user)
        try:
            barrier.wait(30)
            answer = client.post("/api/v1/jobs/", body, headers={"Idempotency-Key": "k"})
            replayed = answer.headers.get("Idempotency-Replayed") == "true"
            return answer.status_code, answer.json().get("id", ""), replayed
        finally:
            connection.close()

    with ThreadPoolExecutor(WORKERS) as pool:
        return list(pool.map(send, range(WORKERS)))


def check(answers: list[tuple[int, str, bool]]) -> None:
    assert {status for status, _, _ in answers} == {201}, answers
    assert len({job for _, job, _ in answers}) == 1
    assert sum(not replayed for _, _, replayed in answers) == 1


@pytest.mark.postgres
@pytest.mark.django_db(transaction=True)
def test_on_postgresql(monkeypatch: pytest.MonkeyPatch) -> None:
    require(connection.vendor == "postgresql", "PostgreSQL (DATABASE_URL)")
    monkeypatch.setattr("jobs.dispatch._send", lambda name, *args: None)

    check(post_at_once(UserFactory()))

    assert Job.objects.count() == IdempotencyKey.objects.count() == 1


def test_on_sqlite(tmp_path: Path) -> None:
    """A file of its own: the database of the other tests lives in memory and knows no waiting."""
    environment = {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "portal.settings.test",
        "DATABASE_URL": f"sqlite:///{tmp_path / 'db.sqlite3'}",
        "STARLING_TEST_STATE": str(tmp_path),
        "PYTHONPATH": str(ROOT),
    }

    done = subprocess.run(
        [sys.executable, __file__],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    check([tuple(answer) for answer in report["answers"]])
    assert report["jobs"] == 1


def _on_its_own() -> None:
    from django.core.management import call_command

    from jobs import dispatch

    dispatch._send = lambda name, *args: None  # type: ignore[assignment]
    call_command("migrate", verbosity=0)
    answers = post_at_once(UserFactory())
    print(json.dumps({"answers": answers, "jobs": Job.objects.count()}))


if __name__ == "__main__":
    _on_its_own()
