"""An engine that breaks off, is too old, or answers with errors."""

from __future__ import annotations

from itertools import chain, repeat
from pathlib import Path
from random import Random

import pytest

from cluster.adapters.docker_runtime import DockerRuntime
from cluster.errors import HostRefusedError, HostUnreachableError
from cluster.ports import EngineDescription, HostEndpoint, LogLine
from tests.contracts.conftest import Bench
from tests.contracts.test_container_runtime import COUNTING, by_stream
from tests.fakes.engines import cutting_front, docker_address, scripted_engine

OLD = {"ApiVersion": "1.39", "Version": "18.09.1"}
NEW = {"ApiVersion": "1.47", "Version": "27.3.1"}


@pytest.mark.parametrize("bench", ["docker"], indirect=True)
def test_a_log_is_whole_over_a_line_that_is_cut_again_and_again(
    bench: Bench, tmp_path: Path
) -> None:
    spec = bench.spec(COUNTING, environment={})
    bench.runtime.start(spec)
    chance = Random(3)
    # Long enough for an inspection each time, never for the whole log; in the end it holds.
    cuts = chain((chance.randint(20_000, 300_000) for _ in range(40)), repeat(1 << 40))

    got: list[LogLine] = []
    broke = 0
    with cutting_front(tmp_path, docker_address(), cuts) as address:
        runtime = DockerRuntime(HostEndpoint(name="far", url=address), instance="contract")
        while True:
            try:
                for line in runtime.logs(spec.name, after=got[-1].cursor if got else ""):
                    if line is not None:
                        got.append(line)  # noqa: PERF401 - what came before a break counts
            except HostUnreachableError:
                broke += 1
            else:
                break

    numbers = [str(number) for number in range(10_000)]
    assert broke > 3
    assert by_stream(got) == {"stdout": numbers, "stderr": numbers}


def described(tmp_path: Path, **answers: tuple[int, object]) -> EngineDescription:
    with scripted_engine(tmp_path, dict(answers)) as address:
        runtime = DockerRuntime(HostEndpoint(name="far", url=address), instance="contract")
        return runtime.describe()


def test_an_engine_that_is_too_old_is_refused_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(HostRefusedError, match=r"18\.09\.1 is too old .* install Docker Engine"):
        described(tmp_path, version=(200, OLD), info=(200, {}))


def test_a_clock_that_is_off_is_told(tmp_path: Path) -> None:
    info = {"SystemTime": "2020-01-01T00:00:00.123456789Z", "Warnings": ["WARNING: No swap limit"]}

    found = described(tmp_path, version=(200, NEW), info=(200, info))

    assert found.clock_offset_s is not None
    assert found.clock_offset_s < -86_400
    assert found.warnings[0] == "WARNING: No swap limit"
    assert "timedatectl set-ntp true" in found.warnings[1]


@pytest.mark.parametrize(
    ("info", "takes"),
    [
        ({}, False),
        ({"Runtimes": {"nvidia": {}}}, True),
        ({"DiscoveredDevices": [{"Source": "cdi", "ID": "nvidia.com/gpu=0"}]}, True),
    ],
)
def test_an_engine_says_whether_it_has_gpus_to_give(
    tmp_path: Path, info: dict[str, object], takes: bool
) -> None:
    assert described(tmp_path, version=(200, NEW), info=(200, info)).takes_gpus is takes


def test_an_engine_in_trouble_is_unreachable_and_its_words_are_kept(tmp_path: Path) -> None:
    trouble = (500, {"message": "database is locked"})
    answers = {"version": (200, NEW), "json": trouble, "info": trouble}
    with scripted_engine(tmp_path, answers) as address:
        runtime = DockerRuntime(HostEndpoint(name="far", url=address), instance="contract")

        for call in (
            runtime.describe,
            lambda: runtime.inspect("xx"),
            lambda: runtime.containers({}),
            lambda: next(runtime.logs("xx")),
        ):
            with pytest.raises(HostUnreachableError, match="database is locked"):
                call()
