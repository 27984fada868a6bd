from __future__ import annotations

import gzip
import io
import os
import random
import struct
import tarfile
import tracemalloc
import zipfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from jobs import storage
from jobs.errors import ArchiveTooLargeError, UnsafeArchiveError
from tests.unit.storage.archives import tar_member, tarred, zip_member, zipped

LIMITS = storage.UnpackLimits(max_bytes=8 << 20, max_files=100)


def unpacked(
    tmp_path: Path, content: bytes, filename: str, limits: storage.UnpackLimits = LIMITS
) -> dict[str, bytes]:
    """Return the files that an archive becomes, by path; what is written elsewhere is an error."""
    inside = tmp_path / "inside"
    inside.mkdir(exist_ok=True)
    source = inside / "received"
    source.write_bytes(content)
    before = set(outside(tmp_path))
    try:
        with storage.Tree.building("test", limits) as tree:
            storage.unpack(source, filename, tree)
            root = storage.staging_dir() / "test" / "files"
            files = {
                str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()
            }
            assert not any(p.is_symlink() for p in root.rglob("*"))
            assert all(p.stat().st_mode & 0o7777 == 0o444 for p in root.rglob("*") if p.is_file())
            return files
    finally:
        assert set(outside(tmp_path)) == before
        assert not any(storage.staging_dir().iterdir())


def outside(tmp_path: Path) -> list[Path]:
    return [p for p in tmp_path.rglob("*") if "state" not in p.relative_to(tmp_path).parts]


HOSTILE_NAMES = [
    "../evil",
    "a/../../evil",
    "a/b/../../../evil",
    "/tmp/evil",
    "//evil",
    "C:/evil",
    "c:\\evil",
    "..\\evil",
    "a\\..\\..\\evil",
    "/".join(["d"] * 200) + "/deep",
    "n" * 300,
    "/".join(["n" * 200] * 8),
    "bell\x07",
    "line\nbreak",
]


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_a_zip_with_a_hostile_name_is_refused_and_the_member_named(
    tmp_path: Path, name: str
) -> None:
    archive = zipped([("good.txt", b"good"), (name, b"evil")])

    with pytest.raises(UnsafeArchiveError) as refused:
        unpacked(tmp_path, archive, "a.zip")

    assert refused.value.member
    assert refused.value.member[:20] in name.replace("\\", "/")


@pytest.mark.parametrize("name", [n for n in HOSTILE_NAMES if "\\" not in n])
def test_a_tar_with_a_hostile_name_is_refused(tmp_path: Path, name: str) -> None:
    archive = tarred([tar_member("good.txt", b"good"), tar_member(name, b"evil")], "gz")

    with pytest.raises(UnsafeArchiveError):
        unpacked(tmp_path, archive, "a.tar.gz")


def test_a_backslash_in_a_tar_is_a_character_and_leads_nowhere(tmp_path: Path) -> None:
    archive = tarred([tar_member("..\\evil", b"kept")])

    assert unpacked(tmp_path, archive, "a.tar") == {"..\\evil": b"kept"}


LINKS = {
    "symbolic link": [tar_member("link", type=tarfile.SYMTYPE, linkname="/etc")],
    "chain of links": [
        tar_member("a", type=tarfile.SYMTYPE, linkname="."),
        tar_member("a/b", type=tarfile.SYMTYPE, linkname=".."),
        tar_member("a/b/evil", b"evil"),
    ],
    "hard link": [
        tar_member("file", b"x"),
        tar_member("again", type=tarfile.LNKTYPE, linkname="file"),
    ],
    "hard link outside": [tar_member("again", type=tarfile.LNKTYPE, linkname="/etc/passwd")],
    "character device": [tar_member("null", type=tarfile.CHRTYPE, devmajor=1, devminor=3)],
    "block device": [tar_member("disk", type=tarfile.BLKTYPE, devmajor=8)],
    "pipe": [tar_member("pipe", type=tarfile.FIFOTYPE)],
}


@pytest.mark.parametrize("kind", LINKS)
def test_links_and_devices_in_a_tar_are_refused(tmp_path: Path, kind: str) -> None:
    with pytest.raises(UnsafeArchiveError) as refused:
        unpacked(tmp_path, tarred(LINKS[kind]), "a.tar")

    assert refused.value.member in str(refused.value)


