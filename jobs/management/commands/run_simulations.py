"""Computes simulations and trials that wait; started by the workers, and harmless by hand."""

import os
import resource
import signal
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand
from django.utils import timezone

from jobs.services import runner
from jobs.services.runs import Kind

# Far above what a reasonable question needs; another ends this process and nothing else.
_MEMORY_BYTES = 4 << 30


class Command(BaseCommand):
    help = "Compute the simulations or trials of placement that wait, then end."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("kind", choices=[kind.value for kind in Kind])

    def handle(self, *args: Any, **options: Any) -> None:
        """Compute with bounded memory and low priority: people's requests come first."""
        resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY_BYTES, resource.RLIM_INFINITY))
        os.nice(10)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        done = runner.run_pending(kind=Kind(options["kind"]), clock=timezone.now)
        self.stdout.write(f"{done} computed")
