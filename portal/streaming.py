"""Requests whose views read the body while it arrives, instead of after all of it was spooled."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from django.conf import settings
from django.core.exceptions import RequestDataTooBig
from django.core.handlers.asgi import ASGIHandler
from django.http import HttpResponseBase

Message = Mapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

#: A client that is silent for so long is gone, whatever its connection says.
IDLE_S: Final = 30.0
#: So much of a body that no view wanted is still taken, so that the client hears why.
_DRAINED_BYTES: Final = 16 << 20
_DRAINED_S: Final = 10.0


class BodyStream:
    """The body of a request as a file for the view's thread; at its other end the event loop.

    Nothing is read ahead: the server stops reading from the socket while the view writes.
    """

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._loop = asyncio.get_running_loop()
        self._rest = b""
        self._ended = False

    def read(self, size: int = -1) -> bytes:
        """Return up to ``size`` bytes, nothing at the end; called from the view's thread.

        Raises:
            ConnectionError: If the client went away before the end.
            RequestDataTooBig: If all of a body was asked for that is more than may be in memory.
        """
        if size < 0:
            return self._read_all()
        while not self._rest and not self._ended:
            future = asyncio.run_coroutine_threadsafe(self._next(), self._loop)
            self._rest = future.result()
        piece, self._rest = self._rest[:size], self._rest[size:]
        return piece

    def close(self) -> None:
        """Let the rest of the body go."""
        self._rest = b""

    async def drain(self) -> None:
        """Take a little of what nobody read: a client that is still sending reads no answer."""
        left = _DRAINED_BYTES
        try:
            async with asyncio.timeout(_DRAINED_S):
                while not self._ended and left > 0:
                    left -= len(await self._next())
        except (ConnectionError, TimeoutError):
            self._ended = True

    async def _next(self) -> bytes:
        try:
            message = await asyncio.wait_for(self._receive(), IDLE_S)
        except TimeoutError as error:
            self._ended = True
            raise ConnectionError("nothing arrived for too long") from error
        if message["type"] != "http.request":
            self._ended = True
            raise ConnectionError("the client went away")
        self._ended = not message.get("more_body", False)
        return bytes(message.get("body", b""))

    def _read_all(self) -> bytes:
        pieces = []
        size = 0
        while piece := self.read(1 << 16):
            size += len(piece)
            if size > (settings.DATA_UPLOAD_MAX_MEMORY_SIZE or 0):
                raise RequestDataTooBig("the body is too large to be read at once")
            pieces.append(piece)
        return b"".join(pieces)


class StreamingHandler(ASGIHandler):
    """Django's handler, but the request's body is a :class:`BodyStream`.

    Middleware, authentication and views are the very same. Only the end of a connection is not
    listened for while the view runs: the view hears of it when it reads, and keeps what it has.
    """

    async def read_body(self, receive: Receive) -> Any:
        return BodyStream(receive)

    async def listen_for_disconnect(self, receive: Receive) -> None:  # noqa: ARG002 - the base's
        await asyncio.Event().wait()

    async def run_get_response(self, request: Any) -> HttpResponseBase:
        response: HttpResponseBase = await super().run_get_response(request)
        await request._stream.drain()  # noqa: SLF001 - Django gives it no public name
        return response


def streamed_below(prefix: str, streaming: ASGIHandler, other: ASGIHandler) -> Callable[..., Any]:
    """Return an application that gives requests below ``prefix`` to ``streaming``."""

    async def choose(scope: dict[str, Any], receive: Receive, send: Send) -> None:
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        await (streaming if path.startswith(prefix) else other)(scope, receive, send)

    return choose
