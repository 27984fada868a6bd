"""What an admin does in the admin pages, and that it is written down who did it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import pytest
from auditlog.models import LogEntry
from django.test import Client
from django.utils import timezone
from rest_framework.test import APIClient

from cluster.adapters import registry
from cluster.core.resources import GpuReading, GpuUuid, HostReading
from cluster.errors import HostUnreachableError
from cluster.health import probe_report
from cluster.models import Allocation, Gpu, Host
from cluster.ports import EngineDescription
from jobs.lifecycle import JobStatus, Reason
from jobs.models import Dataset, Environment, Job
from portal import services
from portal.models import ApiToken, Role, User
from tests.factories.portal import UserFactory
from tests.integration.api.rows import NOW, make_dataset, make_environment, make_host, make_job

Browser = Callable[[User | None], Client]
HOSTS = "/admin/cluster/host/"


class Engine:
    def __init__(self, error: Exception | None) -> None:
        self.error = error

    def describe(self) -> EngineDescription:
        if self.error:
            raise self.error
        return EngineDescription(
            kind="docker",
            version="28",
            operating_system="Debian",
            cpu_millis=4000,
            memory_mib=8000,
            cgroup_version=2,
            takes_gpus=False,
            warnings=("no swap limit",),
        )


@pytest.fixture
def engine() -> Iterator[Engine]:
    made = Engine(None)
    registry.override(lambda endpoint: made)  # type: ignore[arg-type,return-value]
    yield made
    registry.override(None)


def act(client: Client, path: str, action: str, *rows: Any, **more: Any) -> str:
    answer = client.post(
        path, {"action": action, "_selected_action": [r.pk for r in rows], **more}, follow=True
    )
    assert answer.status_code == 200
    return answer.content.decode()


def test_a_new_host_is_tested_at_once(
    browser: Browser, admin: User, engine: Engine, django_capture_on_commit_callbacks: Any
) -> None:
    body = {
        "name": "box",
        "url": "unix:///var/run/docker.sock",
        "mode": "active",
        "shares_files": "on",
        "cpu_millis": 0,
        "memory_mib": 0,
    }

    with django_capture_on_commit_callbacks(execute=True):
        answer = browser(admin).post(f"{HOSTS}add/", body)

    assert answer.status_code == 302
    host = Host.objects.get()
    assert (host.connection, host.engine["version"]) == ("up", "28")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"url": "http://x"}, "begin with unix://"),
        ({"url": "tcp://x:2376"}, "all three TLS files"),
        ({"name": "Box!"}, "lower-case"),
    ],
)
def test_a_host_that_cannot_be_is_refused(
    browser: Browser, admin: User, change: dict[str, str], words: str
) -> None:
    body = {"name": "box", "url": "process://local", "mode": "active"}

    answer = browser(admin).post(
        f"{HOSTS}add/", {**body, "cpu_millis": 0, "memory_mib": 0, **change}
    )

    assert words in answer.content.decode()
    assert not Host.objects.exists()


def test_hosts_are_tested_drained_cordoned_and_activated(
    browser: Browser, admin: User, engine: Engine
) -> None:
    host = make_host()
    client = browser(admin)

    for action, mode in (("drain", "draining"), ("cordon", "cordoned"), ("activate", "active")):
        act(client, HOSTS, action, host)
        assert Host.objects.get().mode == mode
    assert "no swap limit" in act(client, HOSTS, "test_connection", host)
    engine.error = HostUnreachableError("gpu-1", detail="timed out")
    assert "does not answer" in act(client, HOSTS, "test_connection", host)


def test_a_host_is_removed_only_when_it_is_empty(browser: Browser, admin: User) -> None:
    host = make_host()
    claim = Allocation.objects.create(
        holder=uuid4(), host=host, cpu_millis=1, memory_mib=1, created_at=NOW
    )
    client = browser(admin)

    page = act(client, HOSTS, "delete_selected", host)
    assert "drain it first" in page
    act(client, HOSTS, "delete_selected", host, post="yes")
    assert Host.objects.exists()

    claim.state = "released"
    claim.save()
    act(client, HOSTS, "delete_selected", host, post="yes")
    assert not Host.objects.exists()
    assert not Gpu.objects.exists()


def test_gpus_are_switched(browser: Browser, admin: User) -> None:
    make_host()
    gpu = Gpu.objects.get()
    client = browser(admin)

    act(client, "/admin/cluster/gpu/", "switch_off", gpu)
    assert not Gpu.objects.get().is_enabled
    act(client, "/admin/cluster/gpu/", "switch_on", gpu)
    assert Gpu.objects.get().is_enabled


def test_a_job_is_ended_by_force(browser: Browser, admin: User, student: User) -> None:
    job = make_job(student)

    page = act(browser(admin), "/admin/jobs/job/", "force_end", job)

    job.refresh_from_db()
    assert "is being ended" in page
    assert (job.status, job.reason) == (JobStatus.CANCELLED, Reason.FORCE_ENDED)
    assert job.events.last().actor == admin


def test_jobs_cannot_be_changed_or_deleted_by_hand(
    browser: Browser, admin: User, student: User
) -> None:
    job = make_job(student)
    client = browser(admin)

    assert client.get("/admin/jobs/job/add/").status_code == 403
    assert client.post(f"/admin/jobs/job/{job.pk}/delete/", {"post": "yes"}).status_code == 403
    client.post(f"/admin/jobs/job/{job.pk}/change/", {"name": "hacked"})
    assert Job.objects.get().name == "train"


def test_datasets_are_deleted_with_their_files(
    browser: Browser, admin: User, student: User
) -> None:
    dataset = make_dataset(student)

    act(browser(admin), "/admin/jobs/dataset/", "remove", dataset)

    assert not Dataset.objects.exists()


def account(user: User, **change: Any) -> dict[str, Any]:
    return {
        "username": user.username,
        "email": user.email,
        "role": user.role,
        "is_active": "on",
        "storage_quota_mib": "",
        "max_active_jobs": "",
        "max_gpus": "",
        **change,
    }


def test_a_student_gets_quotas_and_a_role(browser: Browser, admin: User, student: User) -> None:
    path = f"/admin/portal/user/{student.pk}/change/"

    answer = browser(admin).post(
        path, account(student, role="instructor", storage_quota_mib=5, max_gpus=0)
    )

    student.refresh_from_db()
    assert answer.status_code == 302, answer.context["adminform"].form.errors
    assert (student.role, student.storage_quota_mib, student.max_gpus) == ("instructor", 5, 0)


@pytest.mark.parametrize("change", [{"role": "student"}, {"is_active": ""}])
def test_the_last_admin_stays(browser: Browser, admin: User, change: dict[str, str]) -> None:
    path = f"/admin/portal/user/{admin.pk}/change/"
    body = {name: value for name, value in account(admin, **change).items() if value != ""}

    refused = browser(admin).post(path, body)
    act(browser(admin), "/admin/portal/user/", "switch_off", admin)

    admin.refresh_from_db()
    assert "last active admin" in refused.content.decode()
    assert (admin.role, admin.is_active) == (Role.ADMIN, True)


def test_with_another_admin_the_first_may_go(browser: Browser, admin: User) -> None:
    UserFactory(admin=True)

    answer = browser(admin).post(
        f"/admin/portal/user/{admin.pk}/change/", account(admin, role="student")
    )

    admin.refresh_from_db()
    assert answer.status_code == 302
    assert not admin.is_staff


def test_an_account_with_work_is_switched_off_and_not_deleted(
    browser: Browser, admin: User, student: User
) -> None:
    make_job(student)

    answer = browser(admin).post(f"/admin/portal/user/{student.pk}/delete/", {"post": "yes"})
    act(browser(admin), "/admin/portal/user/", "switch_off", student)

    assert answer.status_code == 403
    assert not User.objects.get(pk=student.pk).is_active


def test_a_leaked_token_is_ended(browser: Browser, admin: User, student: User) -> None:
    token, _ = services.token_create(user=student, name="x", days=1, now=timezone.now())

    act(browser(admin), "/admin/portal/apitoken/", "delete_selected", token, post="yes")

    assert not ApiToken.objects.exists()


def entries(**wanted: Any) -> list[tuple[str, list[str]]]:
    rows = LogEntry.objects.filter(**wanted).select_related("actor").order_by("timestamp")
    return [(str(row.actor), sorted(row.changes_dict)) for row in rows]


def test_it_is_written_down_who_changed_what(browser: Browser, admin: User) -> None:
    host, environment = make_host(), make_environment()
    LogEntry.objects.all().delete()
    client = browser(admin)

    act(client, HOSTS, "drain", host)
    act(client, "/admin/cluster/gpu/", "switch_off", Gpu.objects.get())
    client.post(
        f"/admin/jobs/environment/{environment.pk}/change/",
        {
            "name": "Renamed",
            "slug": "tensorflow",
            "position": 100,
            "image": "tf",
            "python": environment.python,
        },
    )

    assert Environment.objects.get().name == "Renamed"
    assert entries(content_type__model="host") == [("root", ["mode"])]
    assert entries(content_type__model="gpu") == [("root", ["is_enabled"])]
    assert ("root", ["is_enabled", "name"]) in entries(content_type__model="environment")


def test_a_change_by_token_is_written_down_under_its_owner(admin: User) -> None:
    make_host()
    _, secret = services.token_create(user=admin, name="x", days=1, now=timezone.now())
    LogEntry.objects.all().delete()
    client = APIClient()
    client.credentials(HTTP_AUTHORIZATION=f"Token {secret}")

    client.patch("/api/v1/hosts/gpu-1/", {"mode": "draining"})

    assert entries(content_type__model="host") == [("root", ["mode"])]


def test_what_the_platform_observes_is_not_audited_and_secrets_never(admin: User) -> None:
    host = make_host()
    LogEntry.objects.all().delete()

    host.connection = "unreachable"
    host.save()
    admin.set_password("SECRET_CANARY")
    admin.save()
    services.token_create(user=admin, name="x", days=1, now=timezone.now())

    assert not LogEntry.objects.exists()


def test_a_gpu_that_was_mended_is_put_back_and_its_page_says_what_happened(
    browser: Browser, admin: User
) -> None:
    host = make_host(gpus=1)
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
    client = browser(admin)

    page = client.get(f"/admin/cluster/gpu/{gpu.pk}/change/").content.decode()
    assert "Xid 79: the GPU has fallen off the bus" in page
    assert "put it back" in page
    act(client, "/admin/cluster/gpu/", "put_back", gpu)

    assert Gpu.objects.get().health == "ok"
    page = client.get(f"/admin/cluster/gpu/{gpu.pk}/change/").content.decode()
    assert "put back by an operator" in page
