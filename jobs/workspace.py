"""The folder a replica works in: prepared before the start, read after the end."""

import errno
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from math import ceil
from pathlib import Path
from typing import Any, Final

from django.conf import settings

from cluster import selectors as cluster_selectors
from cluster.core.resources import GpuUuid
from cluster.ports import (
    JOB_ROOT,
    LABEL_ATTEMPT,
    LABEL_INSTANCE,
    LABEL_JOB,
    LABEL_REPLICA,
    ContainerSpec,
    Mount,
)
from jobs import storage
from jobs.errors import NotFoundError
from jobs.models import Job, OutputFile, Replica

DISK_FULL: Final = (errno.ENOSPC, errno.EDQUOT)
#: Who programs run as on container hosts when the portal itself is root.
JOB_UID: Final = 64000
MAX_OUTPUT_FILES: Final = 10_000
_KIT: Final = Path(__file__).parent / "runtime_kit"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outputs:
    """What an attempt left.

    Attributes:
        left_out: How many files there were beyond what is listed.
    """

    files: list[OutputFile]
    left_out: int = 0


def prepare(replica: Replica) -> ContainerSpec:
    """Lay out the working folder and return what the runtime is to start; done twice is once.

    Raises:
        NotFoundError: If the code or a dataset is no longer there.
        OSError: If the folder cannot be written, for instance on a full disk.
    """
    attempt, job = replica.attempt, replica.attempt.job
    work = storage.attempt_dir(job.public_id, attempt.number, replica.rank)
    on_processes = _on_processes(replica)
    owner = None if on_processes or os.geteuid() else JOB_UID
    _lay_out(work, storage.code_dir(job.code.sha256), owner=owner)
    mounts = [
        Mount(source=str(work), target=f"{JOB_ROOT}/work", read_only=False),
        Mount(source=str(_kit()), target=f"{JOB_ROOT}/kit"),
    ]
    mounts += [
        _dataset_mount(row.version.content, row.name)
        for row in job.job_datasets.select_related("version__content")
    ]
    claims = cluster_selectors.claims_of([replica.public_id])
    environment = job.environment
    uid = owner if owner is not None else os.geteuid()
    return ContainerSpec(
        name=replica.container_name,
        image=environment.image,
        python=environment.interpreter,
        command=command(job),
        environment=variables(job, replica),
        labels={
            LABEL_INSTANCE: settings.STARLING["INSTANCE"],
            LABEL_JOB: str(job.public_id),
            LABEL_ATTEMPT: str(attempt.number),
            LABEL_REPLICA: str(replica.public_id),
        },
        mounts=tuple(mounts),
        user="" if on_processes else f"{uid}:{owner if owner is not None else os.getegid()}",
        cpu_millis=job.cpu_millis,
        memory_mib=job.memory_mib,
        shm_mib=job.shm_mib,
        gpus=tuple(GpuUuid(uuid) for uuid in claims.get(replica.public_id, [])),
        log_limit_mib=settings.STARLING["LOG_QUOTA_MIB"],
    )


def command(job: Job) -> tuple[str, ...]:
    """Return what is run: the entry point, its arguments, then each parameter."""
    given = tuple(f"--{name}={_word(value)}" for name, value in job.parameters.items())
    # A file whose name begins with a hyphen is a file all the same.
    entrypoint = f"./{job.entrypoint}" if job.entrypoint.startswith("-") else job.entrypoint
    return ("python", entrypoint, *job.arguments, *given)


def variables(job: Job, replica: Replica) -> dict[str, str]:
    """Return the environment of a replica's program."""
    threads = str(max(1, ceil(job.cpu_millis / 1000)))
    found = {
        "STARLING_JOB": str(job.public_id),
        "STARLING_ATTEMPT": str(replica.attempt.number),
        "STARLING_RANK": str(replica.rank),
        "STARLING_DATA_DIR": f"{JOB_ROOT}/data",
        "STARLING_OUTPUT_DIR": f"{JOB_ROOT}/work",
        "STARLING_PARAMETERS": json.dumps(job.parameters),
        "PYTHONPATH": f"{JOB_ROOT}/kit",
        "PYTHONUNBUFFERED": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "OMP_NUM_THREADS": threads,
        "TF_NUM_INTRAOP_THREADS": threads,
        "TF_NUM_INTEROP_THREADS": threads,
        "MPLBACKEND": "Agg",
    }
    if job.gpu_memory_mib is not None:
        found["STARLING_GPU_MEMORY_MIB"] = str(job.gpu_memory_mib)
    else:
        found["TF_FORCE_GPU_ALLOW_GROWTH"] = "true"
    return found


