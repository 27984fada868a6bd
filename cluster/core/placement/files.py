"""Hosts and requests from text: the openb lists as they are published, and our JSON.

A file is read whole or refused with one sentence that names row and column; a size is never
guessed. What a host does not say of its GPUs' memory counts as none, so that a request that states
memory is not promised what nobody knows. docs/placement-online.md describes the formats.
"""

import csv
import io
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple, NoReturn

from cluster.core.errors import FileProblem
from cluster.core.placement.packing import MAX_GPUS
from cluster.core.resources import (
    WHOLE_GPU_MILLI,
    ClusterSnapshot,
    GpuState,
    GpuUuid,
    HostName,
    HostState,
    ResourceRequest,
)

#: More hosts or requests than are placed in one go.
MAX_ROWS: Final = 200_000
#: More GPUs than one file may list, all hosts together.
MAX_GPUS_LISTED: Final = 500_000
#: Sizes beyond this are a slip of the pen; sums of them must stay within 64 bits.
_MAX_SIZE: Final = 10**12
_MAX_REQUEST_GPUS: Final = 10_000
#: Stands in for the moment at which the hosts of a file were seen.
EPOCH: Final = datetime(2000, 1, 1, tzinfo=UTC)


class _Names(NamedTuple):
    """What the columns of a list are called: those of the id, ours first, and those needed."""

    key: str
    id: tuple[str, str]
    needed: tuple[str, ...]


_NODE: Final = _Names("nodes", ("id", "sn"), ("cpu_milli", "memory_mib", "gpu"))
_POD: Final = _Names("pods", ("id", "name"), ("cpu_milli", "memory_mib", "num_gpu", "gpu_milli"))
_GPU_MEMORY: Final = ("gpu_memory_mib", "gpu_mem_mib")
_MODEL: Final = ("gpu_model", "model")


def decoded(content: bytes, file: str) -> str:
    """Return the text of a file.

    Raises:
        FileProblem: If it is not UTF-8.
    """
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        row = content.count(b"\n", 0, error.start)
        raise FileProblem(file, f"is not UTF-8 text (byte {error.start})", row=row) from error


def problem_from_texts(
    *, hosts: str, hosts_file: str, requests: str, requests_file: str
) -> tuple[ClusterSnapshot, tuple[ResourceRequest, ...]]:
    """Return the hosts of one file and the requests of another; one JSON may hold both.

    Raises:
        FileProblem: If something in a file is wrong.
    """
    return hosts_from_text(hosts, hosts_file), requests_from_text(requests, requests_file)


def hosts_from_text(text: str, file: str) -> ClusterSnapshot:
    """Return the empty hosts of a node list.

    Raises:
        FileProblem: If something in it is wrong.
    """
    table = _table(text, file, _NODE)
    names = table.ids(_NODE.id)
    counts = table.sizes(("gpu",), most=MAX_GPUS)
    if sum(counts) > MAX_GPUS_LISTED:
        raise FileProblem(file, f"more than {MAX_GPUS_LISTED:,} GPUs; split the file", column="gpu")
    rows = zip(
        names,
        table.sizes(("cpu_milli",)),
        table.sizes(("memory_mib",)),
        counts,
        table.words(_MODEL),
        table.sizes(_GPU_MEMORY, 0),
        strict=True,
    )
    hosts = tuple(
        HostState(
            name=HostName(name),
            cpu_millis=cpu,
            memory_mib=memory,
            gpus=tuple(
                GpuState(uuid=gpu_name(name, index), model=model, memory_total_mib=gpu_memory)
                for index in range(count)
            ),
        )
        for name, cpu, memory, count, model, gpu_memory in rows
    )
    return ClusterSnapshot(taken_at=EPOCH, hosts=hosts)


