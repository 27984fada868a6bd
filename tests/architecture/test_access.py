"""Default deny: every route and socket, and everybody; a route without an entry fails the test.

An entry says who may, per method. Whoever may not gets exactly one answer: 401 (or the sign-in
page) without a sign-in, 404 for what is somebody else's, 403 for what only admins may change.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
from channels.testing import WebsocketCommunicator
from django.conf import settings
from django.core.signals import request_finished
from django.db import close_old_connections, transaction
from django.test import Client
from django.urls import reverse
from django.utils import timezone
from PIL import Image

from jobs.models import Upload
from jobs.services import dataset_create_from_path
from monitoring.consumers import NOT_FOUND, UNAUTHENTICATED
from portal import services
from portal.asgi import application
from portal.models import ApiToken, User
from tests.architecture.routes import Route, http_routes, socket_names
from tests.factories.portal import UserFactory
from tests.integration.api.rows import (
    NOW,
    finish,
    leave_file,
    make_code,
    make_environment,
    make_host,
    make_job,
    make_placement,
    make_simulation,
    make_template,
)


class May(Enum):
    """Who may do it."""

    ANYBODY = "anybody"
    SIGNED_IN = "whoever is signed in"
    READERS = "the owner, instructors and admins"
    OWNERS = "the owner and admins"
    OWNER = "the owner alone"
    ADMINS = "admins"
    STAFF = "instructors and admins; for students it is not there"
    STAFF_OWNERS = "the instructor whose it is and admins; for students it is not there"


READ = {"GET": May.READERS}
LOOK = {"GET": May.SIGNED_IN}
OWN_POST = {"POST": May.OWNERS}

API: dict[str, dict[str, May]] = {
    "v1:schema": {"GET": May.ANYBODY},
    "v1:docs": {"GET": May.ANYBODY},
    "v1:me": LOOK,
    "v1:cluster": LOOK,
    "v1:dataset-list": LOOK,
    "v1:dataset-detail": {"GET": May.READERS, "PATCH": May.OWNERS, "DELETE": May.OWNERS},
    "v1:dataset-version": READ,
    "v1:dataset-files": READ,
    "v1:dataset-content": READ,
    "v1:dataset-preview": READ,
    "v1:dataset-thumbnail": READ,
    "v1:code-list": {"GET": May.SIGNED_IN, "POST": May.SIGNED_IN},
    "v1:code-detail": READ,
    "v1:environment-list": LOOK,
    "v1:environment-detail": LOOK,
    "v1:template-list": LOOK,
    "v1:template-detail": LOOK,
    "v1:job-list": {"GET": May.SIGNED_IN, "POST": May.SIGNED_IN},
    "v1:job-detail": {"GET": May.READERS, "DELETE": May.OWNERS},
    "v1:job-cancel": OWN_POST,
    "v1:job-rerun": OWN_POST,
    "v1:job-decision": READ,
    "v1:job-events": READ,
    "v1:job-files": READ,
    "v1:job-content": READ,
    "v1:job-archive": READ,
    "v1:job-logs": READ,
    "v1:job-logs-text": READ,
    "v1:job-logs-search": READ,
    "v1:job-logs-stream": READ,
    "v1:job-metrics": READ,
    "v1:job-samples": READ,
    "v1:host-list": {"GET": May.SIGNED_IN, "POST": May.ADMINS},
    "v1:host-detail": {"GET": May.SIGNED_IN, "PATCH": May.ADMINS, "DELETE": May.ADMINS},
    "v1:host-test": {"POST": May.ADMINS},
    "v1:host-samples": LOOK,
    "v1:gpu-list": LOOK,
    "v1:gpu-detail": {"GET": May.SIGNED_IN, "PATCH": May.ADMINS},
    "v1:gpu-events": LOOK,
    "v1:gpu-clear": {"POST": May.ADMINS},
    "v1:gpu-samples": LOOK,
    "v1:metrics": {"GET": May.ADMINS},
    "v1:simulation-list": {"GET": May.STAFF, "POST": May.STAFF},
    "v1:simulation-detail": {"GET": May.STAFF, "DELETE": May.STAFF_OWNERS},
    "v1:simulation-cancel": {"POST": May.STAFF_OWNERS},
    "v1:placement-list": {"GET": May.SIGNED_IN, "POST": May.SIGNED_IN},
    "v1:placement-detail": {"GET": May.READERS, "DELETE": May.OWNERS},
    "v1:placement-cancel": OWN_POST,
    "v1:placement-frames": READ,
    "v1:token-list": {"GET": May.SIGNED_IN, "POST": May.SIGNED_IN},
    "v1:token-detail": {"DELETE": May.OWNER},
    "v1:upload-list": {"POST": May.SIGNED_IN},
    "v1:upload-detail": {"GET": May.READERS, "PATCH": May.OWNERS, "DELETE": May.OWNERS},
}

PAGES: dict[str, dict[str, May]] = {
    "portal:dashboard": LOOK,
    "portal:dataset-list": LOOK,
    "portal:dataset-detail": READ,
    "portal:dataset-delete": OWN_POST,
    "portal:job-list": LOOK,
    "portal:job-create": LOOK,
    "portal:job-detail": READ,
    "portal:job-row": READ,
    "portal:job-part": READ,
    "portal:job-clone": READ,
    "portal:job-cancel": OWN_POST,
    "portal:job-rerun": OWN_POST,
    "portal:job-delete": OWN_POST,
    "portal:cluster": LOOK,
    "portal:host-detail": LOOK,
    "portal:lab": LOOK,
    "portal:lab-detail": READ,
    "portal:lab-cancel": OWN_POST,
    "portal:lab-delete": OWN_POST,
    "portal:simulation-list": {"GET": May.STAFF},
    "portal:simulation-create": {"GET": May.STAFF},
    "portal:simulation-detail": {"GET": May.STAFF},
    "portal:simulation-cancel": {"POST": May.STAFF_OWNERS},
    "portal:simulation-delete": {"POST": May.STAFF_OWNERS},
    "portal:account": LOOK,
    "portal:tokens": LOOK,
    "portal:token-revoke": {"POST": May.OWNER},
    "account_signup": {"GET": May.ANYBODY},
    "account_login": {"GET": May.ANYBODY},
    "account_logout": LOOK,
    "account_inactive": {"GET": May.ANYBODY},
    "account_reauthenticate": LOOK,
    "account_request_reauthentication_code": LOOK,
    "account_confirm_reauthentication_code": LOOK,
    "account_confirm_login_code": LOOK,
    "account_email": LOOK,
    "account_email_verification_sent": {"GET": May.ANYBODY},
    "account_confirm_email": {"GET": May.ANYBODY},
    "account_change_password": LOOK,
    "account_set_password": LOOK,
    "account_reset_password": {"GET": May.ANYBODY},
    "account_reset_password_done": {"GET": May.ANYBODY},
    "account_reset_password_from_key": {"GET": May.ANYBODY},
    "account_reset_password_from_key_done": {"GET": May.ANYBODY},
    "api-nothing": {"GET": May.ANYBODY},
    "livez": {"GET": May.ANYBODY},
    "readyz": {"GET": May.ANYBODY},
}
#: Every page of the admin site is for admins; these two send everybody to the sign-in page.
ADMIN_DOORS = {"admin:login", "admin:logout"}

SOCKETS: dict[str, May] = {
    "ws-own-jobs": May.SIGNED_IN,
    "ws-job": May.READERS,
    "ws-cluster": May.SIGNED_IN,
}

PEOPLE = ("anonymous", "expired", "switched_off", "other", "instructor", "owner", "admin")
_ALLOWED: dict[May, set[str]] = {
    May.ANYBODY: set(PEOPLE),
    May.SIGNED_IN: {"other", "instructor", "owner", "admin"},
    May.READERS: {"instructor", "owner", "admin"},
    May.OWNERS: {"owner", "admin"},
    May.OWNER: {"owner"},
    May.ADMINS: {"admin"},
    May.STAFF: {"instructor", "admin"},
    May.STAFF_OWNERS: {"admin"},
}
ROUTES = http_routes()
TABLE = API | PAGES


def is_admin_page(route: Route) -> bool:
    return route.namespace == "admin"


def methods_of(route: Route) -> tuple[str, ...]:
    return route.methods or tuple(TABLE.get(route.full_name, {}))


CASES = [
    (route.full_name, method)
    for route in ROUTES
    if not is_admin_page(route)
    for method in methods_of(route)
]


class Lab:
    """One of everything, all of it the owner's; and clients of everybody."""

    def __init__(self, folder: Path) -> None:
        self.owner: User = UserFactory(username="owner")
        people: dict[str, User] = {
            "owner": self.owner,
            "other": UserFactory(username="other"),
            "instructor": UserFactory(username="instructor", instructor=True),
            "admin": UserFactory(username="admin", admin=True),
        }
        self.clients = {"anonymous": Client()}
        for name, user in people.items():
            self.clients[name] = Client()
            self.clients[name].force_login(user, backend=settings.AUTHENTICATION_BACKENDS[0])
        self.clients["expired"] = Client(headers={"Authorization": f"Token {self._expired()}"})
        self.clients["switched_off"] = self._switched_off()
        host = make_host("gpu-1", gpus=1)
        environment = make_environment()
        make_template(environment=environment)
        self.job = make_job(self.owner, code=make_code(self.owner))
        leave_file(finish(self.job, host=host), "model.keras", b"weights")
        (folder / "model.keras").write_bytes(b"weights")
        Image.new("RGB", (4, 4)).save(folder / "dot.png")
        version = dataset_create_from_path(owner=self.owner, name="d", path=folder, now=NOW)
        self.dataset = version.dataset
        self.token, _ = services.token_create(user=self.owner, name="x", days=1, now=timezone.now())
        self.upload = Upload.objects.create(
            owner=self.owner,
            dataset_name="d",
            filename="d.csv",
            length_bytes=1,
            created_at=NOW,
            expires_at=timezone.now() + timedelta(days=1),
        )
        self.simulation = make_simulation(people["admin"])
        self.placement = make_placement(self.owner)

    def _expired(self) -> str:
        token, secret = services.token_create(
            user=self.owner, name="old", days=1, now=timezone.now()
        )
        ApiToken.objects.filter(pk=token.pk).update(expiry=timezone.now() - timedelta(days=1))
        return secret

    def _switched_off(self) -> Client:
        user: User = UserFactory(username="gone", admin=True)
        client = Client()
        client.force_login(user, backend=settings.AUTHENTICATION_BACKENDS[0])
        user.is_active = False
        user.save()
        return client

    def address(self, route: Route) -> str:
        """Return the route's address with the ids of the owner's things."""
        ids = {
            "job": self.job.public_id,
            "dataset": self.dataset.public_id,
            "code": self.job.code.public_id,
            "token": self.token.public_id,
            "upload": self.upload.public_id,
            "simulation": self.simulation.public_id,
            "placement": self.placement.public_id,
            "lab": self.placement.public_id,
        }
        kind = route.name.split("-")[0]
        values = {
            "id": ids.get(kind),
            "public_id": ids.get(kind),
            "number": 1,
            "name": "gpu-1",
            "uuid": "GPU-gpu-1-0",
            "slug": "tensorflow" if kind == "environment" else "digits",
            "part": "state",
            "uidb36": "1",
            "key": "x",
            "rest": "nothing/",
        }
        path = reverse(route.full_name, kwargs={name: values[name] for name in route.converters})
        queries = {"content": "?path=model.keras", "thumbnail": "?path=dot.png"}
        return path + queries.get(route.name.split("-")[-1], "")


