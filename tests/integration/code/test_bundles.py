from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path

import pytest

from jobs import selectors, services, storage
from jobs.errors import InvalidInputError, NotFoundError, QuotaExceededError
from jobs.models import CodeBundle, CodeKind
from portal.models import User
from tests.unit.storage.archives import zip_member, zipped

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def state(settings: object, tmp_path: Path) -> Path:
    settings.STATE_DIR = tmp_path / "state"  # type: ignore[attr-defined]
    return tmp_path / "state"


def notebook(*cells: str | list[str], language: str = "python") -> bytes:
    return json.dumps(
        {
            "nbformat": 4,
            "metadata": {"kernelspec": {"language": language}},
            "cells": [
                {"cell_type": "markdown", "source": "# Title"},
                *({"cell_type": "code", "source": source} for source in cells),
            ],
        }
    ).encode()


def refused(owner: User, now: datetime, filename: str, content: bytes, **more: str) -> str:
    with pytest.raises(InvalidInputError) as error:
        services.code_create(owner=owner, filename=filename, content=content, now=now, **more)
    assert not CodeBundle.objects.exists()
    assert not storage.staging_dir().exists() or not any(storage.staging_dir().iterdir())
    return str(error.value)


def test_a_script(student: User, now: datetime) -> None:
    bundle = services.code_create(owner=student, filename="run.py", content=b"print(1)\n", now=now)

    assert (bundle.kind, bundle.entrypoint, bundle.size_bytes) == (CodeKind.SCRIPT, "run.py", 9)
    assert selectors.code_text(bundle) == "print(1)\n"
    assert selectors.code_files(bundle) == ["run.py"]


def test_the_same_script_again_is_the_same_bundle(
    student: User, other_student: User, now: datetime
) -> None:
    bundles = [
        services.code_create(owner=owner, filename="run.py", content=b"print(1)", now=now)
        for owner in (student, student, other_student)
    ]

    assert bundles[0] == bundles[1] != bundles[2]
    assert len({bundle.sha256 for bundle in bundles}) == 1
    with pytest.raises(NotFoundError):
        selectors.code_get(other_student, bundles[0].public_id)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"x = 1\ny = (\n", "line 2"),
        (b"def f():\nreturn 1\n", "line 2"),
        (b"# -*- coding: klingon -*-\n", "encoding"),
        (b"\xff\xfe\x00", "its encoding"),
        (b"a\0b", ""),
        (b"(" * 5000, ""),
        (b"", "empty"),
    ],
)
def test_a_script_that_is_no_python(
    student: User, now: datetime, content: bytes, says: str
) -> None:
    assert says in refused(student, now, "run.py", content)


def test_a_questionable_escape_is_no_error(student: User, now: datetime) -> None:
    assert services.code_create(
        owner=student, filename="run.py", content=b'print("\\d")\n1 is 1\n', now=now
    )


def test_another_kind_of_file(student: User, now: datetime) -> None:
    assert ".ipynb" in refused(student, now, "run.sh", b"echo")


def test_no_room_left(student: User, now: datetime) -> None:
    student.storage_quota_mib = 0
    student.save()

    with pytest.raises(QuotaExceededError):
        services.code_create(owner=student, filename="run.py", content=b"1", now=now)


class TestNotebook:
    def script(self, owner: User, now: datetime, *cells: str | list[str]) -> str:
        bundle = services.code_create(
            owner=owner, filename="My notebook.ipynb", content=notebook(*cells), now=now
        )
        assert (bundle.kind, bundle.entrypoint) == (CodeKind.NOTEBOOK, "My_notebook.py")
        return selectors.code_text(bundle)

    def test_code_cells_become_a_script(self, student: User, now: datetime) -> None:
        script = self.script(student, now, "x = 1", ["y = 2\n", "print(x + y)"])

        assert "# %% cell 2\nx = 1" in script
        assert "y = 2\nprint(x + y)" in script
        assert "Title" not in script

    def test_what_only_a_notebook_understands_is_commented_out(
        self, student: User, now: datetime
    ) -> None:
        script = self.script(
            student,
            now,
            "%matplotlib inline\nimport os\n!pip install x\nos?",
            "if True:\n    !nvidia-smi\nprint(1)",
            "%%bash\nls -l\nif",
            "%%time\nprint(2)",
        )

        assert "# not run outside a notebook: %matplotlib inline\nimport os\n" in script
        assert "    pass  # not run outside a notebook: !nvidia-smi\nprint(1)" in script
        assert "# not run outside a notebook: ls -l" in script
        assert "\nprint(2)" in script

    def test_a_text_with_such_lines_stays_as_it_is(self, student: User, now: datetime) -> None:
        cell = 'x = """\n%d\n!important\n"""'

        assert cell in self.script(student, now, cell)

    def test_an_error_in_a_cell(self, student: User, now: datetime) -> None:
        assert "line" in refused(student, now, "a.ipynb", notebook("x = ("))

    @pytest.mark.parametrize(
        "content",
        [
            b"{",
            b"[]",
            b"{}",
            b'{"cells": 1}',
            b'{"cells": [{"cell_type": "code"}]}',
            b"[" * 100_000,
            notebook(),
            notebook("x <- 1", language="R"),
        ],
    )
    def test_what_is_no_notebook(self, student: User, now: datetime, content: bytes) -> None:
        refused(student, now, "a.ipynb", content)


class TestArchive:
    def bundle(self, owner: User, now: datetime, *paths: str, entrypoint: str = "") -> CodeBundle:
        content = zipped((path, b"pass") for path in paths)
        return services.code_create(
            owner=owner, filename="code.zip", content=content, entrypoint=entrypoint, now=now
        )

    @pytest.mark.parametrize(
        ("paths", "found"),
        [
            (["main.py", "train.py"], "main.py"),
            (["a.py", "train.py"], "train.py"),
            (["only.py", "data.txt"], "only.py"),
            (["only.py", "package/a.py", "package/main.py"], "only.py"),
            (["project/main.py", "project/lib/main.py"], "project/main.py"),
            (["a.py", "b.py"], ""),
        ],
    )
    def test_what_is_run(self, student: User, now: datetime, paths: list[str], found: str) -> None:
        bundle = self.bundle(student, now, *paths)

        assert (bundle.kind, bundle.entrypoint) == (CodeKind.ARCHIVE, found)
        assert selectors.code_files(bundle) == sorted(paths)

    def test_what_is_run_is_chosen(self, student: User, now: datetime) -> None:
        assert self.bundle(student, now, "a.py", "b.py", entrypoint="b.py").entrypoint == "b.py"

    def test_a_choice_that_is_not_there(self, student: User, now: datetime) -> None:
        content = zipped([("a.py", b"")])

        assert "c.py" in refused(student, now, "code.zip", content, entrypoint="c.py")

    @pytest.mark.parametrize(
        ("content", "says"),
        [
            (zipped([("../main.py", b"")]), "'..'"),
            (zipped([(zip_member("main.py", 0o120777), b"/etc/passwd")]), "link"),
            (zipped([("data.csv", b"")]), "no Python file"),
            (zipped([("main.py", b"x = (")]), "line 1"),
            (zipped([("main.py", b""), ("zeros", bytes(201 << 20))]), "200 MiB"),
            (b"no zip", "damaged"),
        ],
        ids=range(6),
    )
    def test_what_is_refused(self, student: User, now: datetime, content: bytes, says: str) -> None:
        assert says in refused(student, now, "code.zip", content)