@pytest.mark.parametrize("mode", [0o120777, 0o010644, 0o020644, 0o060644, 0o140644])
def test_links_and_devices_in_a_zip_are_refused(tmp_path: Path, mode: int) -> None:
    archive = zipped([(zip_member("thing", mode), b"/etc/passwd")])

    with pytest.raises(UnsafeArchiveError, match="thing"):
        unpacked(tmp_path, archive, "a.zip")


def test_a_setuid_bit_is_dropped(tmp_path: Path) -> None:
    in_zip = zipped([(zip_member("tool", 0o104755), b"#!")])
    in_tar = tarred([tar_member("tool", b"#!", mode=0o6777, uid=0)])

    # unpacked() checks the mode of every file.
    assert unpacked(tmp_path, in_zip, "a.zip") == {"tool": b"#!"}
    assert unpacked(tmp_path, in_tar, "a.tar") == {"tool": b"#!"}


@pytest.mark.parametrize("compression", ["gz", "xz", "bz2"])
def test_a_bomb_in_a_tar_stops_at_the_limit(tmp_path: Path, compression: str) -> None:
    bomb = tarred([tar_member("zeros", bytes(20 << 20))], compression)
    assert len(bomb) < 100_000

    with pytest.raises(ArchiveTooLargeError, match="8 MiB"):
        unpacked(tmp_path, bomb, f"a.tar.{compression}")


def test_a_bomb_in_a_zip_stops_at_the_limit_whatever_its_header_says(tmp_path: Path) -> None:
    bomb = bytearray(zipped([("zeros", bytes(20 << 20))]))
    honest = struct.pack("<L", 20 << 20)
    lying = bytes(bomb).replace(honest, struct.pack("<L", 100))

    with pytest.raises(ArchiveTooLargeError, match="8 MiB"):
        unpacked(tmp_path, bytes(bomb), "a.zip")
    with pytest.raises(UnsafeArchiveError):
        unpacked(tmp_path, lying, "a.zip")


def test_many_small_members_add_up(tmp_path: Path) -> None:
    archive = zipped((f"{n}", bytes(1 << 20)) for n in range(20))

    with pytest.raises(ArchiveTooLargeError):
        unpacked(tmp_path, archive, "a.zip")


@pytest.mark.parametrize("name", ["a.zip", "a.tar"])
def test_more_files_than_allowed_are_refused(tmp_path: Path, name: str) -> None:
    members = [(f"f{n}", b"") for n in range(101)]
    archive = (
        zipped(members)
        if name == "a.zip"
        else tarred(tar_member(path, content) for path, content in members)
    )

    with pytest.raises(ArchiveTooLargeError, match="100 files"):
        unpacked(tmp_path, archive, name)


def test_a_zip_of_very_many_entries_is_refused_before_its_list_is_in_memory(
    tmp_path: Path,
) -> None:
    entry = struct.pack("<4s4B4HL2L5H2L", b"PK\x01\x02", *([0] * 18))
    count = 400_000
    ending = struct.pack(
        "<4s4H2LH", b"PK\x05\x06", 0, 0, count & 0xFFFF, count & 0xFFFF, len(entry) * count, 0, 0
    )
    source = entry * count + ending
    tracemalloc.start()

    with pytest.raises(ArchiveTooLargeError):
        unpacked(tmp_path, source, "a.zip")

    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 3 * len(source)


def test_a_tar_header_that_claims_an_absurd_length_is_refused_in_little_memory(
    tmp_path: Path,
) -> None:
    header = tarfile.TarInfo("long")
    header.type = tarfile.XHDTYPE
    header.size = 1 << 30
    bomb = gzip.compress(header.tobuf() + bytes(64 << 20))
    tracemalloc.start()

    with pytest.raises(UnsafeArchiveError):
        unpacked(tmp_path, bomb, "a.tar.gz")

    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 16 << 20


