"""Which programs make up a running portal."""

import os
import socket
import sys
from pathlib import Path
from urllib.request import urlopen

from django.conf import settings

from portal import embedded
from portal.supervision import Program, python_module


def programs(*, host: str, port: int, workers: int, web: bool = True) -> list[Program]:
    """Return the programs in the order in which they start.

    Raises:
        NoBrokerError: If no broker is given and none is on this machine.
    """
    found: list[Program] = []
    if not settings.REDIS_URL:
        found.append(_broker())
    if web:
        found.append(_web(host, port))
    found.append(_worker(workers))
    found.append(_beat())
    manage = str(Path(settings.BASE_DIR) / "manage.py")
    found.append(Program(name="collector", command=[sys.executable, manage, "run_collector"]))
    return found


def _broker() -> Program:
    path = Path(settings.EMBEDDED_SOCKET)
    return Program(
        name="broker",
        command=embedded.command(socket=path, folder=Path(settings.STATE_DIR) / "valkey"),
        ready=lambda: listens(path),
    )


def listens(path: Path) -> bool:
    """Return whether something accepts connections on a unix socket."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1)
        return probe.connect_ex(str(path)) == 0


def _web(host: str, port: int) -> Program:
    return Program(
        name="web",
        command=python_module(
            "uvicorn",
            "portal.asgi:application",
            "--host",
            host,
            "--port",
            str(port),
            "--lifespan",
            "off",
            "--no-access-log",
            "--timeout-graceful-shutdown",
            "5",
            "--ws-ping-interval",
            "20",
            "--log-level",
            "warning",
        ),
        environment={"PYTHONPATH": str(settings.BASE_DIR)},
        ready=lambda: answers(f"http://{host}:{port}/livez"),
    )


def answers(url: str) -> bool:
    """Return whether an HTTP server answers with success."""
    try:
        with urlopen(url, timeout=2) as response:  # noqa: S310 - our own http address
            return bool(response.status == 200)
    except OSError:
        return False


def _worker(workers: int) -> Program:
    return Program(
        name="worker",
        command=python_module(
            "celery",
            "-A",
            "portal",
            "worker",
            "--concurrency",
            str(workers),
            "--loglevel",
            "WARNING",
            "--without-gossip",
            "--without-mingle",
            "-n",
            f"worker-{os.getpid()}@%h",
        ),
        environment={"PYTHONPATH": str(settings.BASE_DIR)},
    )


def _beat() -> Program:
    return Program(
        name="beat",
        command=python_module(
            "celery",
            "-A",
            "portal",
            "beat",
            "--loglevel",
            "WARNING",
            "--pidfile=",
            "-s",
            settings.CELERY_BEAT_SCHEDULE_FILENAME,
        ),
        environment={"PYTHONPATH": str(settings.BASE_DIR)},
    )
