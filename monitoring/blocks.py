"""Many samples of one subject in few bytes: columns of differences, compressed; no database.

A column holds the differences of whole numbers (a value times its scale), so that what hardly
changes takes hardly any room. What was unknown is null and stays unknown.
"""

import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, repeat
from operator import sub
from typing import Any, Final

Sample = tuple[int, Mapping[str, Any]]

#: Names and shapes that every block has: compressed blocks begin knowing them. Part of the format,
#: so a change needs another first byte.
_KNOWN: Final = (
    b'"memory_total_mib":[1,"memory_used_mib":[1,"utilization_pct":[100,"memory_utilization_pct":'
    b'[100,"power_w":[100,"power_limit_w":[100,"temperature_c":[1,"clock_mhz":[1,"fan_pct":[1,'
    b'"cpu_pct":[100,"cpu_count":[1,"disk_total_mib":[1,"disk_used_mib":[1,"read_bytes_s":[100,'
    b'"write_bytes_s":[1,"receive_bytes_s":[1,"transmit_bytes_s":[1,"load_1m":[100,'
    b'"cpu_pressure_pct":[100,"memory_pressure_pct":[100,"io_pressure_pct":[100,"memory_mib":[100,'
    b'"processes":[1,"gpu_pct":[100,"gpu_memory_mib":[1,"unsupported","stale","lost","why",null,null,'
    b",0,0,0,0,0,0,0,0,0,0,0,0],1000,1000,1000,1000,1000,1000,1000,1000,1001,999,"
    b'{"t":[17,"w":[[0,{}]],"c":{'
)
_FORMAT: Final = b"\x01"
#: Numbers beyond this need no decimals.
_LARGE: Final = 10_000
_NONE: Final = type(None)
_NUMBERS: Final = frozenset({int, float, _NONE})


@dataclass(slots=True, kw_only=True)
class Columns:
    """Samples side by side: moments in milliseconds, and a list of the same length per field.

    Attributes:
        why: Where the words why something is missing change: position, and the words from there.
    """

    times: list[int]
    fields: dict[str, list[float | int | None]]
    why: list[tuple[int, dict[str, str]]] = field(default_factory=list)

    def rows(self) -> list[tuple[int, dict[str, Any]]]:
        """Return the samples one by one; a field that is unknown is absent."""
        found: list[tuple[int, dict[str, Any]]] = [(at, {}) for at in self.times]
        for name, values in self.fields.items():
            for row, value in zip(found, values, strict=True):
                if value is not None:
                    row[1][name] = value
        ends = [start for start, _ in self.why[1:]] + [len(found)]
        for (start, words), end in zip(self.why, ends, strict=False):
            for row in found[start:end] if words else ():
                row[1]["why"] = words
        return found


def pack(samples: Sequence[Sample], *, decimals: int = 2) -> bytes:
    """Return samples, in the order of their moments, as bytes."""
    rows = [values for _, values in samples]
    body: dict[str, Any] = {"t": _differences([at for at, _ in samples])}
    why: list[tuple[int, Any]] = []
    for position, (_, values) in enumerate(samples):
        words = values.get("why") or {}
        if words != (why[-1][1] if why else {}):
            why.append((position, words))
    if why:
        body["w"] = why
    names = dict.fromkeys(chain.from_iterable(rows))
    names.pop("why", None)
    columns = {name: _column([values.get(name) for values in rows], decimals) for name in names}
    body["c"] = {name: column for name, column in columns.items() if column}
    text = json.dumps(body, separators=(",", ":")).encode()
    squeezer = zlib.compressobj(level=6, wbits=-15, zdict=_KNOWN)
    return _FORMAT + squeezer.compress(text) + squeezer.flush()


