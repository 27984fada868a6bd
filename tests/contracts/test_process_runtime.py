"""What only the process runtime has to withstand: deaths around it, and limits it keeps itself."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from cluster.adapters import process_cgroup
from cluster.adapters.process_runtime import ProcessRuntime, bubblewrap_works
from cluster.errors import HostRefusedError, LaunchFailedError
from cluster.ports import ContainerState, HostEndpoint
from tests.conftest import require
from tests.contracts.conftest import Bench
from tests.contracts.test_container_runtime import held

ENDPOINT = HostEndpoint(name="local", url="process://local")
WAITS = """
    import fcntl, signal
    stream = open("lock", "w")
    fcntl.flock(stream, fcntl.LOCK_EX)
    print("ready")
    signal.pause()
"""


@pytest.fixture(params=["plain", "sandbox"])
def processes(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    sandbox = request.param == "sandbox"
    require(not sandbox or bubblewrap_works(), "a working bubblewrap")
    runtime = ProcessRuntime(ENDPOINT, state_dir=tmp_path / "state", allowed=True, sandbox=sandbox)
    made = Bench(kind=request.param, runtime=runtime, folder=tmp_path)
    yield made
    for status in runtime.containers(made.labels):
        runtime.remove(status.name)


@pytest.fixture
def unguarded(processes: Bench, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """A machine on which no control group can be made."""
    monkeypatch.setattr(process_cgroup, "make", lambda *_: {})
    return processes


def shim_of(bench: Bench, name: str) -> psutil.Process:
    record = json.loads((bench.folder / "state/processes" / name / "shim.json").read_text())
    return psutil.Process(record["pid"])


def test_a_program_does_not_outlive_its_shim(processes: Bench) -> None:
    spec = processes.spec(WAITS)
    processes.runtime.start(spec)
    processes.says(spec.name, "ready")
    shim = shim_of(processes, spec.name)
    tree = shim.children(recursive=True)

    shim.kill()
    psutil.wait_procs([shim, *tree], timeout=20)
    status, lines = processes.ended(spec.name)

    assert (status.state, status.exit_code) == (ContainerState.EXITED, None)
    assert [line.text for line in lines] == ["ready"]
    assert not held(processes.work / "lock")


def test_a_container_outlives_who_started_it(processes: Bench) -> None:
    spec = processes.spec(WAITS)
    starter = f"""