@pytest.fixture
def lab(db: None, tmp_path: Path) -> Lab:
    return Lab(tmp_path)


def answer_to(client: Client, method: str, path: str) -> Any:
    """Return the answer, and undo what it did."""
    with transaction.atomic():
        media_type = (
            "application/offset+octet-stream" if "/uploads/" in path else "application/json"
        )
        answer = client.generic(
            method,
            path,
            b"{}" if method in {"POST", "PATCH"} else b"",
            media_type,
            headers={"Tus-Resumable": "1.0.0", "Upload-Offset": "0"},
        )
        transaction.set_rollback(True)
    if answer.streaming:
        # As Django's own client does: the end of a request must not end the test's transaction.
        request_finished.disconnect(close_old_connections)
        try:
            answer.close()
        finally:
            request_finished.connect(close_old_connections)
    return answer


def outcome(answer: Any) -> str:
    """Return what an answer means to whoever asked."""
    location = answer.headers.get("Location", "")
    if answer.status_code == 401 or location.startswith(settings_login()):
        return "sign in"
    return {403: "forbidden", 404: "not there"}.get(answer.status_code, "done")


def settings_login() -> str:
    return reverse("account_login")


def expected(may: May, person: str) -> str:
    if person in _ALLOWED[may]:
        return "done"
    if person in {"anonymous", "expired", "switched_off"}:
        return "sign in"
    return "forbidden" if may is May.ADMINS else "not there"


