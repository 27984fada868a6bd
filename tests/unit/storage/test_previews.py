from __future__ import annotations

import io
import struct
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from jobs import storage
from jobs.errors import NotFoundError


@pytest.fixture
def root() -> Path:
    root = storage.content_dir("ab" * 32)
    root.mkdir(parents=True)
    return root


def table(root: Path, content: bytes, name: str = "t.csv") -> storage.TablePreview:
    (root / name).write_bytes(content)
    return storage.preview_table(root, name)


class TestTable:
    def test_the_first_twenty_rows_below_the_header(self, root: Path) -> None:
        lines = ["x,label"] + [f"{n},cat" for n in range(100)]

        preview = table(root, "\n".join(lines).encode())

        assert preview.header == ("x", "label")
        assert preview.rows == tuple((str(n), "cat") for n in range(20))

    def test_values_are_not_taken_for_a_header(self, root: Path) -> None:
        preview = table(root, b"1,2\n3,4\n")

        assert preview.header == ()
        assert preview.rows == (("1", "2"), ("3", "4"))

    @pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
    def test_delimiters(self, root: Path, delimiter: str) -> None:
        text = "\n".join(delimiter.join(row) for row in (["a", "b"], ["1.5", "2"], ["3", "4"]))

        preview = table(root, text.encode())

        assert preview.header == ("a", "b")
        assert preview.rows[0] == ("1.5", "2")

    @pytest.mark.parametrize(
        ("encoding", "named"),
        [("utf-8", "utf-8"), ("utf-8-sig", "utf-8"), ("utf-16", "utf-16"), ("cp1252", "cp1252")],
    )
    def test_encodings(self, root: Path, encoding: str, named: str) -> None:
        preview = table(root, "größe,maß\n1,2\n".encode(encoding))

        assert preview.header == ("größe", "maß")
        assert preview.encoding == named

    def test_quotes_and_line_breaks_in_cells(self, root: Path) -> None:
        preview = table(root, b'name,text\n1,"a, ""b""\nc"\n')

        assert preview.rows == (("1", 'a, "b"\nc'),)

    def test_a_wide_table_is_cut_and_says_so(self, root: Path) -> None:
        preview = table(root, (",".join(str(n) for n in range(5000)) + "\n").encode() * 3)

        assert len(preview.rows[0]) == 100
        assert preview.columns == 5000

    def test_ragged_rows_are_filled(self, root: Path) -> None:
        assert table(root, b"a,b,c\n1\n1,2,3\n").rows == (("1", "", ""), ("1", "2", "3"))

    @pytest.mark.parametrize(
        "content",
        [
            b"",
            b"\n\n",
            b"\0" * 5000,
            b"\xff" * 5000,
            b'"' * 5000,
            b'"' + b"x" * 300_000,
            b"a" * (3 << 20),
        ],
    )
    def test_what_is_no_table_harms_nothing(self, root: Path, content: bytes) -> None:
        preview = table(root, content)

        assert all(len(cell) <= 200 for row in preview.rows for cell in row)

    def test_a_character_cut_at_the_end_of_what_is_read(self, root: Path) -> None:
        line = "é,1\n".encode()
        preview = table(root, (b"x" * ((1 << 20) - 1) + "é".encode() + line))

        assert preview.encoding == "utf-8"


