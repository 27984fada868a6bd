"""From what probes say to what may be done with a GPU, its history, and who mends it."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest

from cluster import health, selectors, services
from cluster.core.resources import GpuHealth, GpuLink, GpuReading, GpuUuid, HostReading
from cluster.health import HostReport
from cluster.models import Gpu, GpuHealthEvent, Host
from tests.factories.cluster import HostFactory

pytestmark = pytest.mark.django_db


def gpu(uuid: str = "GPU-a", **values: Any) -> GpuReading:
    base: dict[str, Any] = {"model": "T", "index": 0, "memory_total_mib": 16_000}
    return GpuReading(uuid=GpuUuid(uuid), **(base | values))


class Reporter:
    """A host whose probe speaks every three seconds."""

    def __init__(self, host: Host, now: datetime) -> None:
        self.host = host
        self.now = now

    def says(self, *gpus: GpuReading, times: int = 1, **values: Any) -> None:
        for _ in range(times):
            self.now += timedelta(seconds=3)
            reading = HostReading(observed_at=self.now, gpus=gpus, **values)
            health.probe_reports(
                [HostReport(host_name=self.host.name, reading=reading)], now=self.now
            )

    def state(self, uuid: str = "GPU-a") -> tuple[GpuHealth, str]:
        hosts = selectors.cluster_snapshot(now=self.now).hosts
        found = next(one for host in hosts for one in host.gpus if one.uuid == uuid)
        return found.health, found.reason


@pytest.fixture
def probe(now: datetime) -> Reporter:
    return Reporter(HostFactory(), now)


def test_gpus_are_known_by_uuid_whatever_their_order(probe: Reporter) -> None:
    for order in (("GPU-a", "GPU-b"), ("GPU-b", "GPU-a")):
        probe.says(*(gpu(uuid, index=index) for index, uuid in enumerate(order)))

    assert dict(Gpu.objects.values_list("uuid", "index")) == {"GPU-a": 1, "GPU-b": 0}


def test_a_lost_gpu_takes_no_work_and_the_others_do(probe: Reporter) -> None:
    good, bad = gpu("GPU-a"), gpu("GPU-b", index=1)
    probe.says(good, bad)
    lost = gpu("GPU-b", index=1, lost=True, memory_total_mib=None)

    probe.says(good, lost)
    at_once = probe.state("GPU-b")
    probe.says(good, lost)

    assert probe.state("GPU-a") == (GpuHealth.OK, "")
    assert at_once[0] is GpuHealth.STALE
    assert probe.state("GPU-b") == (GpuHealth.QUARANTINED, "the driver has lost this GPU")
    assert Gpu.objects.get(uuid="GPU-b").memory_total_mib == 16_000


def test_a_gpu_that_is_not_mentioned_is_missed_and_while_the_driver_hangs_it_is_not(
    probe: Reporter,
) -> None:
    probe.says(gpu("GPU-a"), gpu("GPU-b", index=1))

    probe.says(times=5, gpu_trouble="hang", gpu_error="the driver does not answer")
    hanging = probe.state("GPU-b")
    probe.says(gpu("GPU-a"), times=2)

    assert hanging == (GpuHealth.STALE, "the driver does not answer")
    assert probe.state("GPU-a")[0] is GpuHealth.OK
    assert probe.state("GPU-b")[0] is GpuHealth.QUARANTINED


def test_a_gpu_nobody_reports_is_stale(now: datetime) -> None:
    host = HostFactory(gpus=1)

    fresh = selectors.cluster_snapshot(now=now).hosts[0].gpus[0]
    later = selectors.cluster_snapshot(now=now + timedelta(seconds=11)).hosts[0].gpus[0]

    assert fresh.free
    assert not later.free
    assert later.health is GpuHealth.STALE
    assert host.gpus.count() == 1


def test_a_container_of_ours_is_no_stranger(probe: Reporter) -> None:
    used = gpu(processes={"c" * 64: 900})
    for _ in range(4):
        probe.now += timedelta(seconds=3)
        reading = HostReading(observed_at=probe.now, gpus=(used,))
        report = HostReport(
            host_name=probe.host.name, reading=reading, containers=frozenset({"c" * 64})
        )
        health.probe_reports([report], now=probe.now)

    assert probe.state()[0] is GpuHealth.OK

    probe.says(used, times=3)
    assert probe.state()[0] is GpuHealth.DRAINING


def test_every_change_is_history_with_what_to_do(probe: Reporter) -> None:
    probe.says(gpu(), times=3)
    probe.says(gpu(xids=((1.0, 79),)), times=3)

    events = list(GpuHealthEvent.objects.order_by("id").values_list("health", "text"))
    assert events == [
        ("ok", ""),
        ("quarantined", "Xid 79: the GPU has fallen off the bus"),
    ]
    [finding] = selectors.gpu_findings(Gpu.objects.get(), now=probe.now)
    assert finding["fault"] == "xid"
    assert "put it back" in finding["advice"]


def test_an_operator_puts_a_gpu_back(probe: Reporter) -> None:
    broken = gpu(xids=((1.0, 79),))
    probe.says(broken)

    health.gpu_clear(gpu_id=Gpu.objects.get().pk, now=probe.now)
    probe.says(broken)

    assert probe.state() == (GpuHealth.OK, "")
    assert [event.text for event in selectors.gpu_events(Gpu.objects.get())] == [
        "put back by an operator",
        "Xid 79: the GPU has fallen off the bus",
    ]


def test_findings_of_a_gpu_that_is_switched_off_or_silent_say_so(probe: Reporter) -> None:
    probe.says(gpu())
    row = Gpu.objects.get()

    silent = selectors.gpu_findings(row, now=probe.now + timedelta(minutes=1))
    row.is_enabled = False
    off = selectors.gpu_findings(row, now=probe.now)

    assert [one["fault"] for one in silent] == ["silent"]
    assert [one["fault"] for one in off] == ["off"]
    assert silent[0]["advice"]


def test_slices_are_devices_and_their_gpu_is_not(probe: Reporter) -> None:
    whole = gpu("GPU-a", divided=True)
    slices = [gpu(f"MIG-{n}", parent="GPU-a", memory_total_mib=5_000) for n in range(2)]
    probe.says(whole, *slices)

    assert probe.state("GPU-a")[0] is GpuHealth.DRAINING
    assert probe.state("MIG-0")[0] is GpuHealth.OK

    probe.says(gpu("GPU-a"), times=4)
    assert probe.state("GPU-a")[0] is GpuHealth.OK
    assert set(Gpu.objects.values_list("uuid", flat=True)) == {"GPU-a"}


def test_another_simulated_machine_takes_the_place_of_the_first(
    probe: Reporter, now: datetime
) -> None:
    probe.says(gpu("GPU-a"), gpu("GPU-b", index=1), simulated=True)
    services.allocation_create(
        holder=uuid4(),
        host_name=probe.host.name,
        cpu_millis=1,
        memory_mib=1,
        gpus=[("GPU-b", None)],
        now=probe.now,
    )

    probe.says(gpu("GPU-c"), simulated=True)

    assert set(Gpu.objects.values_list("uuid", flat=True)) == {"GPU-b", "GPU-c"}


def test_a_host_says_how_its_gpus_are_joined_and_what_the_driver_does_not_list(
    probe: Reporter,
) -> None:
    link = GpuLink(first=GpuUuid("GPU-a"), second=GpuUuid("GPU-b"), kind="nvlink", links=4)
    probe.says(gpu("GPU-a"), gpu("GPU-b", index=1), topology=(link,), pci_gpus=3)

    probe.host.refresh_from_db()
    assert probe.host.gpu_links == [["GPU-a", "GPU-b", "nvlink", 4]]
    assert probe.host.probe_text == "the bus has 3 NVIDIA GPUs, the driver lists 2"

    probe.says(gpu("GPU-a"), gpu("GPU-b", index=1), pci_gpus=2)
    probe.host.refresh_from_db()
    assert len(probe.host.gpu_links) == 1
    assert probe.host.probe_text == ""


def test_a_reading_of_a_host_that_was_removed_is_dropped(now: datetime) -> None:
    reading = HostReading(observed_at=now, gpus=(gpu(),))

    health.probe_report(host_name="gone", reading=reading, now=now)

    assert not Gpu.objects.exists()


def test_many_hosts_cost_no_more_statements_than_one(
    now: datetime, django_assert_max_num_queries: Any
) -> None:
    reports = [
        HostReport(
            host_name=HostFactory().name,
            reading=HostReading(
                observed_at=now, gpus=tuple(gpu(f"GPU-{host}-{n}") for n in range(8))
            ),
        )
        for host in range(12)
    ]
    health.probe_reports(reports, now=now)

    with django_assert_max_num_queries(7):
        health.probe_reports(reports, now=now + timedelta(seconds=3))

    assert Gpu.objects.count() == 96
