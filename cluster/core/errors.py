"""Errors of the pure core."""


class CoreError(Exception):
    """Something a pure function was given cannot be worked with."""


class BadProblemError(CoreError):
    """A snapshot or request contradicts itself, for instance a negative size."""


class FileProblem(BadProblemError):  # noqa: N818 - the problem is the file's, and is shown as it is
    """A file that was given cannot be read; ``str()`` is one line that says where and what.

    Args:
        file: The file's name as the user gave it.
        sentence: What is wrong and what would be right.
        row: 1 is the first row of values, 0 the header; ``None`` for the file as a whole.
        column: The column or key.
    """

    def __init__(
        self, file: str, sentence: str, *, row: int | None = None, column: str = ""
    ) -> None:
        self.file, self.sentence, self.row, self.column = file, sentence, row, column
        where = [file]
        if row is not None:
            where.append(f"row {row}")
        if column:
            where.append(f"column {column}")
        super().__init__(f"{', '.join(where)}: {sentence}")
