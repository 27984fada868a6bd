"""The collector between a scripted engine, a scripted probe and a real database."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from threading import Event
from typing import Any

import pytest
from django.db import OperationalError

from cluster.core.resources import ContainerReading, GpuReading, GpuUuid, HostReading
from cluster.errors import HostUnreachableError
from cluster.models import Gpu, Host
from cluster.ports import HostEndpoint, LogLine
from jobs.models import Replica
from monitoring import broadcast, collector, selectors, services
from monitoring.ingest import Ingest
from monitoring.models import LogStream, SampleBlock
from tests.factories.cluster import HostFactory
from tests.factories.jobs import NOW, running_job

pytestmark = pytest.mark.django_db


@dataclass
class ScriptedOutput:
    """A container's output whose connection breaks after so many lines, as often as scripted."""

    texts: Sequence[str]
    breaks: list[int] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def logs(self, name: str, *, after: str = "") -> Generator[LogLine | None, None, None]:
        self.asked.append(after)
        left = self.breaks.pop(0) if self.breaks else len(self.texts)
        for number in range(int(after or 0), len(self.texts)):
            if left == 0:
                raise HostUnreachableError("a", detail="the connection broke")
            left -= 1
            yield LogLine(
                at=NOW + timedelta(milliseconds=number),
                stream="stderr" if number % 2 else "stdout",
                text=self.texts[number],
                cursor=str(number + 1),
            )


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collector, "_LOOK_S", 0.0)
    monkeypatch.setattr(collector, "close_old_connections", lambda: None)


@pytest.fixture
def published(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any]]]:
    told: list[tuple[str, dict[str, Any]]] = []
    monkeypatch.setattr(collector, "publish", lambda group, message: told.append((group, message)))
    return told


def follow(replica: Replica, output: ScriptedOutput) -> None:
    collector.LogFollower(replica, lambda endpoint: output, Event()).run()  # type: ignore[arg-type, return-value]


def test_the_whole_output_is_stored_once_over_every_break(
    published: list[tuple[str, dict[str, Any]]],
) -> None:
    replica = running_job()
    texts = [f"line {n}" for n in range(2000)]
    output = ScriptedOutput(texts, breaks=[0, 700, 1, 900])

    follow(replica, output)

    assert "".join(selectors.log_text(replica=replica)).splitlines() == texts
    replica.refresh_from_db()
    assert replica.log_complete_at is not None
    assert LogStream.objects.get(replica=replica).is_complete
    numbers = [
        number
        for _, message in published
        for number in range(message["first"], message["first"] + len(message["lines"]))
    ]
    assert numbers == sorted(set(numbers))


def test_a_follower_that_is_not_alone_goes_on_from_where_the_other_is() -> None:
    replica = running_job()
    texts = [str(n) for n in range(10)]
    follow(replica, ScriptedOutput(texts[:6]))
    late = ScriptedOutput(texts)

    follow(replica, late)

    assert late.asked == ["6"]
    assert "".join(selectors.log_text(replica=replica)).splitlines() == texts


def test_an_output_without_a_line_is_complete_too() -> None:
    replica = running_job()

    follow(replica, ScriptedOutput([]))

    replica.refresh_from_db()
    assert replica.log_complete_at is not None


def test_both_streams_keep_the_order_in_which_they_came() -> None:
    replica = running_job()

    follow(replica, ScriptedOutput(["out", "err", "out"]))

    lines = selectors.log_lines(replica=replica).lines
    assert [(line[1], line[2]) for line in lines] == [("o", "out"), ("e", "err"), ("o", "out")]


def reading(replica: Replica, *, gpu: GpuReading | None = None) -> HostReading:
    return HostReading(
        observed_at=datetime(2026, 3, 2, 9, 0, 1, tzinfo=UTC),
        cpu_pct=12.5,
        memory_used_mib=100,
        gpus=() if gpu is None else (gpu,),
        containers=(
            ContainerReading(container_id=replica.container_id, cpu_pct=150.0, memory_mib=64.0),
            ContainerReading(container_id="somebody else's", cpu_pct=1.0),
        ),
    )


