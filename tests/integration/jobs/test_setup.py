"""What an empty installation is filled with, and that doing it again changes nothing."""

from __future__ import annotations

import shutil
import sys
from io import StringIO
from pathlib import Path

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError

from cluster.models import Host, HostConnection
from jobs import selectors
from jobs.lifecycle import JobStatus
from jobs.models import Dataset, DatasetVersion, Environment, Job, JobTemplate
from jobs.services import shipped
from portal.models import User

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _own_state(settings: object, tmp_path: Path) -> None:
    settings.STATE_DIR = tmp_path / "state"  # type: ignore[attr-defined]
    install("tensorflow", tmp_path / "state")


def install(environment: str, state: Path) -> None:
    """Put an interpreter where an environment's is looked for."""
    binaries = state / "environments" / environment / "bin"
    binaries.mkdir(parents=True)
    (binaries / "python").symlink_to(sys.executable)


def setup(*words: str) -> str:
    out = StringIO()
    call_command("setup", *words, stdout=out)
    return out.getvalue()


def everything() -> list[object]:
    models = (User, Host, Environment, JobTemplate, Dataset, DatasetVersion, Job)
    return [sorted(model.objects.values_list("pk", flat=True)) for model in models]


def test_the_first_time_makes_all_a_first_job_needs_and_submits_it() -> None:
    said = setup("--url", "http://127.0.0.1:8000")

    student = User.objects.get(username="student")
    job = Job.objects.get()
    assert said.count("(shown once)") == 2
    assert f"http://127.0.0.1:8000/jobs/{job.public_id}/" in said
    assert (job.owner, job.status, job.template) == (student, JobStatus.PENDING, "digits-keras")
    assert Host.objects.get().connection == HostConnection.UP
    assert User.objects.get(username="admin").is_superuser
    assert "digits" in {dataset.name for dataset in selectors.dataset_list(user=student)}
    assert selectors.template_list(user=student).count() >= 5


def test_the_second_time_changes_nothing_and_shows_no_password() -> None:
    setup()
    before = everything()

    said = setup()

    assert everything() == before
    assert "password" not in said


def test_without_its_environment_the_example_waits_and_says_why(tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "state" / "environments")

    said = setup()

    assert not Job.objects.exists()
    assert "ask an admin to install it" in said


def test_the_printed_password_signs_in() -> None:
    line = next(line for line in setup().splitlines() if "as student" in line)
    password = line.split("password ")[1].split(" ")[0]

    assert User.objects.get(username="student").check_password(password)


def test_an_engine_that_does_not_answer_is_said_in_words(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/docker.sock")

    with pytest.raises(CommandError, match="doctor"):
        setup("--runtime", "docker")


class TestLibrary:
    def shelf(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
        monkeypatch.setattr(shipped, "LIBRARY", tmp_path)
        (tmp_path / "library.toml").write_text(
            '[[environments]]\nslug = "plain"\nname = "Plain"\n'
            '[[templates]]\nslug = "one"\ntitle = "One"\nfile = "one.py"\nenvironment = "plain"\n'
        )
        (tmp_path / "one.py").write_text(script)

    def test_a_new_release_brings_its_templates(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.shelf(tmp_path, monkeypatch, "print(1)\n")
        assert shipped.shipped_load() == 2
        assert shipped.shipped_load() == 0

        self.shelf(tmp_path, monkeypatch, "print(2)\n")
        assert shipped.shipped_load() == 1

        assert JobTemplate.objects.get(slug="one").script == "print(2)\n"

    def test_what_an_admin_changed_stays(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.shelf(tmp_path, monkeypatch, "print(1)\n")
        shipped.shipped_load()
        JobTemplate.objects.filter(slug="one").update(script="print('ours')\n")

        self.shelf(tmp_path, monkeypatch, "print(2)\n")
        assert shipped.shipped_load() == 0

        assert JobTemplate.objects.get(slug="one").script == "print('ours')\n"

    def test_a_row_that_an_admin_made_under_the_same_name_stays(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        Environment.objects.create(slug="plain", name="Ours")
        self.shelf(tmp_path, monkeypatch, "print(1)\n")

        shipped.shipped_load()

        assert Environment.objects.get(slug="plain").name == "Ours"


def test_a_simulated_machine_has_the_cores_of_one(settings: object) -> None:
    settings.STARLING = {**settings.STARLING, "SIMULATED_GPUS": "8xa100"}  # type: ignore[attr-defined]

    said = setup("--no-example")

    assert "pretends to be 8xA100; nothing of it is real" in said
    assert Host.objects.get().cpu_millis == 32_000
