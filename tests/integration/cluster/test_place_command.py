"""``manage.py place``: what it prints, and how it refuses what it cannot use."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

HOSTS = {
    "nodes": [
        {"id": "a", "cpu_milli": 8000, "memory_mib": 8000, "gpu": 2, "gpu_model": "T4"},
        {"id": "b", "cpu_milli": 8000, "memory_mib": 8000, "gpu": 2, "gpu_model": "A100"},
    ]
}
PODS = {
    "pods": [
        {"id": "one", "cpu_milli": 1000, "memory_mib": 10, "num_gpu": 1, "gpu_milli": 500},
        {"id": "two", "cpu_milli": 1000, "memory_mib": 10, "num_gpu": 1, "gpu_milli": 500},
        {
            "id": "picky",
            "cpu_milli": 1000,
            "memory_mib": 10,
            "num_gpu": 1,
            "gpu_milli": 1000,
            "gpu_spec": "A100|H100",
        },
        {"id": "plain", "cpu_milli": 3000, "memory_mib": 10, "num_gpu": 0, "gpu_milli": 0},
        {"id": "never", "cpu_milli": 9000, "memory_mib": 10, "num_gpu": 0, "gpu_milli": 0},
    ]
}


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "hosts.json").write_text(json.dumps(HOSTS))
    (tmp_path / "pods.json").write_text(json.dumps(PODS))
    return tmp_path


def place(folder: Path, *more: str) -> dict[str, Any]:
    out = StringIO()
    call_command(
        "place",
        *("--hosts", str(folder / "hosts.json"), "--requests", str(folder / "pods.json")),
        *("--seconds", "0.2", "--json", *more),
        stdout=out,
    )
    found: dict[str, Any] = json.loads(out.getvalue())
    return found


@pytest.mark.parametrize("placer", ["swarm", "ffd", "bfd", "random", "textbook-pso"])
def test_the_plan_is_printed_with_hosts_and_gpus(files: Path, placer: str) -> None:
    found = place(files, "--placer", placer, "--seed", "3")

    assert found["placer"] == placer
    assert found["objective"] == "hosts"
    assert found["placed"] == len(found["assignment"])
    assert found["placed"] + found["unplaced"] == 5
    assert found["iterations"] >= 1
    assert "never" in found["deferred"]
    assert found["deferred"]["never"]["constraint"] == "cpu"
    if "picky" in found["assignment"]:
        assert found["assignment"]["picky"]["host"] == "b"


def test_the_swarm_meets_the_bound_of_what_can_be_placed(files: Path) -> None:
    pods = {"pods": PODS["pods"][:4]}
    (files / "pods.json").write_text(json.dumps(pods))

    found = place(files)

    assert found["unplaced"] == 0
    assert found["hosts_active"] == found["lower_bound"] == 1
    one, two = found["assignment"]["one"], found["assignment"]["two"]
    assert one["host"] == two["host"] == "b"
    assert one["gpus"] == two["gpus"] != found["assignment"]["picky"]["gpus"]


@pytest.mark.parametrize("objective", ["balance", "fragmentation", "gpu", "move"])
def test_every_objective_places_all_that_can_be(files: Path, objective: str) -> None:
    found = place(files, "--objective", objective)

    assert found["objective"] == objective
    assert sorted(found["assignment"]) == ["one", "picky", "plain", "two"]


@pytest.mark.parametrize(
    ("file", "text", "words"),
    [
        ("pods.json", '{"pods": [{"id": "x"}]}', ["pods.json", "row 1", "column"]),
        ("pods.json", "", ["pods.json", "empty"]),
        ("pods.json", "[1, 2", ["pods.json"]),
        (
            "hosts.json",
            "id,cpu_milli,memory_mib,gpu\na,1000,-5,0\n",
            ["hosts.json", "row 1", "memory_mib", "-5"],
        ),
        (
            "hosts.json",
            "id,cpu_milli,memory_mib,gpu\na,1000,5,0\na,1,1,0\n",
            ["hosts.json", "row 2", "'a'"],
        ),
        (
            "pods.json",
            "id,cpu_milli,memory_mib,num_gpu,gpu_milli\nx,lots,1,0,0\n",
            ["pods.json", "row 1", "cpu_milli", "lots"],
        ),
    ],
)
def test_a_bad_file_gets_one_line_with_file_row_and_column(
    files: Path, file: str, text: str, words: list[str]
) -> None:
    (files / file).write_text(text)

    with pytest.raises(CommandError) as refused:
        place(files)

    assert refused.value.returncode == 2
    assert "\n" not in str(refused.value)
    for word in words:
        assert word in str(refused.value)


def test_a_million_rows_are_refused_and_not_placed(files: Path) -> None:
    header = "id,cpu_milli,memory_mib,num_gpu,gpu_milli\n"
    rows = "".join(f"p{number},1,1,0,0\n" for number in range(1_000_000))
    (files / "pods.json").write_text(header + rows)

    with pytest.raises(CommandError, match="200,000") as refused:
        place(files)

    assert refused.value.returncode == 2


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--placer", "swram"], "swarm"),
        (["--placer", "nowhere.py:Mine"], "nowhere.py"),
        (["--seconds", "nan"], "seconds"),
        (["--seconds", "0"], "seconds"),
        (["--seed", "-1"], "seed"),
        (["--objective", "beauty"], "objective"),
    ],
)
def test_a_bad_word_is_refused_with_what_would_do(files: Path, more: list[str], words: str) -> None:
    with pytest.raises(CommandError, match=words):
        place(files, *more)


GREEDY = """
from cluster.core.resources import Placement, Plan, ReplicaPlacement


class Greedy:
    name = "greedy"

    def place(self, requests, snapshot):
        first = snapshot.hosts[0].name
        return Plan(
            placements=tuple(
                Placement(key=one.key, replicas=(ReplicaPlacement(rank=0, host=first),))
                for one in requests
            )
        )


class Broken(Greedy):
    def place(self, requests, snapshot):
        return requests[0].nothing
"""


def test_a_placer_of_ones_own_runs_and_its_plan_is_checked(files: Path) -> None:
    (files / "mine.py").write_text(GREEDY)

    with pytest.raises(CommandError, match="asks for 1 GPU") as refused:
        place(files, "--placer", f"{files}/mine.py:Greedy")
    with pytest.raises(CommandError, match="AttributeError"):
        place(files, "--placer", f"{files}/mine.py:Broken")

    assert "\n" not in str(refused.value)
    (files / "pods.json").write_text(json.dumps({"pods": PODS["pods"][3:4]}))
    found = place(files, "--placer", f"{files}/mine.py:Greedy")
    assert found["assignment"] == {"plain": {"host": "a", "gpus": []}}
