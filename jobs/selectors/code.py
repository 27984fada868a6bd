"""Reading code bundles: who sees which, and what is in them."""

import os
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from jobs import storage
from jobs.errors import NotFoundError
from jobs.models import CodeBundle

_TEXT_BYTES: Final = 1 << 20


def code_get(user: Any, public_id: UUID) -> CodeBundle:
    """Return a code bundle that the user may see.

    Raises:
        NotFoundError: If there is none.
    """
    bundle = CodeBundle.objects.for_user(user).filter(public_id=public_id).first()
    if bundle is None:
        raise NotFoundError("code bundle", public_id)
    return bundle


def code_files(bundle: CodeBundle) -> list[str]:
    """Return the paths of a bundle's files, sorted."""
    root = storage.code_dir(bundle.sha256)
    return sorted(
        (Path(folder) / name).relative_to(root).as_posix()
        for folder, _, names in os.walk(root)
        for name in names
    )


def code_text(bundle: CodeBundle, path: str = "") -> str:
    """Return the text of one of a bundle's files, its entrypoint unless told otherwise.

    Raises:
        NotFoundError: If there is no such file.
    """
    with storage.open_beneath(storage.code_dir(bundle.sha256), path or bundle.entrypoint) as file:
        return file.read(_TEXT_BYTES).decode(errors="replace")
