"""Series of numbers: thinned without losing their extremes, averaged, and with gaps kept."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

Point = tuple[int, float | None]

#: Resolution in seconds, and how long its samples are kept in seconds.
RETENTION: Final[dict[int, int]] = {1: 3600, 10: 86_400, 60: 30 * 86_400}
#: What each coarser resolution is made of, and over how many seconds at once.
ROLL_UPS: Final[dict[int, tuple[int, int]]] = {10: (1, 600), 60: (10, 6 * 3600)}
#: The longest block of each resolution in seconds: so far back a block may begin that has a moment.
LONGEST: Final[dict[int, int]] = {1: 120, 10: 600, 60: 6 * 3600}


def thinned(points: Sequence[Point], limit: int) -> list[Point]:
    """Return at most about ``limit`` points in order, each stretch's lowest and highest among them.

    Points without a value are gaps and stay, one per stretch.

    Raises:
        ValueError: If ``limit`` is less than 4.
    """
    if limit < 4:
        raise ValueError(f"limit must be at least 4, not {limit}")
    if len(points) <= limit:
        return list(points)
    stretch = -(-len(points) * 2 // limit)
    kept: list[Point] = []
    for start in range(0, len(points), stretch):
        kept.extend(_extremes(points[start : start + stretch]))
    if kept[-1] != points[-1]:
        kept.append(points[-1])
    return kept


def _extremes(part: Sequence[Point]) -> list[Point]:
    known = [(index, value) for index, (_, value) in enumerate(part) if value is not None]
    if not known:
        return [part[0]]
    chosen = {min(known, key=lambda pair: pair[1])[0], max(known, key=lambda pair: pair[1])[0]}
    gap = next((index for index, (_, value) in enumerate(part) if value is None), None)
    if gap is not None:
        chosen.add(gap)
    return [part[index] for index in sorted(chosen)]


def resolution_for(span_s: float, age_s: float) -> int:
    """Return the finest resolution in seconds that is still kept and gives few enough samples."""
    for resolution, kept_s in RETENTION.items():
        if age_s <= kept_s and span_s / resolution <= 4000:
            return resolution
    return max(RETENTION)


def with_gaps(
    samples: Sequence[tuple[int, Mapping[str, Any]]], *, resolution_s: int
) -> list[tuple[int, Mapping[str, Any]]]:
    """Return the samples with an empty one wherever more than three are missing in a row.

    A chart draws the empty one as a gap; the time is in milliseconds.
    """
    widest_ms = 3500 * resolution_s
    found: list[tuple[int, Mapping[str, Any]]] = []
    for at_ms, values in samples:
        if found and at_ms - found[-1][0] > widest_ms:
            found.append((found[-1][0] + 1000 * resolution_s, {}))
        found.append((at_ms, values))
    return found
