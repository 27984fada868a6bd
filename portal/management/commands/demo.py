"""Runs the example job to its end without a browser and prints what was seen of it."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils import timezone

from cluster.models import Host
from jobs import selectors as job_selectors
from jobs import storage
from jobs.errors import JobsError
from jobs.lifecycle import JobStatus
from jobs.models import Job
from jobs.workspace import output_path
from monitoring import selectors
from monitoring.models import MetricPoint
from portal import example
from portal.models import User
from portal.supervision import running

_ENOUGH = 0.95
_START_S = 60


class Command(BaseCommand):
    help = "Submit the digits job, wait for its end, and report; exit code 0 when it succeeded."

    def add_arguments(self, parser: CommandParser) -> None:
        """Take where it is to run and how long to wait."""
        parser.add_argument("--runtime", choices=["process", "docker"], default="")
        parser.add_argument("--json", action="store_true", help="print one JSON object only")
        parser.add_argument("--timeout", type=int, default=600, help="seconds")

    def handle(self, *args: Any, **options: Any) -> None:
        """Run the demo; what the portal needs and does not run is started for it."""
        quiet = options["json"]
        call_command("migrate", verbosity=0)
        runtime = options["runtime"] or _runtime_set_up()
        call_command("setup", runtime=runtime, no_example=True, stdout=sys.stderr)
        with _portal_running(), _only(runtime):
            owner = User.objects.get(username="student")
            try:
                job = example.submit(owner=owner, now=timezone.now(), name="Digits, the demo")
            except JobsError as error:
                raise CommandError(str(error)) from error
            if not quiet:
                self.stdout.write(f"submitted {job.public_id}")
            _wait(job, timeout_s=options["timeout"])
            report = _report(job, runtime=runtime)
        self.stdout.write(json.dumps(report, indent=None if quiet else 2))
        if report["status"] != JobStatus.SUCCEEDED or (report["accuracy"] or 0) < _ENOUGH:
            sys.exit(1)


def _runtime_set_up() -> str:
    first = Host.objects.order_by("pk").first()
    return "process" if first is None or first.url.startswith("process:") else "docker"


@contextmanager
def _portal_running() -> Iterator[None]:
    """Have the portal's programs running; they are ended again where they were started here."""
    state = Path(settings.STATE_DIR)
    if running(state):
        yield
        return
    command = [sys.executable, str(Path(settings.BASE_DIR) / "manage.py"), "up", "--no-web"]
    with subprocess.Popen([*command, "--quiet"], stdout=sys.stderr, stdin=subprocess.DEVNULL) as up:  # noqa: S603
        try:
            until = time.monotonic() + _START_S
            while not running(state):
                if up.poll() is not None or time.monotonic() > until:
                    raise CommandError("the portal's programs did not start; see var/logs")
                time.sleep(0.2)
            yield
        finally:
            up.send_signal(signal.SIGTERM)
            up.wait(timeout=60)


@contextmanager
def _only(runtime: str) -> Iterator[None]:
    """Let only hosts of one runtime take work meanwhile."""
    others = Host.objects.filter(mode="active")
    others = (
        others.exclude(url__startswith="process:")
        if runtime == "process"
        else others.filter(url__startswith="process:")
    )
    names = list(others.values_list("name", flat=True))
    Host.objects.filter(name__in=names).update(mode="cordoned")
    try:
        yield
    finally:
        Host.objects.filter(name__in=names).update(mode="active")


def _wait(job: Job, *, timeout_s: int) -> None:
    until = time.monotonic() + timeout_s
    while time.monotonic() < until:
        job.refresh_from_db()
        if JobStatus(job.status).is_terminal:
            return
        time.sleep(0.3)
    raise CommandError(
        f"job {job.public_id} has not ended after {timeout_s} s; it {JobStatus(job.status).words}"
        + (f": {job.pending_text}" if job.pending_text else "")
    )


def _report(job: Job, *, runtime: str) -> dict[str, Any]:
    attempt = job_selectors.latest_attempt(job)
    replicas = [] if attempt is None else list(attempt.replicas.all())
    started = job.started_at
    return {
        "status": job.status,
        "job": str(job.public_id),
        "runtime": runtime,
        "submit_to_running_s": _seconds(job.submitted_at, started),
        "duration_s": _seconds(started, job.finished_at),
        "accuracy": _accuracy(job),
        "log_lines": sum(selectors.log_lines(replica=row).next_line - 1 for row in replicas),
        "metric_points": MetricPoint.objects.filter(replica__in=replicas).count(),
        "samples": sum(
            len(series["samples"]) for series in selectors.job_samples(job=job, now=timezone.now())
        ),
        "artifacts": [
            {"name": file.path, "size_bytes": file.size_bytes}
            for file in job_selectors.job_outputs(job=job)
        ],
        "reason": job.reason,
        "reason_text": job.reason_text,
    }


def _seconds(start: Any, end: Any) -> float | None:
    return None if start is None or end is None else round((end - start).total_seconds(), 2)


def _accuracy(job: Job) -> float | None:
    """Return what the program itself wrote about the held-out digits."""
    try:
        root, path = output_path(job, job.attempts.count(), "metrics.json")
        with storage.open_beneath(root, path) as stream:
            return float(json.load(stream)["test_accuracy"])
    except (JobsError, ValueError, KeyError):
        return None
