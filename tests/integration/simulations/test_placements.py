"""Trials of the lab: watched while they run, drawn when they are over, with the heuristics."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from cluster.core.placement.problem import Objective
from jobs import selectors, services
from jobs.errors import InvalidInputError, NotFoundError
from jobs.models import PlacementRun, RunState
from jobs.question import PlacementQuestion, TextFile
from jobs.services.runner import run_pending
from jobs.services.runs import TRIAL_AGE, Kind
from portal.models import User
from tests.integration.simulations.files import problem

COLUMNS = "name,cpu_milli,memory_mib,num_gpu,gpu_milli"


def tried(owner: User, now: datetime, **changes: Any) -> PlacementRun:
    file = changes.pop("file", problem())
    values: dict[str, Any] = {"hosts": file, "requests": file, "seconds": 0.2, "name": "halves"}
    run = services.placement_create(
        owner=owner, question=PlacementQuestion(**(values | changes)), now=now
    )
    run_pending(kind=Kind.PLACEMENT, clock=lambda: now)
    run.refresh_from_db()
    return run


def test_a_trial_is_placed_by_the_swarm_and_by_the_heuristics(student: User, now: datetime) -> None:
    run = tried(student, now)

    assert (run.state, run.error) == (RunState.DONE, "")
    rows = {row["placer"]: row for row in run.result["rows"]}
    assert next(iter(rows)) == "swarm"
    assert {"first-fit", "ffd", "bfd", "random"} <= set(rows)
    # Six halves of a GPU fill three of the four GPUs of two hosts.
    assert (rows["swarm"]["hosts_active"], run.result["bound"]) == (2, 2)
    assert all(row["left_out"] == 0 for row in rows.values())
    assert rows["swarm"]["cost"] == min(row["cost"] for row in rows.values())


def test_the_picture_shows_every_request_once_and_no_gpu_too_full(
    student: User, now: datetime
) -> None:
    run = tried(student, now)

    hosts = run.result["picture"]["hosts"]
    drawn = [request["id"] for host in hosts for request in host["requests"]]
    assert sorted(drawn) == [f"pod-{n}" for n in range(6)]
    for host in hosts:
        for gpu in range(len(host["gpus"])):
            used = [r["share_milli"] for r in host["requests"] if gpu in r["gpus"]]
            assert sum(used) <= 1000


@pytest.mark.parametrize("method", ["swarm", "cold"])
def test_a_search_can_be_watched_from_any_frame_on(
    student: User, now: datetime, method: str
) -> None:
    run = tried(student, now, method=method, file=problem(pods=11), seconds=0.6)

    frames = selectors.placement_frames(run, first=0)
    assert len(frames) >= 2
    assert selectors.placement_frames(run, first=1) == frames[1:]
    assert all(len(frame["positions"]) == len(frame["costs"]) for frame in frames)
    costs = [(frame["left_out"], frame["best_cost"]) for frame in frames if frame["best_cost"]]
    assert costs == sorted(costs, reverse=True)


def test_what_fits_nowhere_is_left_out_with_a_reason(student: User, now: datetime) -> None:
    run = tried(student, now, file=problem(pods=14), objective=Objective.GPU)

    left_out = run.result["picture"]["left_out"]
    assert len(left_out) == 2
    assert all(one["why"] for one in left_out)
    assert run.result["bound"] is None


@pytest.mark.parametrize(
    ("changes", "field", "words"),
    [
        ({"seconds": 60}, "seconds", "from 0.1 to 10"),
        ({"method": "magic"}, "method", "full"),
        ({"requests": TextFile(name="p.csv", text="name\n")}, "requests", "p.csv, row 0"),
        ({"hosts": TextFile(name="n.json", text='{"a": "\\u0000"}')}, "hosts", "no text has"),
        ({"hosts": TextFile(name="n.csv", text="")}, "hosts", "n.csv: the file is empty"),
        (
            {"requests": TextFile(name="p.csv", text=f"{COLUMNS}\na,-1,1,0,0\n")},
            "requests",
            "p.csv, row 1, column cpu_milli",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_placed_is_refused_by_field(
    student: User, now: datetime, changes: dict[str, Any], field: str, words: str
) -> None:
    values: dict[str, Any] = {"hosts": problem(), "requests": problem(), "name": ""}

    with pytest.raises(InvalidInputError) as refused:
        services.placement_create(
            owner=student, question=PlacementQuestion(**(values | changes)), now=now
        )

    assert words in refused.value.fields[field][0]


def test_a_trial_is_its_owners(student: User, other_student: User, now: datetime) -> None:
    run = tried(student, now)

    assert selectors.placement_get(user=student, public_id=run.public_id) == run
    with pytest.raises(NotFoundError):
        selectors.placement_get(user=other_student, public_id=run.public_id)


def test_old_trials_go(student: User, now: datetime) -> None:
    tried(student, now)

    services.runs_sweep(now=now + TRIAL_AGE - timedelta(seconds=1))
    assert PlacementRun.objects.exists()
    services.runs_sweep(now=now + TRIAL_AGE + timedelta(seconds=1))
    assert not PlacementRun.objects.exists()


def test_a_runner_that_rests_takes_what_comes_meanwhile(student: User, now: datetime) -> None:
    rested: list[int] = []

    def rest(rests: int) -> bool:
        rested.append(rests)
        if len(rested) == 2:
            file = problem()
            question = PlacementQuestion(hosts=file, requests=file, seconds=0.1, name="late")
            services.placement_create(owner=student, question=question, now=now)
        return rests < 2

    done = run_pending(kind=Kind.PLACEMENT, clock=lambda: now, rest=rest)

    assert done == 1
    assert PlacementRun.objects.get().state == RunState.DONE
    assert rested == [0, 1, 0, 1, 2]
