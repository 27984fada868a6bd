"""Prints what the cluster really ran, or the hosts it has, for a simulation to replay."""

import sys
from argparse import ArgumentParser
from datetime import datetime, time
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.utils import timezone
from django.utils.dateparse import parse_date, parse_datetime

from cluster import selectors as cluster_selectors
from cluster.core.simulation.tables import csv_of
from cluster.core.simulation.workload_files import hosts_to_json
from jobs.selectors.history import recorded_window


class Command(BaseCommand):
    help = "Print the jobs of a time as a workload for manage.py simulate; or --hosts."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "since", nargs="?", metavar="FROM", help="2026-03-02 or 2026-03-02T09:00"
        )
        parser.add_argument("until", nargs="?", metavar="TO", help="jobs submitted before this")
        parser.add_argument(
            "--hosts", action="store_true", help="print the hosts there are instead"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        if options["hosts"]:
            snapshot = cluster_selectors.cluster_snapshot(now=timezone.now())
            self.stdout.write(hosts_to_json(snapshot))
            return
        since, until = _moment("FROM", options["since"]), _moment("TO", options["until"])
        if until <= since:
            raise CommandError("TO must lie after FROM", returncode=2)
        window = recorded_window(since=since, until=until)
        for why, count in window.left_out.items():
            sys.stderr.write(f"left out, {why}: {count}\n")
        if not window.rows:
            raise CommandError("no job that ran was submitted in that time", returncode=2)
        self.stdout.write(csv_of(window.rows), ending="")


def _moment(name: str, text: str | None) -> datetime:
    """Return a day's begin or a moment, in the portal's time zone unless it names one."""
    try:
        moment = parse_datetime(text or "")
        day = None if moment else parse_date(text or "")
    except ValueError:
        moment = day = None
    if moment is None and day is not None:
        moment = datetime.combine(day, time())
    if moment is None:
        raise CommandError(
            f"{name} must be a day or a moment like 2026-03-02 or 2026-03-02T09:00, got {text!r}",
            returncode=2,
        )
    return timezone.make_aware(moment) if timezone.is_naive(moment) else moment
