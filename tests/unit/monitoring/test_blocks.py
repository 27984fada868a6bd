"""Samples as bytes: what goes in comes out, what was unknown stays unknown, and it takes little."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitoring.blocks import coarsened, pack, unpack

NAMES = st.sampled_from(["cpu_pct", "power_w", "memory_used_mib", "of_tomorrow"])
VALUES = st.dictionaries(
    NAMES,
    st.integers(-(2**40), 2**40) | st.floats(-9_999, 9_999).map(lambda value: round(value, 2)),
)
WHY = st.none() | st.dictionaries(NAMES, st.sampled_from(["unsupported", "stale", "lost"]))


@st.composite
def samples(draw: st.DrawFn) -> list[tuple[int, dict[str, Any]]]:
    times = sorted(draw(st.sets(st.integers(0, 2**42), max_size=30)))
    found = []
    for at in times:
        values: dict[str, Any] = draw(VALUES)
        why = draw(WHY)
        found.append((at, values | ({"why": why} if why else {})))
    return found


@given(samples())
def test_what_goes_in_comes_out(found: list[tuple[int, dict[str, Any]]]) -> None:
    back = unpack(pack(found)).rows()

    assert [at for at, _ in back] == [at for at, _ in found]
    for (_, wanted), (_, got) in zip(found, back, strict=True):
        assert got.keys() == wanted.keys()
        assert got.get("why") == wanted.get("why")
        for name, value in wanted.items():
            # Beyond ten thousand of something its fractions do not matter.
            if name != "why":
                assert math.isclose(got[name], value, rel_tol=1e-4, abs_tol=0.5)


def test_two_decimals_and_whole_numbers_are_kept() -> None:
    found = [(n * 1000, {"cpu_pct": n + 0.25, "memory_used_mib": 7 * n}) for n in range(20)]

    assert unpack(pack(found)).rows() == found


def test_a_field_that_is_not_a_number_is_left_out() -> None:
    assert unpack(pack([(0, {"cpu_pct": True, "name": "x"})])).rows() == [(0, {})]


def test_another_format_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown format"):
        unpack(b"\x07" + pack([])[1:])


def test_a_minute_of_a_busy_gpu_takes_few_bytes() -> None:
    chance = random.Random(7)
    found = [
        (
            1_800_000_000_000 + 1000 * n,
            {
                "memory_total_mib": 40_960,
                "memory_used_mib": 31_000,
                "utilization_pct": round(80 + chance.gauss(0, 6), 1),
                "power_w": round(290 + chance.gauss(0, 9), 2),
                "temperature_c": 71,
            },
        )
        for n in range(60)
    ]

    assert len(pack(found)) < 60 * 6


def test_a_mean_is_over_what_was_known_and_a_moment_counts_once() -> None:
    first = unpack(pack([(10_000, {"a": 1}), (11_000, {}), (19_000, {"a": 3, "b": 5})]))
    again = unpack(pack([(19_000, {"a": 99}), (20_000, {"a": 7}), (40_000, {"a": 8})]))

    found = coarsened([first, again], seconds=10, since_ms=10_000, until_ms=40_000)

    assert found == [(10_000, {"a": 2, "b": 5}), (20_000, {"a": 7})]


@given(samples())
def test_a_mean_lies_between_its_values(found: list[tuple[int, dict[str, Any]]]) -> None:
    means = coarsened([unpack(pack(found))], seconds=10, since_ms=0, until_ms=2**43)

    for start, values in means:
        inside = [one for at, one in found if start <= at < start + 10_000]
        assert inside
        for name in values.keys() - {"why"}:
            known = [one[name] for one in inside if name in one]
            assert min(known) - 1 <= values[name] <= max(known) + 1


def test_the_words_why_something_is_missing_are_kept_and_a_field_nobody_has_stays_unknown() -> None:
    block = unpack(pack([(0, {"a": 10}), (1000, {"a": 30, "why": {"b": "stale"}}), (2000, {})]))

    found = coarsened([block], seconds=10, since_ms=0, until_ms=10_000)

    assert found == [(0, {"a": 20})]
    assert coarsened(
        [unpack(pack([(0, {"why": {"b": "mig"}})]))], seconds=10, since_ms=0, until_ms=10
    ) == [(0, {"why": {"b": "mig"}})]
