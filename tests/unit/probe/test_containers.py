"""Container figures from both dialects of control groups, written as files."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster.probe import containers
from cluster.probe.containers import ContainerMeter
from cluster.probe.host import Rates

ID = "ab" * 32


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine whose /proc and /sys/fs/cgroup are below a folder."""
    real = containers.text_of

    def text_of(path: str) -> str:
        return real(str(tmp_path / path.lstrip("/")) if path.startswith("/proc") else path)

    monkeypatch.setattr(containers, "text_of", text_of)
    monkeypatch.setattr(containers, "CGROUP", tmp_path / "sys")
    monkeypatch.setattr(containers.DockerIndex, "read", lambda _: {ID: [41, 42]})
    monkeypatch.setattr(containers, "network_bytes", lambda _: (1000, 2000))
    return tmp_path


def put(root: Path, files: dict[str, str]) -> None:
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)


@pytest.mark.parametrize("scope", [f"system.slice/docker-{ID}.scope", f"docker/{ID}"])
def test_the_second_version_of_control_groups(machine: Path, scope: str) -> None:
    put(
        machine,
        {
            "proc/41/cgroup": f"0::/{scope}\n",
            "sys/cgroup.controllers": "cpu memory io",
            f"sys/{scope}/cpu.stat": "usage_usec 5000000\nuser_usec 1\n",
            f"sys/{scope}/memory.current": str(300 * 2**20),
            f"sys/{scope}/memory.stat": f"anon 1\ninactive_file {100 * 2**20}\n",
            f"sys/{scope}/io.stat": "8:0 rbytes=10 wbytes=20 rios=1\n8:16 rbytes=1 wbytes=2\n",
        },
    )

    found = ContainerMeter(docker=True, processes=None).read()

    # The rates are unknown at first sight, and unknown is not zero.
    assert found == {ID: {"memory_mib": 200.0, "processes": 2}}
    assert containers._usage_v2(scope) == (5.0, 200 * 2**20, (11, 22))


def test_the_first_version_of_control_groups(machine: Path) -> None:
    group = f"docker/{ID}"
    put(
        machine,
        {
            "proc/41/cgroup": f"4:memory:/{group}\n3:cpu,cpuacct:/{group}\n2:blkio:/{group}\n",
            f"sys/cpuacct/{group}/cpuacct.usage": "7000000000\n",
            f"sys/memory/{group}/memory.usage_in_bytes": str(300 * 2**20),
            f"sys/memory/{group}/memory.stat": f"total_inactive_file {50 * 2**20}\n",
            f"sys/blkio/{group}/blkio.throttle.io_service_bytes": "8:0 Read 5\n8:0 Write 6\n"
            "8:0 Sync 11\nTotal 11\n",
        },
    )

    found = ContainerMeter(docker=True, processes=None).read()

    assert found == {ID: {"memory_mib": 250.0, "processes": 2}}
    assert containers._usage_v1("41") == (7.0, 250 * 2**20, (5, 6))


def test_a_container_that_just_ended_breaks_nothing(machine: Path) -> None:
    put(machine, {"sys/cgroup.controllers": "cpu memory io"})

    assert ContainerMeter(docker=True, processes=None).read() == {ID: {"processes": 2}}


def test_a_rate_is_known_from_the_second_look_on_and_not_after_a_reset() -> None:
    rates = Rates()

    found = [
        rates.rate("a", value, now)
        for value, now in [(100, 1.0), (160, 3.0), (10, 4.0), (None, 5.0), (20, 6.0), (25, 7.0)]
    ]

    assert found == [None, 30.0, None, None, None, 5.0]
