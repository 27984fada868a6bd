"""Fills an empty installation with what a first job needs; done twice it changes nothing."""

import os
import secrets
import socket
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils import timezone

from cluster import services as cluster_services
from cluster.core.placement.warm import warm_up
from cluster.errors import ClusterError
from cluster.models import Host, HostMode
from cluster.probe.simulated import PROFILES, tidy
from jobs import services as job_services
from jobs.errors import JobsError
from jobs.models import Dataset, Job
from jobs.services.shipped import LIBRARY, shipped_load
from portal import example
from portal.models import Role, User

_PROCESSES = "process://local"
_CORES_PER_GPU = 4
_SAMPLES = {
    "digits": "1,797 handwritten digits of 8 by 8 pixels, as one CSV file (UCI, CC BY 4.0).",
}


class Command(BaseCommand):
    help = "Make accounts, a host, environments, templates and the sample dataset, where missing."

    def add_arguments(self, parser: CommandParser) -> None:
        """Take where jobs are to run."""
        parser.add_argument("--runtime", choices=["process", "docker"], default="process")
        parser.add_argument("--url", default="", help="where the portal will answer")
        parser.add_argument("--no-example", action="store_true", help="submit no example job")

    def handle(self, *args: Any, **options: Any) -> None:
        """Make what is missing and say what was made."""
        admin = self._account("admin", Role.ADMIN)
        student = self._account("student", Role.STUDENT)
        self._host(options["runtime"])
        shipped_load()
        # The first time after an installation or an upgrade this compiles, half a minute.
        warm_up()
        for name, description in _SAMPLES.items():
            if not Dataset.objects.filter(owner=admin, name=name).exists():
                job_services.dataset_create_from_path(
                    owner=admin,
                    name=name,
                    path=LIBRARY / "datasets" / name,
                    description=description,
                    is_shared=True,
                    now=timezone.now(),
                )
        if not options["no_example"] and not Job.objects.exists():
            self._example(student, options["url"].rstrip("/"))

    def _example(self, student: User, url: str) -> None:
        try:
            job = example.submit(owner=student, now=timezone.now())
        except JobsError as error:
            self.stdout.write(f"The example job waits for you: {error}")
            return
        self.stdout.write(f"The example job starts with the portal: {url}/jobs/{job.public_id}/")

    def _account(self, username: str, role: Role) -> User:
        user = User.objects.filter(username=username).first()
        if user is None:
            password = secrets.token_urlsafe(12)
            user = User.objects.create_user(username, password=password, role=role)
            self.stdout.write(f"Sign in as {username} with the password {password} (shown once)")
        return user

    def _host(self, runtime: str) -> None:
        name, url = _default_host(runtime)
        # Whoever chooses containers wants no job as a process, until that is chosen again.
        mode = HostMode.ACTIVE if runtime == "process" else HostMode.CORDONED
        Host.objects.filter(url=_PROCESSES).update(mode=mode)
        host = Host.objects.filter(url=url).first()
        if host is None:
            host = cluster_services.host_create(name=name, url=url)
            self.stdout.write(f"Host {name} at {url}")
        try:
            cluster_services.host_test(host_id=host.pk, now=timezone.now())
        except ClusterError as error:
            raise CommandError(f"{error}. 'manage.py doctor' says more.") from error
        self._simulate(host)

    def _simulate(self, host: Host) -> None:
        """Give a simulated machine the cores that such a machine has: its jobs only go slower."""
        name = settings.STARLING["SIMULATED_GPUS"]
        if host.url != _PROCESSES or not name:
            return
        machine = PROFILES[tidy(name)]
        slots = sum(max(1, len(card.mig)) for card in machine.cards)
        Host.objects.filter(pk=host.pk).update(cpu_millis=_CORES_PER_GPU * 1000 * slots)
        self.stdout.write(f"Host {host.name} pretends to be {tidy(name)}; nothing of it is real")


def _default_host(runtime: str) -> tuple[str, str]:
    if runtime == "process":
        return "this-machine", _PROCESSES
    given = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
    label = "".join(c if c.isalnum() else "-" for c in socket.gethostname().lower()).strip("-")
    return f"docker-{label}"[:63].strip("-"), given
