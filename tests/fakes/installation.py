"""A whole portal of its own, with real processes, in a folder of its own."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit
from uuid import uuid4

ROOT = Path(__file__).resolve().parent.parent.parent
#: The environments that jobs of tests run in, built by scripts/environment.
ENVIRONMENTS = Path(os.environ.get("STARLING_TEST_ENVIRONMENTS", ROOT / "var" / "environments"))
PATIENCE_S = 90


def tensorflow_is_built() -> bool:
    return (ENVIRONMENTS / "tensorflow" / ".starling").exists()


def docker_host() -> str:
    """Return the address of an engine that answers, or nothing."""
    found = subprocess.run(
        [ROOT / "scripts" / "engine", "address"], capture_output=True, text=True, check=False
    )
    return found.stdout.strip()


def docker_has(image: str) -> bool:
    host = docker_host()
    command = ["docker", "--host", host, "image", "inspect", image]
    return bool(host) and subprocess.run(command, capture_output=True, check=False).returncode == 0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def eventually(question: Callable[[], Any], *, patience_s: float = PATIENCE_S, what: str) -> Any:
    """Ask until the answer is true; fail with ``what`` was waited for."""
    until = time.monotonic() + patience_s
    while True:
        answer = question()
        if answer:
            return answer
        if time.monotonic() > until:
            raise AssertionError(f"waited in vain for {what}")
        time.sleep(0.1)


def own_database(state: Path) -> tuple[str, Callable[[], None]]:
    """Return the URL of a new database, on PostgreSQL if the tests run on it, and how it goes."""
    given = os.environ.get("DATABASE_URL", "")
    if not given.startswith("postgres"):
        return f"sqlite:///{state}/db.sqlite3", lambda: None
    import psycopg

    name = f"starling_{uuid4().hex[:10]}"

    def run(statement: str) -> None:
        with psycopg.connect(given, autocommit=True) as connection:
            connection.execute(statement)  # type: ignore[arg-type]

    run(f"CREATE DATABASE {name}")
    url = urlunsplit(urlsplit(given)._replace(path=f"/{name}"))
    return url, lambda: run(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")


def own_broker() -> str:
    """Return the URL of a Redis database of the test's own; empty for the embedded broker."""
    given = os.environ.get("REDIS_URL", "")
    return urlunsplit(urlsplit(given)._replace(path=f"/{1 + os.getpid() % 15}")) if given else ""


@dataclass
class Installation:
    """A state folder with a portal in it; everything started here is ended by :meth:`close`."""

    state: Path
    variables: dict[str, str] = field(default_factory=dict)
    port: int = field(default_factory=free_port)
    passwords: dict[str, str] = field(default_factory=dict)
    up: subprocess.Popen[bytes] | None = None

    def __post_init__(self) -> None:
        self.database_url, self._drop_database = own_database(self.state)
        self.redis_url = own_broker()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def environment(self) -> dict[str, str]:
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("STARLING", "DJANGO", "PYTEST"))
        }
        return kept | {
            "DJANGO_SETTINGS_MODULE": "portal.settings.dev",
            "STARLING_STATE": str(self.state),
            "DATABASE_URL": self.database_url,
            "REDIS_URL": self.redis_url,
            **self.variables,
        }

    def manage(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "manage.py", *words],
            cwd=ROOT,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert not check or done.returncode == 0, f"{words}: {done.stdout}\n{done.stderr}"
        return done

    def set_up(self, *options: str) -> None:
        """Migrate, make accounts and a host, and lend the environments that are built already."""
        self.state.mkdir(parents=True, exist_ok=True)
        if ENVIRONMENTS.is_dir() and not (self.state / "environments").exists():
            (self.state / "environments").symlink_to(ENVIRONMENTS)
        self.manage("migrate", "--verbosity", "0")
        said = self.manage("setup", *options).stdout
        self.passwords = dict(re.findall(r"Sign in as (\w+) with the password (\S+)", said))

    def start(self, *options: str) -> None:
        """Start ``manage.py up`` and wait until it answers."""
        with (self.state / "up.log").open("wb") as log:
            self.up = subprocess.Popen(
                [sys.executable, "manage.py", "up", "--port", str(self.port), *options],
                cwd=ROOT,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        eventually(self._has_started, what=f"the portal to start; see {self.state}/up.log")

    def _has_started(self) -> bool:
        assert self.up is not None
        assert self.up.poll() is None, (self.state / "up.log").read_text()
        return "Starling " in (self.state / "up.log").read_text()

    def children(self) -> dict[str, dict[str, Any]]:
        facts = json.loads((self.state / "run" / "up.json").read_text())
        return facts["children"]  # type: ignore[no-any-return]

    def shell(self, program: str) -> Any:
        """Run a program over the models; return what it prints as JSON in its last line."""
        said = self.manage("shell", "--no-imports", "-c", program).stdout
        return json.loads(said.strip().splitlines()[-1])

    def close(self) -> None:
        if self.up is not None and self.up.poll() is None:
            self.up.send_signal(signal.SIGTERM)
            try:
                self.up.wait(60)
            except subprocess.TimeoutExpired:
                self.up.kill()
                self.up.wait(10)
        self._drop_database()
