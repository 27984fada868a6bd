"""A first look at files that strangers made: bounded, and never running what is in them."""

import csv
import hashlib
import io
import math
import os
import warnings
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import BinaryIO, Final

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from jobs.errors import NotFoundError
from jobs.storage.beneath import open_beneath
from jobs.storage.paths import content_dir, preview_dir

_HEAD_BYTES: Final = 1 << 20
_ROWS: Final = 20
_COLUMNS: Final = 100
_CELL: Final = 200
_TEXT_CHARS: Final = 4000
_ARRAYS: Final = 50
_DELIMITERS: Final = ",;\t|"
#: Formats that Pillow reads in its own code or in well-fuzzed libraries.
_IMAGE_FORMATS: Final = ("PNG", "JPEG", "GIF", "BMP", "WEBP")
_PIXELS: Final = 50_000_000
_THUMBNAIL: Final = (160, 160)


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePreview:
    """The first rows of a CSV or TSV file.

    Attributes:
        header: Names of the columns; empty when the first row looks like values.
        rows: At most 20, each of at most 100 cells; missing cells are empty.
        columns: How many there are in all.
        encoding: How the bytes were read.
    """

    path: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    columns: int
    encoding: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ArraySummary:
    """One array of an npy or npz file, by its header alone."""

    name: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ArraysPreview:
    """The arrays of an npy or npz file; ``error`` says why there are none."""

    path: str
    arrays: tuple[ArraySummary, ...]
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextPreview:
    """The beginning of a text file."""

    path: str
    text: str
    truncated: bool
    encoding: str


def preview_table(root: Path, path: str) -> TablePreview:
    """Return the first rows of a file of separated values.

    Raises:
        NotFoundError: If there is no such file.
    """
    text, encoding, truncated = _head(root, path)
    if truncated:
        # The last line is most likely cut.
        text = text[: text.rfind("\n") + 1] or text
    rows = list(_rows(text, tab=path.lower().endswith(".tsv")))
    columns = max((len(row) for row in rows), default=0)
    shown = min(columns, _COLUMNS)
    cells = [
        tuple(cell[:_CELL] for cell in row[:shown]) + ("",) * (shown - len(row[:shown]))
        for row in rows
    ]
    header = cells[0] if cells and _is_header(rows) else ()
    body = cells[1:] if header else cells[:_ROWS]
    return TablePreview(
        path=path, header=header, rows=tuple(body), columns=columns, encoding=encoding
    )


def _rows(text: str, *, tab: bool) -> Iterator[list[str]]:
    dialect: type[csv.Dialect] = csv.excel_tab if tab else csv.excel
    if not tab:
        with suppress(csv.Error):
            dialect = csv.Sniffer().sniff(text[:16_384], delimiters=_DELIMITERS)
    reader = csv.reader(io.StringIO(text, newline=""), dialect, strict=False)
    with suppress(csv.Error):
        yield from islice((row for row in reader if row), _ROWS + 1)


def _is_header(rows: list[list[str]]) -> bool:
    """Guess as a person would: no number in the first row, and one in the second."""
    return not any(_is_number(cell) for cell in rows[0]) and (
        len(rows) == 1 or any(_is_number(cell) for cell in rows[1]) or len(set(rows[0])) > 1
    )


def _is_number(cell: str) -> bool:
    try:
        return math.isfinite(float(cell)) or True
    except ValueError:
        return False


def preview_text(root: Path, path: str) -> TextPreview:
    """Return the beginning of a text file.

    Raises:
        NotFoundError: If there is no such file.
    """
    text, encoding, truncated = _head(root, path)
    return TextPreview(
        path=path,
        text=text[:_TEXT_CHARS],
        truncated=truncated or len(text) > _TEXT_CHARS,
        encoding=encoding,
    )


def _head(root: Path, path: str) -> tuple[str, str, bool]:
    with open_beneath(root, path) as file:
        raw = file.read(_HEAD_BYTES + 1)
    truncated = len(raw) > _HEAD_BYTES
    text, encoding = _decode(raw[:_HEAD_BYTES])
    return text, encoding, truncated


def _decode(raw: bytes) -> tuple[str, str]:
    if raw.startswith((b"\xff\xfe", b"\xfe\xff")):
        return raw.decode("utf-16", errors="replace"), "utf-16"
    try:
        # A character may be cut at the end of the piece that was read.
        return raw.decode("utf-8-sig"), "utf-8"
    except UnicodeDecodeError as error:
        if error.start >= len(raw) - 3:
            return raw[: error.start].decode("utf-8-sig"), "utf-8"
        return raw.decode("cp1252", errors="replace"), "cp1252"


def preview_arrays(root: Path, path: str) -> ArraysPreview:
    """Return names, shapes and types of arrays; nothing is unpickled, no array is loaded.

    Raises:
        NotFoundError: If there is no such file.
    """
    try:
        with open_beneath(root, path) as file:
            if path.lower().endswith(".npy"):
                return ArraysPreview(path=path, arrays=(_summary("", file),))
            return ArraysPreview(path=path, arrays=tuple(_members(file)))
    except (zipfile.BadZipFile, ValueError, OSError, RuntimeError, NotImplementedError) as error:
        return ArraysPreview(path=path, arrays=(), error=f"cannot be read: {error}")


def _members(file: BinaryIO) -> Iterator[ArraySummary]:
    with zipfile.ZipFile(file) as archive:
        for member in archive.namelist()[:_ARRAYS]:
            if member.endswith(".npy"):
                with archive.open(member) as content:
                    yield _summary(member.removesuffix(".npy"), io.BytesIO(content.read(65_536)))


def _summary(name: str, file: BinaryIO) -> ArraySummary:
    version = np.lib.format.read_magic(file)
    read = (
        np.lib.format.read_array_header_1_0
        if version == (1, 0)
        else np.lib.format.read_array_header_2_0
    )
    shape, _, dtype = read(file)
    words = "objects (pickled; not opened)" if dtype.hasobject else str(dtype)
    return ArraySummary(name=name, shape=tuple(int(n) for n in shape), dtype=words)


def thumbnail(sha256: str, path: str) -> Path:
    """Return a PNG of at most 160 by 160 pixels of an image; made once and kept.

    Raises:
        NotFoundError: If there is no such file, or it is no image that is shown (PNG, JPEG, GIF,
            BMP, WebP of at most 50 million pixels).
    """
    name = hashlib.sha256(path.encode()).hexdigest()
    target = preview_dir(sha256) / f"{name}.png"
    if target.exists():
        return target
    with open_beneath(content_dir(sha256), path) as file:
        image = _thumbnail(file, path)
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = target.with_suffix(f".{os.getpid()}-{os.urandom(4).hex()}")
    image.save(draft, format="PNG")
    draft.rename(target)
    return target


def _thumbnail(file: BinaryIO, path: str) -> Image.Image:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            image: Image.Image = Image.open(file, formats=_IMAGE_FORMATS)
            if image.width * image.height > _PIXELS:
                raise NotFoundError("thumbnail", path)
            image.draft("RGB", _THUMBNAIL)
            image.thumbnail(_THUMBNAIL)
            image = ImageOps.exif_transpose(image)
            return image.convert("RGBA" if image.has_transparency_data else "RGB")
    except (
        UnidentifiedImageError,
        Image.DecompressionBombError,
        OSError,
        ValueError,
        SyntaxError,
        EOFError,
        MemoryError,
        ArithmeticError,
        LookupError,
        TypeError,
    ) as error:
        raise NotFoundError("thumbnail", path) from error
