"""The pages of simulations and of the placement lab, and the one that tells why a job is there."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from jobs.models import PlacementRun, RunState, SimulationRun
from jobs.services.runner import run_pending
from jobs.services.runs import Kind
from portal.models import User
from tests.factories.jobs import running_job
from tests.integration.api.rows import make_placement, make_simulation
from tests.integration.simulations.files import HOSTS, problem, workload

Browser = Callable[[User | None], Client]
NEW = "portal:simulation-create"


def upload(name: str, text: str) -> SimpleUploadedFile:
    return SimpleUploadedFile(name, text.encode())


def posted(**changes: Any) -> dict[str, Any]:
    values: dict[str, Any] = {
        "source": "file",
        "workload": upload("jobs.csv", workload().text),
        "hosts": upload("hosts.json", HOSTS.text),
        "placer": ["first-fit", "best-fit", "", ""],
        "queue": ["", "fifo", "", ""],
        "add_count": "0",
        "name": "Before the deadline",
    }
    return {name: value for name, value in (values | changes).items() if value is not None}


def test_a_question_leads_to_its_answer(browser: Browser, instructor: User) -> None:
    client = browser(instructor)
    assert client.get(reverse(NEW)).status_code == 200

    made = client.post(reverse(NEW), posted())
    waits = client.get(made["Location"]).content.decode()
    run_pending(kind=Kind.SIMULATION, clock=timezone.now)
    page = client.get(made["Location"]).content.decode()

    assert made.status_code == 302
    assert 'hx-trigger="every 1s"' in waits
    assert 'hx-trigger="every 1s"' not in page
    assert "Before the deadline" in page
    assert "best-fit+fifo" in page
    assert "Who would have waited longer under best-fit+fifo than under first-fit" in page
    assert "data-figures=" in page


def test_the_example_and_added_hosts(browser: Browser, instructor: User) -> None:
    added = {"add_count": "2", "add_cpus": "16", "add_memory_gib": "64", "add_gpus": "4"}

    made = browser(instructor).post(
        reverse(NEW), posted(source="example", workload=None, hosts=None, **added)
    )

    assert made.status_code == 302
    run = SimulationRun.objects.get()
    assert [host["name"] for host in run.hosts][-2:] == ["added-1", "added-2"]
    assert (run.hosts[-1]["cpu_millis"], len(run.hosts[-1]["gpus"])) == (16_000, 4)


def test_a_question_is_asked_again_with_the_same_jobs(browser: Browser, instructor: User) -> None:
    before = make_simulation(instructor)
    client = browser(instructor)
    form = client.get(reverse(NEW), {"like": str(before.public_id)}).content.decode()

    made = client.post(
        reverse(NEW),
        posted(source="kept", like=str(before.public_id), workload=None, hosts=None),
    )

    assert f'value="{before.public_id}"' in form
    assert made.status_code == 302
    assert SimulationRun.objects.latest("id").workload == before.workload


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"workload": None}, "Choose the file."),
        ({"workload": upload("jobs.csv", "id,submitted_s,duration_s\na,0,-3\n")},
         "jobs.csv, row 1, column duration_s"),
        ({"workload": SimpleUploadedFile("jobs.csv", b"\xff\xfe")}, "is not UTF-8 text"),
        ({"placer": ["", "", "", ""]}, "Choose at least one policy."),
        ({"placer": ["ffd", "ffd", "", ""], "queue": ["", "", "", ""]}, "chosen twice"),
        ({"without": "gamma"}, "There is no host &#x27;gamma&#x27;"),
        ({"add_count": "3"}, "how many cores"),
        ({"source": "recorded", "window": "between"}, "Choose a moment."),
        ({"source": "recorded", "window": "week"}, "No job that was submitted in this time"),
    ],
)  # fmt: skip
def test_a_refused_question_says_why_in_the_form(
    browser: Browser, instructor: User, changes: dict[str, Any], words: str
) -> None:
    refused = browser(instructor).post(reverse(NEW), posted(**changes))

    assert refused.status_code == 422
    assert words in refused.content.decode()
    assert not SimulationRun.objects.exists()


def test_students_have_the_lab_and_no_simulations(
    browser: Browser, student: User, instructor: User
) -> None:
    pages = [browser(who).get("/").content.decode() for who in (student, instructor)]

    assert [reverse("portal:lab") in page for page in pages] == [True, True]
    assert [reverse("portal:simulation-list") in page for page in pages] == [False, True]


def test_a_trial_leads_to_its_packing(browser: Browser, student: User) -> None:
    client = browser(student)
    made = client.post(
        reverse("portal:lab"),
        {
            "source": "file", "hosts": upload("problem.json", problem().text),
            "objective": "hosts", "method": "full", "seconds": "0.2", "seed": "0",
        },
    )  # fmt: skip
    assert made.status_code == 302
    run_pending(kind=Kind.PLACEMENT, clock=timezone.now)

    page = client.get(made["Location"]).content.decode()

    assert "2 of 3 machines in use" in page
    for number in range(6):
        assert f"<title>pod-{number}: 50 % of GPU" in page
    widths = [float(width) for width in re.findall(r'class="block[^>]* width="([\d.]+)"', page)]
    assert widths
    assert max(widths) <= 100


def test_the_same_problem_is_placed_again(browser: Browser, student: User) -> None:
    before = make_placement(student)

    made = browser(student).post(
        reverse("portal:lab"),
        {
            "source": "kept", "like": str(before.public_id), "objective": "balance",
            "method": "swarm", "seconds": "1", "seed": "7",
        },
    )  # fmt: skip

    assert made.status_code == 302
    again = PlacementRun.objects.latest("id")
    assert (again.problem, again.objective, again.seed) == (before.problem, "balance", 7)


def test_nobody_takes_the_problem_of_another_student(
    browser: Browser, student: User, other_student: User
) -> None:
    before = make_placement(student)
    values = {"source": "kept", "like": str(before.public_id), "objective": "hosts",
              "method": "full", "seconds": "1"}  # fmt: skip

    assert browser(other_student).post(reverse("portal:lab"), values).status_code == 404


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"seconds": "60"}, "less than or equal to 10"),
        ({"source": "file"}, "Choose the file with the hosts."),
        ({"source": "file", "hosts": upload("n.csv", "sn,cpu_milli\n")}, "n.csv, row 0"),
        ({"example": ""}, "Choose one of the examples."),
    ],
)
def test_a_refused_trial_says_why_in_the_form(
    browser: Browser, student: User, changes: dict[str, Any], words: str
) -> None:
    values = {"source": "example", "example": "course", "objective": "hosts", "method": "full",
              "seconds": "1"}  # fmt: skip

    refused = browser(student).post(reverse("portal:lab"), values | changes)

    assert refused.status_code == 422
    assert words in refused.content.decode()


def test_a_trial_is_cancelled_and_deleted(browser: Browser, student: User) -> None:
    run = make_placement(student)
    client = browser(student)

    client.post(reverse("portal:lab-cancel", args=[run.public_id]))
    run.refresh_from_db()
    client.post(reverse("portal:lab-delete", args=[run.public_id]))

    assert run.state == RunState.CANCELLED
    assert not PlacementRun.objects.exists()


def test_a_job_tells_which_hosts_were_weighed(browser: Browser, student: User) -> None:
    replica = running_job(owner=student)
    attempt = replica.attempt
    attempt.decision = {
        "placer": "planner",
        "objective": "hosts",
        "reason": "the best host there is for it",
        "proven": True,
        "seconds": 0.0042,
        "candidates": [
            {"host": replica.host_name, "score": 0.5, "parts": {"cpu_left": 0.5}, "chosen": True},
            {"host": "other", "score": 1.5, "parts": {"cpu_left": 0.5, "opens_host": 1.0}},
        ],
    }
    attempt.save()

    page = browser(student).get(reverse("portal:job-detail", args=[attempt.job.public_id]))

    shown = " ".join(page.content.decode().split())
    assert f'{replica.host_name} <span class="badge badge--ok">chosen</span>' in shown
    assert "The best host there is for it." in shown
    assert "as few machines as possible" in shown
    assert "was idle" in shown
    assert "4.2 ms" in shown


def test_a_hostile_name_in_a_file_is_only_text(browser: Browser, student: User) -> None:
    text = problem().text.replace("pod-0", "<script>alert(1)</script>")
    client = browser(student)
    made = client.post(
        reverse("portal:lab"),
        {
            "source": "file", "hosts": upload("problem.json", text), "objective": "hosts",
            "method": "full", "seconds": "0.1",
        },
    )  # fmt: skip
    run_pending(kind=Kind.PLACEMENT, clock=timezone.now)

    page = client.get(made["Location"]).content.decode()

    assert "<script>alert" not in page
    assert "&lt;script&gt;alert" in page
