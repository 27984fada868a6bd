"""Hosts and GPUs over REST: everybody looks, admins manage."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import pytest
from django.utils import timezone
from rest_framework.test import APIClient

from cluster.adapters import registry
from cluster.core.resources import GpuReading, GpuUuid, HostReading
from cluster.errors import HostRefusedError, HostUnreachableError
from cluster.health import probe_report
from cluster.models import Allocation, Gpu, Host
from cluster.ports import EngineDescription, HostEndpoint
from portal.models import User
from tests.integration.api.rows import NOW, make_environment, make_host, make_template

Api = Callable[[User | None], APIClient]
HOSTS = "/api/v1/hosts/"


class Engine:
    """Answers a connection test as it was told to."""

    def __init__(self, answer: EngineDescription | Exception) -> None:
        self._answer = answer

    def describe(self) -> EngineDescription:
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer


@pytest.fixture
def engine() -> Iterator[Callable[[EngineDescription | Exception], None]]:
    def answer(value: EngineDescription | Exception) -> None:
        def make(endpoint: HostEndpoint) -> Any:
            del endpoint
            return Engine(value)

        registry.override(make)

    yield answer
    registry.override(None)


def test_students_see_what_hosts_have_and_not_how_they_are_reached(
    api: Api, student: User, admin: User
) -> None:
    make_host("gpu-1", gpus=2)

    seen = api(student).get(f"{HOSTS}gpu-1/").json()

    assert (seen["cpu_millis"], seen["takes_work"], len(seen["gpus"])) == (8000, True, 2)
    assert {"url", "tls_key", "engine"} & set(seen) == set()
    assert api(admin).get(f"{HOSTS}gpu-1/").json()["url"] == "process://local"


@pytest.mark.parametrize("who", ["student", "instructor"])
@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("post", "", {"name": "x", "url": "process://local"}),
        ("patch", "gpu-1/", {"mode": "draining"}),
        ("delete", "gpu-1/", None),
        ("post", "gpu-1/test/", None),
    ],
)
def test_only_admins_manage_hosts(
    api: Api, db: None, request: pytest.FixtureRequest, who: str, method: str, path: str, body: Any
) -> None:
    make_host()
    client = api(request.getfixturevalue(who))

    assert getattr(client, method)(f"{HOSTS}{path}", body).status_code == 403
    assert Host.objects.get().mode == "active"


def test_an_admin_registers_tests_drains_and_removes_a_host(
    api: Api, admin: User, engine: Callable[[Any], None]
) -> None:
    engine(
        EngineDescription(
            kind="process",
            version="1",
            operating_system="Linux",
            cpu_millis=4000,
            memory_mib=8000,
            cgroup_version=0,
            takes_gpus=False,
            warnings=("no swap limit",),
        )
    )
    client = api(admin)

    made = client.post(HOSTS, {"name": "laptop", "url": "process://local"})
    tested = client.post(f"{HOSTS}laptop/test/")
    drained = client.patch(f"{HOSTS}laptop/", {"mode": "draining"})
    removed = client.delete(f"{HOSTS}laptop/")

    assert [a.status_code for a in (made, tested, drained, removed)] == [201, 200, 200, 204]
    assert made.json()["connection"] == "new"
    assert tested.json()["warnings"] == ["no swap limit"]
    assert (drained.json()["connection"], drained.json()["mode"]) == ("up", "draining")
    assert drained.json()["engine"]["kind"] == "process"


@pytest.mark.parametrize(
    ("error", "status", "connection"),
    [
        (HostUnreachableError("gpu-1", detail="timeout"), 504, "unreachable"),
        (HostRefusedError("gpu-1", detail="bad certificate"), 502, "refused"),
    ],
)
def test_a_host_that_does_not_answer_says_why(
    api: Api,
    admin: User,
    engine: Callable[[Any], None],
    error: Exception,
    status: int,
    connection: str,
) -> None:
    make_host()
    engine(error)

    answer = api(admin).post(f"{HOSTS}gpu-1/test/")

    assert answer.status_code == status
    assert Host.objects.get().connection == connection


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"name": "Host!", "url": "process://local"}, "name"),
        ({"name": "a", "url": "http://x"}, "url"),
        ({"name": "a", "url": "tcp://x:2376"}, "url"),
        ({"name": "gpu-1", "url": "process://local"}, "name"),
        ({"name": "a", "url": "process://local", "mode": "x"}, "mode"),
    ],
)
def test_a_host_that_cannot_be_is_refused(
    api: Api, admin: User, body: dict[str, str], field: str
) -> None:
    make_host()

    answer = api(admin).post(HOSTS, body)

    assert answer.status_code == 400
    assert field in answer.json()["fields"]


def test_a_host_that_holds_something_stays(api: Api, admin: User) -> None:
    Allocation.objects.create(
        holder=uuid4(), host=make_host(), cpu_millis=1, memory_mib=1, created_at=NOW
    )

    answer = api(admin).delete(f"{HOSTS}gpu-1/")

    assert (answer.status_code, answer.json()["code"]) == (409, "host_in_use")
    assert answer.json()["holders"] == 1


def test_an_admin_switches_a_gpu_off(api: Api, admin: User, student: User) -> None:
    make_host()
    address = "/api/v1/gpus/GPU-gpu-1-0/"

    refused = api(student).patch(address, {"is_enabled": False})
    done = api(admin).patch(address, {"is_enabled": False})

    assert (refused.status_code, done.status_code) == (403, 200)
    assert (done.json()["health"], Gpu.objects.get().is_enabled) == ("draining", False)


def test_the_cluster_tells_what_is_claimed(api: Api, student: User) -> None:
    host = make_host(gpus=1)
    Allocation.objects.create(
        holder=uuid4(), host=host, cpu_millis=500, memory_mib=256, created_at=NOW
    )

    seen = api(student).get("/api/v1/cluster/").json()

    assert seen["hosts"][0]["cpu_claimed_millis"] == 500
    assert seen["hosts"][0]["gpus"][0]["health"] == "stale"


@pytest.mark.parametrize(
    ("path", "queries"),
    [
        (HOSTS, 2),
        ("/api/v1/gpus/", 1),
        ("/api/v1/cluster/", 6),
        ("/api/v1/templates/", 1),
        ("/api/v1/environments/", 2),
        ("/api/v1/code/", 1),
        ("/api/v1/tokens/", 1),
    ],
)
def test_a_list_costs_the_same_however_long_it_is(
    api: Api, student: User, path: str, queries: int, django_assert_num_queries: Any
) -> None:
    for index in range(4):
        make_host(f"h{index}", gpus=2)
        environment = make_environment(f"e{index}")
        make_template(f"t{index}", environment=environment)

    with django_assert_num_queries(queries):
        answer = api(student).get(path)

    assert answer.status_code == 200


def test_a_gpu_says_what_is_wrong_and_an_admin_puts_it_back(
    api: Api, student: User, admin: User
) -> None:
    host = make_host("gpu-1", gpus=1)
    gpu = Gpu.objects.get()
    broken = GpuReading(
        uuid=GpuUuid(gpu.uuid),
        model=gpu.model,
        index=0,
        memory_total_mib=gpu.memory_total_mib,
        xids=((1.0, 79),),
    )
    reading = HostReading(observed_at=timezone.now(), gpus=(broken,))
    probe_report(host_name=host.name, reading=reading, now=timezone.now())
    path = f"/api/v1/gpus/{gpu.uuid}/"

    [finding] = api(student).get(path).json()["findings"]
    [event] = api(student).get(f"{path}events/").json()["events"]
    refused = api(student).post(f"{path}clear/")
    cleared = api(admin).post(f"{path}clear/")

    assert (finding["fault"], finding["health"]) == ("xid", "quarantined")
    assert "put it back" in finding["advice"]
    assert event["text"] == finding["text"] == "Xid 79: the GPU has fallen off the bus"
    assert refused.status_code == 403
    assert cleared.json()["findings"] == []
    assert len(api(student).get(f"{path}events/").json()["events"]) == 2
