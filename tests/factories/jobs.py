"""Environments, code, jobs, attempts and replicas."""

from __future__ import annotations

import hashlib
import sys
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import factory
from factory.django import DjangoModelFactory

from cluster.models import Allocation
from jobs import storage
from jobs.lifecycle import JobStatus, Reason, ReplicaStatus
from jobs.models import Attempt, CodeBundle, CodeKind, Environment, Job, JobTemplate, Replica
from tests.factories.cluster import HostFactory
from tests.factories.portal import UserFactory

NOW = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)


class EnvironmentFactory(DjangoModelFactory[Environment]):
    """An environment that runs on every kind of host."""

    class Meta:
        model = Environment

    slug = factory.Sequence(lambda n: f"environment{n}")
    name = factory.LazyAttribute(lambda environment: environment.slug.title())
    image = "starling/test:latest"
    python = sys.executable


class JobTemplateFactory(DjangoModelFactory[JobTemplate]):
    """A template of a script that prints a word."""

    class Meta:
        model = JobTemplate

    slug = factory.Sequence(lambda n: f"template{n}")
    title = factory.LazyAttribute(lambda template: template.slug.title())
    script = "print('hello')\n"
    environment = factory.SubFactory(EnvironmentFactory)


class CodeBundleFactory(DjangoModelFactory[CodeBundle]):
    """One script, ``main.py``, that lies where a launch looks for it."""

    class Meta:
        model = CodeBundle

    owner = factory.SubFactory(UserFactory)
    kind = CodeKind.SCRIPT
    filename = "main.py"
    entrypoint = "main.py"
    created_at = NOW

    @classmethod
    def _create(cls, model_class: type[CodeBundle], *args: Any, **kwargs: Any) -> CodeBundle:
        source = str(kwargs.pop("source", "print('hello')\n"))
        sha256 = hashlib.sha256(source.encode()).hexdigest()
        folder = storage.code_dir(sha256)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / kwargs["entrypoint"]).write_text(source)
        return model_class.objects.create(sha256=sha256, size_bytes=len(source), **kwargs)


class JobFactory(DjangoModelFactory[Job]):
    """A job that waits in the queue: one core, 1 GiB, an hour."""

    class Meta:
        model = Job

    owner = factory.SubFactory(UserFactory)
    name = factory.Sequence(lambda n: f"job {n}")
    environment = factory.SubFactory(EnvironmentFactory)
    code = factory.SubFactory(CodeBundleFactory, owner=factory.SelfAttribute("..owner"))
    entrypoint = "main.py"
    cpu_millis = 1000
    memory_mib = 1024
    shm_mib = 64
    walltime_s = 3600
    submitted_at = NOW


class AttemptFactory(DjangoModelFactory[Attempt]):
    """The first attempt at a job."""

    class Meta:
        model = Attempt

    job = factory.SubFactory(JobFactory)
    number = 1
    created_at = NOW


class ReplicaFactory(DjangoModelFactory[Replica]):
    """The only replica of an attempt, placed on a host; no room is claimed for it."""

    class Meta:
        model = Replica

    attempt = factory.SubFactory(AttemptFactory)
    host = factory.SubFactory(HostFactory)
    host_name = factory.LazyAttribute(lambda replica: replica.host.name)


def running_job(**values: Any) -> Replica:
    """Return the replica of a job that runs, with its room claimed; ``values`` are the job's."""
    host = values.pop("host", None) or HostFactory()
    job = JobFactory(status=JobStatus.RUNNING, started_at=NOW, **values)
    attempt = AttemptFactory(job=job, started_at=NOW)
    replica = ReplicaFactory(
        attempt=attempt, host=host, status=ReplicaStatus.RUNNING, started_at=NOW
    )
    Allocation.objects.create(
        holder=replica.public_id,
        host=host,
        cpu_millis=job.cpu_millis,
        memory_mib=job.memory_mib,
        created_at=NOW,
    )
    return replica


def ended_job(reason: Reason = Reason.COMPLETED, **values: Any) -> Job:
    """Return a job that has ended, and of which nothing is left on any host."""
    values.setdefault("status", JobStatus.SUCCEEDED)
    job = JobFactory(started_at=NOW, finished_at=NOW, reason=reason, **values)
    attempt = AttemptFactory(job=job, started_at=NOW, finished_at=NOW, reason=reason)
    ReplicaFactory(
        attempt=attempt,
        status=ReplicaStatus.EXITED,
        public_id=uuid4(),
        exit_code=0,
        log_complete_at=NOW,
        outputs_listed_at=NOW,
        removed_at=NOW,
    )
    return job