def requests_from_text(text: str, file: str) -> tuple[ResourceRequest, ...]:
    """Return the requests of a pod list, in its order.

    Raises:
        FileProblem: If something in it is wrong.
    """
    table = _table(text, file, _POD)
    names = table.ids(_POD.id)
    gpus = table.sizes(("num_gpu",), most=_MAX_REQUEST_GPUS)
    shares = table.sizes(("gpu_milli",), 0, most=WHOLE_GPU_MILLI)
    memories = table.sizes(_GPU_MEMORY, 0)
    for row, (count, share, memory) in enumerate(zip(gpus, shares, memories, strict=True), 1):
        if count and not share and not memory:
            table.refuse(row, "gpu_milli", "says nothing of the GPU; 1000 asks for a whole one")
        if share and not count:
            table.refuse(row, "num_gpu", f"asks for {share} thousandths of no GPU; say how many")
    rows = zip(
        names,
        table.sizes(("cpu_milli",)),
        table.sizes(("memory_mib",)),
        gpus,
        shares,
        memories,
        _models(table.words(("gpu_spec",))),
        strict=True,
    )
    return tuple(
        ResourceRequest(
            key=name,
            cpu_millis=cpu,
            memory_mib=memory,
            gpus=count,
            gpu_share_milli=share or None,
            gpu_memory_mib=gpu_memory or None,
            gpu_models=models,
        )
        if count
        else ResourceRequest(key=name, cpu_millis=cpu, memory_mib=memory)
        for name, cpu, memory, count, share, gpu_memory, models in rows
    )


def gpu_name(host: str, index: int) -> GpuUuid:
    """Return the identity of a GPU that a file only counts."""
    return GpuUuid(f"{host}/{index}")


def _models(written: Sequence[str]) -> list[frozenset[str]]:
    """Return the models allowed by each ``A|B``."""
    known = {
        text: frozenset(part for name in text.split("|") if (part := name.strip()))
        for text in set(written)
    }
    return [known[text] for text in written]


@dataclass(frozen=True, slots=True)
class _Table:
    """A list by columns: whole columns are looked at in one go, and cell by cell if one is odd."""

    file: str
    count: int
    column: Callable[[str], Sequence[Any] | None]

    def refuse(self, row: int, column: str, sentence: str) -> NoReturn:
        raise FileProblem(self.file, sentence, row=row, column=column)

    def ids(self, columns: Sequence[str]) -> list[str]:
        """Return the names of the rows, each one once."""
        column, values = self._first(columns)
        names = [
            value.strip() if type(value) is str else self._name(row, column, value)
            for row, value in enumerate(values, 1)
        ]
        if len(set(names)) < len(names) or not all(names) or not "".join(names).isprintable():
            self._refuse_name(column, names)
        return names

    def sizes(
        self, columns: Sequence[str], default: int | None = None, *, most: int = _MAX_SIZE
    ) -> list[int]:
        """Return whole numbers from 0 to ``most``."""
        column, values = self._first(columns)
        numbers = _plain(values)
        if numbers is None or max(numbers) > most or min(numbers) < 0:
            numbers = [
                self._size(row, column, value, default, most) for row, value in enumerate(values, 1)
            ]
        return numbers

    def words(self, columns: Sequence[str]) -> list[str]:
        """Return texts, empty where there is none."""
        column, values = self._first(columns)
        for row, value in enumerate(values, 1):
            if value is not None and type(value) is not str:
                self.refuse(row, column, f"expected text, got {_shown(value)}")
        return [value.strip() if value else "" for value in values]

    def _first(self, columns: Sequence[str]) -> tuple[str, Sequence[Any]]:
        """Return the first of the columns that is there."""
        for column in columns:
            values = self.column(column)
            if values is not None:
                return column, values
        return columns[0], [None] * self.count

    def _name(self, row: int, column: str, value: Any) -> str:
        if type(value) is not int:
            self.refuse(row, column, f"expected a name, got {_shown(value)}")
        return str(value)

    def _refuse_name(self, column: str, names: Sequence[str]) -> None:
        seen: set[str] = set()
        for row, name in enumerate(names, 1):
            if not name or not name.isprintable():
                self.refuse(row, column, f"expected a name, got {_shown(name)}")
            if name in seen:
                self.refuse(row, column, f"{_shown(name)} comes twice")
            seen.add(name)

    def _size(self, row: int, column: str, value: Any, default: int | None, most: int) -> int:
        if value is None or value == "":
            if default is None:
                self.refuse(row, column, "a value is missing")
            return default
        if isinstance(value, bool) or not isinstance(value, str | float | int):
            self.refuse(row, column, f"expected a whole number, got {_shown(value)}")
        try:
            number = value if isinstance(value, int) else float(value)
        except ValueError:
            number = math.nan
        if "_" in str(value)[:60] or not (math.isfinite(number) and number == int(number)):
            self.refuse(row, column, f"expected a whole number, got {_shown(value)}")
        if not 0 <= number <= most:
            self.refuse(row, column, f"expected a number from 0 to {most}, got {_shown(value)}")
        return int(number)


