from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from django.core.exceptions import RequestDataTooBig

from portal import streaming
from portal.streaming import BodyStream


class Server:
    """What a server gives an application: the messages of a script, then silence."""

    def __init__(self, *messages: dict[str, Any]) -> None:
        self._messages: Iterator[dict[str, Any]] = iter(messages)
        self.asked = 0

    async def receive(self) -> dict[str, Any]:
        self.asked += 1
        message = next(self._messages, None)
        if message is None:
            await asyncio.Event().wait()
        assert message is not None
        return message


def part(body: bytes, *, more: bool = True) -> dict[str, Any]:
    return {"type": "http.request", "body": body, "more_body": more}


GONE = {"type": "http.disconnect"}


async def test_the_view_gets_each_piece_as_it_comes() -> None:
    server = Server(part(b"abc"), part(b""), part(b"de", more=False))
    stream = BodyStream(server.receive)

    pieces = [await asyncio.to_thread(stream.read, 2) for _ in range(5)]

    assert pieces == [b"ab", b"c", b"de", b"", b""]
    assert server.asked == 3


async def test_nothing_is_read_ahead_of_the_view() -> None:
    server = Server(part(b"a"), part(b"b"))
    stream = BodyStream(server.receive)

    await asyncio.to_thread(stream.read, 10)

    assert server.asked == 1


async def test_a_client_that_goes_away_is_noticed_where_the_view_reads() -> None:
    stream = BodyStream(Server(part(b"abc"), GONE).receive)

    assert await asyncio.to_thread(stream.read, 10) == b"abc"
    with pytest.raises(ConnectionError):
        await asyncio.to_thread(stream.read, 10)
    assert await asyncio.to_thread(stream.read, 10) == b""


async def test_a_client_that_falls_silent_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "IDLE_S", 0.01)
    stream = BodyStream(Server(part(b"abc")).receive)
    await asyncio.to_thread(stream.read, 10)

    with pytest.raises(ConnectionError):
        await asyncio.to_thread(stream.read, 10)


async def test_all_at_once_only_where_it_is_little(settings: Any) -> None:
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 5

    little = BodyStream(Server(part(b"abc"), part(b"de", more=False)).receive)
    assert await asyncio.to_thread(little.read) == b"abcde"

    much = BodyStream(Server(part(b"abc"), part(b"def", more=False)).receive)
    with pytest.raises(RequestDataTooBig):
        await asyncio.to_thread(much.read)


async def test_what_no_view_wanted_is_taken_up_to_a_limit() -> None:
    small = Server(part(b"abc"), part(b"de", more=False))
    await BodyStream(small.receive).drain()
    assert small.asked == 2

    endless = Server(*[part(bytes(1 << 20))] * 100)
    await BodyStream(endless.receive).drain()
    assert endless.asked == 16


@pytest.mark.parametrize("last", [GONE, part(b"", more=False)])
async def test_draining_ends_with_the_body_or_the_client(last: dict[str, Any]) -> None:
    server = Server(part(b"abc"), last)
    stream = BodyStream(server.receive)

    await stream.drain()
    await stream.drain()

    assert server.asked == 2


@pytest.mark.parametrize(
    ("path", "root_path", "streamed"),
    [
        ("/api/v1/uploads/", "", True),
        ("/api/v1/uploads/x/", "", True),
        ("/gpu/api/v1/uploads/x/", "/gpu", True),
        ("/api/v1/uploads", "", False),
        ("/api/v1/datasets/", "", False),
    ],
)
async def test_which_requests_are_streamed(path: str, root_path: str, streamed: bool) -> None:
    seen: list[str] = []

    def app(name: str) -> Any:
        async def called(*_: object) -> None:
            seen.append(name)

        return called

    choose = streaming.streamed_below("/api/v1/uploads/", app("streaming"), app("other"))
    await choose({"path": path, "root_path": root_path}, Server().receive, app("send"))

    assert seen == ["streaming" if streamed else "other"]
