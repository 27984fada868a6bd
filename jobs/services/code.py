"""Programs that people bring: a script, a notebook, or a small archive of files."""

import json
import re
import tempfile
import tokenize
import warnings
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from io import BytesIO
from pathlib import Path, PurePosixPath
from typing import Any, Final
from uuid import uuid4

from jobs import storage
from jobs.errors import InvalidInputError, QuotaExceededError, UnsafeArchiveError
from jobs.models import CodeBundle, CodeKind
from jobs.selectors.datasets import storage_quota_bytes, storage_used_bytes

_MIB: Final = 1 << 20
MAX_BYTES: Final = 50 * _MIB
_TEXT_BYTES: Final = 10 * _MIB
_LIMITS: Final = storage.UnpackLimits(max_bytes=200 * _MIB, max_files=2000)
_USUAL: Final = ("main.py", "train.py")
_MAGIC: Final = re.compile(r"^(\s*)([%!?].*|[\w.]+\?{1,2}\s*)$")
#: Cell magics after which the rest of the cell is still Python.
_PYTHON_CELLS: Final = ("%%time", "%%timeit", "%%capture", "%%prun")


def code_create(
    *, owner: Any, filename: str, content: bytes, entrypoint: str = "", now: datetime
) -> CodeBundle:
    """Keep a program; the same one again is the same bundle.

    Args:
        filename: Ends with ``.py``, ``.ipynb`` or ``.zip``.
        entrypoint: File of an archive that is run; empty for ``main.py``, ``train.py`` or the
            only Python file. Where none of these is there, a bundle without one is made, and the
            job must say which.

    Raises:
        InvalidInputError: By field, with what to do; a syntax error with its line.
        QuotaExceededError: If it does not fit in what the owner may still store.
    """
    filename = storage.safe_filename(filename)
    if not content or len(content) > MAX_BYTES:
        raise _bad_content("The file is empty or larger than 50 MiB; data belong in a dataset.")
    _check_quota(owner, len(content))
    suffix = PurePosixPath(filename).suffix.lower()
    makers = {".py": _script, ".ipynb": _notebook, ".zip": _archive}
    if suffix not in makers:
        raise InvalidInputError({"filename": ["Bring a .py, an .ipynb or a .zip file."]})
    with storage.Tree.building(f"code-{uuid4()}", _LIMITS) as tree:
        kind, found = makers[suffix](tree, filename, content, entrypoint)
        summary = tree.seal()
        with storage.locked(storage.contents_lock(), wait=True):
            tree.publish_files(storage.code_dir(summary.sha256))
            bundle, _ = CodeBundle.objects.update_or_create(
                owner=owner,
                kind=kind,
                filename=filename,
                sha256=summary.sha256,
                entrypoint=found,
                # Brought again, it is as young as a new one: nobody removes it meanwhile.
                defaults={"size_bytes": summary.size_bytes, "created_at": now},
            )
    return bundle


def _check_quota(owner: Any, asked: int) -> None:
    used, limit = storage_used_bytes(owner), storage_quota_bytes(owner)
    if used + asked > limit:
        raise QuotaExceededError(
            f"your {limit / _MIB:,.0f} MiB are used up; delete datasets or the files of old jobs",
            limit=limit,
            used=used,
            asked=asked,
        )


def _script(tree: storage.Tree, filename: str, content: bytes, _: str) -> tuple[CodeKind, str]:
    check_syntax(content, filename)
    tree.add(filename, [content])
    return CodeKind.SCRIPT, filename


def _notebook(tree: storage.Tree, filename: str, content: bytes, _: str) -> tuple[CodeKind, str]:
    script = notebook_script(content, filename)
    name = re.sub(r"[^\w.-]+", "_", PurePosixPath(filename).stem).strip(".") or "notebook"
    check_syntax(script.encode(), f"{name}.py")
    tree.add(f"{name}.py", [script.encode()])
    return CodeKind.NOTEBOOK, f"{name}.py"


def _archive(
    tree: storage.Tree, filename: str, content: bytes, entrypoint: str
) -> tuple[CodeKind, str]:
    with tempfile.NamedTemporaryFile(suffix=".zip") as file:
        file.write(content)
        file.flush()
        try:
            storage.unpack(Path(file.name), filename, tree)
        except UnsafeArchiveError as error:
            text = str(error)
            raise _bad_content(f"{text[:1].upper()}{text[1:]}.") from error
    programs = [path for path in tree.paths() if path.endswith(".py")]
    found = _entrypoint(programs, entrypoint)
    if found:
        with tree.open(found) as program:
            check_syntax(program.read(_TEXT_BYTES + 1), found)
    return CodeKind.ARCHIVE, found


