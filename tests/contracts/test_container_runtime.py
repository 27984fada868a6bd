"""What every container runtime promises; each sentence is held by each adapter."""

from __future__ import annotations

import fcntl
import random
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from itertools import islice
from pathlib import Path
from threading import Barrier, Thread

import pytest

from cluster.adapters.docker_runtime import DockerRuntime
from cluster.core.resources import GpuUuid
from cluster.errors import GpuUnavailableError, HostUnreachableError, ImageMissingError
from cluster.ports import ContainerState, HostEndpoint, LogLine, Mount
from tests.contracts.conftest import Bench
from tests.fakes.engines import hanging_engine


def lines_of(items: Iterator[LogLine | None]) -> Iterator[LogLine]:
    return (item for item in items if item is not None)


def held(path: Path) -> bool:
    """Return whether a living process holds the lock of a file."""
    with path.open("rb") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def test_eight_starts_of_one_name_run_it_once(bench: Bench) -> None:
    spec = bench.spec("open('runs', 'a').write('once\\n')")
    together = Barrier(8)
    found: list[str] = []

    def start() -> None:
        together.wait()
        found.append(bench.runtime.start(spec).container_id)

    threads = [Thread(target=start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    bench.ended(spec.name)
    again = bench.runtime.start(spec)

    assert (bench.work / "runs").read_text() == "once\n"
    assert set(found) == {again.container_id}
    assert len(found) == 8
    assert again.state is ContainerState.EXITED


@pytest.mark.parametrize("code", [0, 1, 3, 127, 255])
def test_the_exit_code_is_the_programs(bench: Bench, code: int) -> None:
    status, _ = bench.run(f"raise SystemExit({code})")

    assert (status.exit_code, status.oom_killed) == (code, False)


@pytest.mark.parametrize("number", [6, 9, 11, 15])
def test_a_signal_is_told_as_128_and_its_number(bench: Bench, number: int) -> None:
    status, _ = bench.run(f"""
        import os, signal
        signal.signal({number}, signal.SIG_DFL) if {number} != 9 else None
        os.kill(os.getpid(), {number})
    """)

    assert (status.exit_code, status.oom_killed) == (128 + number, False)


def test_both_moments_are_known_and_in_order(bench: Bench) -> None:
    status, lines = bench.run("print('here')")

    assert status.started_at is not None
    assert status.finished_at is not None
    assert status.started_at <= lines[0].at <= status.finished_at


def test_a_program_is_asked_to_end_and_may_finish_first(bench: Bench) -> None:
    spec = bench.spec("""
        import signal, sys
        def end(*_):
            print("saved")
            sys.exit(7)
        signal.signal(signal.SIGTERM, end)
        print("ready")
        while True:
            signal.pause()
    """)
    bench.runtime.start(spec)
    bench.says(spec.name, "ready")

    bench.runtime.terminate(spec.name)
    status, lines = bench.ended(spec.name)

    assert [line.text for line in lines] == ["ready", "saved"]
    assert status.exit_code == 7


STUBBORN = """
    import fcntl, os, signal, sys

    signal.signal(signal.SIGTERM, signal.SIG_IGN)

    def hold(name):
        stream = open(name, "w")
        fcntl.flock(stream, fcntl.LOCK_EX)
        return stream

    def daemon(name):
        read, write = os.pipe()
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                os.setsid()
                kept = hold(name)
                os.write(write, b"1")
                while True:
                    signal.pause()
            os._exit(0)
        os.read(read, 1)

    own = hold("lock-program")
    daemon("lock-daemon-1")
    daemon("lock-daemon-2")
    print("ready")
"""
LOCKS = ("lock-program", "lock-daemon-1", "lock-daemon-2")


def test_a_tree_that_will_not_end_is_ended_whole(bench: Bench) -> None:
    spec = bench.spec(STUBBORN + "    while True:\n        signal.pause()\n")
    bench.runtime.start(spec)
    bench.says(spec.name, "ready")
    assert all(held(bench.work / name) for name in LOCKS)

    bench.runtime.terminate(spec.name)
    bench.runtime.kill(spec.name)
    status, _ = bench.ended(spec.name)

    assert status.exit_code == 137
    assert not status.oom_killed
    assert not any(held(bench.work / name) for name in LOCKS)


def test_what_a_program_leaves_behind_ends_with_it(bench: Bench) -> None:
    spec = bench.spec(STUBBORN + "    sys.exit(4)\n")
    bench.runtime.start(spec)

    status, lines = bench.ended(spec.name)

    assert status.exit_code == 4
    assert [line.text for line in lines] == ["ready"]
    assert not any(held(bench.work / name) for name in LOCKS)


def test_removing_ends_what_runs(bench: Bench) -> None:
    spec = bench.spec(STUBBORN + "    while True:\n        signal.pause()\n")
    bench.runtime.start(spec)
    bench.says(spec.name, "ready")

    bench.runtime.remove(spec.name)

    assert bench.runtime.inspect(spec.name) is None
    assert bench.runtime.containers(bench.labels) == ()
    assert not any(held(bench.work / name) for name in LOCKS)


def test_what_is_absent_is_no_error(bench: Bench) -> None:
    bench.runtime.terminate("starling-absent")
    bench.runtime.kill("starling-absent")
    bench.runtime.remove("starling-absent")

    assert bench.runtime.inspect("starling-absent") is None
    assert list(bench.runtime.logs("starling-absent")) == []
    assert bench.runtime.containers(bench.labels) == ()


def test_asking_an_ended_program_to_end_is_no_error(bench: Bench) -> None:
    status, _ = bench.run("pass")

    bench.runtime.terminate(status.name)
    bench.runtime.kill(status.name)

    assert bench.runtime.inspect(status.name) == status


def test_containers_are_found_by_all_their_labels(bench: Bench) -> None:
    first = bench.spec(labels={**bench.labels, "starling.job": "a"})
    second = bench.spec(labels={**bench.labels, "starling.job": "b"})
    for spec in (first, second):
        bench.runtime.start(spec)
        bench.ended(spec.name)

    both = bench.runtime.containers(bench.labels)
    one = bench.runtime.containers({**bench.labels, "starling.job": "b"})

    assert {status.name for status in both} == {first.name, second.name}
    assert [status.name for status in one] == [second.name]
    assert one[0].labels.items() >= second.labels.items()


COUNTING = """
    import sys
    for number in range(10_000):
        sys.stdout.write(f"{number}\\n")
        sys.stderr.write(f"{number}\\n")
        if number % 100 == 0:
            sys.stdout.flush()
            sys.stderr.flush()
"""


def by_stream(lines: list[LogLine]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {"stdout": [], "stderr": []}
    for line in lines:
        found[line.stream].append(line.text)
    return found


def test_each_of_20000_lines_comes_once_and_in_order(bench: Bench) -> None:
    _, lines = bench.run(COUNTING, environment={})

    numbers = [str(number) for number in range(10_000)]
    assert by_stream(lines) == {"stdout": numbers, "stderr": numbers}
    assert len({line.cursor for line in lines}) == 20_000


def test_following_on_from_any_cursor_yields_the_very_next_line(bench: Bench) -> None:
    spec = bench.spec(COUNTING, environment={})
    bench.runtime.start(spec)
    chance = random.Random(5)

    got: list[LogLine] = []
    while True:
        after = got[-1].cursor if got else ""
        with closing(bench.runtime.logs(spec.name, after=after)) as items:
            part = list(islice(lines_of(items), chance.choice([1, 2, 70, 900, 3000])))
        if not part:
            break
        got += part

    _, whole = bench.ended(spec.name)
    assert [(line.stream, line.text) for line in got] == [
        (line.stream, line.text) for line in whole
    ]
    numbers = [str(number) for number in range(10_000)]
    assert by_stream(got) == {"stdout": numbers, "stderr": numbers}


def test_following_on_from_the_last_cursor_yields_nothing(bench: Bench) -> None:
    status, lines = bench.run("print('only')")

    assert list(lines_of(bench.runtime.logs(status.name, after=lines[-1].cursor))) == []


def test_a_last_line_without_its_end_is_a_line(bench: Bench) -> None:
    _, lines = bench.run("print('first'); print('no end', end='')")

    assert [line.text for line in lines] == ["first", "no end"]


def test_a_very_long_line_comes_in_pieces_and_whole(bench: Bench) -> None:
    _, lines = bench.run("""
        import sys
        sys.stdout.write("é" * 150_000 + "\\n" + "next" + "\\n")
    """)

    *pieces, last = [line.text for line in lines]
    assert last == "next"
    assert "".join(pieces) == "é" * 150_000
    assert max(len(piece.encode()) for piece in pieces) <= 64 * 1024


def test_a_long_line_beside_another_stream_is_followed_exactly(bench: Bench) -> None:
    spec = bench.spec("""
        import os, time
        for number in range(20):
            os.write(1, b"a" * 40_000)
            os.write(2, b"between\\n")
            os.write(1, b"b" * 40_000 + b"\\n")
    """)
    bench.runtime.start(spec)
    _, whole = bench.ended(spec.name)

    got: list[LogLine] = []
    while part := list(
        islice(lines_of(bench.runtime.logs(spec.name, after=got[-1].cursor if got else "")), 1)
    ):
        got += part

    assert [(line.stream, line.text) for line in got] == [
        (line.stream, line.text) for line in whole
    ]
    found = by_stream(whole)
    assert found["stderr"] == ["between"] * 20
    assert "".join(found["stdout"]) == ("a" * 40_000 + "b" * 40_000) * 20


def test_bytes_that_are_no_text_do_not_break_the_log(bench: Bench) -> None:
    _, lines = bench.run("import os; os.write(1, b'\\xff\\x00\\x1b[31mred\\r\\nnext\\n')")

    assert [line.text for line in lines] == ["\ufffd\x00\x1b[31mred\r", "next"]


def test_the_reader_of_a_silent_program_may_look_around(bench: Bench) -> None:
    spec = bench.spec("import signal; print('ready'); signal.pause()")
    bench.runtime.start(spec)
    line = bench.says(spec.name, "ready")

    with closing(bench.runtime.logs(spec.name, after=line.cursor)) as items:
        assert [next(items), next(items)] == [None, None]


def test_too_much_memory_is_told_from_other_ends(bench: Bench) -> None:
    status, lines = bench.run(
        """
        print("eating")
        kept = []
        while True:
            kept.append(bytearray(8 * 2**20))
        """,
        memory_mib=128,
    )

    assert [line.text for line in lines][:1] == ["eating"]
    assert (status.exit_code, status.oom_killed) == (137, True)


def test_too_much_memory_of_a_child_is_noticed(bench: Bench) -> None:
    status, _ = bench.run(
        """
        import subprocess, sys
        eat = "kept = []\\nwhile True: kept.append(bytearray(8 * 2**20))"
        sys.exit(subprocess.run([sys.executable, "-c", eat]).returncode != 0)
        """,
        memory_mib=128,
    )

    assert status.oom_killed
    assert status.exit_code != 0


def test_the_portals_environment_stays_the_portals(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgresql://secret")
    _, lines = bench.run(
        """
        import json, os, pathlib
        pathlib.Path(os.environ["HOME"], "file").write_text("x")
        print(json.dumps(dict(os.environ)))
        """,
        environment={"PYTHONUNBUFFERED": "1", "STARLING_RANK": "3"},
    )

    assert "postgresql://secret" not in lines[0].text
    assert '"STARLING_RANK": "3"' in lines[0].text


def test_datasets_are_at_their_place_and_cannot_be_changed(bench: Bench) -> None:
    data = bench.folder / "digits"
    data.mkdir()
    (data / "train.csv").write_text("1,2\n")
    _, lines = bench.run(
        """
        import os, pathlib, sys
        print(pathlib.Path(os.environ["STARLING_DATA_DIR"], "digits", "train.csv").read_text())
        print(open(sys.argv[1]).read())
        print(sorted(os.listdir(os.environ["STARLING_DATA_DIR"])))
        try:
            open(sys.argv[1], "a").write("changed")
        except OSError:
            print("refused")
        """,
        command=("python", "main.py", "/job/data/digits/train.csv"),
        environment={"PYTHONUNBUFFERED": "1", "STARLING_DATA_DIR": "/job/data"},
        mounts=(Mount(source=str(data), target="/job/data/digits"),),
    )

    said = [line.text for line in lines]
    assert said[:5] == ["1,2", "", "1,2", "", "['digits']"]
    if bench.isolated:
        assert said[5:] == ["refused"]
        assert (data / "train.csv").read_text() == "1,2\n"


def test_programs_have_no_power(bench: Bench) -> None:
    if not bench.isolated:
        pytest.skip("without a sandbox a program is the portal's own user")
    _, lines = bench.run("""
        import os
        status = dict(l.split(":\\t", 1) for l in open("/proc/self/status") if ":\\t" in l)
        print(int(status["CapEff"], 16), status["NoNewPrivs"].strip())
        for path in ("/etc/passwd-", "/usr/x", "/x"):
            try:
                open(path, "w")
                print("wrote", path)
            except OSError:
                pass
        print(sorted(p for p in os.listdir("/proc") if p.isdigit() and int(p) > 50))
        print(os.path.exists("/var/run/docker.sock"), os.getuid() == 0)
    """)

    said = [line.text for line in lines]
    assert said[0] == "0 1"
    assert said[1] == "[]"
    assert said[2].startswith("False")
    if bench.kind == "docker":
        assert said[2] == "False False"


def test_limits_hold(bench: Bench) -> None:
    """The number of processes is limited, and shared memory has the size asked for."""
    if bench.kind == "plain":
        pytest.skip("without a sandbox /dev/shm is the machine's")
    _, lines = bench.run(
        """
        import os
        found = os.statvfs("/dev/shm")
        print(found.f_blocks * found.f_frsize // 2**20)
        """,
        shm_mib=96,
    )

    assert [line.text for line in lines] == ["96"]


def test_a_missing_image_is_told(bench: Bench) -> None:
    spec = replace(bench.spec(), image="starling/never:made", python="/never/bin/python")

    with pytest.raises(ImageMissingError):
        bench.runtime.start(spec)

    assert bench.runtime.inspect(spec.name) is None


def test_gpus_come_in_the_order_asked_for_or_are_refused_with_a_remedy(bench: Bench) -> None:
    spec = bench.spec(
        "import os; print(os.environ['CUDA_VISIBLE_DEVICES'])",
        gpus=(GpuUuid("GPU-bbbb"), GpuUuid("GPU-aaaa")),
    )
    try:
        bench.runtime.start(spec)
    except GpuUnavailableError as error:
        assert "NVIDIA Container Toolkit" in str(error)  # noqa: PT017 - either end is right
        assert bench.runtime.inspect(spec.name) is None
        return
    _, lines = bench.ended(spec.name)

    assert [line.text for line in lines] == ["GPU-bbbb,GPU-aaaa"]


def test_without_gpus_none_is_visible(bench: Bench) -> None:
    _, lines = bench.run("""
        import os
        print(repr(os.environ.get("CUDA_VISIBLE_DEVICES")))
        print(os.environ.get("NVIDIA_VISIBLE_DEVICES"))
    """)

    assert [line.text for line in lines] == ["''", "void"]


def test_the_engine_describes_itself(bench: Bench) -> None:
    found = bench.runtime.describe()

    assert found.kind == ("docker" if bench.kind == "docker" else "process")
    assert found.cpu_millis >= 1000
    assert found.memory_mib > 100


@pytest.mark.parametrize("there", [True, False], ids=["hangs", "absent"])
def test_an_engine_that_does_not_answer_is_unreachable(tmp_path: Path, there: bool) -> None:
    with hanging_engine(tmp_path) as address:
        url = address if there else f"unix://{tmp_path}/absent.sock"
        endpoint = HostEndpoint(name="far", url=url, timeout_s=0.2)
        runtime = DockerRuntime(endpoint, instance="contract")

        for call in (
            runtime.describe,
            lambda: runtime.inspect("x"),
            lambda: runtime.containers({}),
            lambda: runtime.terminate("x"),
            lambda: runtime.kill("x"),
            lambda: runtime.remove("x"),
            lambda: next(runtime.logs("x")),
        ):
            with pytest.raises(HostUnreachableError):
                call()


@pytest.mark.parametrize("bench", ["docker"], indirect=True)
def test_containers_of_jobs_do_not_reach_one_another(bench: Bench) -> None:
    listener = bench.spec("""
        import socket
        server = socket.create_server(("0.0.0.0", 5000))
        print(socket.gethostbyname(socket.gethostname()))
        server.accept()
    """)
    bench.runtime.start(listener)
    address = next(lines_of(bench.runtime.logs(listener.name))).text

    _, lines = bench.run(f"""
        import socket
        try:
            socket.create_connection(({address!r}, 5000), timeout=1)
            print("reached")
        except OSError as error:
            print("not reached")
    """)

    assert [line.text for line in lines] == ["not reached"]
