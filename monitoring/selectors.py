"""Every read of logs, metrics and samples."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from django.db.models import Count, F

from cluster import selectors as cluster_selectors
from cluster.models import Gpu, Host
from jobs.models import Attempt, Job, Replica
from monitoring.blocks import Columns, coarsened, pack, unpack
from monitoring.events import milliseconds, moment
from monitoring.models import LogChunk, LogStream, MetricPoint, SampleBlock
from monitoring.series import LONGEST, ROLL_UPS, resolution_for, thinned, with_gaps

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
    found = _samples(subject, resolution_s, since=since, until=until)
    return resolution_s, [
        [at_ms, values]
        for at_ms, values in with_gaps(found[: MAX_SAMPLES + 1], resolution_s=resolution_s)
    ]


def _samples(
    subject: str, resolution_s: int, *, since: datetime, until: datetime
) -> list[tuple[int, Mapping[str, Any]]]:
    """Return the samples of a resolution; where means are not made yet, those of finer samples."""
    first_ms, last_ms = milliseconds(since), milliseconds(until)
    parts = _blocks(subject, resolution_s, since=since, until=until)
    found: dict[int, Mapping[str, Any]] = {}
    for part in parts:
        for at, values in part.rows():
            if first_ms <= at <= last_ms:
                found.setdefault(at, values)
    if resolution_s in ROLL_UPS:
        finer, window_s = ROLL_UPS[resolution_s]
        made_ms = max((part.times[-1] for part in parts if part.times), default=0)
        open_ms = max(first_ms, made_ms // (1000 * window_s) * 1000 * window_s + 1000 * window_s)
        if not made_ms:
            open_ms = first_ms
        if open_ms < last_ms:
            found |= _means(subject, finer, resolution_s, open_ms, last_ms)
    return sorted(found.items())


def _means(
    subject: str, finer: int, resolution_s: int, since_ms: int, until_ms: int
) -> dict[int, Mapping[str, Any]]:
    since, until = moment(since_ms), moment(until_ms)
    fine = _samples(subject, finer, since=since, until=until)
    columns = [unpack(pack(fine))] if fine else []
    means = coarsened(columns, seconds=resolution_s, since_ms=since_ms, until_ms=until_ms)
    return dict(means)


def _blocks(subject: str, resolution_s: int, *, since: datetime, until: datetime) -> list[Columns]:
    rows = SampleBlock.objects.filter(
        subject=subject,
        resolution_s=resolution_s,
        start__gte=since - timedelta(seconds=LONGEST[resolution_s]),
        start__lte=until,
    )
    return [
        unpack(bytes(packed))
        for end, packed in rows.order_by("start").values_list("end", "packed")
        if end >= since
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
    states = {state.name: state for state in cluster_selectors.cluster_snapshot(now=now).hosts}
    return [_host_live(host, states[host.name], now=now) for host in hosts]  # type: ignore[index]


def _host_live(host: Host, state: Any, *, now: datetime) -> dict[str, Any]:
    fresh = host.probed_at is not None and now - host.probed_at <= LIVE_FOR
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
        "values": host.last_reading if fresh else {},
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
        "parent_uuid": gpu.parent_uuid,
        "memory_total_mib": gpu.memory_total_mib,
        "health": health.value,
        "health_text": why,
        "is_simulated": gpu.is_simulated,
        "values": gpu.last_reading if fresh else {},
    }


def job_counts() -> dict[str, int]:
    """Return how many jobs there are by status."""
    rows = Job.objects.order_by().values("status").annotate(count=Count("pk"))
    return {row["status"]: row["count"] for row in rows}


def gpu_users(host_name: str) -> dict[str, Replica]:
    """Return the running replicas of a host, with their jobs, by their container's id."""
    rows = Replica.objects.filter(host_name=host_name, removed_at=None).exclude(container_id="")
    return {row.container_id: row for row in rows.select_related("attempt__job__owner")}


def running_containers() -> dict[str, dict[str, tuple[UUID, UUID]]]:
    """Return by host the containers that run jobs: each with its replica's and its job's id."""
    rows = Replica.objects.filter(removed_at=None).exclude(container_id="")
    found: dict[str, dict[str, tuple[UUID, UUID]]] = {}
    for host, container, replica, job in rows.values_list(
        "host_name", "container_id", "public_id", "attempt__job__public_id"
    ):
        found.setdefault(host, {})[container] = (replica, job)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class JobUse:
    """What an attempt used of its GPUs; ``None`` where nothing was measured.

    Attributes:
        utilization_pct: Mean over its time, per GPU.
        memory_peak_mib: The highest of any replica, per GPU.
        alone_s: How long its GPUs were its own; 0 where it shares them.
    """

    utilization_pct: float | None = None
    memory_peak_mib: int | None = None
    alone_s: float = 0.0


def job_use(*, job: Job, attempt: Attempt, now: datetime) -> JobUse:
    """Return what an attempt used, from the samples of its containers and of its own GPUs."""
    if not job.gpus or attempt.started_at is None or attempt.finished_at is None:
        return JobUse()
    since, until = attempt.started_at, attempt.finished_at
    replicas = list(attempt.replicas.all())
    series = [
        values
        for replica in replicas
        for _, values in samples(
            subject=f"replica:{replica.public_id}", since=since, until=until, now=now
        )[1]
    ]
    memory = [float(one["gpu_memory_mib"]) for one in series if one.get("gpu_memory_mib")]
    parts = [float(one["gpu_pct"]) / job.gpus for one in series if one.get("gpu_pct") is not None]
    alone = job.gpu_memory_mib is None
    if not parts and alone:
        claims = cluster_selectors.claims_of([replica.public_id for replica in replicas])
        for uuid in {uuid for held in claims.values() for uuid in held}:
            _, rows = samples(subject=f"gpu:{uuid}", since=since, until=until, now=now)
            used = (values.get("utilization_pct") for _, values in rows)
            parts += [float(value) for value in used if value is not None]
    return JobUse(
        utilization_pct=sum(parts) / len(parts) if parts else None,
        memory_peak_mib=round(max(memory) / job.gpus) if memory else None,
        alone_s=(until - since).total_seconds() if alone else 0.0,
    )
