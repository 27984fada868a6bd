"""Opening and removing files below a folder whose contents strangers have written."""

import os
import shutil
import stat
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from jobs.errors import NotFoundError

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Without O_NONBLOCK the open of a FIFO waits for its writer for ever.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def open_beneath(root: Path, relative: str) -> BinaryIO:
    """Open a regular file below ``root`` for reading, following no link on the way.

    Each step is opened relative to the one before, so that a folder swapped for a link between
    a check and the use changes nothing.

    Raises:
        NotFoundError: If there is no such regular file, or the way leads over a link or upwards.
    """
    steps = relative.split("/")
    if not relative or "\0" in relative or any(step in {"", ".", ".."} for step in steps):
        raise NotFoundError("file", relative)
    try:
        descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        for step in steps[:-1]:
            descriptor = _step(descriptor, step, _FOLDER)
        descriptor = _step(descriptor, steps[-1], _FILE)
    except (OSError, ValueError) as error:
        raise NotFoundError("file", relative) from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise NotFoundError("file", relative)
    return os.fdopen(descriptor, "rb")


def _step(parent: int, name: str, flags: int) -> int:
    try:
        return os.open(name, flags, dir_fd=parent)
    finally:
        os.close(parent)


def remove_tree(path: Path) -> None:
    """Remove a folder with all below it, read-only folders included; absent is not an error."""
    for folder, _, _ in os.walk(path):
        Path(folder).chmod(0o700)
    with suppress(FileNotFoundError):
        shutil.rmtree(path)