@pytest.mark.parametrize("compression", ["", "gz", "xz", "bz2"])
def test_memory_stays_small_while_a_large_member_is_written(
    tmp_path: Path, compression: str
) -> None:
    archive = tarred([tar_member("zeros", bytes(64 << 20))], compression)
    limits = storage.UnpackLimits(max_bytes=80 << 20, max_files=10)
    source = tmp_path / "received"
    source.write_bytes(archive)
    del archive
    name = f"a.tar.{compression}" if compression else "a.tar"
    tracemalloc.start()

    with storage.Tree.building("test", limits) as tree:
        storage.unpack(source, name, tree)
        _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert tree.size_bytes == 64 << 20
    # The dictionary of xz alone is 8 MiB.
    assert peak < 16 << 20


def test_two_members_of_one_name_are_refused(tmp_path: Path) -> None:
    same = tarred([tar_member("a", b"1"), tar_member("./a", b"2")])
    file_and_folder = tarred([tar_member("a", b"1"), tar_member("a/b", b"2")])

    for archive in (same, file_and_folder):
        with pytest.raises(UnsafeArchiveError, match="same name"):
            unpacked(tmp_path, archive, "a.tar")


def test_names_that_differ_in_case_are_two_files(tmp_path: Path) -> None:
    archive = zipped([("A.txt", b"1"), ("a.txt", b"2")])

    assert unpacked(tmp_path, archive, "a.zip") == {"A.txt": b"1", "a.txt": b"2"}


def test_odd_names_survive(tmp_path: Path) -> None:
    names = [
        " leading",
        "trailing ",
        "quote'\"",
        "emoji 🐦.png",
        "Ünïcode/日本語.txt",
        "-rf",
        "a;b",
    ]
    files = {name: name.encode() for name in names}

    assert unpacked(tmp_path, zipped(files.items()), "a.zip") == files
    members = [tar_member(name, content) for name, content in files.items()]
    assert unpacked(tmp_path, tarred(members, "xz"), "a.txz") == files


def test_a_windows_packer_writes_folders_with_backslashes(tmp_path: Path) -> None:
    archive = zipped([("data\\cats\\1.txt", b"meow")])

    assert unpacked(tmp_path, archive, "a.zip") == {"data/cats/1.txt": b"meow"}


def zip_with_raw_name(raw: bytes) -> bytes:
    return zipped([("x" * len(raw), b"kept")]).replace(b"x" * len(raw), raw)


def test_a_zip_name_without_the_utf8_mark_is_read_as_utf8_else_as_cp437(tmp_path: Path) -> None:
    utf8 = zip_with_raw_name("grün.txt".encode())
    cp437 = zip_with_raw_name("grün.txt".encode("cp437"))

    assert unpacked(tmp_path, utf8, "a.zip") == {"grün.txt": b"kept"}
    assert unpacked(tmp_path, cp437, "a.zip") == {"grün.txt": b"kept"}


def test_a_tar_name_that_is_not_utf8_is_read_as_latin1(tmp_path: Path) -> None:
    archive = tarred(
        [tar_member("caf\udce9.txt", b"kept")], format=tarfile.GNU_FORMAT, encoding="utf-8"
    )

    assert unpacked(tmp_path, archive, "a.tar") == {"café.txt": b"kept"}


def test_what_desktop_packers_add_is_left_out(tmp_path: Path) -> None:
    archive = zipped([("a/1.txt", b"1"), ("__MACOSX/a/._1.txt", b"?"), ("a/.DS_Store", b"?")])

    assert unpacked(tmp_path, archive, "a.zip") == {"a/1.txt": b"1"}


def test_an_archive_in_an_archive_stays_a_file(tmp_path: Path) -> None:
    inner = zipped([("../evil", b"")])

    assert unpacked(tmp_path, zipped([("inner.zip", inner)]), "a.zip") == {"inner.zip": inner}


def test_an_encrypted_zip_says_so(tmp_path: Path) -> None:
    archive = bytearray(zipped([("secret", b"secret")]))
    for mark, at in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        archive[archive.index(mark) + at] |= 1

    with pytest.raises(UnsafeArchiveError, match="without a password"):
        unpacked(tmp_path, bytes(archive), "a.zip")


def test_a_zip_packed_in_an_unusual_way_says_what_to_do(tmp_path: Path) -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("a", b"a")

    with pytest.raises(UnsafeArchiveError, match="deflate"):
        unpacked(tmp_path, out.getvalue(), "a.zip")


