"""What commands share: files and numbers as people give them, and errors of one line."""

from argparse import ArgumentTypeError
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from django.core.management.base import CommandError

from cluster.core.errors import CoreError, FileProblem
from cluster.core.placement.files import decoded


@contextmanager
def one_line_for_errors() -> Iterator[None]:
    """Turn what is wrong with files and names into one line and exit code 2."""
    try:
        yield
    except CoreError as error:
        raise CommandError(str(error), returncode=2) from error
    except KeyboardInterrupt:
        raise CommandError("interrupted", returncode=130) from None


def text_of(file: str) -> str:
    """Return the text of a file.

    Raises:
        FileProblem: If it cannot be read or is not UTF-8.
    """
    try:
        return decoded(Path(file).read_bytes(), file)
    except OSError as error:
        raise FileProblem(file, f"cannot be read: {error.strerror}") from error


def natural(text: str) -> int:
    """Return an argument that must be a whole number."""
    if not text.isdigit():
        raise ArgumentTypeError(f"expected a whole number of at least 0, got {text!r}")
    return int(text)
