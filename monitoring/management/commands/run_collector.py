"""Follows hosts and jobs until it is told to end."""

import signal
from pathlib import Path
from types import FrameType
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand

from monitoring.collector import Collector


class Command(BaseCommand):
    help = "Follow the probes of all hosts and the output of all jobs."

    def handle(self, *args: Any, **options: Any) -> None:
        """Run until SIGTERM or Ctrl-C."""
        collector = Collector(heartbeat=Path(settings.STATE_DIR) / "run" / "collector.json")

        def stop(number: int, frame: FrameType | None) -> None:
            collector.stop()

        signal.signal(signal.SIGTERM, stop)
        signal.signal(signal.SIGINT, stop)
        collector.run()
