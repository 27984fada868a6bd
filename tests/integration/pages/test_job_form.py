"""The form that makes jobs: what it takes, what it refuses, and that nothing typed is lost."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.db import connection
from django.test import Client
from django.urls import reverse

from cluster.models import Host
from jobs import selectors, services
from jobs.models import CodeBundle, CodeKind, Environment, Job, JobTemplate
from portal.forms import SpanField, in_words, parsed
from portal.models import User
from tests.factories.cluster import HostFactory
from tests.factories.jobs import (
    CodeBundleFactory,
    EnvironmentFactory,
    JobFactory,
    JobTemplateFactory,
)

SCRIPT = "print('héllo <b>')\nx = 1\n"


@pytest.fixture
def host(db: None) -> Host:
    return HostFactory(cpu_millis=4000, memory_mib=8192)


@pytest.fixture
def environment(host: Host) -> Environment:
    return EnvironmentFactory(slug="plain")


@pytest.fixture
def client_of(browser: Callable[[User | None], Client], student: User) -> Client:
    return browser(student)


@pytest.fixture
def sent(environment: Environment) -> dict[str, Any]:
    """What a browser sends when only the name and the program were filled in."""
    return {
        "token": "t1",
        "name": "first",
        "source": "editor",
        "script": SCRIPT,
        "environment": "plain",
        "cpus": "1.5",
        "memory_gib": "2",
        "gpus": "0",
        "walltime": "1 h 30 min",
        "max_retries": "1",
    }


def send(client: Client, values: dict[str, Any]) -> Any:
    return client.post(reverse("portal:job-create"), values)


def test_a_script_becomes_a_job(client_of: Client, sent: dict[str, Any]) -> None:
    sent |= {
        "arguments": "--fast 'two words'",
        "parameter_name": ["epochs", "rate", "flag", "text", ""],
        "parameter_value": ["3", "0.5", "true", "007x", ""],
    }

    answer = send(client_of, sent)

    job = Job.objects.get()
    assert answer["Location"] == reverse("portal:job-detail", args=[job.public_id])
    assert (job.cpu_millis, job.memory_mib, job.walltime_s, job.max_retries) == (
        1500,
        2048,
        5400,
        1,
    )
    assert job.arguments == ["--fast", "two words"]
    assert job.parameters == {"epochs": 3, "rate": 0.5, "flag": True, "text": "007x"}
    assert selectors.code_text(job.code) == SCRIPT


def test_a_form_sent_twice_makes_one_job(client_of: Client, sent: dict[str, Any]) -> None:
    first, second = send(client_of, sent), send(client_of, sent)

    assert first["Location"] == second["Location"]
    assert Job.objects.count() == 1


def test_a_form_that_was_changed_and_sent_again_makes_another_job(
    client_of: Client, sent: dict[str, Any]
) -> None:
    send(client_of, sent)
    send(client_of, sent | {"name": "second"})
    send(client_of, sent | {"name": "second"})

    assert sorted(Job.objects.values_list("name", flat=True)) == ["first", "second"]


def test_the_program_is_kept_before_the_transaction_that_makes_the_job(
    client_of: Client, sent: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever holds the contents' lock may wait for the database, so nobody does the reverse."""
    depths: dict[str, int] = {}

    def watched(name: str) -> Callable[..., Any]:
        real = getattr(services, name)

        def call(**values: Any) -> Any:
            depths[name] = len(connection.savepoint_ids)
            return real(**values)

        return call

    for name in ("code_create", "job_submit"):
        monkeypatch.setattr(services, name, watched(name))
    outside = len(connection.savepoint_ids)
    send(client_of, sent)

    assert depths["code_create"] == outside
    assert depths["job_submit"] > outside


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"name": ""}, "This field is required"),
        ({"script": "def (:\n"}, "line 1"),
        ({"walltime": "soon"}, "Write a length of time"),
        ({"cpus": "0"}, "greater than or equal to 0.1"),
        ({"memory_gib": "4000"}, "The largest host gives jobs 8192 MiB"),
        ({"gpus": "2"}, "No host has a GPU"),
        ({"arguments": "'open"}, "A quotation mark is not closed"),
        ({"parameter_name": [""], "parameter_value": ["5"]}, "Give the value"),
        ({"parameter_name": ["a", "a"], "parameter_value": ["1", "2"]}, "stands there twice"),
        ({"parameter_name": ["1 x"], "parameter_value": ["1"]}, "is not a name"),
        ({"dataset_version": ["nope"], "dataset_name": ["x"]}, "Choose a dataset for each name"),
        ({"environment": "other"}, "Select a valid choice"),
        ({"source": "upload"}, "Choose a .py, .ipynb or .zip file"),
        ({"source": "editor", "script": " "}, "Write a program first"),
    ],
)
def test_a_refused_form_says_why_and_keeps_everything(
    client_of: Client, sent: dict[str, Any], change: dict[str, Any], sentence: str
) -> None:
    sent |= {"parameter_name": ["epochs"], "parameter_value": ["31"]} | change

    answer = send(client_of, sent)

    page = answer.content.decode()
    assert answer.status_code == 422
    assert sentence in page
    assert not Job.objects.exists()
    if "script" not in change:
        assert "print(&#x27;héllo &lt;b&gt;&#x27;)" in page
    if "parameter_name" not in change:
        assert 'value="31"' in page
    if "walltime" not in change:
        assert 'value="1 h 30 min"' in page
    assert 'value="t1"' in page


