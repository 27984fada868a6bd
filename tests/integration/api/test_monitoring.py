"""Logs by line and as a stream, metrics and samples."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.test import AsyncClient
from django.utils import timezone
from prometheus_client.parser import text_string_to_metric_families
from rest_framework.test import APIClient

from cluster.models import Gpu, Host
from jobs.lifecycle import JobStatus
from jobs.models import Attempt, Job, Replica
from monitoring.api import follow
from monitoring.events import milliseconds
from monitoring.models import LogChunk, LogStream, MetricPoint
from monitoring.services import block_of, samples_record
from portal.models import User
from tests.integration.api.rows import NOW, finish, make_host, make_job

Api = Callable[[User | None], APIClient]


def say(replica: Replica, *texts: str, complete: bool = False) -> None:
    """Let the replica have printed lines."""
    stream, _ = LogStream.objects.get_or_create(replica=replica)
    if texts:
        LogChunk.objects.create(
            stream=stream,
            first_line=stream.next_line,
            line_count=len(texts),
            lines=[[1_000 + n, "o", text] for n, text in enumerate(texts)],
        )
    stream.next_line += len(texts)
    stream.is_complete = complete
    stream.save()


def url(job: Job, rest: str) -> str:
    return f"/api/v1/jobs/{job.public_id}/{rest}"


@pytest.fixture
def job(student: User) -> Job:
    return make_job(student)


@pytest.fixture
def replica(job: Job) -> Replica:
    replica = finish(job)
    say(replica, "one", "two", "three ✓")
    say(replica, "four", complete=True)
    return replica


def test_a_log_is_read_by_the_numbers_of_its_lines(
    api: Api, student: User, job: Job, replica: Replica
) -> None:
    page = api(student).get(url(job, "logs/"), {"first": 2, "limit": 2}).json()

    assert [line[2] for line in page["lines"]] == ["two", "three ✓"]
    assert (page["first"], page["next_line"], page["attempt"]) == (2, 5, 1)
    assert page["is_complete"] is True


def test_the_end_of_a_log(api: Api, student: User, job: Job, replica: Replica) -> None:
    page = api(student).get(url(job, "logs/"), {"first": -2}).json()

    assert [line[2] for line in page["lines"]] == ["three ✓", "four"]


def test_a_job_that_has_not_begun_has_an_empty_log(api: Api, student: User, job: Job) -> None:
    page = api(student).get(url(job, "logs/")).json()

    assert (page["lines"], page["attempt"], page["is_complete"]) == ([], None, False)


@pytest.mark.parametrize("query", [{"attempt": 2}, {"rank": 1}])
def test_no_such_log(
    api: Api, student: User, job: Job, replica: Replica, query: dict[str, int]
) -> None:
    assert api(student).get(url(job, "logs/"), query).status_code == 404


@pytest.mark.parametrize(
    "query", [{"first": "x"}, {"limit": "0"}, {"limit": "9" * 30}, {"first": "-"}, {"line": "1"}]
)
def test_a_query_that_cannot_be_read(
    api: Api, student: User, job: Job, query: dict[str, str]
) -> None:
    assert api(student).get(url(job, "logs/"), query).status_code == 400


def test_a_log_as_text_and_searched(api: Api, student: User, job: Job, replica: Replica) -> None:
    text = api(student).get(url(job, "logs/text/"))
    found = api(student).get(url(job, "logs/search/"), {"text": "T"}).json()

    assert b"".join(text.streaming_content).decode() == "one\ntwo\nthree ✓\nfour\n"
    assert found == {"lines": [2, 3]}


@pytest.mark.parametrize(
    "rest", ["logs/", "logs/text/", "logs/search/?text=a", "logs/stream/", "metrics/", "samples/"]
)
def test_nothing_of_somebody_elses_job(
    api: Api, other_student: User, job: Job, replica: Replica, rest: str
) -> None:
    assert api(other_student).get(url(job, rest)).status_code == 404


def test_metrics_and_samples(api: Api, student: User, job: Job, replica: Replica) -> None:
    MetricPoint.objects.create(replica=replica, name="loss", step=1, value=0.5, at=NOW)
    MetricPoint.objects.create(replica=replica, name="loss", step=2, value=None, at=NOW)
    means = [(milliseconds(NOW), {"cpu_pct": 99.5})]
    block_of(f"replica:{replica.public_id}", 60, means).save()

    metrics = api(student).get(url(job, "metrics/")).json()["series"]
    samples = api(student).get(url(job, "samples/")).json()["series"]

    assert [point[:2] for point in metrics[0]["points"]] == [[1, 0.5], [2, None]]
    assert samples[0]["samples"][0][1] == {"cpu_pct": 99.5}


@pytest.mark.parametrize("path", ["hosts/gpu-1", "gpus/GPU-gpu-1-0"])
def test_hosts_and_gpus_have_samples(api: Api, student: User, path: str) -> None:
    make_host()
    subject = "host:gpu-1" if path.startswith("hosts") else "gpu:GPU-gpu-1-0"
    at = timezone.now() - timedelta(seconds=5)
    samples_record([(subject, at, {"cpu_pct": 1.0})])

    answer = api(student).get(f"/api/v1/{path}/samples/")

    assert answer.json()["subject"] == subject
    assert answer.json()["samples"][0][1] == {"cpu_pct": 1.0}


@pytest.mark.parametrize(
    "query",
    [
        {"since": "yesterday"},
        {"since": "0001-01-01T00:00:00Z"},
        {"until": "2001-01-01T00:00:00Z", "since": "2002-01-01T00:00:00Z"},
        {"resolution": "1"},
    ],
)
def test_samples_of_no_time_are_refused(api: Api, student: User, query: dict[str, str]) -> None:
    make_host()

    answer = api(student).get("/api/v1/hosts/gpu-1/samples/", query)

    assert answer.status_code == 400


def test_without_a_long_breath_the_stream_sends_what_there_is(
    api: Api, student: User, job: Job, replica: Replica
) -> None:
    answer = api(student).get(url(job, "logs/stream/"), headers={"Last-Event-ID": "3"})

    assert b"".join(answer.streaming_content) == (
        b'id: 4\ndata: [1000, "o", "four"]\n\nevent: end\ndata: {}\n\n'
    )


class Stream:
    """Reads a followed log event by event."""

    def __init__(self, content: AsyncIterator[bytes]) -> None:
        self._content = content
        self._waiting: list[str] = []

    async def event(self) -> tuple[str, str]:
        """Return the next event's id (or name) and data; comments are passed over."""
        while True:
            while not self._waiting:
                block = (await anext(self._content)).decode()
                self._waiting = [part for part in block.split("\n\n") if part]
            fields = dict(line.split(": ", 1) for line in self._waiting.pop(0).splitlines() if line)
            if "data" in fields:
                return fields.get("id") or fields["event"], fields["data"]


