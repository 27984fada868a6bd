from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest

from jobs import storage
from jobs.errors import ArchiveTooLargeError, NotFoundError, UnsafeArchiveError

LIMITS = storage.UnpackLimits(max_bytes=1 << 20, max_files=1000)


def published(files: dict[str, bytes], name: str = "t") -> storage.ContentSummary:
    with storage.Tree.building(name, LIMITS) as tree:
        for path, content in files.items():
            tree.add(path, [content])
        summary = tree.seal()
        tree.publish_content(storage.content_dir(summary.sha256).parent)
    return summary


def test_the_sum_is_over_the_sorted_list_of_paths_sizes_and_sums() -> None:
    files = {"b": b"2", "a/z": b"11", "a.txt": b""}

    summary = published(files)

    canonical = b"".join(
        b"%b\0%d\0%b\n" % (p.encode(), len(files[p]), hashlib.sha256(files[p]).hexdigest().encode())
        for p in sorted(files)
    )
    assert summary.sha256 == hashlib.sha256(canonical).hexdigest()
    assert (summary.size_bytes, summary.file_count) == (3, 3)


def test_equal_trees_are_one_content_in_whatever_order_they_came() -> None:
    first = published({"a": b"1", "b": b"2"}, "one")
    second = published({"b": b"2", "a": b"1"}, "two")

    assert first == second
    assert len(list(storage.content_dir(first.sha256).parent.parent.iterdir())) == 1
    assert not any(storage.staging_dir().iterdir())


def test_a_published_tree_is_whole_listed_and_read_only() -> None:
    summary = published({"d/a": b"1", "b": b"22"})
    root = storage.content_dir(summary.sha256)

    assert {p.relative_to(root).as_posix() for p in root.rglob("*")} == {"d", "d/a", "b"}
    assert all(p.stat().st_mode & 0o777 == 0o444 for p in root.rglob("*") if p.is_file())
    assert root.stat().st_mode & 0o777 == (root / "d").stat().st_mode & 0o777 == 0o555
    lines = storage.content_index(summary.sha256).read_text().splitlines()
    assert [json.loads(line)["path"] for line in lines] == ["b", "d/a"]


def test_files_alone_are_published_for_code() -> None:
    with storage.Tree.building("code", LIMITS) as tree:
        tree.add("main.py", [b"print(1)"])
        summary = tree.seal()
        tree.publish_files(storage.code_dir(summary.sha256))

    assert [p.name for p in storage.code_dir(summary.sha256).iterdir()] == ["main.py"]


def test_a_tree_that_fails_leaves_nothing() -> None:
    with storage.Tree.building("t", LIMITS) as tree, pytest.raises(ArchiveTooLargeError):
        tree.add("a", [bytes(1 << 19)] * 3)

    assert not any(storage.staging_dir().iterdir())


def test_what_a_killed_predecessor_left_is_removed() -> None:
    left = storage.staging_dir() / "t" / "files" / "old"
    left.mkdir(parents=True)
    left.chmod(0o555)

    assert published({"a": b"1"}).file_count == 1


def test_a_file_is_taken_over_without_a_copy(tmp_path: Path) -> None:
    source = tmp_path / "state" / "received"
    source.parent.mkdir(parents=True, exist_ok=True)
    source.write_bytes(b"abc")
    with storage.Tree.building("t", LIMITS) as tree:
        tree.adopt("data.csv", source, storage.file_sha256(source))
        summary = tree.seal()
        tree.publish_content(storage.content_dir(summary.sha256).parent)

    kept = storage.content_dir(summary.sha256) / "data.csv"
    assert kept.samefile(source)
    assert summary == published({"data.csv": b"abc"})


def test_more_files_than_are_flushed_singly() -> None:
    summary = published({f"{n:04}": b"" for n in range(400)})

    paths = [e.path for e in storage.iter_entries(storage.content_index(summary.sha256))]
    assert paths == [f"{n:04}" for n in range(400)]


