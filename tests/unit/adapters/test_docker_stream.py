"""Positions in a log that is not in the order of its timestamps, on a clock that may be set."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.adapters.docker_runtime import stream
from cluster.adapters.docker_runtime.stream import LineAssembler, Position, cut
from cluster.ports import LogLine

SECOND = 10**9
START = 1_800_000_000 * SECOND
Entry = tuple[int, str, bytes]


def stamp(at_ns: int) -> bytes:
    whole = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=at_ns // SECOND)
    return f"{whole:%Y-%m-%dT%H:%M:%S}.{at_ns % SECOND:09d}Z".encode()


def read(entries: list[Entry], cursor: str) -> Iterator[LogLine]:
    """Read as an engine serves it: what is older than the base is left out."""
    position = Position.parse(cursor)
    assembler = LineAssembler(position)
    for at_ns, name, text in entries:
        if at_ns >= position.base_ns:
            yield from assembler.feed(name, stamp(at_ns) + b" " + text)
    yield from assembler.flush()


@st.composite
def logs(draw: st.DrawFn) -> list[Entry]:
    """Two streams whose lines come in pieces, a little out of order, hours or moments apart."""
    entries: list[Entry] = []
    now = START
    opened: dict[str, int] = {}
    for number in range(draw(st.integers(1, 60))):
        now += draw(st.sampled_from([0, 1, 1000, SECOND, 4 * SECOND, 11 * SECOND, 3600 * SECOND]))
        name = draw(st.sampled_from(["stdout", "stderr"]))
        at_ns = opened.pop(name, now - draw(st.sampled_from([0, 0, 1, SECOND])))
        ended = draw(st.booleans())
        if not ended:
            opened[name] = at_ns
        entries.append((at_ns, name, f"{number}".encode() + b"\n" * ended))
    return entries


@given(entries=logs(), data=st.data())
def test_reading_on_from_any_line_yields_the_rest(
    entries: list[Entry], data: st.DataObject
) -> None:
    whole = [(line.stream, line.text) for line in read(entries, "")]

    got: list[LogLine] = []
    while len(got) < len(whole):
        step = data.draw(st.integers(1, len(whole)))
        rest = read(entries, got[-1].cursor if got else "")
        got += [line for line, _ in zip(rest, range(step), strict=False)]

    assert [(line.stream, line.text) for line in got] == whole


@given(steps=st.lists(st.integers(-7200, 7200), min_size=1, max_size=30), data=st.data())
def test_a_clock_that_is_set_back_loses_nothing(steps: list[int], data: st.DataObject) -> None:
    """Once a step was seen, positions count from the log's beginning."""
    now = START
    entries: list[Entry] = []
    for number, step in enumerate(steps):
        now += step * SECOND
        entries.append((now, "stdout", f"{number}\n".encode()))
    whole = list(read(entries, ""))
    lowest = [min(at for at, _, _ in entries[index:]) for index in range(len(entries))]
    # What the engine itself leaves out of a reading cannot be had: such a position is excused.
    safe = [
        index
        for index, line in enumerate(whole[:-1])
        if lowest[index + 1] >= Position.parse(line.cursor).base_ns
    ]

    index = data.draw(st.sampled_from([*safe, -1]))
    rest = [line.text for line in read(entries, whole[index].cursor if index >= 0 else "")]

    assert rest == [line.text for line in whole[index + 1 :]]


def test_after_a_step_back_the_position_is_safe() -> None:
    entries = [(START + 60 * SECOND, "stdout", b"a\n"), (START, "stdout", b"b\n")]
    entries += [(START + number, "stdout", b"c\n") for number in range(1, 5)]

    whole = list(read(entries, ""))

    assert Position.parse(whole[1].cursor) == Position(base_ns=0, count=2, total=2)
    assert [line.text for line in read(entries, whole[1].cursor)] == ["c"] * 4


def test_a_flood_of_lines_keeps_positions_and_memory_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "_WINDOW", 50)
    entries = [(START + number, "stdout", f"{number}\n".encode()) for number in range(1000)]

    whole = list(read(entries, ""))

    assert max(Position.parse(line.cursor).count for line in whole) <= 100
    for index in (0, 99, 100, 101, 500, 998):
        rest = [line.text for line in read(entries, whole[index].cursor)]
        assert rest == [line.text for line in whole[index + 1 :]]


@given(shift=st.integers(0, 3), character=st.sampled_from("aé€😀"))
def test_a_cut_is_never_in_a_character(shift: int, character: str) -> None:
    line = b"a" * shift + (character * 70_000).encode()

    end = cut(line)

    assert 65_532 <= end <= 65_536
    line[:end].decode()