@pytest.fixture
async def followed(
    own_connections: None, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Callable[..., Any]]:
    monkeypatch.setattr(follow, "LOOK_S", 0.02)
    opened: list[Any] = []

    async def follow_log(user: User, job: Job, **kwargs: Any) -> Stream:
        client = AsyncClient()
        await client.aforce_login(user, backend="django.contrib.auth.backends.ModelBackend")
        answer = await client.get(url(job, "logs/stream/"), **kwargs)
        assert answer.status_code == 200
        assert answer.headers["Content-Type"] == "text/event-stream"
        content = answer.streaming_content
        opened.append(content)
        return Stream(content)

    yield follow_log
    for content in opened:
        await content.aclose()


@sync_to_async
def running(user: User) -> Replica:
    job = make_job(user, status=JobStatus.RUNNING)
    attempt = Attempt.objects.create(job=job, number=1, created_at=NOW, started_at=NOW)
    return Replica.objects.create(attempt=attempt, host_name="a", status="running")


async def test_lines_are_followed_to_the_end(student: User, followed: Callable[..., Any]) -> None:
    replica = await running(student)
    await sync_to_async(say)(replica, "one")

    stream = await followed(student, replica.attempt.job, headers={"Accept": "text/event-stream"})
    assert await stream.event() == ("1", '[1000, "o", "one"]')
    await sync_to_async(say)(replica, "two", "three", complete=True)

    rest = [await stream.event() for _ in range(3)]
    assert [name for name, _ in rest] == ["2", "3", "end"]
    assert json.loads(rest[1][1])[2] == "three"


