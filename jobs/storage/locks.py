"""Locks that the kernel drops with the process that holds them, however it ends."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class Busy(Exception):  # noqa: N818 - a state of the world, not a fault
    """Somebody else holds the lock."""


@contextmanager
def locked(path: Path, *, wait: bool) -> Iterator[int]:
    """Hold the lock file ``path``; yields its descriptor, open for reading and writing.

    Args:
        path: Made when missing, never removed: who removes a lock file breaks the lock.
        wait: Whether to wait for the holder, or give up at once.

    Raises:
        Busy: If another process or thread holds it and ``wait`` is unset.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError as error:
            raise Busy(str(path)) from error
        yield descriptor
    finally:
        os.close(descriptor)