def test_an_uploaded_file_outlives_a_refused_form(client_of: Client, sent: dict[str, Any]) -> None:
    del sent["script"]
    file = SimpleUploadedFile("train.py", b"print('from a file')\n")
    refused = send(client_of, sent | {"source": "upload", "file": file, "walltime": "soon"})
    kept = CodeBundle.objects.get()

    assert f'value="{kept.public_id}"' in refused.content.decode()
    send(client_of, sent | {"source": "upload", "code": str(kept.public_id)})

    assert Job.objects.get().code == kept


def test_an_archive_runs_the_file_that_is_named(client_of: Client, sent: dict[str, Any]) -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("a.py", "print('a')\n")
        archive.writestr("b.py", "print('b')\n")
    file = SimpleUploadedFile("code.zip", packed.getvalue())

    send(client_of, sent | {"source": "upload", "file": file, "entrypoint": "b.py"})

    assert Job.objects.get().entrypoint == "b.py"


def test_nobody_runs_anothers_program(
    client_of: Client, sent: dict[str, Any], other_student: User
) -> None:
    theirs = CodeBundleFactory(owner=other_student)

    answer = send(client_of, sent | {"source": "upload", "code": str(theirs.public_id)})

    assert answer.status_code == 422
    assert not Job.objects.exists()


def test_a_template_fills_the_form_and_is_run_as_it_is(
    client_of: Client, sent: dict[str, Any], environment: Environment
) -> None:
    template: JobTemplate = JobTemplateFactory(
        slug="digits",
        environment=environment,
        script="print('template')\n",
        parameters=[{"name": "epochs", "default": 25, "help": "times through the data"}],
        walltime_s=1800,
    )

    page = client_of.get(reverse("portal:job-create"), {"template": "digits"}).content.decode()
    send(client_of, sent | {"source": "template", "template": "digits", "script": "ignored("})

    assert 'value="30 min"' in page
    assert "times through the data" in page
    job = Job.objects.get()
    assert job.template == template.slug
    assert selectors.code_text(job.code) == template.script


def test_a_clone_offers_what_the_first_asked_for(
    client_of: Client, student: User, host: Host
) -> None:
    job = JobFactory(
        owner=student,
        name="first",
        code=CodeBundleFactory(owner=student, source="print('the first')\n"),
        arguments=["two words"],
        parameters={"rate": 0.25},
        memory_mib=1536,
        walltime_s=5400,
    )

    page = client_of.get(reverse("portal:job-clone", args=[job.public_id])).content.decode()

    for shown in (
        "print(&#x27;the first&#x27;)",
        "0.25",
        'value="1.5"',
        "1 h 30 min",
        "&#x27;two words&#x27;",
    ):
        assert shown in page


def test_a_clone_of_an_archive_keeps_the_archive(
    client_of: Client, sent: dict[str, Any], student: User
) -> None:
    archive = CodeBundleFactory(owner=student, kind=CodeKind.ARCHIVE, filename="code.zip")
    job = JobFactory(owner=student, code=archive)

    page = client_of.get(reverse("portal:job-clone", args=[job.public_id])).content.decode()
    send(client_of, sent | {"source": "kept", "code": str(archive.public_id), "script": ""})

    assert "code.zip" in page
    assert Job.objects.exclude(pk=job.pk).get().code == archive


def test_too_many_jobs_are_refused_in_words(
    client_of: Client, sent: dict[str, Any], student: User
) -> None:
    student.max_active_jobs = 0
    student.save()

    answer = send(client_of, sent)

    assert answer.status_code == 422
    assert "wait for one or cancel one" in answer.content.decode()


@pytest.mark.parametrize(
    ("typed", "seconds"),
    [
        ("30 min", 1800),
        ("1h30m", 5400),
        ("2 hours", 7200),
        ("1:30", 5400),
        ("0:00:45", 45),
        ("1.5 h", 5400),
        ("1 d", 86_400),
    ],
)
def test_lengths_of_time_are_taken_as_people_write_them(typed: str, seconds: int) -> None:
    assert SpanField().clean(typed) == seconds
    assert SpanField().clean(in_words(seconds)) == seconds


@pytest.mark.parametrize(
    ("typed", "value"),
    [
        ("1", 1),
        ("1e-3", 0.001),
        ("true", True),
        ("null", "null"),
        ("[1]", "[1]"),
        ("", ""),
        ("adam", "adam"),
        ('"1"', '"1"'),
    ],
)
def test_values_are_numbers_where_they_are_numbers(typed: str, value: Any) -> None:
    assert parsed(typed) == value
    assert type(parsed(typed)) is type(value)
