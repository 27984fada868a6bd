from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitoring.series import resolution_for, thinned, with_gaps

values = st.lists(st.none() | st.floats(-1e6, 1e6), min_size=1, max_size=400)


@given(values, st.integers(4, 60))
def test_thinning_keeps_the_order_the_ends_and_the_extremes(
    found: list[float | None], limit: int
) -> None:
    points = list(enumerate(found))

    kept = thinned(points, limit)

    known = [value for value in found if value is not None]
    assert kept == sorted(kept, key=lambda point: point[0])
    assert set(kept) <= set(points)
    assert kept[-1] == points[-1]
    assert len(kept) <= max(len(points) if len(points) <= limit else 0, 2 * limit + 1)
    if known:
        shown = [value for _, value in kept if value is not None]
        assert (min(shown), max(shown)) == (min(known), max(known))


@given(values, st.integers(4, 60))
def test_thinning_never_hides_that_something_is_missing(
    found: list[float | None], limit: int
) -> None:
    kept = thinned(list(enumerate(found)), limit)

    assert (None in found) == any(value is None for _, value in kept)


def test_a_limit_too_small_to_keep_extremes_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 4"):
        thinned([(1, 1.0)], 3)


@pytest.mark.parametrize(
    ("span_s", "age_s", "resolution_s"),
    [(600, 600, 1), (3600, 3600, 1), (7200, 7200, 10), (86_400, 90_000, 60), (9e6, 9e6, 60)],
)
def test_the_finest_resolution_that_is_kept_is_chosen(
    span_s: float, age_s: float, resolution_s: int
) -> None:
    assert resolution_for(span_s, age_s) == resolution_s


def test_a_stretch_without_samples_becomes_a_gap() -> None:
    samples = [(0, {"x": 1}), (1000, {"x": 2}), (9000, {"x": 3})]

    found = with_gaps(samples, resolution_s=1)

    assert found == [(0, {"x": 1}), (1000, {"x": 2}), (2000, {}), (9000, {"x": 3})]


def test_a_late_sample_is_no_gap() -> None:
    samples = [(0, {"x": 1}), (3000, {"x": 2})]

    assert with_gaps(samples, resolution_s=1) == samples
