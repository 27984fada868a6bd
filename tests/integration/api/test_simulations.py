"""Simulations and trials of placement over REST."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.utils import timezone
from rest_framework.test import APIClient

from jobs.models import PlacementRun, RunState, SimulationRun
from jobs.services.runner import run_pending
from jobs.services.runs import Kind
from portal.models import User
from tests.factories.cluster import HostFactory
from tests.factories.jobs import running_job
from tests.integration.api.rows import make_simulation
from tests.integration.simulations.files import HOSTS, problem, workload

Api = Callable[[User | None], APIClient]
SIMULATIONS = "/api/v1/simulations/"
PLACEMENTS = "/api/v1/placements/"


def asked(**changes: Any) -> dict[str, Any]:
    values: dict[str, Any] = {
        "name": "two hosts",
        "workload_text": workload().text,
        "workload_file": "jobs.csv",
        "hosts_text": HOSTS.text,
        "policies": ["first-fit", "best-fit+easy"],
    }
    return {name: value for name, value in (values | changes).items() if value is not None}


def test_a_question_is_asked_answered_and_shared(api: Api, instructor: User, admin: User) -> None:
    made = api(instructor).post(SIMULATIONS, asked())
    assert made.status_code == 201, made.data
    assert (made.data["state"], made.data["result"], made.data["job_count"]) == ("waiting", {}, 4)

    run_pending(kind=Kind.SIMULATION, clock=timezone.now)

    answer = api(admin).get(f"{SIMULATIONS}{made.data['id']}/").data
    assert answer["state"] == "done"
    assert answer["result"]["policies"] == ["first-fit", "best-fit+easy"]
    listed = api(admin).get(SIMULATIONS).data["results"]
    assert [one["id"] for one in listed] == [made.data["id"]]


def test_a_question_about_a_time_and_more_hosts(api: Api, instructor: User) -> None:
    HostFactory(name="box")
    running_job(owner=instructor)

    refused = api(instructor).post(
        SIMULATIONS,
        asked(
            workload_text=None, workload_file=None, hosts_text=None,
            since="2026-01-01T00:00:00Z", until="2026-12-01T00:00:00Z",
        ),
    )  # fmt: skip

    assert refused.status_code == 400
    assert "No job" in refused.data["fields"]["workload"][0]


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"workload_text": None}, "workload_text"),
        ({"since": "2026-01-01T00:00:00Z"}, "until"),
        ({"workload_text": "id,submitted_s,duration_s\na,0,x\n"}, "workload"),
        ({"policies": ["/etc/passwd.py:X"]}, "policies"),
        ({"policies": []}, "policies"),
        ({"added": {"count": 0}}, "added.count"),
        ({"added": {"count": 1, "color": "red"}}, "added.color"),
        ({"without": ["nobody"]}, "without"),
    ],
)
def test_a_bad_question_names_its_field(
    api: Api, instructor: User, changes: dict[str, Any], field: str
) -> None:
    refused = api(instructor).post(SIMULATIONS, asked(**changes))

    assert refused.status_code == 400
    assert field in refused.data["fields"]


def test_students_find_nothing(api: Api, student: User, admin: User) -> None:
    run = make_simulation(admin)
    client = api(student)

    answers = [
        client.get(SIMULATIONS),
        client.post(SIMULATIONS, asked()),
        client.get(f"{SIMULATIONS}{run.public_id}/"),
        client.post(f"{SIMULATIONS}{run.public_id}/cancel/"),
        client.delete(f"{SIMULATIONS}{run.public_id}/"),
    ]

    assert [answer.status_code for answer in answers] == [404] * 5
    assert SimulationRun.objects.get().state == RunState.WAITING


def test_a_simulation_is_cancelled_once_and_deleted(api: Api, admin: User) -> None:
    run = make_simulation(admin)
    client = api(admin)

    codes = [client.post(f"{SIMULATIONS}{run.public_id}/cancel/").status_code for _ in range(2)]

    assert codes == [202, 409]
    assert client.delete(f"{SIMULATIONS}{run.public_id}/").status_code == 204
    assert not SimulationRun.objects.exists()


def test_a_trial_is_watched_frame_by_frame(api: Api, student: User) -> None:
    client = api(student)
    made = client.post(PLACEMENTS, {"hosts_text": problem().text, "seconds": 0.4, "method": "cold"})
    assert made.status_code == 201, made.data
    frames = f"{PLACEMENTS}{made.data['id']}/frames/"
    assert client.get(frames).data["frames"] == []

    run_pending(kind=Kind.PLACEMENT, clock=timezone.now)

    seen = client.get(frames).data
    later = client.get(frames, {"first": 1}).data
    assert (seen["state"], seen["first"], later["first"]) == ("done", 0, 1)
    assert later["frames"] == seen["frames"][1:]
    assert seen["rows"][0]["placer"] == "swarm"
    detail = client.get(f"{PLACEMENTS}{made.data['id']}/").data
    assert len(detail["result"]["picture"]["hosts"]) == 3


def test_an_example_is_placed_by_its_name(api: Api, student: User) -> None:
    made = api(student).post(PLACEMENTS, {"example": "triplets", "seconds": 0.1})

    assert made.status_code == 201
    assert (made.data["name"], made.data["objective"]) == ("Triplets", "hosts")
    assert PlacementRun.objects.get().problem["request_count"] == 60


@pytest.mark.parametrize(
    ("sent", "field"),
    [
        ({}, "example"),
        ({"example": "triplets", "hosts_text": "x"}, "example"),
        ({"example": "nothing"}, "example"),
        ({"example": "triplets", "seconds": 11}, "seconds"),
        ({"example": "triplets", "seconds": "1"}, "seconds"),
        ({"hosts_text": '{"nodes": [{"id": "a"}]}'}, "hosts"),
    ],
)
def test_a_bad_trial_names_its_field(
    api: Api, student: User, sent: dict[str, Any], field: str
) -> None:
    refused = api(student).post(PLACEMENTS, sent)

    assert refused.status_code == 400
    assert field in refused.data["fields"]


def test_why_a_job_runs_where_it_runs(api: Api, student: User, other_student: User) -> None:
    attempt = running_job(owner=student).attempt
    attempt.decision = {
        "placer": "planner",
        "objective": "hosts",
        "reason": "the best host there is for it",
        "proven": True,
        "seconds": 0.004,
        "candidates": [
            {"host": "alpha", "score": 0.4, "parts": {"cpu_left": 0.4}, "chosen": True},
            {"host": "beta", "score": 1.7, "parts": {"cpu_left": 0.7, "opens_host": 1.0}},
        ],
    }
    attempt.save()
    address = f"/api/v1/jobs/{attempt.job.public_id}/decision/"

    found = api(student).get(address).data

    assert (found["attempt"], found["placer"], found["proven"]) == (1, "planner", True)
    assert [(one["host"], one["chosen"]) for one in found["candidates"]] == [
        ("alpha", True),
        ("beta", False),
    ]
    assert api(student).get(address, {"attempt": 2}).status_code == 404
    assert api(other_student).get(address).status_code == 404


def test_a_decision_that_was_not_noted_is_empty(api: Api, student: User) -> None:
    job = running_job(owner=student).attempt.job

    found = api(student).get(f"/api/v1/jobs/{job.public_id}/decision/").data

    assert (found["placer"], found["candidates"], found["seconds"]) == ("", [], None)