def test_every_route_has_an_entry() -> None:
    missing = [
        f"{route.full_name} ({route.pattern})"
        for route in ROUTES
        if not is_admin_page(route) and route.full_name not in TABLE
    ]
    assert not missing, "say in this file who may use: " + ", ".join(missing)


def test_every_method_has_an_entry() -> None:
    missing = [
        f"{method} {route.full_name}"
        for route in ROUTES
        if not is_admin_page(route)
        for method in route.methods
        if method not in TABLE.get(route.full_name, {})
    ]
    assert not missing, "say in this file who may: " + ", ".join(missing)


def test_no_entry_is_of_a_route_that_is_gone() -> None:
    assert set(TABLE) <= {route.full_name for route in ROUTES}


@pytest.mark.parametrize(("name", "method"), CASES)
def test_who_may(lab: Lab, name: str, method: str) -> None:
    route = next(route for route in ROUTES if route.full_name == name)
    may = TABLE[name][method]
    path = lab.address(route)

    found = {person: outcome(answer_to(lab.clients[person], method, path)) for person in PEOPLE}

    wanted = {person: expected(may, person) for person in PEOPLE}
    if may is May.ANYBODY:
        # A bad token is refused everywhere; what is nowhere is nowhere for everybody.
        found["expired"] = wanted["expired"]
        assert "forbidden" not in found.values()
        if name == "api-nothing":
            return
    assert found == wanted


