"""Fine samples become means over longer stretches, and go when their time is over."""

import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from django.db.models import Min

from monitoring.blocks import coarsened, unpack
from monitoring.events import milliseconds
from monitoring.models import SampleBlock
from monitoring.series import LONGEST, RETENTION, ROLL_UPS
from monitoring.services import block_of, blocks_store

#: How long after a stretch is over the samples of a slow collector may still come.
_LATE: Final = timedelta(seconds=60)
_SUBJECTS: Final = 100
_DELETE: Final = 20_000


def roll_up_samples(*, now: datetime, seconds: float = 15.0) -> int:
    """Make means of what is complete, drop what is kept no longer; return how many blocks it made.

    Stops after about ``seconds``, and goes on with the next call; done twice it makes nothing
    twice.
    """
    until = time.monotonic() + seconds
    made = 0
    for coarser, (finer, window_s) in ROLL_UPS.items():
        for start in _windows(finer, window_s, now=now):
            for subjects in _unmade(finer, coarser, start, window_s):
                made += subjects_roll_up(subjects, finer, coarser, start, window_s)
                if time.monotonic() > until:
                    return made
    for resolution, kept_s in RETENTION.items():
        _expire(resolution, before=now - timedelta(seconds=kept_s + LONGEST[resolution]))
    return made


def _windows(finer: int, window_s: int, *, now: datetime) -> Iterator[datetime]:
    """Yield the beginning of each stretch that is over and that still has its fine samples."""
    oldest = SampleBlock.objects.filter(resolution_s=finer).aggregate(at=Min("start"))["at"]
    if oldest is None:
        return
    window = timedelta(seconds=window_s)
    start = stretch_start(max(oldest, now - timedelta(seconds=RETENTION[finer])), window_s)
    while start + window + _LATE <= now:
        yield start
        start += window


def _unmade(finer: int, coarser: int, start: datetime, window_s: int) -> Iterator[list[str]]:
    """Yield, some at a time, the subjects whose means of a stretch are not made yet."""
    end = start + timedelta(seconds=window_s)
    there = SampleBlock.objects.filter(
        resolution_s=finer, start__gte=start - timedelta(seconds=LONGEST[finer]), start__lt=end
    ).exclude(end__lt=start)
    made = SampleBlock.objects.filter(resolution_s=coarser, start__gte=start, start__lt=end)
    done = set(made.values_list("subject", flat=True))
    subjects = sorted(set(there.values_list("subject", flat=True).distinct()) - done)
    for first in range(0, len(subjects), _SUBJECTS):
        yield subjects[first : first + _SUBJECTS]


def subjects_roll_up(
    subjects: Sequence[str], finer: int, coarser: int, start: datetime, window_s: int
) -> int:
    """Make the means of one stretch for some subjects; return how many blocks they took.

    Args:
        subjects: Whose samples.
        finer, coarser: Resolutions in seconds: of what is there, of what is made.
        start, window_s: The stretch; see :func:`stretch_start`.
    """
    end = start + timedelta(seconds=window_s)
    rows = SampleBlock.objects.filter(
        subject__in=subjects,
        resolution_s=finer,
        start__gte=start - timedelta(seconds=LONGEST[finer]),
        start__lt=end,
    ).order_by("subject", "start")
    blocks = []
    by_subject: dict[str, list[bytes]] = {}
    for subject, packed in rows.values_list("subject", "packed").iterator():
        by_subject.setdefault(subject, []).append(bytes(packed))
    for subject, parts in by_subject.items():
        means = coarsened(
            (unpack(part) for part in parts),
            seconds=coarser,
            since_ms=milliseconds(start),
            until_ms=milliseconds(end),
        )
        if means:
            blocks.append(block_of(subject, coarser, means))
    blocks_store(blocks)
    return len(blocks)


def stretch_start(at: datetime, seconds: int) -> datetime:
    """Return when the stretch of so many seconds began in which a moment lies."""
    return datetime.fromtimestamp(int(at.timestamp()) // seconds * seconds, tz=UTC)


def _expire(resolution: int, *, before: datetime) -> None:
    old = SampleBlock.objects.filter(resolution_s=resolution, start__lt=before)
    for _ in range(20):
        rows = list(old.values_list("pk", flat=True)[:_DELETE])
        if rows:
            SampleBlock.objects.filter(pk__gte=min(rows), pk__lte=max(rows)).filter(
                resolution_s=resolution, start__lt=before
            ).delete()
        if len(rows) < _DELETE:
            return
