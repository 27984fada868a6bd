from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pytest_django import Settings

from cluster.ports import LogLine
from jobs.models import Replica
from monitoring import selectors, services
from monitoring.errors import StaleCursorError
from monitoring.lines import KIT_MARK
from monitoring.models import LogStream, MetricPoint
from tests.factories.jobs import NOW, running_job

pytestmark = pytest.mark.django_db


def printed(*texts: str, first: int = 1, at: datetime = NOW) -> list[LogLine]:
    return [
        LogLine(at=at + timedelta(seconds=n), stream="stdout", text=text, cursor=str(first + n))
        for n, text in enumerate(texts)
    ]


def stored(replica: Replica) -> list[str]:
    return "".join(selectors.log_text(replica=replica)).splitlines()


@pytest.fixture
def replica() -> Replica:
    replica = running_job()
    services.log_stream(replica)
    return replica


def test_lines_are_numbered_from_one_and_read_back_by_range(replica: Replica) -> None:
    lines = printed(*[f"line {n}" for n in range(1, 1001)])
    services.log_append(replica=replica, after="", lines=lines)

    page = selectors.log_lines(replica=replica, first=300, limit=5)

    assert [line[2] for line in page.lines] == [f"line {n}" for n in range(300, 305)]
    assert (page.first, page.next_line, page.is_complete) == (300, 1001, False)


def test_a_negative_first_line_counts_from_the_end(replica: Replica) -> None:
    services.log_append(replica=replica, after="", lines=printed("a", "b", "c"))

    page = selectors.log_lines(replica=replica, first=-2)

    assert [line[2] for line in page.lines] == ["b", "c"]
    assert page.first == 2


def test_of_two_followers_at_the_same_place_one_stores_and_one_is_told(replica: Replica) -> None:
    services.log_append(replica=replica, after="", lines=printed("one", "two"))

    with pytest.raises(StaleCursorError):
        services.log_append(replica=replica, after="", lines=printed("one", "two"))

    assert stored(replica) == ["one", "two"]


@settings(
    deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(cuts=st.lists(st.integers(0, 60), max_size=8), again=st.integers(0, 7))
def test_however_followers_come_and_go_every_line_is_there_once(
    cuts: list[int], again: int
) -> None:
    replica = running_job()
    services.log_stream(replica)
    everything = printed(*[str(n) for n in range(60)])

    for number, end in enumerate([*sorted(cuts), 60]):
        cursor = LogStream.objects.get(replica=replica).cursor
        rest = everything[int(cursor or 0) : end]
        if rest:
            services.log_append(replica=replica, after=cursor, lines=rest)
        if rest and number == again:
            with pytest.raises(StaleCursorError):
                services.log_append(replica=replica, after=cursor, lines=rest)

    assert stored(replica) == [str(n) for n in range(60)]


def test_the_kits_lines_become_metrics_and_are_not_shown(replica: Replica) -> None:
    kit = KIT_MARK + 'starling {"metrics": {"loss": 0.5}, "step": 2}'

    done = services.log_append(replica=replica, after="", lines=printed("a", kit, "b"))

    assert stored(replica) == ["a", "b"]
    assert [(p["name"], p["step"], p["value"]) for p in done.points] == [("loss", 2, 0.5)]


def test_a_metric_without_a_step_counts_up_over_all_calls(replica: Replica) -> None:
    services.log_append(
        replica=replica, after="", lines=printed("[metric] loss=3", "[metric] loss=2")
    )
    services.log_append(replica=replica, after="2", lines=printed("[metric] loss=1", first=3))

    points = MetricPoint.objects.filter(replica=replica).values_list("step", "value")

    assert list(points) == [(1, 3.0), (2, 2.0), (3, 1.0)]


def test_parameters_that_are_secrets_never_reach_the_database() -> None:
    replica = running_job(parameters={"api_token": "SECRET-CANARY-1"})
    services.log_stream(replica)

    services.log_append(replica=replica, after="", lines=printed("got SECRET-CANARY-1 here"))

    assert stored(replica) == ["got •••• here"]


@pytest.fixture
def small_quota(settings: Settings) -> None:
    settings.STARLING = {**settings.STARLING, "LOG_QUOTA_MIB": 1}


def test_past_the_quota_lines_are_counted_and_metrics_still_read(
    replica: Replica, small_quota: None
) -> None:
    flood = printed(*["x" * 1000] * 1500)
    services.log_append(replica=replica, after="", lines=flood)

    services.log_append(replica=replica, after="1500", lines=printed("[metric] loss=1", first=1501))

    stream = LogStream.objects.get(replica=replica)
    lines = stored(replica)
    assert stream.stored_bytes <= 2**20
    assert stream.dropped_lines == 1501 - (len(lines) - 2)
    assert "1 MiB" in lines[-2]
    assert lines[-1] == f"[{stream.dropped_lines} more lines were not kept]"
    assert MetricPoint.objects.filter(replica=replica).count() == 1


def test_a_search_finds_lines_by_number(replica: Replica) -> None:
    lines = printed(*[f"step {n}" for n in range(600)], "Loss is NaN")
    services.log_append(replica=replica, after="", lines=lines)

    assert selectors.log_search(replica=replica, text="loss is") == [601]
    assert selectors.log_search(replica=replica, text="step", limit=3) == [1, 2, 3]
    assert selectors.log_search(replica=replica, text="absent") == []


def test_the_series_of_a_job_are_by_rank_and_name(replica: Replica) -> None:
    lines = printed("[metric] step=1 loss=3", "[metric] step=2 loss=nan accuracy=0.5")
    services.log_append(replica=replica, after="", lines=lines)

    series = selectors.metric_series(job=replica.attempt.job)

    assert [(s["name"], [point[:2] for point in s["points"]]) for s in series] == [
        ("accuracy", [[2, 0.5]]),
        ("loss", [[1, 3.0], [2, None]]),
    ]
