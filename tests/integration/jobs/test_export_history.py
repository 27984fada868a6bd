"""What the cluster ran, printed for a simulation to replay."""

from __future__ import annotations

from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from cluster.core.simulation.policies import policy_named
from cluster.core.simulation.report import Outcome
from cluster.core.simulation.run import simulate
from cluster.core.simulation.workload_files import hosts_from_text, workload_from_text
from jobs.lifecycle import JobStatus
from jobs.models import Job
from tests.factories.cluster import HostFactory
from tests.factories.jobs import NOW, AttemptFactory, JobFactory

pytestmark = pytest.mark.django_db


def printed(*arguments: str) -> str:
    out = StringIO()
    call_command("export_history", *arguments, stdout=out)
    return out.getvalue()


def ended_job(minutes: int, seconds: int, **values: Any) -> Job:
    submitted = NOW + timedelta(minutes=minutes)
    ended = submitted + timedelta(seconds=30 + seconds)
    job: Job = JobFactory(
        status=JobStatus.SUCCEEDED, submitted_at=submitted, finished_at=ended, **values
    )
    AttemptFactory(job=job, started_at=submitted + timedelta(seconds=30), finished_at=ended)
    return job


def test_what_ran_is_printed_as_a_workload_and_replays_on_the_hosts_there_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    HostFactory(name="desk")
    first = ended_job(0, 600, cpu_millis=1000)
    second = ended_job(5, 60, cpu_millis=1000)
    JobFactory(submitted_at=NOW)  # still waits: nobody knows how long it will run
    ended_job(24 * 60, 60)

    work = workload_from_text(printed("2026-03-02T09:00Z", "2026-03-03T09:00Z"), "history.csv")
    hosts = hosts_from_text(printed("--hosts"), "hosts.json")
    report = simulate(hosts, work, policy_named("first-fit"))

    assert [(job.key, job.submitted_s, job.duration_s) for job in work.jobs] == [
        (str(first.public_id), 0, 600),
        (str(second.public_id), 300, 60),
    ]
    assert [host.name for host in hosts.hosts] == ["desk"]
    assert {job.outcome for job in report.jobs} == {Outcome.COMPLETED}
    assert capsys.readouterr().err.startswith("left out, ")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("yesterday", "2026-03-03"), "FROM must be a day or a moment"),
        (("2026-03-02", "2026-13-03"), "TO must be a day or a moment"),
        (("2026-03-02",), "TO must be a day or a moment"),
        (("2026-03-03", "2026-03-02"), "TO must lie after FROM"),
        (("2026-03-02", "2026-03-03"), "no job that ran"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(arguments: tuple[str, ...], words: str) -> None:
    with pytest.raises(CommandError, match=words) as caught:
        printed(*arguments)

    assert caught.value.returncode == 2
