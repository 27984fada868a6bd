"""The admin pages open, for admins only, and need nothing that the strict CSP forbids."""

from __future__ import annotations

from collections.abc import Callable
from html.parser import HTMLParser
from typing import Any

import pytest
from django.contrib import admin as django_admin
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from cluster.models import Gpu, Host, HostConnection
from jobs.lifecycle import Reason
from jobs.models import Environment, Job, JobEvent, JobTemplate
from monitoring.models import LogStream
from portal import services
from portal.models import ApiToken, User
from tests.integration.api.rows import (
    NOW,
    finish,
    make_dataset,
    make_environment,
    make_host,
    make_job,
    make_template,
)

Browser = Callable[[User | None], Client]
MODELS = sorted(
    (model for model in django_admin.site._registry),
    key=lambda model: model._meta.label_lower,
)


class Forbidden(HTMLParser):
    """Collects what ``script-src 'self'; style-src 'self'`` would not run."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        data_block = (given.get("type") or "").startswith("application/")
        if tag == "style" or (tag == "script" and "src" not in given and not data_block):
            self.found.append(f"<{tag}> at {self.getpos()}")
        for name, value in attrs:
            if name.startswith("on") or name == "style":
                self.found.append(f"{tag} {name}={value}")
            if name in {"src", "href"} and (value or "").startswith(("http:", "//", "javascript:")):
                self.found.append(f"{tag} {name}={value}")


@pytest.fixture
def rows(student: User) -> None:
    host = make_host(gpus=2)
    environment = make_environment()
    make_template(environment=environment)
    job = make_job(student)
    replica = finish(job, host=host)
    JobEvent.objects.create(job=job, at=NOW, target="pending", code="submitted", actor=student)
    LogStream.objects.create(replica=replica)
    make_dataset(student)
    services.token_create(user=student, name="laptop", days=1, now=timezone.now())


def pages(model: Any) -> list[str]:
    name = f"admin:{model._meta.app_label}_{model._meta.model_name}"
    found = [reverse(f"{name}_changelist"), reverse(f"{name}_add")]
    row = model._default_manager.first()
    if row is not None:
        found += [reverse(f"{name}_{page}", args=[row.pk]) for page in ("change", "history")]
        found.append(reverse(f"{name}_delete", args=[row.pk]))
    return found


@pytest.mark.usefixtures("rows")
@pytest.mark.parametrize("model", MODELS, ids=lambda model: model._meta.label_lower)
def test_every_page_opens_and_keeps_to_the_csp(browser: Browser, admin: User, model: Any) -> None:
    client = browser(admin)
    opened = 0
    for path in pages(model):
        answer = client.get(path)
        assert answer.status_code in {200, 403}, path
        if answer.status_code == 200:
            opened += 1
            seen = Forbidden()
            seen.feed(answer.content.decode())
            assert not seen.found, (path, seen.found)
            assert "default-src 'self'" in answer.headers["Content-Security-Policy"]
    assert opened >= 1


@pytest.mark.parametrize("path", ["/admin/", "/admin/cluster/host/", "/admin/login/"])
def test_strangers_are_sent_to_the_one_sign_in_page(client: Client, db: None, path: str) -> None:
    answer = client.get(path, follow=True)

    assert answer.redirect_chain[-1][0].startswith("/accounts/login/")


@pytest.mark.parametrize("who", ["student", "instructor"])
def test_others_than_admins_are_kept_out(
    browser: Browser, request: pytest.FixtureRequest, who: str
) -> None:
    client = browser(request.getfixturevalue(who))

    for path in ("/admin/", "/admin/cluster/host/", "/admin/jobs/job/"):
        assert client.get(path, follow=True).status_code == 403


def test_the_front_page_says_what_needs_attention(browser: Browser, admin: User) -> None:
    client = browser(admin)
    assert "There is no host" in client.get("/admin/").content.decode()

    make_host("down", gpus=0, connection=HostConnection.UNREACHABLE, connection_text="timed out")
    Gpu.objects.create(
        uuid="GPU-x",
        host=make_host("up", gpus=0),
        model="m",
        index=0,
        memory_total_mib=1,
        health="quarantined",
        health_text="the driver has lost this GPU",
    )
    finish(make_job(admin), reason=Reason.HOST_LOST)
    Job.objects.update(finished_at=timezone.now())
    page = client.get("/admin/").content.decode()

    assert "down does not answer" in page
    assert "the driver has lost this GPU" in page
    assert "1 job(s) failed since yesterday" in page


def test_the_front_page_is_calm_when_all_is_well(browser: Browser, admin: User) -> None:
    make_host(gpus=0)

    assert "All hosts and GPUs answer" in browser(admin).get("/admin/").content.decode()


@pytest.mark.parametrize(
    ("model", "make"),
    [
        (Host, lambda n, u: make_host(f"h{n}")),
        (Job, lambda n, u: make_job(u, f"j{n}")),
        (Environment, lambda n, u: make_environment(f"e{n}")),
        (JobTemplate, lambda n, u: make_template(f"t{n}", environment=make_environment(f"e{n}"))),
        (ApiToken, lambda n, u: services.token_create(user=u, name=f"t{n}", days=1, now=NOW)),
        (User, lambda n, u: User.objects.create(username=f"u{n}")),
    ],
    ids=lambda value: getattr(value, "__name__", "make"),
)
def test_a_list_costs_the_same_however_long_it_is(
    browser: Browser,
    admin: User,
    model: Any,
    make: Callable[[int, User], Any],
    django_assert_max_num_queries: Any,
) -> None:
    from django.db import connection
    from django.test.utils import CaptureQueriesContext

    client = browser(admin)
    path = reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_changelist")
    make(0, admin)
    with CaptureQueriesContext(
        connection,
    ) as one:
        client.get(path)
    for number in range(1, 6):
        make(number, admin)

    with django_assert_max_num_queries(len(one) + 1):
        assert client.get(path).status_code == 200
