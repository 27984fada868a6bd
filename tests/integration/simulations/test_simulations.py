"""What-if questions: asked by those who may, answered beside the workers, kept as they were."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from cluster.models import Host
from jobs import services
from jobs.errors import (
    InvalidInputError,
    NotFoundError,
    NotPossibleNowError,
    QuotaExceededError,
)
from jobs.models import RunState, SimulationRun
from jobs.question import HostsAdded, Recorded, SimulationQuestion, TextFile
from jobs.selectors.history import recorded_window
from jobs.services.runner import run_pending
from jobs.services.runs import MAX_UNFINISHED, Kind, Ledger, RunStoppedError, RunTooLongError
from portal.models import User
from tests.factories.cluster import HostFactory
from tests.factories.jobs import JobFactory, ended_job, running_job
from tests.integration.simulations.files import HOSTS, workload

POLICIES = ("first-fit", "first-fit+fifo")


def question(**changes: Any) -> SimulationQuestion:
    values: dict[str, Any] = {
        "name": "two hosts",
        "workload": workload(),
        "hosts": HOSTS,
        "policies": POLICIES,
    }
    return SimulationQuestion(**(values | changes))


def answered(owner: User, now: datetime, **changes: Any) -> SimulationRun:
    run = services.simulation_create(owner=owner, question=question(**changes), now=now)
    run_pending(kind=Kind.SIMULATION, clock=lambda: now)
    run.refresh_from_db()
    return run


def refusal(owner: User, now: datetime, **changes: Any) -> dict[str, list[str]]:
    with pytest.raises(InvalidInputError) as refused:
        services.simulation_create(owner=owner, question=question(**changes), now=now)
    assert not SimulationRun.objects.exists()
    return refused.value.fields


def test_a_question_is_answered_for_every_policy(instructor: User, now: datetime) -> None:
    run = answered(instructor, now)

    assert (run.state, run.error, run.progress_pct) == (RunState.DONE, "", 100)
    assert run.result["policies"] == list(POLICIES)
    makespan = next(row for row in run.result["rows"] if row["name"] == "makespan_s")
    assert makespan["values"] == [200, 200]
    assert [outcome["completed"] for outcome in run.result["outcomes"]] == [4, 4]
    assert {figure["title"] for figure in run.result["figures"]} >= {"GPU claimed", "Jobs by wait"}
    assert run.result["changes"][0]["policy"] == "first-fit+fifo"


def test_hosts_that_are_added_shorten_the_waits_and_those_left_out_lengthen_them(
    instructor: User, now: datetime
) -> None:
    def mean_wait(**changes: Any) -> float:
        run = answered(instructor, now, **changes)
        assert run.error == ""
        rows = {row["name"]: row["values"] for row in run.result["rows"]}
        return float(rows["wait_s.mean"][0])

    more = mean_wait(added=HostsAdded(count=2, like="alpha"))
    fewer = mean_wait(without=("beta",))

    assert more == 0
    assert mean_wait() == 50
    assert fewer == 150


def test_who_waits_longer_is_named_with_their_owner(instructor: User, now: datetime) -> None:
    long_then_short = TextFile(
        name="jobs.csv",
        text="id,submitted_s,duration_s,num_gpu,owner\n"
        "wide,0,100,1,ada\nblocked,1,100,2,bob\nnarrow,2,10,1,eve\n",
    )
    two_gpus = HOSTS.text.replace('"gpu": 1', '"gpu": 2')

    run = answered(
        instructor,
        now,
        workload=long_then_short,
        hosts=TextFile(name="hosts.json", text=two_gpus),
        without=("beta",),
    )

    change = run.result["changes"][0]
    assert [job["key"] for job in change["jobs"]] == ["narrow"]
    assert change["jobs"][0]["owner"] == "eve"
    assert change["owners"][0]["owner"] == "eve"
    assert (change["longer"], change["same"] + change["shorter"]) == (1, 2)


def test_a_student_cannot_ask(student: User, now: datetime) -> None:
    with pytest.raises(NotFoundError):
        services.simulation_create(owner=student, question=question(), now=now)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("id,submitted_s,duration_s\na,0,ten\n", "jobs.csv, row 1, column duration_s: expected"),
        ("id,submitted_s\na,0\n", "jobs.csv, row 0"),
        ("", "jobs.csv: the file is empty"),
        ("id,submitted_s,duration_s\na\x00,0,1\n", "jobs.csv, row 1: holds a character"),
        ('{"jobs": [{"id": "\\ud800"}]}', "jobs.csv, row 0: holds a character"),
    ],
)  # fmt: skip
def test_a_bad_workload_says_where_in_one_line(
    instructor: User, now: datetime, text: str, sentence: str
) -> None:
    fields = refusal(instructor, now, workload=TextFile(name="jobs.csv", text=text))

    assert fields["workload"][0].startswith(sentence)
    assert "\n" not in fields["workload"][0]


@pytest.mark.parametrize(
    ("changes", "field", "words"),
    [
        ({"policies": ("nonsense",)}, "policies", "no policy 'nonsense'"),
        ({"policies": ("first-fit+nonsense",)}, "policies", "no policy"),
        ({"policies": ("/tmp/mine.py:Placer",)}, "policies", "no policy"),
        ({"policies": ("first-fit", "first-fit")}, "policies", "twice"),
        ({"policies": ()}, "policies", "at least one"),
        ({"policies": ("ffd", "bfd", "random", "spread", "swarm")}, "policies", "at most 4"),
        ({"without": ("gamma",)}, "without", "no host 'gamma'"),
        ({"without": ("alpha", "beta")}, "hosts", "no host to run on"),
        ({"added": HostsAdded(count=0, like="alpha")}, "added", "from 1 to"),
        ({"added": HostsAdded(count=1, like="gamma")}, "added", "no host 'gamma'"),
        ({"added": HostsAdded(count=1)}, "added", "how many cores"),
        ({"hosts": TextFile(name="h.csv", text="sn,cpu\n")}, "hosts", "h.csv"),
    ],
)
def test_what_cannot_be_simulated_is_refused_by_field(
    instructor: User, now: datetime, changes: dict[str, Any], field: str, words: str
) -> None:
    assert words in refusal(instructor, now, **changes)[field][0]


def test_recorded_jobs_run_as_long_as_they_ran(instructor: User, now: datetime) -> None:
    host = HostFactory(name="box", gpus=1)
    ended = ended_job(owner=instructor)
    attempt = ended.attempts.get()
    attempt.started_at, attempt.finished_at = now, now + timedelta(seconds=77)
    attempt.save()
    running = running_job(owner=instructor, host=host).attempt.job
    waiting = JobFactory(owner=instructor)
    moments = [job.submitted_at for job in (ended, running, waiting)]

    window = recorded_window(since=min(moments), until=max(moments) + timedelta(seconds=1))

    assert [(row["id"], row["duration_s"]) for row in window.rows] == [(str(ended.public_id), 77)]
    assert sum(window.left_out.values()) == 2


def test_an_answer_stays_when_the_jobs_and_hosts_it_was_made_of_are_gone(
    instructor: User, now: datetime
) -> None:
    host = HostFactory(name="box", gpus=1)
    job = ended_job(owner=instructor)
    attempt = job.attempts.get()
    attempt.started_at, attempt.finished_at = now, now + timedelta(seconds=77)
    attempt.save()
    window = Recorded(
        since=job.submitted_at - timedelta(days=1), until=job.submitted_at + timedelta(days=1)
    )
    run = services.simulation_create(
        owner=instructor,
        question=question(workload=window, hosts=None, policies=("first-fit",)),
        now=now,
    )
    hosts = Host.objects.count()
    job.delete()
    host.delete()

    run_pending(kind=Kind.SIMULATION, clock=lambda: now)

    run.refresh_from_db()
    assert (run.state, run.error) == (RunState.DONE, "")
    assert run.result["outcomes"][0]["completed"] == 1
    assert (run.result["hosts"], run.source["kind"]) == (hosts, "recorded")


def test_an_empty_time_is_refused(instructor: User, now: datetime) -> None:
    nothing = Recorded(since=now, until=now + timedelta(days=1))

    assert "No job" in refusal(instructor, now, workload=nothing, hosts=HOSTS)["workload"][0]


def test_the_workload_of_another_simulation_is_taken_with_its_hosts(
    instructor: User, now: datetime
) -> None:
    first = answered(instructor, now)

    second = answered(
        instructor, now, workload=first.public_id, hosts=first.public_id, policies=("best-fit",)
    )

    assert second.result["rows"][0]["values"] == [200]
    assert second.source["file"] == "jobs.csv"


def test_a_cancelled_one_is_not_computed(instructor: User, now: datetime) -> None:
    run = services.simulation_create(owner=instructor, question=question(), now=now)
    services.run_cancel(run=run, actor=instructor, now=now)

    run_pending(kind=Kind.SIMULATION, clock=lambda: now)

    run.refresh_from_db()
    assert (run.state, run.result) == (RunState.CANCELLED, {})
    with pytest.raises(NotPossibleNowError):
        services.run_cancel(run=run, actor=instructor, now=now)


def test_only_the_owner_and_admins_end_or_delete_one(
    instructor: User, admin: User, now: datetime
) -> None:
    run = services.simulation_create(owner=admin, question=question(), now=now)

    with pytest.raises(NotFoundError):
        services.run_cancel(run=run, actor=instructor, now=now)
    with pytest.raises(NotFoundError):
        services.run_delete(run=run, actor=instructor)
    services.run_delete(run=run, actor=admin)
    assert not SimulationRun.objects.exists()


def test_progress_stops_a_run_that_was_cancelled_or_is_late(
    instructor: User, now: datetime
) -> None:
    run = services.simulation_create(owner=instructor, question=question(), now=now)
    SimulationRun.objects.update(state=RunState.RUNNING)
    clock = iter([0.0, 0.0, 1.0, 99.0, 100.0])
    ledger = Ledger(run, limit_s=60, seconds=lambda: next(clock))

    ledger.tell(40, "first-fit: 40 %")
    run.refresh_from_db()
    assert (run.progress_pct, run.progress_text) == (40, "first-fit: 40 %")
    SimulationRun.objects.update(state=RunState.CANCELLED)
    with pytest.raises(RunStoppedError):
        ledger.tell(50, "first-fit: 50 %")
    with pytest.raises(RunTooLongError):
        ledger.tell(60, "first-fit: 60 %")


def test_a_run_that_takes_too_long_fails_in_words(
    instructor: User, now: datetime, settings: Any
) -> None:
    settings.STARLING = settings.STARLING | {"SIMULATION_MAX_S": 0}

    run = answered(instructor, now)

    assert run.state == RunState.FAILED
    assert "fewer jobs" in run.error


def test_a_run_whose_program_died_is_begun_again_but_not_for_ever(
    instructor: User, now: datetime
) -> None:
    run = services.simulation_create(owner=instructor, question=question(), now=now)
    SimulationRun.objects.update(state=RunState.RUNNING, starts=1)
    run_pending(kind=Kind.SIMULATION, clock=lambda: now)
    run.refresh_from_db()
    assert run.state == RunState.DONE

    SimulationRun.objects.update(state=RunState.RUNNING, starts=2)
    run_pending(kind=Kind.SIMULATION, clock=lambda: now)
    run.refresh_from_db()
    assert run.state == RunState.FAILED
    assert "memory" in run.error


def test_too_many_unfinished_ones_of_one_person_are_refused(
    instructor: User, admin: User, now: datetime
) -> None:
    for _ in range(MAX_UNFINISHED):
        services.simulation_create(owner=instructor, question=question(), now=now)

    with pytest.raises(QuotaExceededError):
        services.simulation_create(owner=instructor, question=question(), now=now)
    services.simulation_create(owner=admin, question=question(), now=now)
