"""Tuning the online score from the command line, and what is kept of it."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from cluster import selectors, services
from cluster.core.placement.score_weights import ScoreWeights
from cluster.models import PlacementWeights

pytestmark = pytest.mark.django_db


@pytest.fixture
def problem(tmp_path: Path) -> str:
    nodes = [
        {"id": f"n{n}", "cpu_milli": 16000, "memory_mib": 65536, "gpu": 2 + n % 2 * 6}
        for n in range(4)
    ]
    pods = [
        {
            "id": f"p{n}",
            "cpu_milli": 500 + n % 3 * 2000,
            "memory_mib": 512,
            "num_gpu": 1 + n % 4 // 3,
            "gpu_milli": (1000, 460, 250, 1000)[n % 4],
        }
        for n in range(30)
    ]
    file = tmp_path / "problem.json"
    file.write_text(json.dumps({"nodes": nodes, "pods": pods}))
    return str(file)


def printed(*arguments: str) -> str:
    out = StringIO()
    call_command("place", *arguments, stdout=out)
    return out.getvalue()


def test_what_was_tuned_is_the_active_row_and_is_used(problem: str) -> None:
    arguments = ("tune", "--history", problem, "--hosts", problem, "--evaluations", "1", "--json")
    first = json.loads(printed(*arguments, "--name", "first"))
    second = json.loads(printed(*arguments, "--name", "second", "--seed", "5"))

    row = PlacementWeights.objects.get(is_active=True)
    assert row.name == second["name"] == "second"
    assert row.weights == second["weights"]
    assert row.trained_on["histories"] == ["problem.json"]
    assert PlacementWeights.objects.get(name="first").weights == first["weights"]
    assert selectors.placement_weights_active() == ScoreWeights.of_dict(row.weights)
    plan = json.loads(
        printed("--hosts", problem, "--requests", problem, "--placer", "swarm-tuned", "--json")
    )
    assert plan["placed"] + plan["unplaced"] == 30
    assert plan["placed"] > 10


def test_weights_may_go_to_a_file_and_leave_the_database_alone(
    problem: str, tmp_path: Path
) -> None:
    file = tmp_path / "weights.json"

    printed(
        *("tune", "--history", problem, "--hosts", problem, "--evaluations", "1"),
        *("--shuffles", "0", "--output", str(file)),
    )

    written = ScoreWeights.of_dict(json.loads(file.read_text())["weights"])
    assert any(written.as_dict().values())
    assert not PlacementWeights.objects.exists()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((), "place tune needs --history FILE"),
        (("--history", "{problem}"), "the cluster has no hosts"),
        (("--history", "{problem}", "--part", "2"), "--part: expected a number above 0"),
        (("--history", "nowhere"), "the cluster has no hosts"),
        (("--history", "nowhere", "--hosts", "{problem}"), "nowhere: cannot be read"),
        (("--history", "{problem}", "--output", "/nowhere/w.json"), "/nowhere/w.json: is no file"),
    ],
)
def test_what_is_missing_is_said_in_one_line(
    problem: str, arguments: tuple[str, ...], sentence: str
) -> None:
    with pytest.raises(CommandError, match=sentence) as caught:
        printed("tune", *(argument.format(problem=problem) for argument in arguments))

    assert caught.value.returncode == 2
    assert "\n" not in str(caught.value)


def test_only_one_row_is_active_and_none_is_the_product_s() -> None:
    for name in ("a", "b"):
        services.placement_weights_store(
            name=name,
            weights=ScoreWeights(partial=1.0),
            score=1.0,
            trained_on={},
            now=timezone.now(),
            is_active=True,
        )

    services.placement_weights_activate(weights_id=PlacementWeights.objects.get(name="a").pk)

    assert [row.name for row in PlacementWeights.objects.filter(is_active=True)] == ["a"]
    services.placement_weights_deactivate()
    assert selectors.placement_weights_active() is None
