from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from channels.db import database_sync_to_async
from channels.layers import get_channel_layer
from channels.testing import WebsocketCommunicator
from django.conf import settings
from django.test import Client

from jobs import services as job_services
from jobs.lifecycle import JobStatus
from jobs.models import Job
from monitoring import consumers, events
from portal.asgi import application
from portal.models import User
from tests.factories.jobs import JobFactory
from tests.factories.portal import UserFactory

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
async def own_layer(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    monkeypatch.setattr(consumers.LiveConsumer, "check_s", 0.05)
    yield
    await get_channel_layer().flush()


def _cookie(user: User | None) -> str:
    client = Client()
    if user is not None:
        client.force_login(user)
    return "; ".join(f"{key}={morsel.value}" for key, morsel in client.cookies.items())


async def opened(path: str, user: User | None) -> WebsocketCommunicator:
    cookie = await sync_to_async(_cookie)(user)
    headers = [(b"cookie", cookie.encode()), (b"origin", b"http://localhost")]
    socket = WebsocketCommunicator(application, path, headers=headers)
    connected, _ = await socket.connect()
    assert connected
    return socket


async def close_code(socket: WebsocketCommunicator) -> int:
    while True:
        message = await socket.receive_output(timeout=5)
        if message["type"] == "websocket.close":
            return int(message["code"])


@pytest.fixture
def job() -> Job:
    return JobFactory()  # type: ignore[no-any-return]


async def test_the_owner_is_told_where_things_stand_and_then_what_changes(job: Job) -> None:
    socket = await opened(f"/ws/jobs/{job.public_id}/", job.owner)
    first = await socket.receive_json_from()

    await database_sync_to_async(job_services.job_transition)(
        job_id=job.public_id,
        source=JobStatus.PENDING,
        target=JobStatus.CANCELLED,
        now=job.submitted_at,
    )

    told = await socket.receive_json_from()
    assert (first["type"], first["status"]) == ("snapshot", "pending")
    assert first["pending"]["code"] == "not_evaluated_yet"
    assert (told["type"], told["status"], told["is_terminal"]) == ("status", "cancelled", True)
    await socket.disconnect()


async def test_a_published_line_reaches_the_page(job: Job) -> None:
    socket = await opened(f"/ws/jobs/{job.public_id}/", job.owner)
    await socket.receive_json_from()
    message = events.log_message(replica=job.public_id, rank=0, first=7, lines=[[1, "o", "hi"]])

    await get_channel_layer().group_send(
        events.job_group(job.public_id), {"type": "forward", "message": message}
    )

    assert await socket.receive_json_from() == message
    await socket.disconnect()


@pytest.mark.parametrize("path", ["/ws/jobs/{job}/", "/ws/jobs/", "/ws/cluster/"])
async def test_nobody_gets_in_without_signing_in(job: Job, path: str) -> None:
    socket = await opened(path.format(job=job.public_id), None)

    assert await close_code(socket) == consumers.UNAUTHENTICATED


async def test_a_stranger_is_told_that_there_is_no_such_job(job: Job) -> None:
    stranger = await database_sync_to_async(UserFactory)()

    socket = await opened(f"/ws/jobs/{job.public_id}/", stranger)

    assert await close_code(socket) == consumers.NOT_FOUND


async def test_an_instructor_may_watch(job: Job) -> None:
    instructor = await database_sync_to_async(UserFactory)(instructor=True)

    socket = await opened(f"/ws/jobs/{job.public_id}/", instructor)

    assert (await socket.receive_json_from())["type"] == "snapshot"
    await socket.disconnect()


async def _deactivate(user: User) -> None:
    await User.objects.filter(pk=user.pk).aupdate(is_active=False)


async def _sign_out_everywhere(user: User) -> None:
    user.set_password("another one entirely")
    await user.asave()


@pytest.mark.parametrize("change", [_deactivate, _sign_out_everywhere])
async def test_a_socket_does_not_outlive_the_right_to_it(job: Job, change: Any) -> None:
    socket = await opened(f"/ws/jobs/{job.public_id}/", job.owner)
    await socket.receive_json_from()

    await change(job.owner)

    assert await close_code(socket) == consumers.UNAUTHENTICATED


async def test_an_instructor_who_is_one_no_longer_loses_others_jobs(job: Job) -> None:
    instructor = await database_sync_to_async(UserFactory)(instructor=True)
    socket = await opened(f"/ws/jobs/{job.public_id}/", instructor)
    await socket.receive_json_from()

    await User.objects.filter(pk=instructor.pk).aupdate(role="student")

    assert await close_code(socket) == consumers.NOT_FOUND


async def test_closed_sockets_leave_no_task_behind(job: Job) -> None:
    before = len(asyncio.all_tasks())

    for _ in range(20):
        socket = await opened(f"/ws/jobs/{job.public_id}/", job.owner)
        await socket.receive_json_from()
        await socket.disconnect()

    await asyncio.sleep(0)
    assert len(asyncio.all_tasks()) <= before + 1


async def test_noise_from_a_page_is_ignored_and_a_ping_answered(job: Job) -> None:
    socket = await opened(f"/ws/jobs/{job.public_id}/", job.owner)
    await socket.receive_json_from()

    await socket.send_to(text_data="no json")
    await socket.send_to(bytes_data=b"\xff\x00")
    await socket.send_json_to(["a", "list"])
    await socket.send_json_to({"type": "ping"})

    assert await socket.receive_json_from() == {"type": "pong"}
    await socket.disconnect()


async def test_a_page_of_another_site_gets_no_socket(job: Job) -> None:
    cookie = await sync_to_async(_cookie)(job.owner)
    headers = [(b"cookie", cookie.encode()), (b"origin", b"http://evil.example")]
    socket = WebsocketCommunicator(application, "/ws/cluster/", headers=headers)

    connected, _ = await socket.connect()

    assert not connected
    assert "evil.example" not in settings.ALLOWED_HOSTS