ADMIN_PAGES = [route for route in ROUTES if is_admin_page(route)]


def admin_address(route: Route) -> str:
    values = {
        "object_id": "1",
        "app_label": "jobs",
        "content_type_id": "1",
        "id": "1",
        "url": "nothing",
        "from_field": "id",
    }
    try:
        return reverse(route.full_name, kwargs={n: values[n] for n in route.converters})
    except Exception:  # what has no name of its own has an address all the same
        return "/" + route.pattern.replace("(?P<url>.*)$", "nothing").replace(
            "<path:object_id>", "1"
        )


@pytest.mark.parametrize("person", [p for p in PEOPLE if p != "admin"])
def test_the_admin_pages_are_for_admins(lab: Lab, person: str) -> None:
    client = lab.clients[person]
    let_in = []
    for route in ADMIN_PAGES:
        if route.full_name in ADMIN_DOORS:
            continue
        for method in ("GET", "POST"):
            answer = answer_to(client, method, admin_address(route))
            refused = answer.status_code in {403, 404, 405} or answer.headers.get(
                "Location", ""
            ).startswith(("/admin/login/", settings_login()))
            if not refused:
                let_in.append((route.full_name, method, answer.status_code))
    assert not let_in


def test_the_admin_gets_in(lab: Lab) -> None:
    assert lab.clients["admin"].get("/admin/").status_code == 200


def test_every_socket_has_an_entry() -> None:
    assert set(SOCKETS) == set(socket_names())


@pytest.fixture
def live_lab(transactional_db: None, tmp_path: Path) -> Lab:
    return Lab(tmp_path)


@pytest.fixture
def socket_of(live_lab: Lab) -> Callable[[str, str], WebsocketCommunicator]:
    paths = {
        "ws-own-jobs": "/ws/jobs/",
        "ws-job": f"/ws/jobs/{live_lab.job.public_id}/",
        "ws-cluster": "/ws/cluster/",
    }

    def make(name: str, person: str) -> WebsocketCommunicator:
        client = live_lab.clients[person]
        cookie = "; ".join(f"{key}={morsel.value}" for key, morsel in client.cookies.items())
        headers = [(b"origin", b"http://localhost"), (b"host", b"localhost")]
        token = client.defaults.get("HTTP_AUTHORIZATION", "")
        headers += [(b"cookie", cookie.encode()), (b"authorization", token.encode())]
        return WebsocketCommunicator(application, paths[name], headers=headers)

    return make


@pytest.mark.parametrize("person", PEOPLE)
@pytest.mark.parametrize("name", sorted(SOCKETS))
async def test_who_may_watch(
    socket_of: Callable[[str, str], WebsocketCommunicator], name: str, person: str
) -> None:
    socket = socket_of(name, person)
    codes = {"sign in": UNAUTHENTICATED, "not there": NOT_FOUND}
    wanted = expected(SOCKETS[name], person)

    connected, _ = await socket.connect()

    assert connected
    if wanted != "done":
        closed = await socket.receive_output()
        assert closed == {"type": "websocket.close", "code": codes[wanted]}
        return
    await socket.send_json_to({"type": "ping"})
    while (message := await socket.receive_json_from())["type"] != "pong":
        assert message["type"] == "snapshot"
    await socket.disconnect()


async def test_a_page_of_another_site_cannot_open_a_socket(transactional_db: None) -> None:
    headers = [(b"origin", b"http://evil.example"), (b"host", b"localhost")]
    socket = WebsocketCommunicator(application, "/ws/cluster/", headers=headers)

    connected, _ = await socket.connect()

    assert not connected
