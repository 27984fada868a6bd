"""The tables of statuses and reasons, each row of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.lifecycle import (
    ACTIVE,
    ASKED_FOR,
    OCCUPYING,
    STATUS_WORDS,
    SUCCESSORS,
    TERMINAL,
    VERDICTS,
    JobStatus,
    Reason,
    RetryClass,
    may_retry,
    overrides,
    reason_of_exit,
    sources_of,
)

MOVES = {
    ("pending", "placed"),
    ("pending", "cancelled"),
    ("pending", "failed"),
    ("placed", "running"),
    ("placed", "pending"),
    ("placed", "stopping"),
    ("placed", "finishing"),
    ("running", "stopping"),
    ("running", "finishing"),
    ("stopping", "finishing"),
    ("finishing", "succeeded"),
    ("finishing", "failed"),
    ("finishing", "cancelled"),
    ("finishing", "pending"),
}


@pytest.mark.parametrize("source", JobStatus)
@pytest.mark.parametrize("target", JobStatus)
def test_there_are_these_moves_and_no_others(source: JobStatus, target: JobStatus) -> None:
    allowed = (source.value, target.value) in MOVES

    assert (target in SUCCESSORS[source]) is allowed
    assert (source in sources_of(target)) is allowed


def test_every_status_and_every_reason_has_words() -> None:
    assert set(SUCCESSORS) == set(STATUS_WORDS) == set(JobStatus)
    assert set(VERDICTS) == set(Reason)
    assert all(verdict.words.endswith(".") for verdict in VERDICTS.values())


def test_terminal_statuses_absorb() -> None:
    assert set(TERMINAL) == {JobStatus.SUCCEEDED, JobStatus.FAILED, JobStatus.CANCELLED}
    assert set(JobStatus) == TERMINAL | ACTIVE
    assert ACTIVE > OCCUPYING
    assert all(status.is_terminal for status in TERMINAL)


def test_every_active_status_leads_to_an_end() -> None:
    reached = set(TERMINAL)
    while more := {s for s, after in SUCCESSORS.items() if after & reached} - reached:
        reached |= more

    assert reached == set(JobStatus)


@pytest.mark.parametrize(
    ("exit_code", "oom_killed", "stop_reason", "expected"),
    [
        (0, False, None, Reason.COMPLETED),
        (1, False, None, Reason.PROGRAM_ERROR),
        (127, False, None, Reason.PROGRAM_ERROR),
        (137, False, None, Reason.KILLED),
        (139, False, None, Reason.KILLED),
        (137, True, None, Reason.OUT_OF_MEMORY),
        (1, True, None, Reason.OUT_OF_MEMORY),
        (None, False, None, Reason.CONTAINER_LOST),
        (143, False, Reason.CANCELLED, Reason.CANCELLED),
        (0, False, Reason.CANCELLED, Reason.CANCELLED),
        (137, False, Reason.WALLTIME, Reason.WALLTIME),
        (137, True, Reason.WALLTIME, Reason.WALLTIME),
    ],
)
def test_an_exit_has_one_reason(
    exit_code: int | None, oom_killed: bool, stop_reason: Reason | None, expected: Reason
) -> None:
    found = reason_of_exit(exit_code=exit_code, oom_killed=oom_killed, stop_reason=stop_reason)

    assert found is expected


@given(
    reason=st.sampled_from(Reason),
    owner_left=st.integers(-2, 3),
    platform_left=st.integers(-2, 3),
)
def test_a_retry_is_charged_to_whose_fault_it_was(
    reason: Reason, owner_left: int, platform_left: int
) -> None:
    found = may_retry(reason, owner_retries_left=owner_left, platform_retries_left=platform_left)

    match VERDICTS[reason].retry:
        case RetryClass.NEVER:
            assert not found
        case RetryClass.OWNER:
            assert found is (owner_left > 0)
        case RetryClass.PLATFORM:
            assert found is (platform_left > 0)


@pytest.mark.parametrize("reason", sorted(ASKED_FOR))
def test_what_a_person_ended_is_never_tried_again(reason: Reason) -> None:
    assert VERDICTS[reason].retry is RetryClass.NEVER
    assert VERDICTS[reason].status is JobStatus.CANCELLED


@pytest.mark.parametrize(
    ("reason", "earlier", "expected"),
    [
        (Reason.CANCELLED, None, True),
        (Reason.CANCELLED, Reason.PROGRAM_ERROR, True),
        (Reason.CANCELLED, Reason.CANCELLED, False),
        (Reason.CANCELLED, Reason.WALLTIME, False),
        (Reason.CANCELLED, Reason.FORCE_ENDED, False),
        (Reason.FORCE_ENDED, Reason.CANCELLED, True),
        (Reason.FORCE_ENDED, Reason.FORCE_ENDED, False),
        (Reason.WALLTIME, Reason.CANCELLED, False),
    ],
)
def test_a_person_goes_before_the_platform_and_force_before_all(
    reason: Reason, earlier: Reason | None, expected: bool
) -> None:
    assert overrides(reason, earlier) is expected