def _plain(values: Sequence[Any]) -> list[int] | None:
    """Return whole numbers that are written as such, or nothing if one is not."""
    kinds = set(map(type, values))
    if kinds == {int}:
        return list(values)
    if kinds != {str} or "" in values:
        return None
    joined = "".join(values)
    if not (joined.isascii() and joined.isdecimal()) or max(map(len, values)) > 15:
        return None
    return list(map(int, values))


def _table(text: str, file: str, names: _Names) -> _Table:
    text = text.removeprefix("\ufeff")
    start = text.lstrip()[:1]
    if not start:
        raise FileProblem(file, "the file is empty")
    if start in {"{", "["}:
        return _from_json(text, file, names)
    return _from_csv(text, file, names)


def _from_csv(text: str, file: str, names: _Names) -> _Table:
    if text.count("\n") > 2 * MAX_ROWS:  # not even looked at
        raise FileProblem(file, f"more than {MAX_ROWS:,} rows; split the file", row=MAX_ROWS + 1)
    header, *rows = _records(text, file)
    header = [name.strip() for name in header]
    _check_header(header, file, names)
    if not rows:
        raise FileProblem(file, "there are no rows below the header", row=0)
    _check_count(len(rows), file)
    for row, cells in enumerate(rows, 1):
        if len(cells) != len(header):
            raise FileProblem(file, f"expected {len(header)} values, got {len(cells)}", row=row)

    def column(name: str) -> list[str] | None:
        if name not in header:
            return None
        place = header.index(name)
        return [cells[place] for cells in rows]

    return _Table(file, len(rows), column)


def _records(text: str, file: str) -> list[list[str]]:
    """Return the lines of a CSV that are not blank, as values."""
    records: list[list[str]] = []
    try:
        for cells in csv.reader(io.StringIO(text), strict=True):
            if len(cells) > 1 or (cells and cells[0].strip()):
                records.append(cells)  # noqa: PERF401 - on an error it says how far it came
    except csv.Error as error:
        raise FileProblem(file, f"is no CSV: {error}", row=len(records)) from error
    return records


def _check_count(count: int, file: str) -> None:
    if count > MAX_ROWS:
        raise FileProblem(file, f"more than {MAX_ROWS:,} rows; split the file", row=MAX_ROWS + 1)


def _check_header(header: Sequence[str], file: str, names: _Names) -> None:
    if not set(names.id) & set(header):
        first, other = names.id
        raise FileProblem(file, f"this column is missing (or {other})", row=0, column=first)
    for name in names.needed:
        if name not in header:
            raise FileProblem(file, "this column is missing", row=0, column=name)
    for name in header:
        if header.count(name) > 1:
            raise FileProblem(file, "this column is there twice", row=0, column=name)


def _from_json(text: str, file: str, names: _Names) -> _Table:
    content = _json(text, file)
    if not isinstance(content, dict):
        raise FileProblem(file, f'expected an object with the list "{names.key}"')
    if names.key not in content:
        raise FileProblem(file, "this list is missing", column=names.key)
    rows = content[names.key]
    if not isinstance(rows, list):
        raise FileProblem(file, f"expected a list, got {_shown(rows)}", column=names.key)
    if not rows:
        raise FileProblem(file, "the list is empty", column=names.key)
    _check_count(len(rows), file)
    for row, values in enumerate(rows, 1):
        if not isinstance(values, dict):
            raise FileProblem(
                file, f"expected an object, got {_shown(values)}", row=row, column=names.key
            )

    def column(name: str) -> list[Any] | None:
        values = [row.get(name) for row in rows]
        return values if any(value is not None for value in values) else None

    return _Table(file, len(rows), column)


def _json(text: str, file: str) -> Any:
    try:
        return json.loads(text)
    except RecursionError as error:
        raise FileProblem(file, "is nested too deeply") from error
    except ValueError as error:
        raise FileProblem(file, f"is no JSON: {error}") from error


def _shown(value: Any) -> str:
    """Return a value as one short line."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