import os, pathlib, signal
from cluster.adapters.process_runtime import ProcessRuntime
from cluster.core.resources import *
from cluster.ports import *
runtime = ProcessRuntime(
    HostEndpoint(name="local", url="process://local"),
    state_dir=pathlib.Path({str(processes.folder / "state")!r}),
    allowed=True,
    sandbox={processes.isolated},
)
runtime.start({spec!r})
os.killpg(0, signal.SIGKILL)
"""
    died = subprocess.run([sys.executable, "-c", starter], start_new_session=True, check=False)
    assert died.returncode == -signal.SIGKILL

    processes.says(spec.name, "ready")
    found = processes.runtime.inspect(spec.name)
    processes.runtime.terminate(spec.name)
    status, _ = processes.ended(spec.name)

    assert found is not None
    assert found.state is ContainerState.RUNNING
    assert status.exit_code == 143


def test_a_pid_that_was_given_to_another_is_left_alone(processes: Bench) -> None:
    spec = processes.spec(WAITS)
    processes.runtime.start(spec)
    processes.says(spec.name, "ready")
    shim = shim_of(processes, spec.name)
    tree = shim.children(recursive=True)
    shim.kill()
    psutil.wait_procs([shim, *tree], timeout=20)
    record = processes.folder / "state/processes" / spec.name / "shim.json"

    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as other:
        record.write_text(json.dumps(json.loads(record.read_text()) | {"pid": other.pid}))
        processes.runtime.terminate(spec.name)
        processes.runtime.kill(spec.name)
        status = processes.runtime.inspect(spec.name)
        processes.runtime.remove(spec.name)
        spared = other.poll() is None
        other.kill()

    assert spared
    assert status is not None
    assert status.state is ContainerState.EXITED


def test_the_log_has_a_limit_and_says_how_much_is_missing(processes: Bench) -> None:
    spec = processes.spec(
        "for number in range(30_000): print(f'{number:0100}')", log_limit_mib=1, environment={}
    )
    processes.runtime.start(spec)
    status, lines = processes.ended(spec.name)

    *kept, last = [line.text for line in lines]
    assert status.exit_code == 0
    assert kept == [f"{number:0100}" for number in range(len(kept))]
    assert sum(len(text) + 1 for text in kept) > 2**20 - 200
    assert last == f"[{30_000 - len(kept)} more lines were not kept]"
    log = processes.folder / "state/processes" / spec.name / "log"
    assert log.stat().st_size < 8 * 2**20


def test_empty_lines_do_not_fill_the_disk(processes: Bench) -> None:
    spec = processes.spec("print('\\n' * 600_000)", log_limit_mib=1, environment={})
    processes.runtime.start(spec)
    processes.ended(spec.name)

    log = processes.folder / "state/processes" / spec.name / "log"
    assert log.stat().st_size < 9 * 2**20


def test_memory_is_limited_without_control_groups(unguarded: Bench) -> None:
    status, _ = unguarded.run(
        """
        import subprocess, sys
        eat = "kept = []\\nwhile True: kept.append(bytearray(2**20))"
        subprocess.run([sys.executable, "-c", eat])
        """,
        memory_mib=128,
    )

    assert (status.exit_code, status.oom_killed) == (137, True)


def test_memory_that_is_shared_counts_once(unguarded: Bench) -> None:
    status, lines = unguarded.run(
        """
        import os, time
        kept = bytearray(os.urandom(60 * 2**20))
        children = []
        for _ in range(4):
            read, write = os.pipe()
            if (pid := os.fork()) == 0:
                os.close(write)
                os.read(read, 1)
                os._exit(0)
            children.append((pid, write))
        time.sleep(1)
        for pid, write in children:
            os.close(write)
        print("done")
        """,
        memory_mib=192,
    )

    assert [line.text for line in lines] == ["done"]
    assert (status.exit_code, status.oom_killed) == (0, False)


def test_processes_are_limited_without_control_groups(unguarded: Bench) -> None:
    status, lines = unguarded.run(
        """
        import os, time
        for _ in range(60):
            if os.fork() == 0:
                time.sleep(600)
        time.sleep(600)
        """,
        pids_limit=30,
    )

    assert (status.exit_code, status.oom_killed) == (137, False)
    assert [line.text for line in lines] == ["[ended: more processes than allowed]"]


def test_processes_are_limited_by_control_groups(processes: Bench) -> None:
    status, lines = processes.run(
        """
        import os, time
        made = 0
        try:
            while made < 100:
                if os.fork() == 0:
                    time.sleep(600)
                made += 1
        except OSError:
            print("refused")
        """,
        pids_limit=30,
    )
    record = processes.folder / "state/processes" / status.name / "spec.json"
    groups = json.loads(record.read_text())["cgroups"]
    if "pids" not in groups:
        pytest.skip("no control group can be made on this machine")

    assert [line.text for line in lines] == ["refused"]
    assert not any(Path(folder).exists() for folder in groups.values())


def test_a_program_that_is_not_there_leaves_nothing(tmp_path: Path) -> None:
    runtime = ProcessRuntime(ENDPOINT, state_dir=tmp_path, allowed=True, sandbox=False)
    bench = Bench(kind="plain", runtime=runtime, folder=tmp_path)
    spec = bench.spec(command=("/nowhere/program",))

    with pytest.raises(LaunchFailedError, match="/nowhere/program"):
        runtime.start(spec)

    assert runtime.inspect(spec.name) is None
    assert runtime.containers({}) == ()


def test_it_is_refused_where_it_was_not_allowed(tmp_path: Path) -> None:
    runtime = ProcessRuntime(ENDPOINT, state_dir=tmp_path, allowed=False)
    bench = Bench(kind="plain", runtime=runtime, folder=tmp_path)

    with pytest.raises(HostRefusedError, match="STARLING_PROCESS_RUNTIME"):
        runtime.start(bench.spec())
    with pytest.raises(HostRefusedError, match="STARLING_PROCESS_RUNTIME"):
        runtime.describe()


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".hidden"])
def test_a_name_is_never_a_path(tmp_path: Path, name: str) -> None:
    runtime = ProcessRuntime(ENDPOINT, state_dir=tmp_path, allowed=True)

    with pytest.raises(ValueError, match="not a container name"):
        runtime.inspect(name)


def test_users_have_a_name_in_the_sandbox(tmp_path: Path) -> None:
    require(bubblewrap_works(), "a working bubblewrap")
    runtime = ProcessRuntime(ENDPOINT, state_dir=tmp_path, allowed=True)
    bench = Bench(kind="sandbox", runtime=runtime, folder=tmp_path)

    _, lines = bench.run("import getpass, os; print(getpass.getuser(), os.getcwd())")

    assert [line.text for line in lines] == ["student /job/work"]
