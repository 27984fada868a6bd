"""The rules of the house that a reviewer need not check by eye."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from celery import current_app
from django.apps import apps
from django.conf import settings
from django.core.management import call_command
from importlinter.cli import EXIT_STATUS_SUCCESS, lint_imports

ROOT = Path(__file__).resolve().parent.parent.parent
OURS = {"portal", "monitoring", "jobs", "cluster"}


def test_imports_go_in_one_direction(capsys: pytest.CaptureFixture[str]) -> None:
    status = lint_imports(config_filename=str(ROOT / ".importlinter"), no_cache=True)

    assert status == EXIT_STATUS_SUCCESS, capsys.readouterr().out


def task_names() -> set[str]:
    from portal.celery import app

    app.loader.import_default_modules()
    return {name for name in app.tasks if name.split(".")[0] in OURS}


def test_every_task_is_named_after_the_module_it_is_in() -> None:
    for name in task_names():
        task = current_app.tasks[name]
        package = task.run.__module__.split(".")[0]
        assert name.split(".")[0] == package
        assert name.count(".") == 1, f"{name}: a task's name is <app>.<verb>"


def test_what_beat_starts_is_there() -> None:
    scheduled = {entry["task"] for entry in settings.CELERY_BEAT_SCHEDULE.values()}

    assert scheduled <= task_names()


def test_what_is_dispatched_by_name_is_there() -> None:
    text = (ROOT / "jobs" / "dispatch.py").read_text()
    dispatched = set(re.findall(r'"((?:portal|jobs|cluster|monitoring)\.[a-z_]+)"', text))

    assert dispatched
    assert dispatched <= task_names()


def test_no_task_waits_for_a_training() -> None:
    assert settings.CELERY_TASK_SOFT_TIME_LIMIT <= 30
    for name in task_names():
        task = current_app.tasks[name]
        assert (task.soft_time_limit or 0) <= 30, name
        assert task.acks_late or settings.CELERY_TASK_ACKS_LATE, name


@pytest.mark.django_db
def test_no_migration_is_missing() -> None:
    out = io.StringIO()
    try:
        call_command("makemigrations", check=True, dry_run=True, verbosity=1, stdout=out)
    except SystemExit:
        pytest.fail(out.getvalue())


def test_every_migration_has_a_name() -> None:
    for name in OURS:
        folder = Path(apps.get_app_config(name).path) / "migrations"
        numbers = [path.name for path in sorted(folder.glob("[0-9]*.py"))]
        assert numbers
        unnamed = [n for n in numbers if re.search(r"_(auto|alter_and_more|initial_\d)", n)]
        assert not unnamed


def test_settings_alone_read_the_environment() -> None:
    readers = [
        path.relative_to(ROOT).as_posix()
        for package in OURS
        for path in (ROOT / package).rglob("*.py")
        if re.search(r"os\.environ\[|os\.getenv|os\.environ\.get", path.read_text())
    ]
    outside = {
        reader
        for reader in readers
        if not reader.startswith(("portal/settings/", "jobs/runtime_kit/", "cluster/probe/"))
        and not reader.startswith(("jobs/library/", "cluster/adapters/"))
    } - {"portal/management/commands/setup.py"}  # DOCKER_HOST is Docker's own variable

    assert not outside, "read it in portal/settings/env.py and pass it on"


def test_statuses_are_written_in_one_place() -> None:
    """Only ``job_transition`` moves a job; anything else would skip the compare-and-set."""
    writers = []
    for package in OURS:
        for path in (ROOT / package).rglob("*.py"):
            if "migrations" in path.parts:
                continue
            text = path.read_text()
            if re.search(r"\bjob\.status\s*=[^=]", text):
                writers.append(path.relative_to(ROOT).as_posix())
    assert not writers
