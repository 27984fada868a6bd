"""What a pass tells of the start of those that wait, and what is learned from those that ended."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from django.test import Client

from cluster.core.placement.first_fit import FirstFit
from cluster.core.policy.profiles import ObservedRun
from jobs import scheduling
from jobs.lifecycle import JobStatus
from jobs.models import Job, JobProfile
from jobs.selectors.profiles import estimates
from jobs.selectors.usage import gpu_seconds_by_owner
from jobs.services.attempts import job_transition
from jobs.services.profiles import profile_learn
from monitoring.receivers import learn_profile
from portal.templatetags.starling import starts
from tests.factories.cluster import GpuFactory, HostFactory
from tests.factories.jobs import AttemptFactory, EnvironmentFactory, JobFactory

pytestmark = pytest.mark.django_db


def schedule(now: datetime) -> int:
    return scheduling.schedule_pending(placer=FirstFit(), holder="test", now=now)


def test_who_waits_is_told_an_interval_and_who_was_not_looked_at_nothing(now: datetime) -> None:
    GpuFactory(host=HostFactory())
    JobFactory(gpus=1, walltime_s=3600, submitted_at=now)
    waits = JobFactory(gpus=1, walltime_s=3600, submitted_at=now + timedelta(seconds=1))
    assert waits.pending_start_p50 is None

    schedule(now)

    waits.refresh_from_db()
    first, middle, last = (
        waits.pending_start_earliest,
        waits.pending_start_p50,
        waits.pending_start_p90,
    )
    assert first is not None
    assert middle is not None
    assert last is not None
    assert now < first < middle < last
    assert now + timedelta(minutes=10) < middle < now + timedelta(hours=1)


def test_a_job_that_asks_for_too_much_hears_what_would_start_sooner(now: datetime) -> None:
    host = HostFactory(cpu_millis=16_000)
    GpuFactory(host=host)
    GpuFactory(host=host)
    JobFactory(gpus=1, submitted_at=now)
    waits = JobFactory(gpus=2, submitted_at=now + timedelta(seconds=1))

    schedule(now)

    waits.refresh_from_db()
    assert waits.pending_alternatives[0]["text"] == "with 1 GPU instead of 2 at once"


def test_a_host_that_is_free_but_not_allowed_is_named(now: datetime) -> None:
    allowed, other = HostFactory(name="host-a"), HostFactory(name="host-b")
    for host in (allowed, other):
        GpuFactory(host=host)
    environment = EnvironmentFactory()
    environment.hosts.add(allowed)
    JobFactory(gpus=1, environment=environment, submitted_at=now)
    waits = JobFactory(gpus=1, environment=environment, submitted_at=now + timedelta(seconds=1))

    schedule(now)

    waits.refresh_from_db()
    texts = [offer["text"] for offer in waits.pending_alternatives]
    assert any("host host-b has 1 free GPU, but the environment" in text for text in texts)


def test_a_job_that_fits_nowhere_is_promised_no_start(now: datetime) -> None:
    HostFactory(cpu_millis=1000)
    never = JobFactory(cpu_millis=64_000)

    schedule(now)

    never.refresh_from_db()
    assert never.pending_code == "unsatisfiable"
    assert never.pending_start_p50 is None


def test_a_placed_job_that_comes_back_is_promised_nothing_before_the_next_pass(
    now: datetime,
) -> None:
    job = JobFactory(status=JobStatus.PLACED, pending_start_p50=now)

    job_transition(job_id=job.public_id, source=JobStatus.PLACED, target=JobStatus.PENDING, now=now)

    job.refresh_from_db()
    assert job.pending_start_p50 is None
    assert job.pending_code == "not_evaluated_yet"


def test_a_kind_is_learned_with_its_parents_and_foretells_the_next_run(now: datetime) -> None:
    job = JobFactory(walltime_s=86_400)
    other = JobFactory(
        owner=job.owner, code=job.code, environment=job.environment, arguments=["--more"]
    )

    for _ in range(5):
        profile_learn(job_id=job.public_id, run=ObservedRun(duration_s=600.0), now=now)

    assert JobProfile.objects.count() == 3
    found = estimates([job, other])
    own, borrowed = found[str(job.public_id)], found[str(other.public_id)]
    assert own.duration is not None
    assert own.duration.median_s == pytest.approx(600.0)
    assert borrowed.duration is not None
    assert borrowed.duration.median_s == pytest.approx(600.0)
    assert (own.runs, borrowed.runs) == (5, 0)


def test_only_a_job_that_came_to_its_own_end_teaches(now: datetime) -> None:
    for status in (JobStatus.FAILED, JobStatus.SUCCEEDED):
        job = JobFactory(status=status)
        AttemptFactory(job=job, started_at=now - timedelta(minutes=5), finished_at=now)
        learn_profile(job_id=job.public_id, target=status, at=now)

    profile = JobProfile.objects.order_by("pk").first()
    assert JobProfile.objects.count() == 3
    assert profile is not None
    assert profile.ended_runs == 1


def test_the_interval_is_told_in_words(now: datetime) -> None:
    job = Job(
        pending_start_earliest=now - timedelta(minutes=1),
        pending_start_p90=now + timedelta(days=30),
    )

    assert starts(job).startswith("at once to ")
    assert "in" not in starts(Job())


def test_the_api_tells_the_interval(client: Client, now: datetime) -> None:
    GpuFactory(host=HostFactory())
    JobFactory(gpus=1, submitted_at=now)
    waits = JobFactory(gpus=1, submitted_at=now + timedelta(seconds=1))
    schedule(now)
    client.force_login(waits.owner)

    found = client.get(f"/api/v1/jobs/{waits.public_id}/").json()["pending"]

    assert found["start_earliest"] < found["start_p50"] < found["start_p90"]
    assert found["position"] == 1
    assert found["alternatives"] == [] or "text" in found["alternatives"][0]


def test_the_page_tells_the_interval_and_what_would_start_it_sooner(
    client: Client, now: datetime
) -> None:
    host = HostFactory(cpu_millis=16_000)
    GpuFactory(host=host)
    GpuFactory(host=host)
    JobFactory(gpus=1, submitted_at=now)
    waits = JobFactory(gpus=2, submitted_at=now + timedelta(seconds=1))
    schedule(now)
    client.force_login(waits.owner)

    page = client.get(f"/jobs/{waits.public_id}/").content.decode()
    row = client.get("/jobs/").content.decode()

    assert "It would start sooner:" in page
    assert "with 1 GPU instead of 2 at once" in page
    assert "<li>starts " in page
    assert "no. 1, " in row


def test_who_used_the_gpus_of_late_comes_after_who_did_not(now: datetime) -> None:
    used = JobFactory(gpus=1, status=JobStatus.SUCCEEDED)
    AttemptFactory(job=used, started_at=now - timedelta(hours=9), finished_at=now)
    again = JobFactory(gpus=1, owner=used.owner, submitted_at=now - timedelta(hours=1))
    first_time = JobFactory(gpus=1, submitted_at=now)
    urgent = JobFactory(gpus=1, owner=used.owner, submitted_at=now, priority=1)
    HostFactory()

    schedule(now)

    for job in (again, first_time, urgent):
        job.refresh_from_db()
    assert [job.pending_position for job in (urgent, first_time, again)] == [1, 2, 3]


def test_use_is_forgotten_within_days(now: datetime) -> None:
    long_ago, recent = JobFactory(gpus=2), JobFactory(gpus=2)
    for job, days in ((long_ago, 6), (recent, 0)):
        end = now - timedelta(days=days)
        AttemptFactory(job=job, started_at=end - timedelta(hours=1), finished_at=end)

    used = gpu_seconds_by_owner(now=now)

    assert str(long_ago.owner_id) not in used
    assert used[str(recent.owner_id)] == pytest.approx(7200, rel=0.05)
