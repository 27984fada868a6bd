"""Every write of logs, metrics and samples."""

import logging
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from django.conf import settings
from django.db import IntegrityError, connection, transaction
from django.db.models import Max

from cluster.ports import LogLine
from jobs.models import Replica
from monitoring import lines as text_of_lines
from monitoring.blocks import pack
from monitoring.errors import StaleCursorError
from monitoring.events import milliseconds, moment
from monitoring.models import LogChunk, LogStream, MetricPoint, SampleBlock
from monitoring.series import LONGEST

logger = logging.getLogger(__name__)

#: So many rows are worth another way to store them.
_COPY_FROM: Final = 200
_CHUNK_LINES: Final = 256
_CHUNK_BYTES: Final = 64 * 1024


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
    by_subject: dict[str, list[tuple[int, Mapping[str, Any]]]] = defaultdict(list)
    for subject, at, values in samples:
        by_subject[subject].append((milliseconds(at), values))
    blocks: list[SampleBlock] = []
    for subject, found in by_subject.items():
        found.sort(key=lambda sample: sample[0])
        blocks += [block_of(subject, 1, part) for part in _parts(found)]
    blocks_store(blocks)


def blocks_store(blocks: Sequence[SampleBlock]) -> None:
    """Store blocks; one that begins when another of its subject does is there already."""
    if connection.vendor == "postgresql" and len(blocks) > _COPY_FROM:
        try:
            with transaction.atomic():
                _copy(blocks)
        except IntegrityError:
            logger.info("some samples were stored before", extra={"n": len(blocks)})
        else:
            return
    SampleBlock.objects.bulk_create(blocks, ignore_conflicts=True, batch_size=500)


def _copy(blocks: Sequence[SampleBlock]) -> None:
    """Store many blocks as PostgreSQL takes them fastest."""
    table = connection.ops.quote_name(SampleBlock._meta.db_table)  # noqa: SLF001 - its own name
    statement = f'COPY {table} (subject, resolution_s, start, "end", packed) FROM STDIN'
    with connection.cursor() as cursor, cursor.copy(statement) as copy:
        for block in blocks:
            copy.write_row(
                (block.subject, block.resolution_s, block.start, block.end, block.packed)
            )


def _parts(
    samples: list[tuple[int, Mapping[str, Any]]],
) -> Iterator[list[tuple[int, Mapping[str, Any]]]]:
    """Yield samples in parts that are no longer than a block may be."""
    longest_ms = 1000 * LONGEST[1]
    part: list[tuple[int, Mapping[str, Any]]] = []
    for sample in samples:
        if part and sample[0] - part[0][0] >= longest_ms:
            yield part
            part = []
        part.append(sample)
    if part:
        yield part


def block_of(
    subject: str, resolution_s: int, samples: Sequence[tuple[int, Mapping[str, Any]]]
) -> SampleBlock:
    """Return a row, not stored yet, of samples in the order of their moments."""
    return SampleBlock(
        subject=subject,
        resolution_s=resolution_s,
        start=moment(samples[0][0]),
        end=moment(samples[-1][0]),
        packed=pack(samples, decimals=2 if resolution_s == 1 else 1),
    )
