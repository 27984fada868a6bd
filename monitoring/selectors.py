"""Every read of logs, metrics and samples."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from django.db.models import F

from cluster import selectors as cluster_selectors
from cluster.models import Gpu, Host
from jobs.models import Attempt, Job, Replica
from monitoring.events import milliseconds
from monitoring.models import LogChunk, LogStream, MetricPoint, Sample
from monitoring.series import resolution_for, thinned, with_gaps

MAX_LINES: Final = 5000
MAX_POINTS: Final = 2000
MAX_SAMPLES: Final = 4000
#: A reading older than this is not shown as the present.
LIVE_FOR: Final = timedelta(seconds=10)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPage:
    """Consecutive lines of one replica's output.

    Attributes:
        first: Number of the first line here; the first of all is 1.
        lines: ``[[milliseconds since 1970, "o" or "e", text], …]``.
        next_line: The number the next stored line will get.
        dropped_lines: How many lines past the log quota were not kept.
        is_complete: Whether nothing more will come.
    """

    first: int
    lines: list[list[Any]]
    next_line: int
    dropped_lines: int = 0
    is_complete: bool = False


def log_lines(*, replica: Replica, first: int = 1, limit: int = 1000) -> LogPage:
    """Return up to ``limit`` lines from number ``first`` on; fewer at the end of what is stored.

    A negative ``first`` counts from the end: -200 gives the last 200 lines.
    """
    stream = LogStream.objects.filter(replica=replica).first()
    if stream is None:
        return LogPage(
            first=1, lines=[], next_line=1, is_complete=replica.log_complete_at is not None
        )
    if first < 0:
        first = stream.next_line + first
    first = max(1, first)
    limit = max(1, min(limit, MAX_LINES))
    lines: list[list[Any]] = []
    for chunk in _chunks(stream, first=first, last=first + limit - 1):
        skip = max(0, first - chunk.first_line)
        lines.extend(chunk.lines[skip : skip + limit - len(lines)])
    return LogPage(
        first=first,
        lines=lines,
        next_line=stream.next_line,
        dropped_lines=stream.dropped_lines,
        is_complete=stream.is_complete or replica.log_complete_at is not None,
    )


def _chunks(stream: LogStream, *, first: int, last: int) -> Iterator[LogChunk]:
    rows = LogChunk.objects.filter(
        stream=stream,
        first_line__lte=last,
        # A chunk is short, so the index finds its beginning in a narrow range.
        first_line__gt=first - 512,
        first_line__gte=first - F("line_count") + 1,
    )
    return rows.order_by("first_line").iterator(chunk_size=50)


def log_text(*, replica: Replica) -> Iterator[str]:
    """Yield the whole stored output as text, a part at a time."""
    stream = LogStream.objects.filter(replica=replica).first()
    if stream is None:
        return
    rows = LogChunk.objects.filter(stream=stream).order_by("first_line")
    for chunk in rows.iterator(chunk_size=20):
        yield "".join(f"{line[2]}\n" for line in chunk.lines)
    if stream.dropped_lines:
        yield f"[{stream.dropped_lines} more lines were not kept]\n"


def log_search(*, replica: Replica, text: str, limit: int = 500) -> list[int]:
    """Return the numbers of the first lines that contain ``text``, any case."""
    stream = LogStream.objects.filter(replica=replica).first()
    found: list[int] = []
    if stream is None or not text:
        return found
    wanted = text.lower()
    rows = LogChunk.objects.filter(stream=stream).order_by("first_line")
    for chunk in rows.iterator(chunk_size=20):
        for offset, line in enumerate(chunk.lines):
            if wanted in line[2].lower():
                found.append(chunk.first_line + offset)
                if len(found) >= limit:
                    return found
    return found


def metric_series(*, job: Job, attempt: int | None = None) -> list[dict[str, Any]]:
    """Return every metric of an attempt (the last by default), thinned to a chart's width.

    Each: ``{"rank", "name", "points": [[step, value or None, milliseconds], …]}``.
    """
    chosen = _attempt(job, attempt)
    if chosen is None:
        return []
    series: dict[tuple[int, str], list[tuple[int, float | None, int]]] = {}
    rows = MetricPoint.objects.filter(replica__attempt=chosen).order_by("id")
    for rank, name, step, value, at in rows.values_list(
        "replica__rank", "name", "step", "value", "at"
    ).iterator():
        series.setdefault((rank, name), []).append((step, value, milliseconds(at)))
    return [
        {"rank": rank, "name": name, "points": _thin(points)}
        for (rank, name), points in sorted(series.items())
    ]


def _thin(points: list[tuple[int, float | None, int]]) -> list[list[Any]]:
    if len(points) <= MAX_POINTS:
        return [list(point) for point in points]
    kept = thinned([(index, value) for index, (_, value, _) in enumerate(points)], MAX_POINTS)
    return [list(points[index]) for index, _ in kept]


def _attempt(job: Job, number: int | None) -> Attempt | None:
    attempts = job.attempts.order_by("-number")
    return (attempts.filter(number=number) if number else attempts).first()


def samples(
    *,
    subject: str,
    since: datetime,
    until: datetime,
    now: datetime,
    resolution_s: int | None = None,
) -> tuple[int, list[list[Any]]]:
    """Return the resolution in seconds and ``[[milliseconds, values], …]`` of a subject.

    Without a resolution the finest that is kept and short enough is chosen. Where samples are
    missing an empty one stands for the gap.
    """
    if resolution_s is None:
        resolution_s = resolution_for(
            (until - since).total_seconds(), max(0.0, (now - since).total_seconds())
        )
    rows = (
        Sample.objects.filter(
            subject=subject, resolution_s=resolution_s, at__gte=since, at__lte=until
        )
        .order_by("at")
        .values_list("at", "values")[: MAX_SAMPLES + 1]
    )
    found = [(milliseconds(at), values) for at, values in rows]
    return resolution_s, [
        [at_ms, values] for at_ms, values in with_gaps(found, resolution_s=resolution_s)
    ]


def job_samples(
    *, job: Job, now: datetime, attempt: int | None = None, since: datetime | None = None
) -> list[dict[str, Any]]:
    """Return what the containers of an attempt used, a series per replica.

    Each: ``{"subject", "rank", "host", "resolution_s", "samples": [[milliseconds, values], …]}``.
    """
    chosen = _attempt(job, attempt)
    if chosen is None or chosen.started_at is None:
        return []
    start = max(since, chosen.started_at) if since else chosen.started_at - timedelta(seconds=2)
    end = (chosen.finished_at or now) + timedelta(seconds=5)
    found: list[dict[str, Any]] = []
    for replica in chosen.replicas.order_by("rank"):
        subject = f"replica:{replica.public_id}"
        resolution, rows = samples(subject=subject, since=start, until=end, now=now)
        found.append(
            {
                "subject": subject,
                "rank": replica.rank,
                "host": replica.host_name,
                "resolution_s": resolution,
                "samples": rows,
            }
        )
    return found


def cluster_live(*, now: datetime) -> list[dict[str, Any]]:
    """Return every host with its latest reading, its GPUs, and what is claimed.

    A value that is older than :data:`LIVE_FOR` is left out: unknown is not what it last was.
    """
    hosts = list(cluster_selectors.host_list())
    latest = _latest_host_samples(hosts, now=now)
    states = {state.name: state for state in cluster_selectors.cluster_snapshot(now=now).hosts}
    return [_host_live(host, latest.get(host.name), states[host.name], now=now) for host in hosts]  # type: ignore[index]


def _latest_host_samples(hosts: list[Host], *, now: datetime) -> dict[str, dict[str, Any]]:
    subjects = [f"host:{host.name}" for host in hosts]
    rows = Sample.objects.filter(
        subject__in=subjects, resolution_s=1, at__gte=now - LIVE_FOR
    ).order_by("at")
    return {row.subject.removeprefix("host:"): row.values for row in rows}


def _host_live(
    host: Host, values: dict[str, Any] | None, state: Any, *, now: datetime
) -> dict[str, Any]:
    return {
        "name": host.name,
        "mode": host.mode,
        "connection": host.connection,
        "connection_text": host.connection_text,
        "connection_at": host.connection_at,
        "probed_at": host.probed_at,
        "probe_text": host.probe_text,
        "is_simulated": host.is_simulated,
        "schedulable": state.schedulable,
        "reason": state.reason,
        "values": values or {},
        "cpu_millis": state.cpu_millis,
        "memory_mib": state.memory_mib,
        "cpu_claimed_millis": state.cpu_claimed_millis,
        "memory_claimed_mib": state.memory_claimed_mib,
        "gpus": [_gpu_live(gpu, now=now) for gpu in host.gpus.all()],
    }


def _gpu_live(gpu: Gpu, *, now: datetime) -> dict[str, Any]:
    health, why = cluster_selectors.gpu_health(gpu, now=now)
    fresh = gpu.reported_at is not None and now - gpu.reported_at <= LIVE_FOR
    return {
        "uuid": gpu.uuid,
        "index": gpu.index,
        "model": gpu.model,
        "memory_total_mib": gpu.memory_total_mib,
        "health": health.value,
        "health_text": why,
        "is_simulated": gpu.is_simulated,
        "values": gpu.last_reading if fresh else {},
    }


def running_containers(host_name: str) -> dict[str, Replica]:
    """Return the running replicas of a host by their container's id."""
    rows = Replica.objects.filter(host_name=host_name, removed_at=None).exclude(container_id="")
    return {row.container_id: row for row in rows.select_related("attempt__job")}