async def test_a_job_is_followed_before_it_has_begun(
    student: User, followed: Callable[..., Any]
) -> None:
    job = await sync_to_async(make_job)(student)

    stream = await followed(student, job)
    replica = await sync_to_async(finish)(job)
    await sync_to_async(say)(replica, "first", complete=True)

    assert [await stream.event() for _ in range(2)] == [
        ("1", '[1000, "o", "first"]'),
        ("end", "{}"),
    ]


@pytest.mark.parametrize("lost", ["account", "job", "session"])
async def test_a_stream_does_not_outlive_the_right_to_it(
    student: User, followed: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    from django.contrib.sessions.models import Session

    monkeypatch.setattr(follow, "CHECK_S", -1.0)
    replica = await running(student)
    await sync_to_async(say)(replica, "one")
    stream = await followed(student, replica.attempt.job)
    await stream.event()

    match lost:
        case "account":
            await User.objects.filter(pk=student.pk).aupdate(is_active=False)
        case "job":
            other = await sync_to_async(User.objects.create)(username="x")
            await Job.objects.aupdate(owner=other)
        case "session":
            await Session.objects.all().adelete()
    await sync_to_async(say)(replica, "SECRET")

    assert await stream.event() == ("refused", "{}")


async def test_a_reader_who_leaves_leaves_nothing_behind(
    student: User, followed: Callable[..., Any]
) -> None:
    from channels.layers import get_channel_layer

    replica = await running(student)
    await sync_to_async(say)(replica, "one")
    stream = await followed(student, replica.attempt.job)
    await stream.event()

    assert get_channel_layer().groups
    waiting = asyncio.create_task(stream.event())
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting

    assert not get_channel_layer().groups


def test_prometheus_scrapes_what_is_known_under_the_names_of_dcgm(api: Api, admin: User) -> None:
    host = make_host("gpu-1", gpus=2)
    now = timezone.now()
    first, second = Gpu.objects.order_by("index")
    Host.objects.filter(pk=host.pk).update(probed_at=now, last_reading={"cpu_pct": 12.5})
    Gpu.objects.filter(pk=first.pk).update(
        reported_at=now,
        model='T4 "odd"',
        last_reading={"utilization_pct": 40, "memory_used_mib": 1000, "memory_reserved_mib": 100},
    )
    Gpu.objects.filter(pk=second.pk).update(
        reported_at=now - timedelta(minutes=1), last_reading={"utilization_pct": 99}
    )

    answer = api(admin).get("/api/v1/metrics/")

    assert answer.headers["Content-Type"] == "text/plain; charset=utf-8"
    families = {family.name: family for family in text_string_to_metric_families(answer.text)}
    [busy] = families["DCGM_FI_DEV_GPU_UTIL"].samples
    assert busy.value == 40
    assert busy.labels == {
        "gpu": "0",
        "UUID": first.uuid,
        "device": "nvidia0",
        "modelName": 'T4 "odd"',
        "Hostname": "gpu-1",
    }
    assert families["DCGM_FI_DEV_FB_FREE"].samples[0].value == first.memory_total_mib - 1100
    assert families["starling_host_cpu_percent"].samples[0].value == 12.5
    assert len(families["starling_gpu_health"].samples) == 2
    assert families["DCGM_FI_DEV_POWER_USAGE"].samples == []
