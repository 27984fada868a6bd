"""Where things are below the state folder; nothing here touches the disk."""

from pathlib import Path
from uuid import UUID

from django.conf import settings


def _state(*parts: str) -> Path:
    return Path(settings.STATE_DIR, *parts)


def upload_path(upload_id: UUID) -> Path:
    """Return the file that holds the bytes of an upload received so far."""
    return _state("uploads", str(upload_id))


def content_dir(sha256: str) -> Path:
    """Return the folder with the files of a content."""
    return _state("contents", sha256[:2], sha256, "files")


def content_index(sha256: str) -> Path:
    """Return the list of a content's files, one JSON object a line, sorted by path."""
    return _state("contents", sha256[:2], sha256, "files.jsonl")


def code_dir(sha256: str) -> Path:
    """Return the folder with the files of a code bundle."""
    return _state("code", sha256[:2], sha256)


def attempt_dir(job_id: UUID, number: int, rank: int) -> Path:
    """Return the working folder of one replica of an attempt (``/job/work``)."""
    return _state("attempts", str(job_id), f"a{number}", f"r{rank}")


def preview_dir(sha256: str) -> Path:
    """Return the folder with the thumbnails made of a content."""
    return _state("previews", sha256[:2], sha256)


def sample_dir(name: str) -> Path:
    """Return the folder of a dataset that comes with the product."""
    return Path(__file__).parent.parent / "library" / "datasets" / name


def staging_dir() -> Path:
    """Return the folder for trees being built or removed; one file system with the contents."""
    return _state("staging")


def contents_lock() -> Path:
    """Return the lock file under which a content and its row come and go together."""
    return _state("run", "contents.lock")


def unpacking_lock(name: str) -> Path:
    """Return the lock file of one version that is unpacked, or of one place to unpack in."""
    return _state("run", f"unpack-{name}.lock")


def run_lock(name: str) -> Path:
    """Return the lock file of one simulation that runs, or of one place to run it in."""
    return _state("run", f"simulate-{name}.lock")