def _entrypoint(programs: list[str], wanted: str) -> str:
    """Choose the file to run: the wanted one, a usual name nearest to the top, or the only one."""
    if not programs:
        raise _bad_content("There is no Python file (.py) in the archive.")
    if wanted:
        if wanted not in programs:
            raise InvalidInputError(
                {
                    "entrypoint": [
                        f"There is no {wanted} in the archive; choose one of its .py files."
                    ]
                }
            )
        return wanted
    return _usual(programs)


def _usual(programs: list[str]) -> str:
    nearest = min(path.count("/") for path in programs)
    top = [path for path in programs if path.count("/") == nearest]
    named = [path for name in _USUAL for path in top if PurePosixPath(path).name == name]
    if named:
        return named[0]
    alone = next((c for c in (top, programs) if len(c) == 1), [""])
    return alone[0]


def check_syntax(source: bytes, filename: str) -> None:
    """Compile a program without running it.

    Raises:
        InvalidInputError: If it is no Python; with the line.
    """
    if len(source) > _TEXT_BYTES:
        raise _bad_content(f"{filename} is larger than 10 MiB; data belong in a dataset.")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tokenize.detect_encoding(BytesIO(source).readline)
            compile(source, filename, "exec", dont_inherit=True)
    except SyntaxError as error:
        where = f"line {error.lineno}" if error.lineno else "its encoding"
        line = (error.text or "").strip()[:80]
        shown = f" (near {line!r})" if line else ""
        raise _bad_content(f"{filename}, {where}: {error.msg}{shown}.") from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise _bad_content(f"{filename} cannot be read as Python: {error}.") from error


def notebook_script(content: bytes, filename: str) -> str:
    """Return the code cells of a notebook as one script.

    Lines that only a notebook understands (``%magic``, ``!command``, ``name?``) are commented
    out with a note, in a way that keeps the block they stand in whole.

    Raises:
        InvalidInputError: If it is no notebook, or has no code in Python.
    """
    try:
        notebook = json.loads(content)
        cells = list(_code_cells(notebook))
        language = notebook.get("metadata", {}).get("kernelspec", {}).get("language", "python")
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
        raise _bad_content(
            f"{filename} is not a notebook (nbformat 3 or 4); save it again from Jupyter."
        ) from error
    if str(language).lower() not in {"python", "python3", ""}:
        raise _bad_content(f"{filename} is written in {language}; bring one in Python.")
    if not any(source.strip() for _, source in cells):
        raise _bad_content(f"{filename} has no code cells.")
    parts = [f"# Made of the code cells of {filename}."]
    parts += [f"# %% cell {number}\n{_plain(source)}" for number, source in cells]
    return "\n\n".join(parts) + "\n"


def _code_cells(notebook: dict[str, Any]) -> Iterator[tuple[int, str]]:
    sheets = notebook.get("worksheets", [notebook])
    number = 0
    for sheet in sheets:
        for cell in sheet["cells"]:
            number += 1
            if cell["cell_type"] == "code":
                source = cell["source"] if "source" in cell else cell["input"]
                yield number, source if isinstance(source, str) else "".join(source)


def _plain(source: str) -> str:
    if _compiles(source):
        return source
    lines = source.splitlines()
    first = next((line for line in lines if line.strip()), "")
    if first.startswith("%%") and not first.startswith(_PYTHON_CELLS):
        return "\n".join(f"# not run outside a notebook: {line}" for line in lines)
    return "\n".join(_MAGIC.sub(_commented, line) for line in lines)


def _commented(line: re.Match[str]) -> str:
    # "pass" keeps an indented block whole when the line was all it had.
    indent = line[1]
    return f"{indent}{'pass  ' if indent else ''}# not run outside a notebook: {line[2]}"


def _compiles(source: str) -> bool:
    with suppress(SyntaxError, ValueError, RecursionError, MemoryError):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(source, "cell", "exec", dont_inherit=True)
        return True
    return False


def _bad_content(sentence: str) -> InvalidInputError:
    return InvalidInputError({"content": [sentence]})
