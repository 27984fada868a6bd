"""Which container a process is in: every way in which engines write it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cluster.probe import processes

ID = "ab" * 32


@pytest.mark.parametrize(
    ("text", "container"),
    [
        (f"12:memory:/docker/{ID}\n1:name=systemd:/docker/{ID}\n", ID),
        (f"0::/system.slice/docker-{ID}.scope\n", ID),
        (f"0::/docker/{ID}/init\n", ID),
        (f"0::/../docker-{ID}.scope\n", ID),
        ("0::/user.slice/user-1000.slice\n", ""),
        ("0::/docker/abc\n", ""),
        ("", ""),
    ],
)
def test_both_versions_of_control_groups_name_the_container(
    monkeypatch: pytest.MonkeyPatch, text: str, container: str
) -> None:
    monkeypatch.setattr(processes, "text_of", lambda _: text)

    assert processes.docker_of(7) == container


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The processes there are, each with its container."""
    found: dict[str, str] = {}
    monkeypatch.setattr(processes.os, "listdir", lambda _: [*found, "version", "self"])
    monkeypatch.setattr(processes, "docker_of", lambda pid: found[pid])
    return found


def test_processes_come_go_and_are_moved_into_their_container_late(table: dict[str, str]) -> None:
    index = processes.DockerIndex()
    table |= {"1": "", "10": ID, "11": ""}
    assert index.read() == {ID: [10]}

    table["11"] = ID
    assert {key: sorted(pids) for key, pids in index.read().items()} == {ID: [10, 11]}

    del table["10"]
    assert index.read() == {ID: [11]}


def test_a_process_is_looked_up_a_few_times_and_not_for_ever(
    table: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    index = processes.DockerIndex()
    table |= {str(pid): "" for pid in range(50)} | {"100": ID}
    looked: list[str] = []

    def counted(real: Callable[[str], str]) -> Callable[[str], str]:
        return lambda pid: (looked.append(pid), real(pid))[1]

    monkeypatch.setattr(processes, "docker_of", counted(lambda pid: table[pid]))
    for _ in range(20):
        index.read()

    assert looked.count("100") == 1
    assert looked.count("7") == 3
