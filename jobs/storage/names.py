"""Names that strangers give: which are safe to make on disk, and which are refused."""

import re
import unicodedata
from typing import Final

from jobs.errors import UnsafeArchiveError

_NAME_BYTES: Final = 255
_PATH_BYTES: Final = 1024
_DEPTH: Final = 64
_DRIVE: Final = re.compile(r"[A-Za-z]:")
#: What the desktop's own packers add beside the files: no part of a dataset.
_LITTER: Final = frozenset({"__MACOSX", ".DS_Store", "Thumbs.db"})


def member_path(name: str) -> str | None:
    """Return where an archive's member goes, relative to the tree.

    Returns:
        A path of plain names joined by ``/``; ``None`` for the tree itself and for what desktop
        packers add (``__MACOSX``, ``.DS_Store``, ``Thumbs.db``).

    Raises:
        UnsafeArchiveError: If the name is absolute, leads upwards, or is too long or too deep.
    """
    if name.startswith("/") or _DRIVE.fullmatch(name.split("/", 1)[0]):
        raise _refused(name, "has an absolute path; pack the files with relative paths")
    steps = [step for step in name.split("/") if step not in {"", "."}]
    if ".." in steps:
        raise _refused(name, "leads out of the archive with '..'; pack the files without it")
    if any(_has_controls(step) for step in steps):
        raise _refused(name, "has a name with a control character; rename it")
    if len(steps) > _DEPTH:
        raise _refused(name, f"is more than {_DEPTH} folders deep; flatten the folders")
    path = "/".join(steps)
    if len(path.encode()) > _PATH_BYTES or any(len(s.encode()) > _NAME_BYTES for s in steps):
        raise _refused(
            name,
            f"has a name of more than {_NAME_BYTES} or a path of more than {_PATH_BYTES} bytes",
        )
    return None if not steps or _LITTER.intersection(steps) else path


def readable(raw: bytes, *, fallback: str) -> str:
    """Return a name's text: UTF-8 where it is that, else in the 8-bit encoding ``fallback``."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw.decode(fallback)


def safe_filename(name: str) -> str:
    """Return the last part of a file's name as its sender gave it, safe to make on disk."""
    last = re.split(r"[/\\]", name)[-1]
    text = "".join("_" if _has_controls(c) else c for c in last).strip()
    text = text.encode(errors="replace").decode()
    while len(text.encode()) > _NAME_BYTES:
        stem, dot, suffix = text.rpartition(".")
        # The ending says what the file is: the middle is shortened, not the end.
        text = f"{stem[:-1]}.{suffix}" if dot and stem and len(suffix) < 16 else text[:-1]
    return text if text.strip(".") else "file"


def _has_controls(text: str) -> bool:
    # Cc: control, Cs: half of a surrogate pair, which no encoding can carry.
    return any(unicodedata.category(c) in {"Cc", "Cs"} for c in text)


def _refused(name: str, why: str) -> UnsafeArchiveError:
    shown = name if len(name) <= 120 else f"{name[:117]}…"
    return UnsafeArchiveError(f"the entry {shown!r} {why}", member=name)
