"""Where a real engine is, and engines on loopback that misbehave."""

from __future__ import annotations

import json
import os
import socket
import socketserver
import ssl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler
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


@contextmanager
def tls_front(address: str, *, certificate: Path, key: Path, ca: Path) -> Iterator[int]:
    """Put mutual TLS on loopback before an engine's socket; yield the port."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    context.load_verify_locations(ca)
    context.verify_mode = ssl.CERT_REQUIRED
    path = address.removeprefix("unix://")

    class Front(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with (
                suppress(OSError),
                context.wrap_socket(
                    self.request, server_side=True, do_handshake_on_connect=False
                ) as near,
                socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as engine,
            ):
                try:
                    near.do_handshake()
                except ssl.SSLError:
                    # Closed with bytes unread, the refusal itself would be lost on its way.
                    while os.read(near.fileno(), 1 << 12):
                        pass
                    return
                engine.connect(path)
                back = Thread(target=_copy, args=(engine, near), daemon=True)
                back.start()
                _copy(near, engine)
                back.join()

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True

    with Server(("127.0.0.1", 0), Front) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


def _copy(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while chunk := source.recv(1 << 16):
            target.sendall(chunk)
    for end in (source, target):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


@contextmanager
def cutting_front(folder: Path, address: str, lengths: Iterator[int]) -> Iterator[str]:
    """Put a socket before an engine's that cuts each connection after so many bytes of answers."""
    path = folder / "cuts.sock"
    engine_path = address.removeprefix("unix://")

    class Front(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            near, left = self.request, next(lengths)
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as engine:
                engine.connect(engine_path)
                forth = Thread(target=_copy, args=(near, engine), daemon=True)
                forth.start()
                with suppress(OSError):
                    while left > 0 and (chunk := engine.recv(min(left, 1 << 14))):
                        near.sendall(chunk)
                        left -= len(chunk)
                for end in (near, engine):
                    with suppress(OSError):
                        end.shutdown(socket.SHUT_RDWR)
                forth.join()

    class Server(socketserver.ThreadingUnixStreamServer):
        daemon_threads = True

    with Server(str(path), Front) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield f"unix://{path}"
        server.shutdown()
        thread.join()


@contextmanager
def scripted_engine(folder: Path, answers: dict[str, tuple[int, object]]) -> Iterator[str]:
    """Serve an engine that answers by the last part of the path: a status and a JSON body."""
    path = folder / "scripted.sock"

    class Script(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            last = self.path.partition("?")[0].rpartition("/")[2]
            status, body = answers.get(last, (404, {"message": f"no {last}"}))
            text = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: object) -> None:
            pass

    class Server(socketserver.ThreadingUnixStreamServer):
        daemon_threads = True

        def get_request(self) -> tuple[socket.socket, tuple[str, int]]:
            return super().get_request()[0], ("local", 0)

    with Server(str(path), Script) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield f"unix://{path}"
        server.shutdown()
        thread.join()
