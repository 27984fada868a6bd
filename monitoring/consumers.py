"""WebSockets: authorise, subscribe, send where things stand, forward."""

import asyncio
from contextlib import suppress
from importlib import import_module
from typing import Any, Final
from uuid import UUID

from asgiref.sync import sync_to_async
from channels.auth import get_user
from channels.db import database_sync_to_async
from channels.generic.websocket import AsyncJsonWebsocketConsumer
from django.conf import settings
from django.contrib.sessions.backends.base import SessionBase
from django.utils import timezone

from jobs.models import Job
from monitoring import events, selectors
from monitoring.broadcast import note_watcher
from monitoring.status import status_message

#: Close codes beyond those of the protocol: not signed in, and nothing there for you.
UNAUTHENTICATED: Final = 4401
NOT_FOUND: Final = 4404
CHECK_S: Final = 8.0


class LiveConsumer(AsyncJsonWebsocketConsumer):
    """Default deny: a subclass names its groups only for what the user may see.

    While the socket is open the session, the account and the permission are asked again every
    few seconds, so that a socket does not outlive the right to it.
    """

    check_s = CHECK_S
    _check: "asyncio.Task[None] | None" = None

    async def connect(self) -> None:
        """Authorise, join first and send where things stand then, so that nothing falls between."""
        if not await self._user_is_active():
            await self._refuse(UNAUTHENTICATED)
            return
        groups = await self.allowed_groups()
        if not groups:
            await self._refuse(NOT_FOUND)
            return
        self.joined = groups
        for group in groups:
            await self.channel_layer.group_add(group, self.channel_name)
        await self._note()
        await self.accept()
        for message in await self.snapshot():
            await self.send_json(message)
        self._check = asyncio.create_task(self._keep_checking())

    async def disconnect(self, code: int) -> None:
        """Leave the groups and end the checking."""
        if self._check is not None:
            self._check.cancel()
            with suppress(asyncio.CancelledError):
                await self._check
        for group in getattr(self, "joined", ()):
            await self.channel_layer.group_discard(group, self.channel_name)

    async def receive_json(self, content: Any, **kwargs: Any) -> None:
        """Answer a ping; nothing else is listened to."""
        if isinstance(content, dict) and content.get("type") == "ping":
            await self.send_json({"type": "pong"})

    async def receive(
        self, text_data: str | None = None, bytes_data: bytes | None = None, **kwargs: Any
    ) -> None:
        """Take text; what is not JSON is ignored."""
        with suppress(ValueError):
            await super().receive(text_data=text_data, bytes_data=None, **kwargs)

    async def forward(self, event: dict[str, Any]) -> None:
        """Pass a published message on."""
        await self.send_json(event["message"])

    async def allowed_groups(self) -> list[str]:
        """Return the groups to join; none refuses the socket."""
        raise NotImplementedError

    async def snapshot(self) -> list[dict[str, Any]]:
        """Return the messages that say where things stand."""
        raise NotImplementedError

    async def _refuse(self, code: int) -> None:
        # Only an accepted socket can carry a close code to the page.
        await self.accept()
        await self.close(code)

    async def _user_is_active(self) -> bool:
        user = self.scope.get("user")
        return bool(user is not None and user.is_authenticated and user.is_active)

    async def _keep_checking(self) -> None:
        while True:
            await asyncio.sleep(self.check_s)
            # Read anew: the user may have signed out, or been changed, meanwhile.
            self.scope["session"] = await database_sync_to_async(_fresh)(self.scope["session"])
            self.scope["user"] = await get_user(self.scope)
            if not await self._user_is_active():
                await self.close(UNAUTHENTICATED)
                return
            if not await self.allowed_groups():
                await self.close(NOT_FOUND)
                return
            await self._note()

    async def _note(self) -> None:
        """Let the collector know that somebody watches."""
        for group in self.joined:
            await sync_to_async(note_watcher)(group)


def _fresh(session: Any) -> SessionBase:
    """Return a session read anew from where sessions are kept; an ended one is empty."""
    store: type[SessionBase] = import_module(settings.SESSION_ENGINE).SessionStore
    return store(session.session_key)


class JobConsumer(LiveConsumer):
    """Everything live about one job."""

    async def allowed_groups(self) -> list[str]:
        """Return the job's group if the user may see the job."""
        job = await self._job()
        return [] if job is None else [events.job_group(job.public_id)]

    async def snapshot(self) -> list[dict[str, Any]]:
        """Return the job's state and how far the output of each replica is stored."""
        job = await self._job()
        return [] if job is None else await database_sync_to_async(_job_snapshot)(job)

    async def _job(self) -> Job | None:
        job_id: UUID = self.scope["url_route"]["kwargs"]["job_id"]
        jobs = Job.objects.for_user(self.scope["user"]).filter(public_id=job_id)
        return await jobs.afirst()


def _job_snapshot(job: Job) -> list[dict[str, Any]]:
    attempt = job.attempts.order_by("-number").first()
    replicas = [] if attempt is None else list(attempt.replicas.order_by("rank"))
    streams = []
    for replica in replicas:
        page = selectors.log_lines(replica=replica, first=1, limit=1)
        streams.append(
            {
                "replica": str(replica.public_id),
                "rank": replica.rank,
                "host": replica.host_name,
                "next_line": page.next_line,
                "is_complete": page.is_complete,
            }
        )
    return [{**status_message(job), "type": "snapshot", "streams": streams}]


class OwnJobsConsumer(LiveConsumer):
    """The states of all of the user's own jobs, for pages that list them."""

    async def allowed_groups(self) -> list[str]:
        """Return the user's own group."""
        return [events.owner_group(self.scope["user"].pk)]

    async def snapshot(self) -> list[dict[str, Any]]:
        """Return nothing: the page is as new as the socket."""
        return []


class ClusterConsumer(LiveConsumer):
    """The hosts and GPUs; every signed-in user may see how busy they are."""

    async def allowed_groups(self) -> list[str]:
        """Return the group of the cluster."""
        return [events.CLUSTER_GROUP]

    async def snapshot(self) -> list[dict[str, Any]]:
        """Return every host's latest reading."""
        hosts = await database_sync_to_async(selectors.cluster_live)(now=timezone.now())
        for host in hosts:
            for name in ("connection_at", "probed_at"):
                host[name] = events.milliseconds(host[name]) if host[name] else None
        return [{"type": "snapshot", "hosts": hosts}]
