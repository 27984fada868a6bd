"""Health of GPUs: what each reading makes of one, what lingers, and what only a restart ends."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.core.policy import gpu_state
from cluster.core.policy.gpu_state import (
    FAULTS,
    SEVERITY,
    Fault,
    Health,
    HealthMemory,
    Observation,
    classify,
    cleared,
    is_idle,
    memory_from_json,
    memory_to_json,
)
from cluster.core.resources import GpuHealth, GpuReading, GpuUuid

START = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)
FINE = GpuReading(
    uuid=GpuUuid("GPU-1"),
    model="T4",
    index=0,
    memory_total_mib=15_360,
    memory_used_mib=3,
    utilization_pct=0,
    temperature_c=40,
    slowdown_c=93,
    throttle_mask=0,
    ecc_uncorrected=0,
    remap_pending=0,
    remap_failed=0,
)
LOST = replace(FINE, lost=True)
STALE = replace(FINE, why={"utilization_pct": "stale"})


class Gpu:
    """One GPU through a series of observations, three seconds apart."""

    def __init__(self) -> None:
        self.memory = HealthMemory()
        self.at = START
        self.boot = "first"

    def see(self, reading: GpuReading | None = FINE, *, times: int = 1, **rest: Any) -> Health:
        seen = None
        for _ in range(times):
            self.at += timedelta(seconds=3)
            rest.setdefault("boot", self.boot)
            seen = classify(self.memory, Observation(at=self.at, reading=reading, **rest))
            # What is remembered goes through the database every time.
            self.memory = memory_from_json(json.loads(json.dumps(memory_to_json(seen.memory))))
            assert self.memory == seen.memory
        assert seen is not None
        return seen


@pytest.fixture
def gpu() -> Gpu:
    made = Gpu()
    assert made.see().health is GpuHealth.OK
    return made


def faults(health: Health) -> set[Fault]:
    return {finding.fault for finding in health.findings}


@pytest.mark.parametrize(
    ("reading", "health", "words"),
    [
        (replace(FINE, remap_pending=1), GpuHealth.DRAINING, "wait for a reset"),
        (replace(FINE, remap_failed=1), GpuHealth.QUARANTINED, "no longer be replaced"),
        (replace(FINE, ecc_uncorrected=2), GpuHealth.QUARANTINED, "2 memory errors"),
        (replace(FINE, xids=((1.0, 79),)), GpuHealth.QUARANTINED, "Xid 79: the GPU has fallen"),
        (replace(FINE, xids=((1.0, 31),)), GpuHealth.OK, ""),
        (replace(FINE, temperature_c=88), GpuHealth.DEGRADED, "close to the heat"),
        (replace(FINE, throttle_mask=0x20), GpuHealth.DEGRADED, "close to the heat"),
        (replace(FINE, throttle_mask=0x4), GpuHealth.OK, ""),
        (replace(FINE, divided=True), GpuHealth.DRAINING, "MIG"),
        (
            replace(FINE, processes={"": 900}, strangers=("python (pid 7)",)),
            GpuHealth.DRAINING,
            "not a job: python (pid 7)",
        ),
        (STALE, GpuHealth.STALE, "nothing is known"),
        (replace(FINE, ecc_uncorrected=None, throttle_mask=None), GpuHealth.OK, ""),
    ],
)
def test_what_one_reading_makes_of_a_gpu(
    gpu: Gpu, reading: GpuReading, health: GpuHealth, words: str
) -> None:
    found = gpu.see(reading)

    assert found.health is health
    assert words in found.text
    assert bool(found.advice) is bool(words)


@pytest.mark.parametrize(
    ("reading", "fault"), [(LOST, Fault.LOST), (None, Fault.MISSING)], ids=["lost", "missing"]
)
def test_a_gpu_that_is_gone_takes_no_work_at_once_and_is_quarantined_soon(
    gpu: Gpu, reading: GpuReading | None, fault: Fault
) -> None:
    first = gpu.see(reading)
    second = gpu.see(reading)

    assert first.health is GpuHealth.STALE
    assert second.health is GpuHealth.QUARANTINED
    assert faults(second) >= {fault}
    # It comes back and is not trusted: who knows for how long.
    assert gpu.see(times=50).health is GpuHealth.QUARANTINED


def test_one_look_that_failed_is_forgiven(gpu: Gpu) -> None:
    gpu.see(LOST)

    assert [gpu.see().health for _ in range(2)] == [GpuHealth.STALE, GpuHealth.OK]


def test_what_needed_a_restart_is_let_go_by_one_and_three_good_readings(gpu: Gpu) -> None:
    gpu.see(replace(FINE, xids=((1.0, 79),)))
    gpu.boot = "second"
    found = [gpu.see().health for _ in range(3)]

    assert found == [GpuHealth.QUARANTINED, GpuHealth.QUARANTINED, GpuHealth.OK]


def test_a_restart_without_good_readings_lets_nothing_go(gpu: Gpu) -> None:
    gpu.see(LOST, times=2)
    gpu.boot = "second"

    for reading in (FINE, FINE, LOST, FINE, FINE):
        assert gpu.see(reading).health is GpuHealth.QUARANTINED


def test_a_fault_since_the_restart_is_not_let_go_by_it(gpu: Gpu) -> None:
    gpu.see(LOST, times=2)
    gpu.boot = "second"

    gpu.see()
    found = gpu.see(replace(FINE, xids=((1.0, 79),)), times=9)

    assert found.health is GpuHealth.QUARANTINED
    assert Fault.XID in faults(found)


def test_an_operator_puts_a_gpu_back_and_a_fault_that_is_still_there_returns(gpu: Gpu) -> None:
    gpu.see(replace(FINE, xids=((1.0, 79),)))
    gpu.memory = cleared(gpu.memory)
    # The probe still tells the old error; it was judged already.
    assert gpu.see(replace(FINE, xids=((1.0, 79),))).health is GpuHealth.OK

    gpu.see(replace(FINE, remap_failed=1))
    gpu.memory = cleared(gpu.memory)
    assert gpu.see(replace(FINE, remap_failed=1)).health is GpuHealth.QUARANTINED


@pytest.mark.parametrize(
    ("trouble", "health"),
    [
        ("hang", GpuHealth.STALE),
        ("crash", GpuHealth.STALE),
        ("permission", GpuHealth.STALE),
        ("driver", GpuHealth.STALE),
        ("starting", GpuHealth.STALE),
        ("released", GpuHealth.STALE),
        ("mismatch", GpuHealth.DRAINING),
    ],
)
@pytest.mark.parametrize("reading", [STALE, None], ids=["known", "unlisted"])
def test_trouble_with_the_driver_is_no_fault_of_the_gpu(
    gpu: Gpu, trouble: str, health: GpuHealth, reading: GpuReading | None
) -> None:
    found = gpu.see(reading, times=30, trouble=trouble, trouble_text="it does not answer")

    assert found.health is health
    assert [gpu.see().health for _ in range(2)] == [health, GpuHealth.OK]


def test_slowing_by_the_hardware_needs_votes_to_begin_and_minutes_to_end(gpu: Gpu) -> None:
    slowed = replace(FINE, throttle_mask=0x40)

    assert [gpu.see(slowed).health for _ in range(3)] == ["ok", "ok", "draining"]
    assert "heat" in gpu.see(slowed).text
    assert gpu.see(times=90).health is GpuHealth.DRAINING
    assert gpu.see(times=20).health is GpuHealth.OK


def test_heat_has_a_margin_in_which_nothing_changes(gpu: Gpu) -> None:
    found = [gpu.see(replace(FINE, temperature_c=heat)).health for heat in (86, 88, 86, 84, 86)]

    assert found == ["ok", "degraded", "degraded", "ok", "ok"]


def test_a_container_that_nobody_knows_is_a_stranger_only_when_it_stays(gpu: Gpu) -> None:
    used = replace(FINE, processes={"c" * 64: 900})

    assert [gpu.see(used).health for _ in range(3)] == ["ok", "ok", "draining"]
    ours = gpu.see(used, times=3, containers=frozenset({"c" * 64}))
    assert ours.health is GpuHealth.OK


def test_errors_of_programs_count_against_a_gpu_only_when_several_jobs_have_them(gpu: Gpu) -> None:
    known = frozenset({"a", "b", "c"})

    def fails(number: int, job: str) -> Health:
        xids = tuple((float(n) + START.timestamp(), 31) for n in range(1, number + 1))
        return gpu.see(replace(FINE, processes={job: 9}, xids=xids), containers=known)

    assert fails(1, "a").health is GpuHealth.OK
    assert fails(5, "a").health is GpuHealth.OK
    assert fails(6, "b").health is GpuHealth.OK
    third = fails(7, "c")
    gpu.at += timedelta(hours=25)

    assert third.health is GpuHealth.DEGRADED
    assert "Xid 31 from 3 jobs" in third.text
    assert gpu.see().health is GpuHealth.OK


def test_errors_from_before_the_portal_looked_are_told_and_no_reason_to_stop() -> None:
    gpu = Gpu()

    assert gpu.see(replace(FINE, ecc_uncorrected=4), times=3).health is GpuHealth.DEGRADED
    assert gpu.see(replace(FINE, ecc_uncorrected=5)).health is GpuHealth.QUARANTINED


def test_busy_for_nobody_is_told_and_takes_work(gpu: Gpu) -> None:
    ghost = replace(FINE, utilization_pct=100)

    found = gpu.see(ghost, times=10)

    assert faults(found) == {Fault.GHOST}
    assert found.health is GpuHealth.OK
    assert is_idle(ghost)
    assert not is_idle(replace(FINE, processes={"a": None}))
    assert not is_idle(replace(FINE, memory_used_mib=None))


def test_every_fault_says_what_to_do() -> None:
    assert set(FAULTS) == set(Fault)
    assert all(verdict.words and verdict.advice for verdict in FAULTS.values())


READINGS = st.one_of(
    st.none(),
    st.builds(
        GpuReading,
        uuid=st.just(GpuUuid("GPU-1")),
        model=st.just("T4"),
        index=st.just(0),
        memory_used_mib=st.none() | st.integers(0, 15_360),
        utilization_pct=st.none() | st.floats(0, 100),
        temperature_c=st.none() | st.floats(0, 120),
        slowdown_c=st.none() | st.just(93.0),
        throttle_mask=st.none() | st.integers(0, 0x1FF),
        ecc_uncorrected=st.none() | st.integers(0, 3),
        remap_pending=st.none() | st.integers(0, 1),
        remap_failed=st.none() | st.integers(0, 1),
        lost=st.booleans(),
        divided=st.booleans(),
        why=st.sampled_from([{}, {"power_w": "stale"}, {"power_w": "unsupported"}]),
        processes=st.dictionaries(st.sampled_from(["", "a", "b"]), st.none() | st.integers(0, 99)),
        xids=st.lists(
            st.tuples(st.floats(1, 100), st.sampled_from([13, 31, 48, 79])), max_size=3
        ).map(tuple),
    ),
)
OBSERVATIONS = st.lists(
    st.tuples(
        READINGS, st.sampled_from(["", "", "", "hang", "crash", "mismatch"]), st.sampled_from("ab")
    ),
    max_size=12,
)


@given(OBSERVATIONS)
def test_health_is_as_bad_as_its_worst_finding_and_says_why(
    seen: list[tuple[GpuReading | None, str, str]],
) -> None:
    gpu = Gpu()
    for reading, trouble, boot in seen:
        found = gpu.see(reading, trouble=trouble, boot=boot)
        worst = max((SEVERITY.index(finding.health) for finding in found.findings), default=0)
        assert found.health is SEVERITY[worst]
        assert found.health is GpuHealth.OK or (found.text and found.advice)
        # What cannot be read now never takes work, and what is fine at last does.
        if reading is None or reading.lost or trouble:
            assert not found.health.takes_work


@given(OBSERVATIONS)
def test_silence_alone_never_condemns(seen: list[tuple[GpuReading | None, str, str]]) -> None:
    """Whatever came before: a hanging driver adds no fault that a person would have to clear."""
    gpu = Gpu()
    for reading, trouble, boot in seen:
        gpu.see(reading, trouble=trouble, boot=boot)
    before = {name for name in gpu.memory.held if FAULTS[Fault(name)].sticky}

    after = gpu.see(None, times=20, trouble="hang").memory.held

    assert {name for name in after if FAULTS[Fault(name)].sticky} <= before


@given(OBSERVATIONS)
def test_the_short_way_for_calm_readings_comes_to_the_same(
    seen: list[tuple[GpuReading | None, str, str]],
) -> None:
    short, long = Gpu(), Gpu()
    for reading, trouble, boot in seen:
        first = short.see(reading, trouble=trouble, boot=boot)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(gpu_state, "is_unremarkable", lambda *_: False)
            second = long.see(reading, trouble=trouble, boot=boot)
        assert (first.health, first.findings) == (second.health, second.findings)
