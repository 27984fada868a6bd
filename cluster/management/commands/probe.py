"""Prints what a host's probe sees, as the collector sees it."""

import json
from argparse import ArgumentParser
from contextlib import closing
from dataclasses import asdict
from itertools import islice
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from cluster import selectors
from cluster.adapters import registry
from cluster.core.resources import GpuReading, HostReading
from cluster.errors import ClusterError


class Command(BaseCommand):
    help = "Print the readings of a host's probe, one line a second."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("host", help="the host's name in the portal")
        parser.add_argument("--count", type=int, help="end after this many readings")
        parser.add_argument("--json", action="store_true", help="one JSON object a line")

    def handle(self, *args: Any, **options: Any) -> None:
        host = selectors.host_get(options["host"])
        if host is None:
            known = ", ".join(sorted(one.name for one in selectors.host_list())) or "none"
            raise CommandError(f"there is no host {options['host']!r}; there are: {known}")
        try:
            with closing(registry.probe_for(host.endpoint).readings()) as readings:
                known_readings = (reading for reading in readings if reading is not None)
                for reading in islice(known_readings, options["count"]):
                    self.stdout.write(as_json(reading) if options["json"] else as_text(reading))
                    self.stdout.flush()
        except ClusterError as error:
            raise CommandError(str(error)) from error
        except KeyboardInterrupt:
            return


def as_json(reading: HostReading) -> str:
    """Return a reading as one line of JSON; unknown is null."""
    return json.dumps(asdict(reading), default=str)


def as_text(reading: HostReading) -> str:
    """Return a reading as a line for people; unknown is a question mark."""
    words = [
        f"{reading.observed_at:%H:%M:%S}",
        f"cpu {_number(reading.cpu_pct)}%",
        f"memory {_number(reading.memory_used_mib)}/{_number(reading.memory_total_mib)} MiB",
        f"containers {len(reading.containers)}",
        *(_gpu(gpu) for gpu in reading.gpus),
    ]
    if reading.simulated:
        words.append("(simulated)")
    if reading.gpu_error:
        words.append(reading.gpu_error)
    return "  ".join(words)


def _gpu(gpu: GpuReading) -> str:
    if gpu.lost:
        return f"gpu{gpu.index} LOST"
    used, total = _number(gpu.memory_used_mib), _number(gpu.memory_total_mib)
    return f"gpu{gpu.index} {_number(gpu.utilization_pct)}% {used}/{total} MiB"


def _number(value: float | None) -> str:
    return "?" if value is None else f"{value:.0f}"
