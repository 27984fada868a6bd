"""What works on this installation, what is missing, and the command that mends it."""

import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from django.conf import settings
from django.core.cache import cache
from django.db import DatabaseError, connection
from django.db.migrations.executor import MigrationExecutor
from django.utils import timezone

from cluster import services as cluster_services
from cluster.adapters.process_runtime import bubblewrap_works
from cluster.errors import ClusterError
from cluster.models import Host
from jobs.models import Environment
from portal import embedded
from portal.supervision import running

_LOW_DISK_MIB: Final = 5 * 1024
_SILENT_S: Final = 15


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        ok: Whether it works; ``None`` where it is missing and can be done without.
        text: What was found, in words.
        mend: What to do about it; empty where nothing needs doing.
    """

    name: str
    ok: bool | None
    text: str
    mend: str = ""


def diagnose() -> list[Finding]:
    """Look at everything a portal needs; no finding depends on the ones before it."""
    found: list[Finding] = []
    for look in (_python, _state, _database, _broker, _programs, _hosts, _environments, _extras):
        found.extend(_safely(look))
    return found


def can_run_jobs(findings: list[Finding]) -> bool:
    """Return whether nothing that is needed is missing."""
    return all(finding.ok is not False for finding in findings)


def _safely(look: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    try:
        yield from look()
    except DatabaseError as error:
        yield Finding(
            name=look.__name__.strip("_"),
            ok=False,
            text=f"the database cannot be asked: {str(error).strip()}",
            mend=".venv/bin/python manage.py migrate",
        )


def _python() -> Iterator[Finding]:
    version = ".".join(str(part) for part in sys.version_info[:3])
    yield Finding(name="Python", ok=True, text=f"{version} at {sys.executable}")


def _state() -> Iterator[Finding]:
    state = Path(settings.STATE_DIR)
    state.mkdir(parents=True, exist_ok=True)
    if not os.access(state, os.W_OK):
        yield Finding(
            name="state folder",
            ok=False,
            text=f"{state} cannot be written",
            mend=f"chown -R $(id -un) {state}",
        )
        return
    free_mib = shutil.disk_usage(state).free // 2**20
    low = free_mib < _LOW_DISK_MIB
    yield Finding(
        name="state folder",
        ok=not low,
        text=f"{state}, {free_mib / 1024:.0f} GiB free",
        mend="free some disk space, or move it with STARLING_STATE" if low else "",
    )


def _database() -> Iterator[Finding]:
    connection.ensure_connection()
    executor = MigrationExecutor(connection)
    missing = executor.migration_plan(executor.loader.graph.leaf_nodes())
    name = {"sqlite": "SQLite", "postgresql": "PostgreSQL"}[connection.vendor]
    if missing:
        yield Finding(
            name="database",
            ok=False,
            text=f"{name}, {len(missing)} migrations are not applied",
            mend=".venv/bin/python manage.py migrate",
        )
    else:
        yield Finding(name="database", ok=True, text=f"{name}, up to date")


def _broker() -> Iterator[Finding]:
    given = bool(settings.REDIS_URL)
    try:
        cache.get("starling.doctor")
    except Exception as error:  # noqa: BLE001 - the cache's client raises errors of its own
        yield _broker_missing(given=given, error=str(error))
        return
    where = urlsplit(settings.REDIS_URL).hostname if given else "the embedded one"
    yield Finding(name="broker", ok=True, text=f"{where} answers")


def _broker_missing(*, given: bool, error: str) -> Finding:
    if given:
        return Finding(
            name="broker",
            ok=False,
            text=f"REDIS_URL is set and nothing answers there: {error}",
            mend="start that server, or unset REDIS_URL to use the embedded one",
        )
    try:
        binary = embedded.server_binary()
    except embedded.NoBrokerError as missing:
        return Finding(name="broker", ok=False, text=str(missing), mend="apt-get install valkey")
    return Finding(
        name="broker",
        ok=None,
        text=f"{binary} is started with the portal, which does not run",
        mend="scripts/run",
    )


def _programs() -> Iterator[Finding]:
    state = Path(settings.STATE_DIR)
    if not running(state):
        yield Finding(
            name="portal", ok=None, text="is not running on this state folder", mend="scripts/run"
        )
        return
    facts = json.loads((state / "run" / "up.json").read_text())
    for name, child in facts["children"].items():
        again = f", started again {child['restarts']} times" if child["restarts"] else ""
        yield Finding(
            name=name,
            ok=bool(child["alive"]),
            text=f"process {child['pid']} runs{again}" if child["alive"] else f"is down{again}",
            mend="" if child["alive"] else f"read {state}/logs/{name}.log",
        )
    yield from _collector(state)


def _collector(state: Path) -> Iterator[Finding]:
    try:
        beat = json.loads((state / "run" / "collector.json").read_text())
    except (FileNotFoundError, ValueError):
        return
    age = time.time() - beat["at"]
    if age > _SILENT_S:
        yield Finding(
            name="collector",
            ok=False,
            text=f"has not looked around for {age:.0f} s",
            mend=f"read {state}/logs/collector.log",
        )


def _hosts() -> Iterator[Finding]:
    hosts = list(Host.objects.all())
    if not hosts:
        yield Finding(
            name="hosts",
            ok=False,
            text="no host is registered, so no job can run",
            mend=".venv/bin/python manage.py setup",
        )
    for host in hosts:
        try:
            engine = cluster_services.host_test(host_id=host.pk, now=timezone.now())
        except ClusterError as error:
            yield Finding(
                name=f"host {host.name}", ok=False, text=str(error), mend=_mend_host(host)
            )
            continue
        gpus = host.gpus.count()
        words = f"{engine.kind} {engine.version}, {engine.cpu_millis // 1000} cores, "
        words += f"{engine.memory_mib // 1024} GiB, {gpus or 'no'} GPU(s)"
        yield Finding(name=f"host {host.name}", ok=True, text=words, mend=" ".join(engine.warnings))


def _mend_host(host: Host) -> str:
    if host.url.startswith("unix:"):
        return "start Docker (systemctl start docker), and see that 'docker version' answers"
    if host.url.startswith("tcp:"):
        return "see that the engine listens there and that the TLS files belong to it"
    return "export STARLING_PROCESS_RUNTIME=yes"


def _environments() -> Iterator[Finding]:
    for environment in Environment.objects.filter(is_enabled=True):
        places = []
        if environment.python and os.access(environment.interpreter, os.X_OK):
            places.append("on this machine")
        if environment.image:
            places.append(f"as image {environment.image}")
        local = Host.objects.filter(url__startswith="process:").exists()
        missing = local and "on this machine" not in places
        first = environment.slug == "tensorflow"
        yield Finding(
            name=f"environment {environment.slug}",
            ok=(False if first else None) if missing else True,
            text="not installed on this machine" if missing else ", ".join(places),
            mend=f"scripts/environment venv {environment.slug}" if missing else "",
        )


def _extras() -> Iterator[Finding]:
    if bubblewrap_works():
        yield Finding(name="bubblewrap", ok=True, text="keeps jobs without Docker in a sandbox")
    else:
        yield Finding(
            name="bubblewrap",
            ok=None,
            text="is missing or may not make namespaces; jobs without Docker see this machine",
            mend="apt-get install bubblewrap",
        )
    driver = shutil.which("nvidia-smi")
    yield Finding(
        name="NVIDIA driver",
        ok=True if driver else None,
        text=driver or "not on this machine; jobs here run on the CPU",
    )
