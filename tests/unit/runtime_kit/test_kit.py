"""The kit in interpreters of its own, as jobs have it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

KIT = Path(__file__).resolve().parents[3] / "jobs" / "runtime_kit"


def run(tmp_path: Path, program: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(KIT),
        "STARLING_JOB": "some-job",
        "STARLING_OUTPUT_DIR": str(tmp_path),
        "STARLING_DATA_DIR": str(tmp_path / "data"),
        **variables,
    }
    return subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={name: value for name, value in environment.items() if value},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_report_is_one_marked_line_of_json(tmp_path: Path) -> None:
    done = run(tmp_path, "from starling_kit import report; report(step=3, loss=0.5, word='x')")

    mark, _, body = done.stdout.strip("\n").partition("starling ")
    assert mark == "\x1e"
    assert json.loads(body) == {"metrics": {"loss": 0.5}, "step": 3}


def test_infinite_values_are_reported_as_unknown(tmp_path: Path) -> None:
    done = run(tmp_path, "from starling_kit import report; report(loss=float('nan'))")

    assert json.loads(done.stdout.partition("starling ")[2]) == {"metrics": {"loss": None}}


def test_outside_a_job_the_kit_is_silent_and_harmless(tmp_path: Path) -> None:
    program = "import starling_kit as k; k.report(loss=1); print(k.parameters(), k.output_dir())"

    done = run(tmp_path, program, STARLING_JOB="", STARLING_OUTPUT_DIR="")

    assert done.stdout == "{} .\n"
    assert done.returncode == 0


def test_parameters_and_the_only_dataset_are_found(tmp_path: Path) -> None:
    (tmp_path / "data" / "digits").mkdir(parents=True)
    program = "import starling_kit as k; print(k.parameters()['epochs'], k.data_dir())"

    done = run(tmp_path, program, STARLING_PARAMETERS='{"epochs": 3}')

    assert done.stdout == f"3 {tmp_path}/data/digits\n"


def test_a_job_without_a_dataset_is_told_what_to_do(tmp_path: Path) -> None:
    done = run(tmp_path, "import starling_kit as k; k.data_dir()")

    assert "Choose one when you submit it" in done.stderr


def test_a_framework_that_breaks_the_hooks_does_not_break_the_program(tmp_path: Path) -> None:
    (tmp_path / "tensorflow.py").write_text("def __getattr__(name): raise RuntimeError('odd')\n")
    program = "import sys; sys.path.insert(0, '.'); import tensorflow; print('went on')"

    done = run(tmp_path, program, STARLING_GPU_MEMORY_MIB="1000")

    assert done.stdout == "went on\n"
    assert done.stderr == ""


def test_the_memory_cap_is_set_before_the_program_goes_on(tmp_path: Path) -> None:
    (tmp_path / "tensorflow.py").write_text(
        "class config:\n"
        "    LogicalDeviceConfiguration = dict\n"
        "    list_physical_devices = staticmethod(lambda kind: ['gpu0', 'gpu1'])\n"
        "    set_logical_device_configuration = staticmethod(lambda *a: print('cap', *a))\n"
    )
    program = "import sys; sys.path.insert(0, '.'); import tensorflow; print('went on')"

    done = run(tmp_path, program, STARLING_GPU_MEMORY_MIB="1000")

    assert done.stdout.splitlines() == [
        "cap gpu0 [{'memory_limit': 1000}]",
        "cap gpu1 [{'memory_limit': 1000}]",
        "went on",
    ]


def test_a_sitecustomize_that_was_there_before_still_runs(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('the other one')\n")

    done = run(tmp_path, "print('program')", PYTHONPATH=f"{KIT}:{tmp_path}")

    assert done.stdout == "the other one\nprogram\n"


@pytest.mark.parametrize("version", ["3.8"])
def test_the_kit_is_written_for_old_interpreters_too(version: str) -> None:
    import ast

    major, minor = (int(part) for part in version.split("."))
    for path in KIT.glob("*.py"):
        ast.parse(path.read_text(), feature_version=(major, minor))