class TestArrays:
    def test_names_shapes_and_types_of_an_npz(self, root: Path) -> None:
        np.savez(root / "a.npz", x=np.zeros((3, 4), np.float32), y=np.arange(3))

        preview = storage.preview_arrays(root, "a.npz")

        assert [(a.name, a.shape, a.dtype) for a in preview.arrays] == [
            ("x", (3, 4), "float32"),
            ("y", (3,), "int64"),
        ]

    def test_an_npy(self, root: Path) -> None:
        np.save(root / "a.npy", np.zeros(5, np.uint8))

        assert storage.preview_arrays(root, "a.npy").arrays[0].shape == (5,)

    def test_a_pickle_is_never_opened(self, root: Path) -> None:
        class Trap:
            def __reduce__(self) -> tuple[object, tuple[str]]:
                return (Path.touch, (root / "sprung",))  # type: ignore[return-value]

        np.save(root / "trap.npy", np.array([Trap()], dtype=object), allow_pickle=True)

        preview = storage.preview_arrays(root, "trap.npy")

        assert "pickled" in preview.arrays[0].dtype
        assert not (root / "sprung").exists()

    @pytest.mark.parametrize("content", [b"", b"PK\x03\x04junk", b"\x93NUMPY\x01\x00\xff\xff{"])
    def test_what_is_no_array_says_so(self, root: Path, content: bytes) -> None:
        (root / "a.npz").write_bytes(content)
        (root / "a.npy").write_bytes(content)

        assert storage.preview_arrays(root, "a.npz").error
        assert storage.preview_arrays(root, "a.npy").error

    def test_a_header_that_expands_without_end(self, root: Path) -> None:
        with zipfile.ZipFile(root / "a.npz", "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(
                "x.npy", b"\x93NUMPY\x02\x00" + struct.pack("<I", 1 << 28) + b" " * (1 << 24)
            )

        assert storage.preview_arrays(root, "a.npz").error


def png(width: int, height: int) -> bytes:
    """Return a PNG that claims to be very large and holds next to nothing."""

    def part(kind: bytes, content: bytes) -> bytes:
        sum_ = struct.pack(">I", zlib.crc32(kind + content))
        return struct.pack(">I", len(content)) + kind + content + sum_

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    content = zlib.compress(bytes(1000))
    return (
        b"\x89PNG\r\n\x1a\n" + part(b"IHDR", header) + part(b"IDAT", content) + part(b"IEND", b"")
    )


class TestThumbnail:
    SHA = "ab" * 32

    @pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "BMP", "WEBP"])
    def test_an_image_becomes_a_small_png_once(self, root: Path, kind: str) -> None:
        Image.new("RGB", (640, 480), "red").save(root / "image", format=kind)

        made = storage.thumbnail(self.SHA, "image")
        (root / "image").unlink()

        with Image.open(made) as image:
            assert (image.format, image.size) == ("PNG", (160, 120))
        assert storage.thumbnail(self.SHA, "image") == made
        assert len(list(made.parent.iterdir())) == 1

    @pytest.mark.parametrize(
        ("width", "height"), [(60_000, 60_000), (9_000, 9_000), (20_000, 7_000)]
    )
    def test_a_decompression_bomb_has_none(self, root: Path, width: int, height: int) -> None:
        (root / "bomb.png").write_bytes(png(width, height))

        with pytest.raises(NotFoundError):
            storage.thumbnail(self.SHA, "bomb.png")

    @pytest.mark.parametrize("content", [b"", b"GIF89a", b"%!PS-Adobe", b"<svg/>", png(100, 100)])
    def test_what_is_no_whole_image_has_none(self, root: Path, content: bytes) -> None:
        (root / "x").write_bytes(content)

        with pytest.raises(NotFoundError):
            storage.thumbnail(self.SHA, "x")

    def test_a_file_outside_has_none(self, root: Path) -> None:
        Image.new("RGB", (8, 8)).save(root.parent / "outside.png")

        with pytest.raises(NotFoundError):
            storage.thumbnail(self.SHA, "../outside.png")

    def test_transparency_is_kept(self, root: Path) -> None:
        out = io.BytesIO()
        Image.new("RGBA", (8, 8), (1, 2, 3, 4)).save(out, format="PNG")
        (root / "x.png").write_bytes(out.getvalue())

        with Image.open(storage.thumbnail(self.SHA, "x.png")) as image:
            assert image.mode == "RGBA"


def test_the_beginning_of_a_text(root: Path) -> None:
    (root / "a.txt").write_text("x" * 10_000)

    preview = storage.preview_text(root, "a.txt")

    assert (len(preview.text), preview.truncated) == (4000, True)
