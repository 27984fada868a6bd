"""A whole portal of real processes, whose parts are killed while a job is on its way.

Whatever is killed, and whenever: the job ends as it should, its program was started once, and its
log has every line once.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit
from uuid import uuid4

import psutil
import pytest
import requests

from tests.conftest import require

ROOT = Path(__file__).parent.parent.parent
LINES = 100
PROGRAM = f"""
import os, time
with open("starts.txt", "a") as stream:
    stream.write(f"{{os.getpid()}} {{time.time()}}\\n")
for number in range({LINES}):
    print(f"line {{number:04}}", flush=True)
    time.sleep(0.1)
"""
PREPARE = """
import sys
from django.utils import timezone
from cluster import services as cluster_services
from jobs.models import Environment
from portal import services
from portal.models import User
url, python, image = sys.argv_ = {argv!r}
host = cluster_services.host_create(name="host", url=url)
cluster_services.host_test(host_id=host.pk, now=timezone.now())
Environment.objects.create(slug="plain", name="Plain", python=python, image=image)
user = User.objects.create_user("ada")
print("TOKEN", services.token_create(user=user, name="test", days=1, now=timezone.now())[1])
"""
IMAGE = "starling/base:latest"


@dataclass
class Portal:
    """One portal in a state folder of its own, seen from outside only."""

    state: Path
    environment: dict[str, str]
    port: int
    token: str = ""
    supervisor: subprocess.Popen[bytes] | None = None

    def manage(self, *words: str) -> str:
        done = subprocess.run(
            [sys.executable, "manage.py", *words],
            cwd=ROOT,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def prepare(self, *, url: str) -> None:
        self.manage("migrate", "-v0")
        python = shutil.which("python3", path="/usr/bin:/bin") or sys.executable
        program = PREPARE.format(argv=[url, python, IMAGE])
        out = self.manage("shell", "--no-imports", "-c", program)
        self.token = next(line.split()[1] for line in out.splitlines() if "TOKEN" in line)

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Token {self.token}"}

    def start(self) -> None:
        self.supervisor = subprocess.Popen(
            [sys.executable, "manage.py", "up", "--port", str(self.port), "--quiet"],
            cwd=ROOT,
            env=self.environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def stop(self) -> None:
        if self.supervisor is not None and self.supervisor.poll() is None:
            self.supervisor.send_signal(signal.SIGTERM)
            self.supervisor.wait(60)

    def get(self, path: str, **parameters: Any) -> Any:
        """Return what the portal answers, or ``None`` while it does not."""
        with suppress(requests.RequestException):
            url = f"http://127.0.0.1:{self.port}/api/v1/{path}"
            answer = requests.get(url, params=parameters, headers=self.headers, timeout=10)
            if answer.status_code == 200:
                return answer.json()
        return None

    def submit(self) -> str:
        # With a key of its own: asked again after a broken answer, it is the same job.
        key = uuid4().hex
        answer = self.until(lambda: self._submitted(key), "the portal takes the job")
        return str(answer["id"])

    def _submitted(self, key: str) -> Any:
        with suppress(requests.RequestException):
            answer = requests.post(
                f"http://127.0.0.1:{self.port}/api/v1/jobs/",
                headers=self.headers | {"Idempotency-Key": key},
                json={
                    "name": "numbered",
                    "environment": "plain",
                    "script": PROGRAM,
                    "cpu_millis": 250,
                    "memory_mib": 128,
                    "walltime_s": 300,
                },
                timeout=20,
            )
            assert answer.status_code in {200, 201}, answer.text
            return answer.json()
        return None

    def status(self, job: str) -> str:
        found = self.get(f"jobs/{job}/")
        return "" if found is None else str(found["status"])

    def log(self, job: str) -> list[str]:
        found = self.get(f"jobs/{job}/logs/", first=1, limit=1000)
        return [] if found is None else [line[2] for line in found["lines"]]

    def until(self, ask: Callable[[], Any], what: str, *, timeout_s: float = 240) -> Any:
        give_up_at = time.monotonic() + timeout_s
        while time.monotonic() < give_up_at:
            answer = ask()
            if answer:
                return answer
            time.sleep(0.05)
        raise AssertionError(f"waited {timeout_s:g} s in vain until {what}\n{self.words()}")

    def words(self) -> str:
        """Return the last words of every program, for whoever reads a failure."""
        running = self.state / "run" / "up.json"
        facts = running.read_text() if running.exists() else "no up.json"
        jobs = self.get("jobs/")
        return f"{facts}\n{jobs}\n" + "\n".join(
            f"--- {path.name}\n{path.read_text(errors='replace')[-3000:]}"
            for path in sorted((self.state / "logs").glob("*.log"))
        )

    def pid(self, name: str) -> int | None:
        with suppress(FileNotFoundError, ValueError):
            facts = json.loads((self.state / "run" / "up.json").read_text())
            pid = facts["children"][name]["pid"]
            return int(pid) if pid else None
        return None

    def kill(self, name: str) -> None:
        """Kill one program and everything it has started, as an out-of-memory killer might."""
        pid = self.until(lambda: self.pid(name), f"{name} runs")
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            family = [process, *process.children(recursive=True)]
            # What it started for a job is not a part of it: that has a session of its own.
            for member in family:
                with suppress(psutil.NoSuchProcess, ProcessLookupError):
                    if os.getsid(member.pid) == os.getsid(process.pid):
                        member.kill()

    def kill_all(self) -> None:
        """Kill the supervisor; the kernel ends what it ran."""
        assert self.supervisor is not None
        self.supervisor.kill()
        self.supervisor.wait(30)


def database(name: str) -> tuple[str, Callable[[], None]]:
    """Return the URL of a database of the test's own, and how it is dropped; empty for SQLite."""
    given = os.environ.get("DATABASE_URL", "")
    if not given.startswith("postgres"):
        return "", lambda: None
    import psycopg

    def run(statement: str) -> None:
        with psycopg.connect(given, autocommit=True) as connection:
            connection.execute(statement)  # type: ignore[arg-type]

    run(f"CREATE DATABASE {name}")
    url = urlunsplit(urlsplit(given)._replace(path=f"/{name}"))
    return url, lambda: run(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")


def engine() -> str:
    """Return the address of a Docker engine that answers and has the image, or nothing."""
    for address in (
        os.environ.get("DOCKER_HOST", ""),
        "unix:///var/run/docker.sock",
        "unix:///run/starling-engine/docker.sock",
    ):
        if address and shutil.which("docker"):
            done = subprocess.run(
                ["docker", "--host", address, "image", "inspect", IMAGE],
                capture_output=True,
                timeout=30,
                check=False,
            )
            if done.returncode == 0:
                return address
    return ""


def sweep(address: str, instance: str) -> None:
    """Remove what a portal leaves on an engine: its probe goes on for the next start."""
    listed = subprocess.run(
        ["docker", "--host", address, "ps", "-aq", "--filter", f"name={instance}"],
        capture_output=True,
        text=True,
        check=True,
    )
    for container in listed.stdout.split():
        subprocess.run(
            ["docker", "--host", address, "rm", "-f", container], capture_output=True, check=False
        )


@pytest.fixture(
    scope="module", params=["process", pytest.param("docker", marks=pytest.mark.docker)]
)
def portal(request: pytest.FixtureRequest) -> Iterator[Portal]:
    url = "process://local"
    if request.param == "docker":
        url = engine()
        require(url, f"a Docker engine with the image {IMAGE}")
    # A short path: the broker's socket is below it.
    state = Path(tempfile.mkdtemp(prefix="kill-", dir="/tmp"))
    database_url, drop_database = database(f"kill_{uuid4().hex[:10]}")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    hidden = {"REDIS_URL", "DATABASE_URL"}
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("STARLING") and name not in hidden
    }
    made = Portal(
        state=state,
        port=port,
        environment=kept
        | {
            "DJANGO_SETTINGS_MODULE": "portal.settings.dev",
            "STARLING_STATE": str(state),
            "STARLING_INSTANCE": state.name,
            **({"DATABASE_URL": database_url} if database_url else {}),
        },
    )
    try:
        made.prepare(url=url)
        made.start()
        made.until(lambda: made.get("me/"), "the portal answers")
        yield made
    finally:
        made.stop()
        drop_database()
        if request.param == "docker":
            sweep(url, state.name)
        shutil.rmtree(state, ignore_errors=True)


