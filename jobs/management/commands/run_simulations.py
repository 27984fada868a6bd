"""Computes simulations and trials that wait; started by the workers, and harmless by hand."""

import os
import resource
import signal
import time
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand
from django.utils import timezone

from jobs.services import runner
from jobs.services.runs import Kind

# Far above what a reasonable question needs; another ends this process and nothing else.
_MEMORY_BYTES = 4 << 30
# Who tries a placement tries another soon, and a program that is there answers at once.
_LOOK_EVERY_S = 0.5
_LOOKS = 120


class Command(BaseCommand):
    help = "Compute the simulations or trials of placement that wait, then end."
    # Somebody watches, and the portal that starts this was checked when it started.
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("kind", choices=[kind.value for kind in Kind])

    def handle(self, *args: Any, **options: Any) -> None:
        """Compute with bounded memory; long simulations step back for people's requests."""
        kind = Kind(options["kind"])
        resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY_BYTES, resource.RLIM_INFINITY))
        if kind is Kind.SIMULATION:
            os.nice(10)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        looks = _LOOKS if kind is Kind.PLACEMENT else 0
        done = runner.run_pending(
            kind=kind, clock=timezone.now, rest=lambda rests: rests < looks and _wait()
        )
        self.stdout.write(f"{done} computed")


def _wait() -> bool:
    time.sleep(_LOOK_EVERY_S)
    return True
