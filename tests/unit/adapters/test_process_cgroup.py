"""Control groups as files: what is asked of the kernel in both of its dialects."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster.adapters import process_cgroup
from cluster.adapters.process_cgroup import Limits

LIMITS = Limits(memory_mib=512, cpu_millis=1500, pids=100)


@pytest.mark.parametrize("enabled", ["cpu memory pids", "memory pids"])
def test_the_second_version_has_one_group_with_what_is_enabled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, enabled: str
) -> None:
    monkeypatch.setattr(process_cgroup, "_own", lambda _: "app.slice/portal.service")
    monkeypatch.setattr(process_cgroup, "_words", lambda _: set(enabled.split()))
    above = tmp_path / "app.slice"
    group = above / "starling-a"
    group.mkdir(parents=True)
    for folder in (above, group):
        (folder / "cgroup.procs").write_text("7\n")
    (tmp_path / "cgroup.controllers").write_text("cpu memory pids\n")

    folders = process_cgroup.make("a", LIMITS, root=tmp_path)

    assert folders == dict.fromkeys(enabled.split(), str(group))
    assert (group / "memory.max").read_text() == str(512 * 2**20)
    assert (group / "pids.max").read_text() == "100"
    assert (group / "cpu.max").exists() == ("cpu" in enabled)
    assert process_cgroup.members(folders) == {7}


def test_the_first_version_has_a_group_for_each_controller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_cgroup, "_own", lambda _: "")
    for controller in ("memory", "cpu", "pids"):
        group = tmp_path / controller / "starling-a"
        group.mkdir(parents=True)
        (group / "cgroup.procs").write_text("1\n2\n")

    folders = process_cgroup.make("a", LIMITS, root=tmp_path)

    assert folders == {name: str(tmp_path / name / "starling-a") for name in folders}
    assert set(folders) == {"memory", "cpu", "pids"}
    assert (tmp_path / "memory/starling-a/memory.limit_in_bytes").read_text() == str(512 * 2**20)
    assert (tmp_path / "cpu/starling-a/cpu.cfs_quota_us").read_text() == "150000"
    assert (tmp_path / "pids/starling-a/pids.max").read_text() == "100"
    assert process_cgroup.members(folders) == {1, 2}


def test_where_no_group_can_be_made_there_is_none(tmp_path: Path) -> None:
    assert process_cgroup.make("a", LIMITS, root=tmp_path / "nowhere") == {}
    process_cgroup.remove({"memory": str(tmp_path / "nowhere")})