def check(portal: Portal, job: str) -> None:
    portal.until(
        lambda: portal.status(job) in {"succeeded", "failed", "cancelled"}, "the job has ended"
    )
    found = portal.get(f"jobs/{job}/")
    events = portal.get(f"jobs/{job}/events/")
    assert found["status"] == "succeeded", (found, events, portal.words())
    assert portal.log(job) == [f"line {number:04}" for number in range(LINES)], portal.words()
    attempts = sorted((portal.state / "attempts" / job).glob("a*"))
    assert [path.name for path in attempts] == ["a1"], (events, portal.words())
    starts = (attempts[0] / "r0" / "starts.txt").read_text().splitlines()
    assert len(starts) == 1


def killing(portal: Portal, name: str) -> str:
    """Submit a job, kill one part of the portal at five moments of its life, and return the job."""
    job = portal.submit()
    portal.kill(name)
    # Where the web server itself is killed, the job may be further when it answers again.
    begun = {"running", "finishing", "succeeded"}
    portal.until(lambda: portal.status(job) in begun, "the job runs")
    portal.kill(name)
    portal.until(lambda: len(portal.log(job)) >= 20, "the log has come to line 20")
    portal.kill(name)
    portal.until(lambda: len(portal.log(job)) >= 70, "the log has come to line 70")
    portal.kill(name)
    portal.until(
        lambda: len(portal.log(job)) >= LINES or portal.status(job) == "succeeded",
        "the program has ended",
    )
    portal.kill(name)
    return job


@pytest.mark.timeout(600)
def test_jobs_survive_the_death_of_any_part_at_any_time(portal: Portal) -> None:
    """Four jobs at once, each with a part of the portal that dies at every step of it."""
    parts = ["worker", "beat", "collector", "web"]

    with ThreadPoolExecutor(len(parts)) as pool:
        jobs = list(pool.map(lambda name: killing(portal, name), parts))

    for job in jobs:
        check(portal, job)


@pytest.mark.timeout(400)
def test_a_job_survives_the_death_of_everything(portal: Portal) -> None:
    job = portal.submit()
    portal.until(lambda: len(portal.log(job)) >= 10, "the log has come to line 10")

    portal.kill_all()
    portal.start()

    check(portal, job)
