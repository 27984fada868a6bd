"""Real programs under the supervisor, ended in every way."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from portal.supervision import pause_before_restart
from tests.fakes.installation import ROOT, Installation, eventually

PROGRAM = """
import pathlib, sys
from portal.supervision import Program, Supervisor
import signal
state = pathlib.Path(sys.argv[1])
sleeper = [sys.executable, "-c", "import subprocess, time; "
    "subprocess.Popen(['sleep', '300']); print('alive', flush=True); time.sleep(300)"]
supervisor = Supervisor(
    [Program(name="one", command=sleeper), Program(name="two", command=sleeper)],
    state_dir=state, echo=lambda name, line: print(name, line, flush=True))
signal.signal(signal.SIGTERM, lambda *_: supervisor.stop())
supervisor.run(on_ready=lambda: print("ready", flush=True))
"""


@pytest.fixture
def supervisor(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(tmp_path)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    yield process
    process.kill()
    process.wait(10)
    assert process.stdout is not None
    process.stdout.close()


def children(tmp_path: Path) -> dict[str, int]:
    facts = json.loads((tmp_path / "run" / "up.json").read_text())
    return {name: child["pid"] for name, child in facts["children"].items()}


def ready(supervisor: subprocess.Popen[str]) -> None:
    assert supervisor.stdout is not None
    for line in supervisor.stdout:
        if line.startswith("ready"):
            return
    raise AssertionError("the supervisor ended")


def gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_a_program_that_is_killed_is_started_again(
    supervisor: subprocess.Popen[str], tmp_path: Path
) -> None:
    ready(supervisor)
    before = children(tmp_path)

    os.kill(before["one"], signal.SIGKILL)

    eventually(lambda: children(tmp_path)["one"] not in {None, before["one"]}, what="a new process")
    assert children(tmp_path)["two"] == before["two"]


def test_no_program_outlives_a_supervisor_that_was_killed(
    supervisor: subprocess.Popen[str], tmp_path: Path
) -> None:
    ready(supervisor)
    pids = list(children(tmp_path).values())

    supervisor.kill()

    eventually(lambda: all(gone(pid) for pid in pids), what="the programs to end")


def test_a_second_supervisor_on_the_same_folder_is_refused(
    supervisor: subprocess.Popen[str], tmp_path: Path
) -> None:
    ready(supervisor)

    second = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )

    assert second.returncode != 0
    assert "runs already" in second.stderr
    assert supervisor.poll() is None


def test_the_pause_before_a_restart_doubles_up_to_half_a_minute() -> None:
    pauses = [pause_before_restart(failures) for failures in range(1, 10)]

    assert pauses == [0.5, 1, 2, 4, 8, 16, 30, 30, 30]


@pytest.fixture(scope="module")
def portal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    installation = Installation(state=tmp_path_factory.mktemp("portal"))
    installation.set_up("--no-example")
    yield installation
    installation.close()


def test_up_answers_and_ends_without_leaving_a_process(portal: Installation) -> None:
    portal.start()
    assert portal.up is not None
    tree = psutil.Process(portal.up.pid).children(recursive=True)
    second = portal.manage("up", "--port", str(portal.port), check=False)

    portal.up.send_signal(signal.SIGTERM)
    code = portal.up.wait(60)

    assert code == 0
    assert "runs already" in second.stderr
    assert len(tree) >= 5
    eventually(lambda: all(gone(process.pid) for process in tree), what="every process to end")


def test_a_port_that_is_taken_is_said_in_words(portal: Installation) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]

        refused = portal.manage("up", "--port", str(port), check=False)

    assert refused.returncode == 1
    assert "Choose another port" in refused.stderr


def test_a_killed_portal_leaves_no_process(portal: Installation) -> None:
    portal.start()
    assert portal.up is not None
    tree = psutil.Process(portal.up.pid).children(recursive=True)

    portal.up.kill()
    portal.up.wait(10)

    eventually(lambda: all(gone(process.pid) for process in tree), what="every process to end")


def test_the_doctor_says_what_is_missing_and_how_to_mend_it(portal: Installation) -> None:
    found = portal.manage("doctor", "--json", check=False)
    told = portal.manage("doctor", check=False)

    assert '"name": "database"' in found.stdout
    assert "scripts/run" in told.stdout
    assert "host this-machine" in told.stdout


def test_the_doctor_of_an_empty_folder_names_the_migrations(tmp_path: Path) -> None:
    with closing(Installation(state=tmp_path)) as empty:
        told = empty.manage("doctor", check=False)

    assert told.returncode == 1
    assert "migrations are not applied" in told.stdout
    assert "manage.py migrate" in told.stdout
