"""Says in plain words what works, what is missing, and how to mend it."""

import json
import sys
from dataclasses import asdict
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from portal.diagnosis import can_run_jobs, diagnose

_MARKS = {True: "ok  ", False: "FAIL", None: "-   "}


class Command(BaseCommand):
    help = "Look at everything the portal needs; exit code 1 when jobs cannot run."
    requires_system_checks: list[str] = []
    requires_migrations_checks = False

    def add_arguments(self, parser: CommandParser) -> None:
        """Take the form of the answer."""
        parser.add_argument("--json", action="store_true", help="print one JSON object")

    def handle(self, *args: Any, **options: Any) -> None:
        """Print the findings."""
        found = diagnose()
        fine = can_run_jobs(found)
        if options["json"]:
            body = {"ok": fine, "findings": [asdict(finding) for finding in found]}
            self.stdout.write(json.dumps(body, indent=2))
        else:
            for finding in found:
                self.stdout.write(f"{_MARKS[finding.ok]}  {finding.name}: {finding.text}")
                if finding.mend:
                    self.stdout.write(f"      → {finding.mend}")
            self.stdout.write("Jobs can run here." if fine else "Jobs cannot run here yet.")
        if not fine:
            sys.exit(1)
