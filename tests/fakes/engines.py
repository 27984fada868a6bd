"""Where a real engine is, and engines on loopback that misbehave."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

_USUAL = ("/run/starling-engine/docker.sock", "/var/run/docker.sock")


def docker_address() -> str:
    """Return the address of a Docker engine for tests; empty where there is none."""
    for name in ("STARLING_TEST_DOCKER_HOST", "DOCKER_HOST"):
        if os.environ.get(name):
            return os.environ[name]
    for path in _USUAL:
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as trial:
                trial.connect(path)
        except OSError:
            continue
        return f"unix://{path}"
    return ""


@contextmanager
def hanging_engine(folder: Path) -> Iterator[str]:
    """Serve an engine that takes every connection and never answers; yield its address."""
    path = folder / "hangs.sock"
    taken: list[socket.socket] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.bind(str(path))
        server.listen(64)

        def accept() -> None:
            while True:
                try:
                    taken.append(server.accept()[0])
                except OSError:
                    return

        thread = Thread(target=accept, daemon=True)
        thread.start()
        yield f"unix://{path}"
        server.shutdown(socket.SHUT_RDWR)
        thread.join()
    for connection in taken:
        connection.close()