def outputs(replica: Replica) -> Outputs:
    """Return the regular files the program left, new or changed; links are never followed."""
    attempt = replica.attempt
    work = storage.attempt_dir(attempt.job.public_id, attempt.number, replica.rank)
    seeded = _manifest(work)
    prefix = f"rank{replica.rank}/" if attempt.job.replicas > 1 else ""
    found: list[OutputFile] = []
    left_out = 0
    for path, stat in _regular_files(work):
        if seeded.get(path) == [stat.st_size, stat.st_mtime_ns]:
            continue
        shown = prefix + path
        if len(shown) > 1024 or len(found) >= MAX_OUTPUT_FILES:
            left_out += 1
            continue
        found.append(
            OutputFile(
                attempt=attempt,
                path=shown.encode("utf-8", "surrogateescape").decode("utf-8", "replace"),
                size_bytes=stat.st_size,
                modified_at=datetime.fromtimestamp(stat.st_mtime, tz=UTC),
            )
        )
    return Outputs(files=found, left_out=left_out)


def output_path(job: Job, attempt: int, path: str) -> tuple[Path, str]:
    """Return the folder and the path below it of an output file, for safe opening."""
    rank, rest = 0, path
    if job.replicas > 1:
        first, _, rest = path.partition("/")
        number = first.removeprefix("rank")
        rank = int(number) if number.isascii() and number.isdigit() else 0
    return storage.attempt_dir(job.public_id, attempt, rank), rest


def _word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _on_processes(replica: Replica) -> bool:
    return replica.host is not None and replica.host.url.startswith("process:")


def _dataset_mount(content: Any, name: str) -> Mount:
    if content is None:
        raise NotFoundError("dataset", name)
    files = storage.content_dir(content.sha256)
    if not files.is_dir():
        raise NotFoundError("dataset", name)
    return Mount(source=str(files), target=f"{JOB_ROOT}/data/{name}")


def _kit() -> Path:
    """Return the kit's folder, copied once into the state folder, where hosts can see it."""
    stamp = max(path.stat().st_mtime_ns for path in _KIT.rglob("*.py"))
    target = Path(settings.STATE_DIR) / "kit" / str(stamp)
    if not target.is_dir():
        draft = target.with_name(f".{target.name}-{os.getpid()}")
        shutil.rmtree(draft, ignore_errors=True)
        shutil.copytree(_KIT, draft, ignore=shutil.ignore_patterns("__pycache__"))
        for path in [draft, *draft.rglob("*")]:
            path.chmod(0o755 if path.is_dir() else 0o644)
        try:
            draft.rename(target)
        except OSError:
            # Another process was first.
            shutil.rmtree(draft, ignore_errors=True)
    return target


def _manifest_path(work: Path) -> Path:
    """Return where it is noted what the folder was seeded with; out of the program's reach."""
    return work.with_name(f"{work.name}.json")


def _lay_out(work: Path, code: Path, *, owner: int | None) -> None:
    if _manifest_path(work).exists():
        return
    if not code.is_dir():
        raise NotFoundError("code", code.name)
    work.mkdir(parents=True, exist_ok=True)
    seeded: dict[str, list[int]] = {}
    for path, _ in _regular_files(code):
        target = work / path
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(code / path, target)
        target.chmod(0o644)
        stat = target.stat()
        seeded[path] = [stat.st_size, stat.st_mtime_ns]
    if owner is not None:
        for path in [work, *work.rglob("*")]:  # type: ignore[assignment]
            os.chown(path, owner, owner)
    # Written last: a folder without it is laid out again.
    draft = _manifest_path(work).with_suffix(".draft")
    draft.write_text(json.dumps(seeded))
    draft.rename(_manifest_path(work))


def _manifest(work: Path) -> dict[str, list[int]]:
    try:
        found: dict[str, list[int]] = json.loads(_manifest_path(work).read_text())
    except (FileNotFoundError, ValueError):
        return {}
    return found


def _regular_files(root: Path) -> Iterator[tuple[str, os.stat_result]]:
    """Yield the path below ``root`` and the stat of every regular file, in a stable order."""
    front = [""]
    while front:
        folder = front.pop()
        try:
            entries = sorted(os.scandir(root / folder), key=lambda entry: entry.name)
        except OSError:
            continue
        for entry in entries:
            path = f"{folder}{entry.name}"
            if entry.is_dir(follow_symlinks=False):
                if entry.name != "__pycache__":
                    front.append(path + "/")
            elif entry.is_file(follow_symlinks=False):
                yield path, entry.stat(follow_symlinks=False)