def unpack(packed: bytes) -> Columns:
    """Return what :func:`pack` made bytes of.

    Raises:
        ValueError: If it is of a format that is not known here.
    """
    if packed[:1] != _FORMAT:
        raise ValueError(f"samples of an unknown format {packed[:1]!r}")
    body = json.loads(zlib.decompressobj(wbits=-15, zdict=_KNOWN).decompress(packed[1:]))
    return Columns(
        times=_sums(body["t"]),
        fields={name: _values(column) for name, column in body["c"].items()},
        why=[(position, words) for position, words in body.get("w", ())],
    )


def coarsened(
    blocks: Iterable[Columns], *, seconds: int, since_ms: int, until_ms: int
) -> list[tuple[int, dict[str, Any]]]:
    """Return the mean of each field over each stretch of ``seconds`` in which it was known.

    Args:
        blocks: In any order; moments outside of ``since_ms`` to ``until_ms`` are left out, and one
            that comes twice counts once.
        seconds: A stretch begins at a multiple of it since 1970 and is named by its beginning.
    """
    width = 1000 * seconds
    sums: dict[int, dict[str, float]] = {}
    counts: dict[int, dict[str, int]] = {}
    why: dict[int, dict[str, str]] = {}
    seen: set[int] = set()
    for block in blocks:
        places: list[tuple[int, int]] = []
        for position, at in enumerate(block.times):
            if since_ms <= at < until_ms and at not in seen:
                seen.add(at)
                places.append((position, at - at % width))
        for _, start in places:
            sums.setdefault(start, {})
            counts.setdefault(start, {})
        for name, values in block.fields.items():
            _add(name, values, places, sums, counts)
        _add_why(block.why, places, why)
    found = []
    for start in sorted(sums):
        means: dict[str, Any] = {
            name: round(total / counts[start][name], 2) for name, total in sums[start].items()
        }
        if why.get(start):
            means["why"] = why[start]
        found.append((start, means))
    return found


def _add(
    name: str,
    values: Sequence[float | None],
    places: Iterable[tuple[int, int]],
    sums: dict[int, dict[str, float]],
    counts: dict[int, dict[str, int]],
) -> None:
    for position, start in places:
        value = values[position]
        if value is not None:
            sums[start][name] = sums[start].get(name, 0.0) + value
            counts[start][name] = counts[start].get(name, 0) + 1


def _add_why(
    changes: Sequence[tuple[int, dict[str, str]]],
    places: Iterable[tuple[int, int]],
    why: dict[int, dict[str, str]],
) -> None:
    if not changes:
        return
    for position, start in places:
        words = next((words for begin, words in reversed(changes) if begin <= position), {})
        why[start] = words


def _column(values: list[Any], decimals: int) -> list[Any]:
    """Return a scale and the differences; nothing where the values are not numbers."""
    types = set(map(type, values))
    if not types <= _NUMBERS:
        return []
    known = [value for value in values if value is not None] if _NONE in types else values
    low, high = min(known, default=0), max(known, default=0)
    if low == high and _NONE not in types and float not in types:
        return [1, low, *repeat(0, len(values) - 1)]
    large = high >= _LARGE or low <= -_LARGE
    scale = 1 if large or float not in types else 10**decimals
    if float in types:
        values = [None if value is None else round(value * scale) for value in values]
    return [scale, *_differences(values)]


def _differences(values: Sequence[Any]) -> list[Any]:
    if not values:
        return []
    if None not in values:
        return [values[0], *map(sub, values[1:], values)]
    found: list[int | None] = []
    before = 0
    for value in values:
        if value is None:
            found.append(None)
        else:
            found.append(value - before)
            before = value
    return found


def _sums(differences: Iterable[int]) -> list[int]:
    found: list[int] = []
    total = 0
    for difference in differences:
        total += difference
        found.append(total)
    return found


def _values(column: Sequence[Any]) -> list[float | int | None]:
    scale, *differences = column
    found: list[float | int | None] = []
    total = 0
    for difference in differences:
        if difference is None:
            found.append(None)
        else:
            total += difference
            found.append(total if scale == 1 else total / scale)
    return found
