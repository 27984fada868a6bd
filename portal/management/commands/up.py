"""Starts the whole portal on this machine and keeps it running."""

import os
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from django.conf import settings
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import connection
from django.db.migrations.executor import MigrationExecutor

from portal.embedded import NoBrokerError
from portal.programs import programs
from portal.supervision import AlreadyRunningError, Supervisor, refuse_second


class Command(BaseCommand):
    help = "Run web, workers, beat, collector and, without REDIS_URL, the broker. Ctrl-C stops all."

    def add_arguments(self, parser: CommandParser) -> None:
        """Take where to listen and how many workers to run."""
        parser.add_argument("--host", default="127.0.0.1")
        parser.add_argument("--port", type=int, default=8000)
        parser.add_argument("--workers", type=int, default=2, help="tasks at the same time")
        parser.add_argument("--no-web", action="store_true", help="everything but the web server")
        parser.add_argument("--quiet", action="store_true", help="programs speak to log files only")
        parser.add_argument(
            "--set-up",
            choices=["process", "docker"],
            help="bring database, accounts, host and samples up to date first",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Run until SIGTERM or Ctrl-C."""
        host, port, web = options["host"], options["port"], not options["no_web"]
        state = Path(settings.STATE_DIR)
        echo = _echo(quiet=options["quiet"])
        try:
            refuse_second(state)
            if web:
                _check_port(host, port)
            if options["set_up"]:
                _set_up(options["set_up"], f"http://{host}:{port}")
            # The server of static files wants its folder, also while it is empty.
            Path(settings.STATIC_ROOT).mkdir(parents=True, exist_ok=True)
            found = programs(host=host, port=port, workers=options["workers"], web=web)
            supervisor = Supervisor(found, state_dir=state, echo=echo)
            _stop_on_signals(supervisor)
            os.environ.setdefault("DJANGO_SETTINGS_MODULE", settings.SETTINGS_MODULE)
            where = f"Starling answers at http://{host}:{port}/" if web else "Starling runs"
            supervisor.run(on_ready=lambda: echo("up", where))
        except (AlreadyRunningError, NoBrokerError) as error:
            raise CommandError(str(error)) from error


def _set_up(runtime: str, url: str) -> None:
    """Do what a first start needs; a later one finds it done, at the cost of a few questions."""
    executor = MigrationExecutor(connection)
    if executor.migration_plan(executor.loader.graph.leaf_nodes()):
        call_command("migrate", verbosity=0)
    call_command("setup", runtime=runtime, url=url)


def _echo(*, quiet: bool) -> Callable[[str, str], None]:
    def echo(name: str, line: str) -> None:
        if name == "up" or not quiet:
            sys.stdout.write(f"{name:<9} {line}\n")
            sys.stdout.flush()

    return echo


def _stop_on_signals(supervisor: Supervisor) -> None:
    def stop(number: int, frame: FrameType | None) -> None:
        supervisor.stop()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)


def _check_port(host: str, port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise CommandError(
                f"Something else listens on {host}:{port} already. Choose another port with "
                "--port, or PORT=… for scripts/run."
            ) from error
