"""Errors of datasets and jobs; the text is for people, the fields are for code."""

from collections.abc import Mapping, Sequence
from uuid import UUID


class JobsError(Exception):
    """Something about a dataset, a job or what it needs."""

    code = "jobs_error"
    retryable = False


class InvalidInputError(JobsError):
    """Fields that cannot be accepted; each with a sentence that says what to do."""

    code = "invalid"

    def __init__(self, fields: Mapping[str, Sequence[str]]) -> None:
        super().__init__("; ".join(f"{name}: {' '.join(texts)}" for name, texts in fields.items()))
        self.fields = {name: list(texts) for name, texts in fields.items()}


class NotFoundError(JobsError):
    """There is no such thing, or it is not the asker's to see."""

    code = "not_found"

    def __init__(self, kind: str, key: object) -> None:
        super().__init__(f"there is no {kind} {key}")
        self.kind = kind
        self.key = str(key)


class UnsatisfiableError(JobsError):
    """No host could ever hold the job, even when nothing else ran.

    Attributes:
        fits: The largest request of this shape that some host could hold (field to amount).
    """

    code = "unsatisfiable"

    def __init__(self, text: str, *, fields: Mapping[str, Sequence[str]], fits: Mapping[str, int]):
        super().__init__(text)
        self.fields = {name: list(texts) for name, texts in fields.items()}
        self.fits = dict(fits)


class StaleTransitionError(JobsError):
    """The job has moved on meanwhile; whoever lost the race must look again."""

    code = "stale"

    def __init__(self, job_id: UUID, target: str) -> None:
        super().__init__(f"job {job_id} has moved on and cannot become {target} now")
        self.job_id = job_id
        self.target = target


class NotPossibleNowError(JobsError):
    """The asked-for act does not fit the state of the thing; the text says what does."""

    code = "conflict"


class QuotaExceededError(JobsError):
    """The owner's share of storage or of active jobs is used up."""

    code = "quota_exceeded"

    def __init__(self, text: str, *, limit: int, used: int, asked: int) -> None:
        super().__init__(text)
        self.limit = limit
        self.used = used
        self.asked = asked


class UnsafeArchiveError(JobsError):
    """An archive that cannot be unpacked without harm, or is not an archive at all."""

    code = "unsafe_archive"

    def __init__(self, text: str, *, member: str = "") -> None:
        super().__init__(text)
        self.member = member


class ArchiveTooLargeError(UnsafeArchiveError):
    """An archive that holds more bytes or more files than it may."""

    code = "archive_too_large"


class UploadOffsetError(NotPossibleNowError):
    """A part that does not begin where the bytes received so far end."""

    code = "offset_mismatch"

    def __init__(self, *, offset: int, expected: int) -> None:
        super().__init__(
            f"this part begins at byte {offset}, but the next byte wanted is {expected};"
            " ask for the offset again and go on from there"
        )
        self.offset = offset
        self.expected = expected


class UploadLockedError(NotPossibleNowError):
    """Another request is writing to the same upload."""

    code = "locked"


class UploadGoneError(NotPossibleNowError):
    """The upload has expired, was given up, or is complete."""

    code = "gone"


class StorageFullError(JobsError):
    """The disk of the portal is full."""

    code = "storage_full"
    retryable = True


class ChecksumMismatchError(JobsError):
    """The bytes that arrived are not the bytes that were sent."""

    code = "checksum_mismatch"