def honest(name: str) -> bytes:
    random_bytes = random.Random(7).randbytes(100_000)
    if name.endswith("zip"):
        return zipped([("a", random_bytes), ("b", random_bytes)])
    compression = "" if name.endswith("tar") else name.rsplit(".", 1)[1]
    return tarred([tar_member("a", random_bytes), tar_member("b", random_bytes)], compression)


KINDS = ["a.zip", "a.tar", "a.tar.gz", "a.tar.xz", "a.tar.bz2"]


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("part", [0.0, 0.3, 0.5, 0.9])
def test_a_truncated_archive_is_refused(tmp_path: Path, name: str, part: float) -> None:
    archive = honest(name)

    with pytest.raises(UnsafeArchiveError):
        unpacked(tmp_path, archive[: int(len(archive) * part)], name)


def test_a_tar_that_ends_between_two_members_is_refused(tmp_path: Path) -> None:
    archive = tarred([tar_member("a", b"1"), tar_member("b", b"2")])

    with pytest.raises(UnsafeArchiveError, match="too early"):
        unpacked(tmp_path, archive[:1024], "a.tar")


@pytest.mark.parametrize("name", KINDS)
@hypothesis_settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(flips=st.lists(st.tuples(st.floats(0, 0.999), st.integers(1, 255)), min_size=1, max_size=4))
def test_a_damaged_archive_is_refused_or_unpacked_and_never_anything_else(
    tmp_path: Path, name: str, flips: list[tuple[float, int]]
) -> None:
    archive = bytearray(honest(name))
    for place, change in flips:
        archive[int(place * len(archive))] ^= change

    try:
        files = unpacked(tmp_path, bytes(archive), name)
    except UnsafeArchiveError:
        return
    assert len(files) <= 2


def test_a_file_that_is_not_the_archive_it_is_named_after_is_refused(tmp_path: Path) -> None:
    for name in KINDS:
        with pytest.raises(UnsafeArchiveError):
            unpacked(tmp_path, b"a,b\n1,2\n" * 1000, name)


@pytest.mark.parametrize("name", KINDS)
def test_an_archive_without_a_file_is_refused(tmp_path: Path, name: str) -> None:
    empty = zipped([]) if name == "a.zip" else tarred([], name.rsplit(".", 1)[1].replace("tar", ""))

    with pytest.raises(UnsafeArchiveError, match="no file"):
        unpacked(tmp_path, empty, name)


def test_concatenated_and_padded_gzip_streams_are_one(tmp_path: Path) -> None:
    archive = tarred([tar_member("a", b"1" * 5000)])
    parts = gzip.compress(archive[:3000]) + gzip.compress(archive[3000:]) + bytes(1000)

    assert unpacked(tmp_path, parts, "a.tgz") == {"a": b"1" * 5000}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a.zip", True),
        ("A.ZIP", True),
        ("a.tgz", True),
        ("a.tar.bz2", True),
        ("a.npz", False),
        ("a.csv.gz", False),
        ("a.keras", False),
        ("zip", False),
    ],
)
def test_only_what_is_named_as_an_archive_is_unpacked(name: str, expected: bool) -> None:
    assert storage.is_archive(name) is expected


def test_very_many_headers_cost_no_memory(tmp_path: Path) -> None:
    folder = tarfile.TarInfo("d/")
    folder.type = tarfile.DIRTYPE
    headers = folder.tobuf() * 10_000
    archive = gzip.compress(headers + tarred([tar_member("d/a", b"1")]))
    limits = storage.UnpackLimits(max_bytes=64 << 20, max_files=10)
    source = tmp_path / "received"
    source.write_bytes(archive)
    del archive, headers
    tracemalloc.start()

    with storage.Tree.building("test", limits) as tree:
        storage.unpack(source, "a.tgz", tree)

    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 << 20


def test_deeply_nested_headers_are_damage_not_a_crash(tmp_path: Path) -> None:
    header = tarfile.TarInfo("x")
    header.type = tarfile.GNUTYPE_LONGNAME
    header.size = 1
    archive = gzip.compress((header.tobuf() + b"n" + bytes(511)) * 5000 + bytes(1024))

    with pytest.raises(UnsafeArchiveError):
        unpacked(tmp_path, archive, "a.tgz")


def test_the_umask_does_not_matter(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        assert unpacked(tmp_path, zipped([("a", b"1")]), "a.zip") == {"a": b"1"}
    finally:
        os.umask(before)
