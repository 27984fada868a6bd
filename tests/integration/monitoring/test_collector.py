"""The collector between a scripted engine, a scripted probe and a real database."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from threading import Event
from typing import Any

import pytest

from cluster.core.resources import ContainerReading, GpuReading, GpuUuid, HostReading
from cluster.errors import HostUnreachableError
from cluster.models import Gpu, Host
from cluster.ports import HostEndpoint, LogLine
from jobs.models import Replica
from monitoring import collector, selectors
from monitoring.models import LogStream, Sample
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


def record(host: Host, found: HostReading) -> None:
    collector.HostFollower(host, lambda endpoint: None, Event()).record(found)  # type: ignore[arg-type, return-value]


@pytest.fixture
def replica() -> Replica:
    replica = running_job()
    replica.container_id = "c" * 64
    replica.save()
    Host.objects.filter(pk=replica.host_id).update(connection="up")
    return replica


def test_a_reading_becomes_samples_of_host_gpu_and_container(
    replica: Replica, published: list[tuple[str, dict[str, Any]]]
) -> None:
    host = Host.objects.get(pk=replica.host_id)
    gpu = GpuReading(
        uuid=GpuUuid("GPU-1"),
        model="Tesla T4",
        index=0,
        memory_total_mib=15_360,
        why={"utilization_pct": "unsupported"},
    )

    record(host, reading(replica, gpu=gpu))

    samples = {sample.subject: sample.values for sample in Sample.objects.all()}
    assert samples[f"host:{host.name}"]["cpu_pct"] == 12.5
    assert samples[f"replica:{replica.public_id}"] == {"cpu_pct": 150.0, "memory_mib": 64.0}
    assert "utilization_pct" not in samples["gpu:GPU-1"]
    assert samples["gpu:GPU-1"]["why"] == {"utilization_pct": "unsupported"}
    assert Gpu.objects.get(uuid="GPU-1").health == "ok"
    assert {message["subject"] for _, message in published} == set(samples)


def test_a_lost_gpu_keeps_its_row_and_takes_no_work(replica: Replica) -> None:
    host = Host.objects.get(pk=replica.host_id)
    gpu = GpuReading(uuid=GpuUuid("GPU-1"), model="T4", index=0, memory_total_mib=15_360)
    record(host, reading(replica, gpu=gpu))

    lost = GpuReading(uuid=GpuUuid("GPU-1"), model="T4", index=0, lost=True)
    record(host, reading(replica, gpu=lost))

    row = Gpu.objects.get(uuid="GPU-1")
    assert row.health == "stale"
    assert row.memory_total_mib == 15_360


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

    collector.HostFollower(host, BrokenProbe, stop).run()

    host.refresh_from_db()
    assert "its probe ended" in host.probe_text
