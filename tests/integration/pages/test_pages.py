"""Pages: who sees what, in how many queries, and nothing on them that the policy refuses."""

from __future__ import annotations

import re
from collections.abc import Callable
from uuid import uuid4

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from cluster.models import Host
from jobs.lifecycle import JobStatus, Reason
from jobs.models import Job
from portal.models import User
from portal.views.urls import urlpatterns
from tests.factories.cluster import HostFactory
from tests.factories.datasets import DatasetFactory, DatasetVersionFactory
from tests.factories.jobs import EnvironmentFactory, JobFactory, ended_job, running_job
from tests.factories.portal import UserFactory
from tests.integration.api.rows import make_placement, make_simulation

Browser = Callable[[User | None], Client]


@pytest.fixture
def host(db: None) -> Host:
    return HostFactory(name="box", gpus=2)


@pytest.fixture
def own_job(student: User, host: Host) -> Job:
    return running_job(owner=student, host=host).attempt.job


def every_page(job: Job, host: Host) -> dict[str, str]:
    """Return an address of every route of the pages; a new route must be named here."""
    dataset = DatasetFactory(owner=job.owner)
    DatasetVersionFactory(dataset=dataset)
    trial, simulation = make_placement(job.owner), make_simulation(UserFactory(admin=True))
    arguments: dict[str, list[object]] = {
        "dataset-detail": [dataset.public_id],
        "dataset-delete": [dataset.public_id],
        "job-detail": [job.public_id],
        "job-row": [job.public_id],
        "job-part": [job.public_id, "state"],
        "job-clone": [job.public_id],
        "job-cancel": [job.public_id],
        "job-rerun": [job.public_id],
        "job-delete": [job.public_id],
        "host-detail": [host.name],
        "lab-detail": [trial.public_id],
        "lab-cancel": [trial.public_id],
        "lab-delete": [trial.public_id],
        "simulation-detail": [simulation.public_id],
        "simulation-cancel": [simulation.public_id],
        "simulation-delete": [simulation.public_id],
        "token-revoke": [uuid4()],
    }
    return {
        str(route.name): reverse(f"portal:{route.name}", args=arguments.get(str(route.name), []))
        for route in urlpatterns
    }


POSTED = {
    "dataset-delete", "job-cancel", "job-rerun", "job-delete", "token-revoke", "lab-cancel",
    "lab-delete", "simulation-cancel", "simulation-delete",
}  # fmt: skip
OWNED = {
    "lab-detail", "lab-cancel", "lab-delete",
    "dataset-detail", "dataset-delete", "job-detail", "job-row", "job-part", "job-clone",
    "job-cancel", "job-rerun", "job-delete",
}  # fmt: skip

STAFF = {"simulation-list", "simulation-create", "simulation-detail"}


def ask(client: Client, name: str, address: str) -> int:
    answer = client.post(address) if name in POSTED else client.get(address)
    return answer.status_code


def test_a_stranger_is_sent_to_sign_in_by_every_page(
    browser: Browser, own_job: Job, host: Host
) -> None:
    for name, address in every_page(own_job, host).items():
        client = browser(None)
        answer = client.post(address) if name in POSTED else client.get(address)

        assert answer.status_code == 302, name
        assert answer["Location"].startswith(reverse("account_login")), name


def test_another_student_finds_nothing_where_the_owner_finds_a_page(
    browser: Browser, own_job: Job, host: Host, other_student: User
) -> None:
    for name, address in every_page(own_job, host).items():
        if name in OWNED:
            assert ask(browser(other_student), name, address) == 404, name
            assert ask(browser(own_job.owner), name, address) in {200, 302}, name


def test_an_instructor_sees_a_students_job_and_changes_nothing(
    browser: Browser, own_job: Job, host: Host, instructor: User
) -> None:
    pages = every_page(own_job, host)
    client = browser(instructor)

    page = client.get(pages["job-detail"])

    assert page.status_code == 200
    assert pages["job-cancel"] not in page.content.decode()
    assert [ask(client, name, pages[name]) for name in ("job-cancel", "job-delete")] == [404, 404]
    own_job.refresh_from_db()
    assert own_job.status == JobStatus.RUNNING