@dataclass
class Recorder:
    """What followers hand over to, with a clock that is put on by hand."""

    told: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    now: datetime = NOW

    def __post_init__(self) -> None:
        self.ingest = Ingest(tell=lambda group, message: self.told.append((group, message)))

    def record(self, host: Host, *readings: HostReading, seconds: float = 3) -> None:
        self.now += timedelta(seconds=seconds)
        self.ingest.begin(host.name, now=self.now)
        for found in readings:
            self.ingest.take(host.name, found)
        self.ingest.tick(self.now)

    def samples(self, subject: str) -> list[dict[str, Any]]:
        since = datetime(2026, 3, 2, 8, 0, tzinfo=UTC)
        _, found = selectors.samples(
            subject=subject,
            since=since,
            until=since + timedelta(hours=2),
            now=since,
            resolution_s=1,
        )
        return [values for _, values in found]


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def replica() -> Replica:
    replica = running_job()
    replica.container_id = "c" * 64
    replica.save()
    Host.objects.filter(pk=replica.host_id).update(connection="up")
    return replica


def test_a_reading_becomes_samples_of_host_gpu_and_container(
    replica: Replica, recorder: Recorder
) -> None:
    host = Host.objects.get(pk=replica.host_id)
    gpu = GpuReading(
        uuid=GpuUuid("GPU-1"),
        model="Tesla T4",
        index=0,
        memory_total_mib=15_360,
        why={"utilization_pct": "unsupported", "ecc_corrected": "unsupported"},
        processes={replica.container_id: 900},
        shares={replica.container_id: 40},
    )

    recorder.record(host, reading(replica, gpu=gpu))

    own = f"replica:{replica.public_id}"
    [of_host] = recorder.samples(f"host:{host.name}")
    assert of_host["cpu_pct"] == 12.5
    assert recorder.samples(own) == [
        {"cpu_pct": 150.0, "memory_mib": 64.0, "gpu_memory_mib": 900, "gpu_pct": 40}
    ]
    assert recorder.samples("gpu:GPU-1") == [
        {"memory_total_mib": 15_360, "why": {"utilization_pct": "unsupported"}}
    ]
    assert Gpu.objects.get(uuid="GPU-1").health == "ok"
    [(cluster, batch), (job, message)] = recorder.told
    assert cluster == "cluster"
    assert {one["subject"] for one in batch["messages"]} == {f"host:{host.name}", "gpu:GPU-1"}
    assert job == f"job.{replica.attempt.job.public_id.hex}"
    assert message["subject"] == own


def test_what_a_slice_cannot_say_is_said_to_be_for_that(
    replica: Replica, recorder: Recorder
) -> None:
    host = Host.objects.get(pk=replica.host_id)
    part = GpuReading(
        uuid=GpuUuid("MIG-1"),
        model="A100 MIG 1g.5gb",
        index=0,
        memory_total_mib=4_864,
        parent="GPU-1",
        why={"utilization_pct": "unsupported", "power_w": "stale"},
    )

    recorder.record(host, reading(replica, gpu=part))

    [values] = recorder.samples("gpu:MIG-1")
    assert values["why"] == {"utilization_pct": "mig", "power_w": "stale"}


def test_a_lost_gpu_keeps_its_row_and_takes_no_work(replica: Replica, recorder: Recorder) -> None:
    host = Host.objects.get(pk=replica.host_id)
    gpu = GpuReading(uuid=GpuUuid("GPU-1"), model="T4", index=0, memory_total_mib=15_360)
    recorder.record(host, reading(replica, gpu=gpu))

    lost = GpuReading(uuid=GpuUuid("GPU-1"), model="T4", index=0, lost=True)
    # What changed is judged at once, whatever the rhythm.
    recorder.record(host, reading(replica, gpu=lost), seconds=1)
    row = Gpu.objects.get(uuid="GPU-1")
    assert row.health == "stale"
    assert row.memory_total_mib == 15_360

    recorder.record(host, reading(replica, gpu=lost))
    assert Gpu.objects.get(uuid="GPU-1").health == "quarantined"


