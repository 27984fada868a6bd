"""Unpacks received datasets beside the workers; started by them, and harmless by hand."""

import os
import resource
from typing import Any

from django.core.management.base import BaseCommand
from django.utils import timezone

from jobs import services

# Far above what any honest archive needs; a forged one ends this process and nothing else.
_MEMORY_BYTES = 4 << 30


class Command(BaseCommand):
    help = "Unpack the dataset versions that were received and wait, then end."

    def handle(self, *args: Any, **options: Any) -> None:
        """Unpack with little memory and low priority: people's requests come first."""
        resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY_BYTES, resource.RLIM_INFINITY))
        os.nice(10)
        done = services.unpack_pending(now=timezone.now())
        self.stdout.write(f"{done} dataset versions unpacked")
