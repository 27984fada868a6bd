from __future__ import annotations

import hashlib
from collections.abc import Iterator
from uuid import UUID, uuid4

import pytest

from jobs import storage
from jobs.errors import ChecksumMismatchError, InvalidInputError


def append(
    upload: UUID,
    chunks: Iterator[bytes] | list[bytes],
    *,
    offset: int = 0,
    room: int = 1 << 30,
    receipt: storage.Receipt = storage.NO_CHECKSUM,
) -> list[int]:
    """Append a part and return the offsets that were noted."""
    noted: list[int] = []
    with storage.UploadFile.held(upload) as file:
        try:
            file.append(chunks, offset=offset, room=room, receipt=receipt, note=noted.append)
        except ConnectionError:
            noted.append(-1)
    return noted


def broken_off(*chunks: bytes) -> Iterator[bytes]:
    yield from chunks
    raise ConnectionError


def test_parts_follow_each_other() -> None:
    upload = uuid4()

    append(upload, [b"ab", b"c"])
    append(upload, [b"de"], offset=3)

    assert storage.upload_path(upload).read_bytes() == b"abcde"


def test_what_arrived_before_a_cut_is_kept() -> None:
    upload = uuid4()

    assert append(upload, broken_off(b"abc", b"de")) == [5, -1]
    assert storage.upload_path(upload).read_bytes() == b"abcde"


def test_a_long_part_is_noted_on_the_way() -> None:
    noted = append(uuid4(), [bytes(1 << 20)] * 40)

    assert noted == [16 << 20, 32 << 20, 40 << 20]


def test_what_was_not_noted_is_written_over() -> None:
    upload = uuid4()
    append(upload, [b"abcXXXX"])

    append(upload, [b"de"], offset=3)

    assert storage.upload_path(upload).read_bytes()[:5] == b"abcde"


@pytest.mark.parametrize("algorithm", ["sha1", "sha256"])
def test_a_part_is_taken_only_when_its_checksum_is_right(algorithm: str) -> None:
    upload = uuid4()
    right = storage.Receipt(algorithm=algorithm, digest=hashlib.new(algorithm, b"abc").digest())

    with pytest.raises(ChecksumMismatchError):
        append(upload, [b"abX"], receipt=right)

    assert append(upload, [b"abc"], receipt=right) == [3]


def test_a_part_with_a_checksum_that_is_cut_counts_for_nothing() -> None:
    receipt = storage.Receipt(algorithm="sha1", digest=b"")

    assert append(uuid4(), broken_off(b"abc"), receipt=receipt) == [-1]


def test_more_than_there_is_room_for_is_refused_and_the_rest_kept() -> None:
    upload = uuid4()

    with pytest.raises(InvalidInputError):
        append(upload, [b"abc", b"de"], room=4)

    assert storage.upload_path(upload).read_bytes() == b"abc"


def test_two_writers_at_once() -> None:
    upload = uuid4()

    with storage.UploadFile.held(upload), pytest.raises(storage.Busy):
        append(upload, [b"a"])