def test_an_admin_ends_a_students_job(browser: Browser, own_job: Job, admin: User) -> None:
    browser(admin).post(reverse("portal:job-cancel", args=[own_job.public_id]))

    own_job.refresh_from_db()
    assert (own_job.status, own_job.stop_reason) == (JobStatus.STOPPING, Reason.FORCE_ENDED)


@pytest.mark.parametrize("role", ["student", "admin"])
def test_no_page_has_an_inline_script_style_or_handler(
    browser: Browser, own_job: Job, host: Host, admin: User, role: str
) -> None:
    client = browser(admin if role == "admin" else own_job.owner)
    inline = re.compile(
        r"<style|\sstyle=|\son[a-z]+=|javascript:|<script(?![^>]*(src=|application/json))",
        re.IGNORECASE,
    )
    for name, address in every_page(own_job, host).items():
        if name in POSTED or (role == "student" and name in STAFF):
            continue
        answer = client.get(address)

        assert answer.status_code == 200, name
        # The policy's own switches for htmx carry no code; hx-on would.
        assert not inline.search(answer.content.decode()), name
        policy = answer["Content-Security-Policy"]
        assert "unsafe" not in policy
        assert "default-src 'self'" in policy


def test_only_the_page_with_the_editor_carries_a_nonce(browser: Browser, student: User) -> None:
    client = browser(student)

    with_editor = client.get(reverse("portal:job-create"))["Content-Security-Policy"]
    without = client.get(reverse("portal:dashboard"))["Content-Security-Policy"]

    assert "'nonce-" in with_editor
    assert "nonce" not in without


@pytest.mark.parametrize("name", ["dashboard", "job-list", "dataset-list", "cluster"])
def test_a_list_takes_as_many_queries_for_twenty_rows_as_for_two(
    browser: Browser,
    student: User,
    name: str,
    django_assert_max_num_queries: Callable[..., object],
) -> None:
    client = browser(student)

    def grow(count: int) -> None:
        environment = EnvironmentFactory()
        for _ in range(count):
            JobFactory(owner=student, environment=environment)
            DatasetVersionFactory(dataset=DatasetFactory(owner=student))
            HostFactory(gpus=1)

    def queries() -> int:
        with CaptureQueriesContext(connection) as captured:
            assert client.get(reverse(f"portal:{name}")).status_code == 200
        return len(captured)

    grow(2)
    few = queries()
    grow(18)

    assert queries() == few
    with django_assert_max_num_queries(30):
        client.get(reverse(f"portal:{name}"))


def test_a_waiting_job_says_why_where_and_with_what_numbers(
    browser: Browser, student: User
) -> None:
    job = JobFactory(
        owner=student,
        pending_code="memory",
        pending_text="No host has 64 GiB free.",
        pending_evidence={"most_free_mib": 4096},
        pending_position=3,
    )

    page = browser(student).get(reverse("portal:job-detail", args=[job.public_id]))

    text = page.content.decode()
    assert "No host has 64 GiB free." in text
    assert "place 3 in the queue" in text
    assert "most free mib: 4096" in text


def test_a_failed_job_says_what_happened_and_what_to_do(browser: Browser, student: User) -> None:
    job = ended_job(Reason.OUT_OF_MEMORY, owner=student, status=JobStatus.FAILED)

    text = browser(student).get(reverse("portal:job-detail", args=[job.public_id])).content.decode()

    assert "needed more memory than the job asked for" in text
    assert "use a smaller batch size" in text


def test_filters_leave_the_jobs_that_fit(browser: Browser, student: User) -> None:
    JobFactory(owner=student, name="waits")
    ended_job(owner=student, name="is over")
    client = browser(student)

    active = client.get(reverse("portal:job-list"), {"status": "active"}).content.decode()
    named = client.get(reverse("portal:job-list"), {"q": "OVER"}).content.decode()
    nothing = client.get(reverse("portal:job-list"), {"q": "zzz"}).content.decode()

    assert ("waits" in active, "is over" in active) == (True, False)
    assert ("waits" in named, "is over" in named) == (False, True)
    assert "No job fits the filter" in nothing


def test_htmx_gets_the_part_and_a_browser_the_page(browser: Browser, student: User) -> None:
    client = browser(student)
    address = reverse("portal:job-list")

    part = client.get(address, headers={"HX-Request": "true"})
    page = client.get(address)

    assert "<html" not in part.content.decode()
    assert "<html" in page.content.decode()
    assert "HX-Request" in page["Vary"]


