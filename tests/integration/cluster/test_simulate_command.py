"""The command that simulates: what it prints and writes, and what it refuses."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

from cluster.management.commands import simulate

EXAMPLES = Path(__file__).parents[3] / "docs/examples"
HOSTS, COURSE = str(EXAMPLES / "hosts.json"), str(EXAMPLES / "course.csv")


def printed(*arguments: str) -> str:
    out = StringIO()
    call_command("simulate", *arguments, stdout=out)
    return out.getvalue()


def on_course(*arguments: str) -> str:
    return printed("--hosts", HOSTS, "--workload", COURSE, *arguments)


def test_policies_are_compared_in_a_table() -> None:
    table = on_course("--policy", "first-fit", "--policy", "first-fit+easy")

    head, *rows = table.splitlines()
    assert head.split() == ["first-fit", "first-fit+easy"]
    assert any(row.startswith("Makespan (s)") for row in rows)
    assert rows[-1].split() == ["Jobs:", "completed", "40", "40"]


def test_json_says_everything_and_the_same_again() -> None:
    text = on_course("--policy", "first-fit", "--json", "--seed", "3", "--host-mtbf-s", "4000")

    (report,) = json.loads(text)
    assert report["seed"] == 3
    assert len(report["jobs"]) == sum(report["outcomes"].values()) == 40
    assert on_course(
        "--policy", "first-fit", "--json", "--seed", "3", "--host-mtbf-s", "4000"
    ) == text  # fmt: skip


def test_the_page_stands_alone_and_is_written_whole(tmp_path: Path) -> None:
    page = tmp_path / "report.html"

    on_course("--policy", "first-fit", "--policy", "first-fit+fifo", "--html", str(page))

    text = page.read_text()
    assert [file.name for file in tmp_path.iterdir()] == ["report.html"]
    assert "<script src" not in text
    assert "<link" not in text
    assert "Who waits longer under first-fit+fifo than under first-fit" in text
    assert '"title": "GPU claimed"' in text


def test_names_from_a_file_cannot_end_the_script_of_the_page(tmp_path: Path) -> None:
    workload = tmp_path / "w.json"
    evil = "</script><script>alert(1)</script>"
    workload.write_text(
        json.dumps({"name": evil, "jobs": [{"id": evil, "submitted_s": 0, "duration_s": 1}]})
    )
    page = tmp_path / "report.html"

    printed(
        *("--hosts", HOSTS, "--workload", str(workload)),
        *("--policy", "first-fit", "--html", str(page)),
    )

    assert evil not in page.read_text()


def test_a_placer_of_ones_own_comes_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from cluster.core.placement.first_fit import FirstFit\n\n\n"
        "class Mine(FirstFit):\n    name = 'mine'\n"
    )

    table = on_course("--policy", f"{file}:Mine", "--policy", f"{file}:Mine+easy", "--jobs", "5")

    assert table.splitlines()[-1].split() == ["Jobs:", "completed", "5", "5"]


def test_cloudsims_scenarios_are_printed_as_json() -> None:
    found = json.loads(printed("--cloudsim", str(EXAMPLES / "cloudlets.json"), "--json"))

    assert [scenario["name"] for scenario in found] == [
        "one element by space",
        "one element by time",
    ]
    assert set(found[0]["cloudlets"][0]) == {"id", "start_s", "finish_s"}
    assert round(found[0]["cloudlets"][0]["finish_s"]) == 400


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--workload", COURSE, "--policy", "first-fit"), "--hosts is missing"),
        (("--hosts", HOSTS, "--workload", COURSE), "--policy is missing"),
        (
            ("--hosts", HOSTS, "--workload", "none.csv", "--policy", "first-fit"),
            "none.csv: cannot be read: No such file",
        ),
        (
            ("--hosts", COURSE, "--workload", COURSE, "--policy", "first-fit"),
            "course.csv, row 0, column gpu: this column is missing",
        ),
        (
            ("--hosts", HOSTS, "--workload", COURSE, "--policy", "frist-fit"),
            "there is no placer 'frist-fit'. Did you mean 'first-fit'",
        ),
        (
            ("--hosts", HOSTS, "--workload", COURSE, "--policy", "first-fit+fivo"),
            "there is no queue policy 'fivo'. Did you mean 'fifo'",
        ),
        (("--cloudsim", COURSE), "course.csv: this is no JSON"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(arguments: tuple[str, ...], words: str) -> None:
    with pytest.raises(CommandError) as caught:
        printed(*arguments)

    assert caught.value.returncode == 2
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_report_that_cannot_be_written_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = tmp_path / "report.html"
    old.write_text("the one of yesterday")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)

    with pytest.raises(CommandError, match="cannot be written: No space left"):
        on_course("--policy", "first-fit", "--html", str(old))

    assert [file.name for file in tmp_path.iterdir()] == ["report.html"]
    assert old.read_text() == "the one of yesterday"


def test_a_report_into_no_folder_is_refused_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(simulate, "simulate", None)

    with pytest.raises(CommandError, match="there is no folder"):
        on_course("--policy", "first-fit", "--html", str(tmp_path / "none/report.html"))


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_drawn_where_somebody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal, pipe = Terminal(), StringIO()

    monkeypatch.setattr("sys.stderr", terminal)
    on_course("--policy", "first-fit")
    monkeypatch.setattr("sys.stderr", pipe)
    on_course("--policy", "first-fit")

    assert "[##############################] 100 %  first-fit\n" in terminal.getvalue()
    assert pipe.getvalue() == ""