def test_a_probe_that_falls_silent_is_noticed_and_no_job_is_touched(
    replica: Replica, recorder: Recorder
) -> None:
    host = Host.objects.get(pk=replica.host_id)
    gpu = GpuReading(uuid=GpuUuid("GPU-1"), model="T4", index=0, memory_total_mib=15_360)
    recorder.record(host, reading(replica, gpu=gpu))

    recorder.record(host, seconds=4)
    assert Gpu.objects.get().health == "ok"
    recorder.record(host, seconds=2)
    row = Gpu.objects.get()
    assert row.health == "stale"
    assert row.health_text == "its probe has said nothing for 6 s"
    host.refresh_from_db()
    assert host.probe_text == "its probe has said nothing for 6 s"
    replica.refresh_from_db()
    assert replica.removed_at is None
    assert replica.attempt.job.status == "running"

    for _ in range(2):
        recorder.record(host, reading(replica, gpu=gpu))
    assert Gpu.objects.get().health == "ok"
    host.refresh_from_db()
    assert host.probe_text == ""


def test_many_hosts_are_stored_in_few_statements(
    replica: Replica, recorder: Recorder, django_assert_max_num_queries: Any
) -> None:
    hosts = [HostFactory() for _ in range(10)]
    for number, host in enumerate(hosts):
        recorder.ingest.take(
            host.name,
            HostReading(
                observed_at=NOW,
                cpu_pct=1.0,
                gpus=tuple(
                    GpuReading(
                        uuid=GpuUuid(f"GPU-{number}-{n}"), model="T", index=n, memory_total_mib=9
                    )
                    for n in range(8)
                ),
            ),
        )

    with django_assert_max_num_queries(12):
        recorder.ingest.tick(NOW)

    assert Gpu.objects.count() == 80
    assert SampleBlock.objects.count() == 90


def test_with_many_hosts_only_what_is_watched_is_told(replica: Replica, recorder: Recorder) -> None:
    def many() -> None:
        for number in range(201):
            recorder.ingest.take(f"host{number}", HostReading(observed_at=recorder.now))
        recorder.now += timedelta(seconds=1)
        recorder.ingest.tick(recorder.now)

    many()
    assert recorder.told == []

    broadcast.note_watcher("cluster")
    many()
    assert (
        sum(len(message["messages"]) for _, message in recorder.told if "messages" in message) + 1
        == 201
    )


def test_samples_wait_while_the_database_does_not_answer(
    replica: Replica, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = Host.objects.get(pk=replica.host_id)
    with monkeypatch.context() as broken:

        def refuse(samples: object) -> None:
            raise OperationalError("the database is gone")

        broken.setattr(services, "samples_record", refuse)
        with pytest.raises(OperationalError):
            recorder.record(host, reading(replica))

    recorder.record(host)

    assert len(recorder.samples(f"host:{host.name}")) == 1


class BrokenProbe:
    def __init__(self, endpoint: HostEndpoint) -> None:
        self.endpoint = endpoint

    def readings(self) -> Generator[HostReading | None, None, None]:
        yield None
        raise HostUnreachableError(self.endpoint.name, detail="its probe ended")


def test_a_probe_that_breaks_is_said_at_the_host(replica: Replica) -> None:
    host = Host.objects.get(pk=replica.host_id)
    stop = Event()
    stop.wait = lambda timeout=None: True  # type: ignore[method-assign]

    collector.HostFollower(
        host, BrokenProbe, take=lambda *_: None, is_wanted=lambda: True, stop=stop
    ).run()

    host.refresh_from_db()
    assert "its probe ended" in host.probe_text
