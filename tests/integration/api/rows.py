"""Rows that the REST tests speak about, as small as they can be."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from typing import Any

from cluster.models import Gpu, Host, HostConnection
from jobs import storage
from jobs.lifecycle import JobStatus, Reason
from jobs.models import (
    Attempt,
    CodeBundle,
    Content,
    Dataset,
    DatasetVersion,
    Environment,
    Job,
    JobTemplate,
    OutputFile,
    PlacementRun,
    Replica,
    SimulationRun,
    VersionState,
)
from portal.models import User

NOW = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)


def make_host(name: str = "gpu-1", *, gpus: int = 1, **fields: Any) -> Host:
    host = Host.objects.create(
        name=name,
        url="process://local",
        **{
            "connection": HostConnection.UP,
            "cpu_millis": 8000,
            "memory_mib": 16_000,
            "is_simulated": True,
            **fields,
        },
    )
    for index in range(gpus):
        Gpu.objects.create(
            uuid=f"GPU-{name}-{index}",
            host=host,
            model="Test GPU",
            index=index,
            memory_total_mib=10_000,
            last_reading={"utilization_pct": 3.0},
        )
    return host


def make_environment(slug: str = "tensorflow", **fields: Any) -> Environment:
    return Environment.objects.create(
        slug=slug, **{"name": slug.title(), "python": sys.executable, "image": "tf", **fields}
    )


def make_template(slug: str = "digits", *, environment: Environment, **fields: Any) -> JobTemplate:
    return JobTemplate.objects.create(
        slug=slug,
        environment=environment,
        **{
            "title": "Digits",
            "script": "print('digits')\n",
            "parameters": [{"name": "epochs", "default": 3, "help": "how often"}],
            **fields,
        },
    )


def make_code(owner: User, text: str = "print('hello')\n") -> CodeBundle:
    from jobs.services import code_create

    return code_create(owner=owner, filename="main.py", content=text.encode(), now=NOW)


def make_job(owner: User, name: str = "train", **fields: Any) -> Job:
    environment = Environment.objects.filter(slug="tensorflow").first() or make_environment()
    code = fields.pop("code", None) or CodeBundle.objects.filter(owner=owner).first()
    code = code or CodeBundle.objects.create(
        owner=owner,
        kind="script",
        filename="main.py",
        sha256="0" * 64,
        size_bytes=10,
        entrypoint="main.py",
        created_at=NOW,
    )
    return Job.objects.create(
        owner=owner,
        name=name,
        environment=environment,
        code=code,
        **{
            "entrypoint": "main.py",
            "cpu_millis": 1000,
            "memory_mib": 1024,
            "shm_mib": 64,
            "walltime_s": 600,
            "submitted_at": NOW,
            **fields,
        },
    )


def finish(job: Job, *, reason: Reason = Reason.COMPLETED, host: Host | None = None) -> Replica:
    """Give the job one attempt that has ended, and return its replica."""
    attempt = Attempt.objects.create(
        job=job, number=1, reason=reason, created_at=NOW, started_at=NOW, finished_at=NOW
    )
    replica = Replica.objects.create(
        attempt=attempt,
        host=host,
        host_name=host.name if host else "gone",
        status="exited",
        exit_code=0,
        started_at=NOW,
        finished_at=NOW,
        log_complete_at=NOW,
        outputs_listed_at=NOW,
        removed_at=NOW,
    )
    job.status = JobStatus.SUCCEEDED if reason is Reason.COMPLETED else JobStatus.FAILED
    job.reason = reason
    job.finished_at = NOW + timedelta(minutes=5)
    job.save()
    return replica


def leave_file(replica: Replica, path: str, content: bytes) -> OutputFile:
    """Let the replica have written a file."""
    attempt = replica.attempt
    at = storage.attempt_dir(attempt.job.public_id, attempt.number, replica.rank) / path
    at.parent.mkdir(parents=True, exist_ok=True)
    at.write_bytes(content)
    return OutputFile.objects.create(
        attempt=attempt, path=path, size_bytes=len(content), modified_at=NOW
    )


def make_dataset(
    owner: User, name: str = "digits", *, ready: bool = True, **fields: Any
) -> Dataset:
    dataset = Dataset.objects.create(owner=owner, name=name, created_at=NOW, **fields)
    content = None
    if ready:
        content, _ = Content.objects.get_or_create(
            sha256=f"{dataset.pk:064x}",
            defaults={"size_bytes": 100, "file_count": 1, "created_at": NOW},
        )
    DatasetVersion.objects.create(
        dataset=dataset,
        number=1,
        state=VersionState.READY if ready else VersionState.UNPACKING,
        content=content,
        created_at=NOW,
    )
    return dataset


def make_simulation(owner: User, **fields: Any) -> SimulationRun:
    """Return a question that waits, of one job on one host."""
    return SimulationRun.objects.create(
        owner=owner,
        created_at=NOW,
        **{
            "name": "one job",
            "source": {"kind": "file", "file": "jobs.csv"},
            "workload": "id,submitted_s,duration_s\na,0,10\n",
            "job_count": 1,
            "hosts": [
                {
                    "name": "alpha",
                    "cpu_millis": 8000,
                    "memory_mib": 16_000,
                    "zone": "",
                    "gpus": [],
                }
            ],
            "policies": ["first-fit"],
            **fields,
        },
    )


def make_placement(owner: User, **fields: Any) -> PlacementRun:
    """Return a trial that waits, of one request on one host."""
    text = (
        '{"nodes": [{"id": "alpha", "cpu_milli": 8000, "memory_mib": 16000, "gpu": 0}],'
        ' "pods": [{"id": "a", "cpu_milli": 1000, "memory_mib": 1000, "num_gpu": 0}]}'
    )
    return PlacementRun.objects.create(
        owner=owner,
        created_at=NOW,
        **{
            "name": "one request",
            "problem": {
                "hosts": {"name": "problem.json", "text": text},
                "requests": None,
                "host_count": 1,
                "gpu_count": 0,
                "request_count": 1,
            },
            "objective": "hosts",
            "method": "full",
            "seconds": 0.2,
            **fields,
        },
    )
