"""Tables from text: CSV rows and JSON objects by name, and one clear sentence for what is wrong."""

import csv
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from typing import Any, Final

from cluster.core.errors import FileProblem

#: More rows than any workload that is simulated in one go.
MAX_ROWS: Final = 200_000
#: Numbers beyond this are a slip of the pen; sums of them must stay within 64 bits.
MOST: Final = 1e12


@dataclass(frozen=True, slots=True)
class Row:
    """One row; ``number`` is 1 for the first row of values. Empty cells are absent."""

    file: str
    number: int
    cells: Mapping[str, Any]

    def problem(self, column: str, sentence: str) -> FileProblem:
        """Return the error that says what is wrong with a cell."""
        return FileProblem(self.file, sentence, row=self.number, column=column)

    def has(self, column: str) -> bool:
        """Return whether there is a value."""
        return self.cells.get(column) not in (None, "")

    def text(self, column: str, default: str | None = None) -> str:
        """Return a cell as text.

        Raises:
            FileProblem: If it is empty and there is no default.
        """
        if not self.has(column):
            if default is None:
                raise self.problem(column, "a value is missing")
            return default
        value = self.cells[column]
        if isinstance(value, dict | list):
            raise self.problem(column, f"expected one value, got {value!r}"[:120])
        if not str(value).isprintable():
            raise self.problem(column, f"expected text on one line, got {str(value)[:60]!r}")
        return str(value)

    def number_of(
        self,
        column: str,
        default: float | None = None,
        *,
        least: float = 0.0,
        most: float = MOST,
    ) -> float:
        """Return a cell as a number from ``least`` to ``most``.

        Raises:
            FileProblem: If it is no such number, or empty without a default.
        """
        if not self.has(column) and default is not None:
            return default
        value = self.text(column)
        try:
            number = math.nan if "_" in value else float(value)
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            raise self.problem(column, f"expected a number, got {value[:60]!r}")
        if number < least:
            raise self.problem(column, f"expected at least {least:g}, got {number:g}")
        if number > most:
            raise self.problem(column, f"expected at most {most:g}, got {number:g}")
        return number

    def whole(
        self,
        column: str,
        default: int | None = None,
        *,
        least: int = 0,
        most: float = MOST,
    ) -> int:
        """Return a cell as a whole number from ``least`` to ``most``.

        Raises:
            FileProblem: If it is no such number, or empty without a default.
        """
        number = self.number_of(column, default, least=least, most=most)
        if number != int(number):
            raise self.problem(column, f"expected a whole number, got {number:g}")
        return int(number)

    def maybe_number(self, column: str, *, most: float = MOST) -> float | None:
        """Return a cell as a number from 0 to ``most``, ``None`` where it is empty."""
        return self.number_of(column, most=most) if self.has(column) else None


def header_of(text: str) -> tuple[str, ...]:
    """Return the names of a CSV's columns; empty without any."""
    first = text.lstrip("\ufeff").split("\n", 1)[0].rstrip("\r")
    try:
        return tuple(name.strip() for name in next(csv.reader([first]), []))
    except csv.Error:
        return ()


def csv_rows(text: str, file: str, *, columns: Sequence[str] = ()) -> Iterator[Row]:
    """Return the rows of a CSV with a header.

    Args:
        columns: Those that must be there.

    Raises:
        FileProblem: If a column is missing or named twice, a row is of another length, there are
            no rows or too many.
    """
    lines = text.lstrip("\ufeff").replace("\r\n", "\n").split("\n")
    header = header_of(text)
    _check_header(header, columns, file)
    if len(lines) > MAX_ROWS + 1:
        raise FileProblem(file, f"more than {MAX_ROWS:,} rows; split the file")
    count = 0
    for count, cells in enumerate(_records(lines[1:], file), 1):
        if len(cells) != len(header):
            raise FileProblem(file, f"expected {len(header)} values, got {len(cells)}", row=count)
        yield Row(file, count, dict(zip(header, map(str.strip, cells), strict=True)))
    if not count:
        raise FileProblem(file, "there are no rows below the header")


def tab_rows(text: str, file: str) -> Iterator[tuple[int, list[str]]]:
    """Return the numbered rows of a table without header whose values stand between tabs."""
    lines = [line for line in text.split("\n") if line.strip()]
    if len(lines) > MAX_ROWS:
        raise FileProblem(file, f"more than {MAX_ROWS:,} rows; split the file")
    for number, line in enumerate(lines, 1):
        yield number, line.split("\t")


def json_rows(values: Any, file: str, name: str) -> Iterator[Row]:
    """Return the objects of a JSON list as rows.

    Raises:
        FileProblem: If it is no list of objects, empty or too long.
    """
    if not isinstance(values, list) or not values:
        raise FileProblem(file, "expected a list with at least one object", column=name)
    if len(values) > MAX_ROWS:
        raise FileProblem(file, f"more than {MAX_ROWS:,} rows; split the file", column=name)
    for number, value in enumerate(values, 1):
        if not isinstance(value, dict):
            raise FileProblem(file, "expected an object", row=number, column=name)
        yield Row(file, number, value)


def csv_of(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows as a CSV; its columns are those that any row has, in the order they come in."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    out = StringIO()
    writer = csv.DictWriter(out, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def _check_header(header: Sequence[str], columns: Sequence[str], file: str) -> None:
    if not any(header):
        raise FileProblem(file, "there is no header", row=0)
    for name in columns:
        if name not in header:
            raise FileProblem(file, "this column is missing", row=0, column=name)
    for name in header:
        if not name.isprintable():
            raise FileProblem(file, f"expected names of columns, got {name[:60]!r}", row=0)
        if header.count(name) > 1:
            raise FileProblem(file, "this column is there twice", row=0, column=name)


def _records(lines: Sequence[str], file: str) -> Iterator[list[str]]:
    reader = csv.reader(line for line in lines if line.strip())
    row = 0
    while True:
        row += 1
        try:
            yield next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise FileProblem(file, f"this is no CSV: {error}", row=row) from error