def test_entries_are_found_by_prefix() -> None:
    summary = published(dict.fromkeys(("a", "cat/1", "cat/2", "cats", "é/1", "z"), b""))
    index = storage.content_index(summary.sha256)

    assert [e.path for e in storage.iter_entries(index, prefix="cat/")] == ["cat/1", "cat/2"]
    assert [e.path for e in storage.iter_entries(index, prefix="é")] == ["é/1"]
    assert [e.path for e in storage.iter_entries(index, prefix="no")] == []


class TestOpenBeneath:
    @pytest.fixture
    def root(self, tmp_path: Path) -> Path:
        root = tmp_path / "root"
        (root / "sub").mkdir(parents=True)
        (root / "sub" / "file").write_bytes(b"inside")
        (tmp_path / "secret").write_bytes(b"outside")
        (root / "link").symlink_to(tmp_path / "secret")
        (root / "up").symlink_to(tmp_path)
        (root / "within").symlink_to(root / "sub")
        os.mkfifo(root / "pipe")
        return root

    def test_a_regular_file_is_opened(self, root: Path) -> None:
        with storage.open_beneath(root, "sub/file") as file:
            assert file.read() == b"inside"

    @pytest.mark.parametrize(
        "path",
        [
            "", ".", "..", "../secret", "sub/../../secret", "/etc/passwd", "link", "up/secret",
            "within/file", "pipe", "sub", "sub/", "no", "sub/file/x", "a\0b", "n" * 5000,
            "\udcff",
        ],
    )  # fmt: skip
    def test_anything_else_is_not_there(self, root: Path, path: str) -> None:
        with pytest.raises(NotFoundError):
            storage.open_beneath(root, path)

    def test_no_descriptor_is_left_open(self, root: Path) -> None:
        def count() -> int:
            return len(list(Path("/proc/self/fd").iterdir()))

        before = count()
        for path in ("sub/file", "link", "pipe", "no/no", "within/file"):
            try:
                storage.open_beneath(root, path).close()
            except NotFoundError:
                continue
        assert count() == before


@pytest.mark.parametrize(
    ("given", "safe"),
    [
        ("data.csv", "data.csv"),
        ("../../etc/passwd", "passwd"),
        ("C:\\Users\\ada\\data.zip", "data.zip"),
        ("a\nb\0c.csv", "a_b_c.csv"),
        ("", "file"),
        ("..", "file"),
        ("...", "file"),
        ("grün 日本.csv", "grün 日本.csv"),
        ("\ud800.csv", "_.csv"),
    ],
)
def test_a_filename_becomes_safe(given: str, safe: str) -> None:
    assert storage.safe_filename(given) == safe


def test_a_long_filename_keeps_its_ending() -> None:
    safe = storage.safe_filename("é" * 400 + ".tar.gz")

    assert safe.endswith(".gz")
    assert len(safe.encode()) <= 255


def test_a_lock_is_held_by_one_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with storage.locked(path, wait=False), pytest.raises(storage.Busy):
        storage.locked(path, wait=False).__enter__()
    with storage.locked(path, wait=False):
        assert path.exists()


def test_a_folder_with_read_only_folders_is_removed(tmp_path: Path) -> None:
    inner = tmp_path / "tree" / "a" / "b"
    inner.mkdir(parents=True)
    (inner / "file").write_bytes(b"")
    for folder in (inner, inner.parent, inner.parent.parent):
        folder.chmod(0o555)

    storage.remove_tree(tmp_path / "tree")
    storage.remove_tree(tmp_path / "tree")

    assert not (tmp_path / "tree").exists()


def test_a_name_taken_by_a_folder_is_refused() -> None:
    with storage.Tree.building("t", LIMITS) as tree:
        tree.add("a/b", [b"1"])
        with pytest.raises(UnsafeArchiveError, match="same name"):
            tree.add("a", [b"2"])
