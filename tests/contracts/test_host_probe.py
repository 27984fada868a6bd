"""What every host's probe promises."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass

import psutil
import pytest

from cluster.adapters import probe_follower
from cluster.adapters.docker_runtime import DockerRuntime
from cluster.adapters.probe_follower import LABEL_PROBE, DockerProbe, LocalProbe
from cluster.core.resources import ContainerReading, HostReading
from cluster.errors import HostUnreachableError, ImageMissingError
from cluster.ports import HostEndpoint, HostProbe
from tests.contracts.conftest import IMAGE, Bench

BUSY = """
    kept = bytearray(b"x") * (150 * 2**20)
    print("ready")
    while True:
        sum(range(10_000))
"""


@dataclass
class Probed:
    bench: Bench
    probe: HostProbe
    instance: str

    @property
    def name(self) -> str:
        return f"starling-probe-{self.instance}"


@pytest.fixture
def probed(bench: Bench) -> Iterator[Probed]:
    instance = f"contract-{uuid.uuid4().hex[:8]}"
    runtime = bench.runtime
    if not isinstance(runtime, DockerRuntime):
        endpoint = HostEndpoint(name="local", url="process://local")
        probe = LocalProbe(endpoint, state_dir=bench.folder / "state")
        yield Probed(bench, probe, instance)
        return
    made = Probed(bench, DockerProbe(runtime, image=IMAGE, instance=instance), instance)
    yield made
    runtime.remove(made.name)


def until(probe: HostProbe, seen: Callable[[HostReading], object]) -> HostReading:
    """Return the first reading in which something is seen."""
    with closing(probe.readings()) as readings:
        for reading in readings:
            if reading is not None and seen(reading):
                return reading
    raise AssertionError("the probe ended")


def test_the_host_and_its_containers_are_seen(probed: Probed) -> None:
    bench = probed.bench
    spec = bench.spec(BUSY, cpu_millis=500)
    container_id = bench.runtime.start(spec).container_id
    bench.says(spec.name, "ready")

    def own(reading: HostReading) -> ContainerReading | None:
        found = [one for one in reading.containers if one.container_id == container_id]
        return found[0] if found and found[0].cpu_pct is not None else None

    reading = until(probed.probe, own)
    container = own(reading)

    assert reading.observed_at.tzinfo is not None
    assert reading.cpu_pct is not None
    assert 0 <= reading.cpu_pct <= 100
    assert reading.memory_total_mib is not None
    assert reading.memory_used_mib is not None
    assert 150 < reading.memory_used_mib < reading.memory_total_mib
    assert reading.disk_total_mib is not None
    assert container is not None
    assert container.memory_mib is not None
    assert 150 <= container.memory_mib < 300
    assert container.processes is not None
    assert container.processes >= 1

    bench.runtime.kill(spec.name)
    until(probed.probe, lambda reading: own(reading) is None)


def test_closing_leaves_the_host_without_a_probe(probed: Probed) -> None:
    until(probed.probe, lambda reading: reading.cpu_pct is not None)

    if isinstance(probed.bench.runtime, DockerRuntime):
        assert probed.bench.runtime.inspect(probed.name) is None
    else:
        mine = psutil.Process().children(recursive=True)
        assert not [one for one in mine if "cluster.probe" in one.cmdline()]


def test_a_probe_that_ends_is_told_and_may_be_begun_again(probed: Probed) -> None:
    def end() -> None:
        if isinstance(probed.bench.runtime, DockerRuntime):
            probed.bench.runtime.kill(probed.name)
        else:
            for child in psutil.Process().children(recursive=True):
                if "cluster.probe" in child.cmdline():
                    child.kill()

    with closing(probed.probe.readings()) as readings:
        next(reading for reading in readings if reading is not None)
        end()
        with pytest.raises(HostUnreachableError, match="ended"):
            list(readings)

    until(probed.probe, lambda reading: reading.cpu_pct is not None)


@pytest.mark.parametrize("bench", ["docker"], indirect=True)
def test_a_probe_that_was_left_is_taken_over_or_replaced(
    probed: Probed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a collector that was killed: its probe still runs, perhaps of another version."""
    runtime = probed.bench.runtime
    with closing(probed.probe.readings()) as left:
        next(reading for reading in left if reading is not None)
        before = runtime.inspect(probed.name)
        with closing(probed.probe.readings()) as readings:
            next(reading for reading in readings if reading is not None)
            same = runtime.inspect(probed.name)
            monkeypatch.setattr(probe_follower, "version", lambda: "another")
            with closing(probed.probe.readings()) as newer:
                next(reading for reading in newer if reading is not None)
                after = runtime.inspect(probed.name)

    assert before is not None
    assert same == before
    assert after is not None
    assert after.container_id != before.container_id
    assert after.labels[LABEL_PROBE] == "another"


@pytest.mark.parametrize("bench", ["docker"], indirect=True)
def test_a_host_without_the_probes_image_says_so(probed: Probed) -> None:
    runtime = probed.bench.runtime
    assert isinstance(runtime, DockerRuntime)
    probe = DockerProbe(runtime, image="starling/never:made", instance=probed.instance)

    with pytest.raises(ImageMissingError, match="starling/never:made"):
        next(probe.readings())
