"""Every write of logs, metrics and samples."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from django.conf import settings
from django.db import transaction
from django.db.models import Max, Min

from cluster.ports import LogLine
from jobs.models import Replica
from monitoring import lines as text_of_lines
from monitoring.errors import StaleCursorError
from monitoring.events import milliseconds
from monitoring.models import LogChunk, LogStream, MetricPoint, Sample
from monitoring.series import RETENTION, averaged

_CHUNK_LINES: Final = 256
_CHUNK_BYTES: Final = 64 * 1024
_SLICE: Final = timedelta(minutes=5)
_DELETE_ROWS: Final = 5000


@dataclass(frozen=True, slots=True, kw_only=True)
class Appended:
    """What one call stored: the number of its first line, the lines, and the metric points."""

    first: int
    lines: list[list[Any]] = field(default_factory=list)
    points: list[dict[str, Any]] = field(default_factory=list)


def log_stream(replica: Replica) -> LogStream:
    """Return a replica's stream, made at its first line."""
    return LogStream.objects.get_or_create(replica=replica)[0]


@transaction.atomic
def log_append(*, replica: Replica, after: str, lines: Sequence[LogLine]) -> Appended:
    """Store consecutive lines and the metrics in them, and move the cursor, in one step.

    Args:
        after: The cursor from which the lines were followed.

    Raises:
        StaleCursorError: If the stream stands elsewhere by now; nothing is stored then, so no
            line is ever stored twice or left out.
    """
    stream = LogStream.objects.select_for_update().get(replica=replica)
    if stream.cursor != after:
        raise StaleCursorError(replica.public_id)
    known = text_of_lines.secrets_of(replica.attempt.job.parameters)
    kept: list[list[Any]] = []
    metrics: list[tuple[datetime, text_of_lines.MetricValue]] = []
    for line in lines:
        metrics.extend((line.at, metric) for metric in text_of_lines.metrics_in(line.text))
        if not line.text.startswith(text_of_lines.KIT_MARK):
            text = text_of_lines.masked(text_of_lines.shown(line.text), known)
            _keep(stream, kept, [milliseconds(line.at), line.stream[3], text])
    first = stream.next_line
    _store_chunks(stream, kept)
    points = _store_metrics(replica, metrics)
    stream.next_line = first + len(kept)
    stream.cursor = lines[-1].cursor if lines else after
    stream.save()
    return Appended(first=first, lines=kept, points=points)


def _keep(stream: LogStream, kept: list[list[Any]], line: list[Any]) -> None:
    """Keep a line, or count it where the job has printed more than its quota."""
    quota_mib = settings.STARLING["LOG_QUOTA_MIB"]
    size = len(line[2].encode()) + 24
    if stream.stored_bytes + size <= quota_mib * 2**20:
        stream.stored_bytes += size
        kept.append(line)
        return
    if stream.dropped_lines == 0:
        kept.append(
            [line[0], "e", f"[the log has reached its {quota_mib} MiB; what follows is not kept]"]
        )
    stream.dropped_lines += 1


def _store_chunks(stream: LogStream, kept: Sequence[list[Any]]) -> None:
    chunks: list[LogChunk] = []
    part: list[list[Any]] = []
    size = 0
    number = stream.next_line

    def close() -> None:
        nonlocal part, size, number
        if part:
            chunks.append(
                LogChunk(stream=stream, first_line=number, line_count=len(part), lines=part)
            )
            number += len(part)
            part, size = [], 0

    for line in kept:
        part.append(line)
        size += len(line[2])
        if len(part) >= _CHUNK_LINES or size >= _CHUNK_BYTES:
            close()
    close()
    LogChunk.objects.bulk_create(chunks)


def _store_metrics(
    replica: Replica, metrics: Sequence[tuple[datetime, text_of_lines.MetricValue]]
) -> list[dict[str, Any]]:
    if not metrics:
        return []
    next_step = _next_steps(replica, {metric.name for _, metric in metrics if metric.step is None})
    points: list[MetricPoint] = []
    for at, metric in metrics:
        step = metric.step
        if step is None:
            step = next_step[metric.name]
            next_step[metric.name] += 1
        points.append(
            MetricPoint(replica=replica, name=metric.name, step=step, value=metric.value, at=at)
        )
    MetricPoint.objects.bulk_create(points, batch_size=500)
    return [
        {
            "name": point.name,
            "step": point.step,
            "value": point.value,
            "at_ms": milliseconds(point.at),
        }
        for point in points
    ]


def _next_steps(replica: Replica, names: set[str]) -> dict[str, int]:
    if not names:
        return {}
    rows = (
        MetricPoint.objects.filter(replica=replica, name__in=names)
        .values("name")
        .annotate(last=Max("step"))
    )
    found = dict.fromkeys(names, 1)
    found.update({row["name"]: row["last"] + 1 for row in rows})
    return found


def log_complete(*, replica: Replica) -> None:
    """Note that nothing more will come of a replica's output."""
    LogStream.objects.filter(replica=replica).update(is_complete=True)


def samples_record(samples: Sequence[tuple[str, datetime, Mapping[str, Any]]]) -> None:
    """Store samples of one second each; one that is there already stays as it is."""
    Sample.objects.bulk_create(
        [
            Sample(subject=subject, resolution_s=1, at=at, values=dict(values))
            for subject, at, values in samples
        ],
        ignore_conflicts=True,
    )


def roll_up_samples(*, now: datetime) -> int:
    """Average fine samples into coarse ones and drop what is kept no longer; return rows made.

    A bounded slice per call; done twice it makes nothing twice.
    """
    made = 0
    finer = 1
    for coarser in (10, 60):
        made += _roll_up(finer, coarser, now=now)
        finer = coarser
    for resolution, kept_s in RETENTION.items():
        _expire(resolution, before=now - timedelta(seconds=kept_s))
    return made


def _roll_up(finer: int, coarser: int, *, now: datetime) -> int:
    done = Sample.objects.filter(resolution_s=coarser).aggregate(at=Max("at"))["at"]
    fine = Sample.objects.filter(resolution_s=finer)
    if done is not None:
        fine = fine.filter(at__gte=done + timedelta(seconds=coarser))
    oldest = fine.aggregate(at=Min("at"))["at"]
    if oldest is None:
        return 0
    start = _floor(oldest, coarser)
    # A bucket is closed only when the samples of a slow collector are in, too.
    closed = _floor(now - timedelta(seconds=2 * coarser), coarser)
    end = min(closed, start + _SLICE * (coarser // 10))
    buckets: dict[tuple[str, datetime], list[Mapping[str, Any]]] = defaultdict(list)
    rows = Sample.objects.filter(resolution_s=finer, at__gte=start, at__lt=end)
    for subject, at, values in rows.values_list("subject", "at", "values").iterator():
        buckets[subject, _floor(at, coarser)].append(values)
    Sample.objects.bulk_create(
        [
            Sample(subject=subject, resolution_s=coarser, at=at, values=averaged(values))
            for (subject, at), values in buckets.items()
        ],
        ignore_conflicts=True,
        batch_size=500,
    )
    return len(buckets)


def _floor(at: datetime, seconds: int) -> datetime:
    return datetime.fromtimestamp(int(at.timestamp()) // seconds * seconds, tz=UTC)


def _expire(resolution: int, *, before: datetime) -> None:
    for _ in range(20):
        old = Sample.objects.filter(resolution_s=resolution, at__lt=before)
        rows = list(old.values_list("pk", flat=True)[:_DELETE_ROWS])
        if not rows:
            return
        Sample.objects.filter(pk__in=rows).delete()
