"""Follows a log as server-sent events."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from channels.db import database_sync_to_async
from channels.layers import get_channel_layer
from django.core.handlers.asgi import ASGIRequest
from django.http import StreamingHttpResponse
from django.utils import timezone
from rest_framework.request import Request

from jobs.lifecycle import JobStatus
from jobs.models import Job, Replica
from monitoring import events, selectors

#: How long to wait for a message before looking at the rows anyway: messages may be lost.
LOOK_S: Final = 1.0
#: How long a proxy may hear nothing.
HEARTBEAT_S: Final = 15.0
#: How long a stream may outlive the right to it.
CHECK_S: Final = 8.0
_LINES: Final = 1000


@dataclass(frozen=True, slots=True)
class _Look:
    lines: list[list[Any]]
    next_line: int
    has_ended: bool
    is_allowed: bool = True


class _Source:
    """Reads what is new of one log, and asks now and then whether the reader still may."""

    def __init__(self, request: Request, job: Job, replica: Replica | None, first: int) -> None:
        self._user_id: Any = request.user.pk
        self._token = request.auth
        self._session: Any = getattr(request._request, "session", None)  # noqa: SLF001 - no public name
        self.job_id: UUID = job.public_id
        self._replica = replica
        self._line = first
        self._checked = time.monotonic()

    def look(self) -> _Look:
        """Return the lines that came since the look before."""
        if time.monotonic() - self._checked > CHECK_S:
            if not self._is_allowed():
                return _Look([], self._line, has_ended=True, is_allowed=False)
            self._checked = time.monotonic()
        job = Job.objects.filter(public_id=self.job_id).first()
        if job is None:
            return _Look([], self._line, has_ended=True)
        if self._replica is None:
            self._replica = Replica.objects.filter(attempt__job=job, rank=0).first()
        if self._replica is None:
            return _Look([], self._line, has_ended=JobStatus(job.status).is_terminal)
        self._replica.refresh_from_db(fields=["log_complete_at"])
        page = selectors.log_lines(replica=self._replica, first=self._line, limit=_LINES)
        found = _Look(
            page.lines,
            self._line,
            has_ended=page.is_complete and page.next_line <= self._line + len(page.lines),
        )
        self._line += len(page.lines)
        return found

    def _is_allowed(self) -> bool:
        from django.contrib.auth import get_user_model

        user = get_user_model().objects.filter(pk=self._user_id, is_active=True).first()
        if user is None or not self._credential_lives():
            return False
        return Job.objects.for_user(user).filter(public_id=self.job_id).exists()

    def _credential_lives(self) -> bool:
        if self._token is not None:
            tokens = type(self._token).objects.filter(pk=self._token.pk)
            return bool(tokens.filter(expiry__gt=timezone.now()).exists())
        key = getattr(self._session, "session_key", None)
        return key is None or bool(self._session.exists(key))


def follow_response(
    request: Request, *, job: Job, replica: Replica | None, first: int
) -> StreamingHttpResponse:
    """Return a response that goes on until the attempt's log is complete.

    A server that cannot hold a connection open (WSGI) sends what is stored and ends; the client
    comes back with ``Last-Event-ID``, which is what server-sent events do by themselves.
    """
    source = _Source(request, job, replica, first)
    is_async = isinstance(request._request, ASGIRequest)  # noqa: SLF001 - no public way to ask
    content: Any = _follow(source) if is_async else _stored(source)
    response = StreamingHttpResponse(content, content_type="text/event-stream")
    response["Cache-Control"] = "no-store"
    response["X-Accel-Buffering"] = "no"
    return response


def _stored(source: _Source) -> Iterator[bytes]:
    while (look := source.look()).lines:
        yield _encoded(look)
        if look.has_ended:
            break
    if look.has_ended:
        yield b"event: end\ndata: {}\n\n"


async def _follow(source: _Source) -> AsyncIterator[bytes]:
    layer: Any = get_channel_layer()
    channel = await layer.new_channel()
    group = events.job_group(source.job_id)
    await layer.group_add(group, channel)
    heard = time.monotonic()
    try:
        yield b"retry: 2000\n\n"
        while True:
            look = await database_sync_to_async(source.look)()
            if look.lines:
                heard = time.monotonic()
                yield _encoded(look)
            if look.has_ended:
                break
            if look.lines:
                continue
            if time.monotonic() - heard > HEARTBEAT_S:
                heard = time.monotonic()
                yield b": still here\n\n"
            await _wait(layer, channel)
        yield b"event: end\ndata: {}\n\n" if look.is_allowed else b"event: refused\ndata: {}\n\n"
    finally:
        await layer.group_discard(group, channel)


async def _wait(layer: Any, channel: str) -> None:
    """Return when something was said about the job's log or state, or after a moment."""
    try:
        async with asyncio.timeout(LOOK_S):
            while True:
                event = await layer.receive(channel)
                if event.get("message", {}).get("type") in {"log", "status"}:
                    return
    except TimeoutError:
        return


def _encoded(look: _Look) -> bytes:
    """Return the lines as events, each with its number as id."""
    return "".join(
        f"id: {number}\ndata: {json.dumps(line)}\n\n"
        for number, line in enumerate(look.lines, look.next_line)
    ).encode()