def test_a_part_that_is_asked_for_after_signing_out_loads_the_page_anew(
    browser: Browser, own_job: Job
) -> None:
    address = reverse("portal:job-part", args=[own_job.public_id, "state"])

    answer = browser(None).get(address, headers={"HX-Request": "true"})

    assert (answer.status_code, answer["HX-Refresh"], answer.content) == (401, "true", b"")


def test_names_that_people_chose_are_shown_as_text(browser: Browser, student: User) -> None:
    job = JobFactory(
        owner=student, name="<script>alert(1)</script>", parameters={"</script><b>": "<i>"}
    )

    text = browser(student).get(reverse("portal:job-detail", args=[job.public_id])).content.decode()

    assert "<script>alert(1)" not in text
    assert "</script><b>" not in text


def test_a_host_page_names_others_jobs_to_staff_only(
    browser: Browser, own_job: Job, host: Host, other_student: User, instructor: User
) -> None:
    address = reverse("portal:host-detail", args=[host.name])

    to_student = browser(other_student).get(address).content.decode()
    to_staff = browser(instructor).get(address).content.decode()

    assert (own_job.name in to_student, own_job.owner.username in to_student) == (False, False)
    assert (own_job.name in to_staff, own_job.owner.username in to_staff) == (True, True)


def test_a_host_says_what_is_wrong_with_it(browser: Browser, student: User) -> None:
    HostFactory(name="gone", unreachable=True, connection_text="timed out after 5 s")

    text = browser(student).get(reverse("portal:cluster")).content.decode()

    assert "unreachable" in text
    assert "timed out after 5 s" in text
    assert "unknown" in text


def test_a_token_is_shown_once(browser: Browser, student: User) -> None:
    client = browser(student)
    made = client.post(reverse("portal:tokens"), {"name": "laptop", "days": 30})
    secret = re.search(r"stl_\w+", made.content.decode())

    assert secret
    assert "no-store" in made["Cache-Control"]
    again = client.get(reverse("portal:tokens")).content.decode()
    assert secret[0] not in again
    assert "laptop" in again

    token = student.auth_token_set.get()
    client.post(reverse("portal:token-revoke", args=[token.public_id]))
    assert not student.auth_token_set.exists()


def test_nobody_revokes_anothers_token(
    browser: Browser, student: User, other_student: User
) -> None:
    browser(student).post(reverse("portal:tokens"), {"name": "laptop", "days": 30})
    token = student.auth_token_set.get()

    answer = browser(other_student).post(reverse("portal:token-revoke", args=[token.public_id]))

    assert answer.status_code == 404
    assert student.auth_token_set.exists()


def test_a_profile_is_changed_and_never_the_role(browser: Browser, student: User) -> None:
    browser(student).post(
        reverse("portal:account"), {"first_name": "Ada", "last_name": "L", "role": "admin"}
    )

    student.refresh_from_db()
    assert (student.first_name, student.role) == ("Ada", "student")


def test_only_staff_may_share_a_dataset(browser: Browser, student: User, instructor: User) -> None:
    own, theirs = DatasetFactory(owner=student), DatasetFactory(owner=instructor)
    for person, dataset in ((student, own), (instructor, theirs)):
        browser(person).post(
            reverse("portal:dataset-detail", args=[dataset.public_id]),
            {"name": dataset.name, "description": "words", "is_shared": "on"},
        )
        dataset.refresh_from_db()

    assert (own.is_shared, own.description) == (False, "words")
    assert theirs.is_shared


def test_a_dataset_in_use_stays(browser: Browser, student: User) -> None:
    version = DatasetVersionFactory(dataset=DatasetFactory(owner=student))
    JobFactory(owner=student).job_datasets.create(version=version, name="data")

    answer = browser(student).post(
        reverse("portal:dataset-delete", args=[version.dataset.public_id]), follow=True
    )

    assert "cannot be deleted now" in answer.content.decode()
    version.refresh_from_db()


def test_missing_pages_are_said_in_the_portals_own_words(browser: Browser, student: User) -> None:
    answer = browser(student).get("/jobs/nothing/")

    assert answer.status_code == 404
    assert "There is nothing here for you" in answer.content.decode()
