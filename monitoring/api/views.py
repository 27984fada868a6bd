"""REST views of logs, metrics and samples."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

from django.http import HttpResponseBase
from django.utils import timezone
from django.utils.http import content_disposition_header
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse, extend_schema
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from cluster import selectors as cluster_selectors
from cluster.api.base import QueryParameters, as_uuid, refuse_unknown
from cluster.models import Gpu
from jobs import selectors as job_selectors
from jobs.api.streams import streamed
from jobs.errors import NotFoundError
from jobs.models import Job, Replica
from monitoring import selectors
from monitoring.api.follow import follow_response
from monitoring.api.serializers import (
    ClusterSerializer,
    JobSamplesSerializer,
    LogPageSerializer,
    LogSearchSerializer,
    MetricsSerializer,
    SeriesSerializer,
)

_ATTEMPT = OpenApiParameter(
    "attempt",
    {"type": "integer", "minimum": 1, "maximum": 32_767},
    description="Number of the attempt; by default the last.",
)
_RANK = OpenApiParameter(
    "rank",
    {"type": "integer", "minimum": 0, "maximum": 32_767, "default": 0},
    description="Which of the attempt's containers.",
)
_SINCE = OpenApiParameter("since", OpenApiTypes.DATETIME, description="By default an hour ago.")
_UNTIL = OpenApiParameter("until", OpenApiTypes.DATETIME, description="By default now.")
_TEXT = OpenApiResponse(OpenApiTypes.STR)


def _rank_and_attempt(query: QueryParameters) -> tuple[int, int | None]:
    return (
        query.integer("rank", 0, maximum=32_767),
        query.optional_integer("attempt", minimum=1, maximum=32_767),
    )


def _replica(job: Job, *, rank: int, attempt: int | None) -> Replica | None:
    """Return the replica, or ``None`` for the only one that may be awaited: the first attempt's."""
    if attempt is None and rank == 0 and not job.attempts.exists():
        return None
    return job_selectors.replica_of(job=job, attempt=attempt, rank=rank)


def _job(request: Request, public_id: str) -> Job:
    return job_selectors.job_get(user=request.user, public_id=as_uuid(public_id))


class LogView(APIView):
    """A job's output by the numbers of its lines."""

    @extend_schema(
        tags=["jobs"],
        summary="Read a job's log",
        parameters=[
            _RANK,
            _ATTEMPT,
            OpenApiParameter(
                "first",
                {"type": "integer", "minimum": -(2**31), "maximum": 2**53, "default": 1},
                description="Number of the first line; -200 begins 200 lines before the end.",
            ),
            OpenApiParameter(
                "limit", {"type": "integer", "minimum": 1, "maximum": 5000, "default": 1000}
            ),
        ],
        responses={200: LogPageSerializer},
    )
    def get(self, request: Request, id: str) -> Response:  # noqa: A002 - the route's name
        """Return lines from `first` on; the numbers never change and leave out none."""
        query = QueryParameters(request, ["rank", "attempt", "first", "limit"])
        job = _job(request, id)
        rank, attempt = _rank_and_attempt(query)
        first = query.signed_integer("first", 1, minimum=-(2**31), maximum=2**53)
        limit = query.integer("limit", 1000, minimum=1, maximum=selectors.MAX_LINES)
        replica = _replica(job, rank=rank, attempt=attempt)
        page = (
            selectors.LogPage(
                first=1, lines=[], next_line=1, is_complete=job.finished_at is not None
            )
            if replica is None
            else selectors.log_lines(replica=replica, first=first, limit=limit)
        )
        return Response(
            {
                "attempt": replica.attempt.number if replica else None,
                "rank": rank,
                "first": page.first,
                "lines": page.lines,
                "next_line": page.next_line,
                "dropped_lines": page.dropped_lines,
                "is_complete": page.is_complete,
            }
        )


class LogTextView(APIView):
    """A job's output as one text."""

    @extend_schema(
        tags=["jobs"],
        summary="Download a job's log",
        parameters=[_RANK, _ATTEMPT],
        responses={(200, "text/plain"): _TEXT},
    )
    def get(self, request: Request, id: str) -> HttpResponseBase:  # noqa: A002 - the route's name
        """Return everything that is stored of the output, as a text file."""
        query = QueryParameters(request, ["rank", "attempt"])
        job = _job(request, id)
        rank, attempt = _rank_and_attempt(query)
        replica = _replica(job, rank=rank, attempt=attempt)
        answer = streamed(request, _text(replica), content_type="text/plain; charset=utf-8")
        answer["X-Content-Type-Options"] = "nosniff"
        answer["Content-Disposition"] = str(
            content_disposition_header(as_attachment=True, filename=f"{job.name}.log")
        )
        return answer


def _text(replica: Replica | None) -> Iterator[bytes]:
    if replica is not None:
        for part in selectors.log_text(replica=replica):
            yield part.encode(errors="replace")


class LogSearchView(APIView):
    """Where a text is in a job's output."""

    @extend_schema(
        tags=["jobs"],
        summary="Search a job's log",
        parameters=[_RANK, _ATTEMPT, OpenApiParameter("text", str, required=True)],
        responses={200: LogSearchSerializer},
    )
    def get(self, request: Request, id: str) -> Response:  # noqa: A002 - the route's name
        """Return the numbers of the first 500 lines that contain the text, any case."""
        query = QueryParameters(request, ["rank", "attempt", "text"])
        rank, attempt = _rank_and_attempt(query)
        replica = _replica(_job(request, id), rank=rank, attempt=attempt)
        text = query.text("text")
        found = [] if replica is None else selectors.log_search(replica=replica, text=text)
        return Response({"lines": found})


class LogStreamView(APIView):
    """A job's output as it comes."""

    @extend_schema(
        tags=["jobs"],
        summary="Follow a job's log",
        parameters=[
            _RANK,
            _ATTEMPT,
            OpenApiParameter(
                "first",
                {"type": "integer", "minimum": 1, "maximum": 2**53, "default": 1},
                description="Number of the first line.",
            ),
            OpenApiParameter(
                "Last-Event-ID",
                {"type": "integer", "minimum": 0, "maximum": 2**53},
                OpenApiParameter.HEADER,
                description="Number of the last line that you have; goes before `first`.",
            ),
        ],
        responses={
            (200, "text/event-stream"): OpenApiResponse(
                {
                    "type": "object",
                    "properties": {
                        "id": {"type": "string"},
                        "event": {"type": "string"},
                        "data": {"type": "string"},
                        "retry": {"type": "integer"},
                    },
                },
                description="Server-sent events; the id of each is the number of its line.",
            )
        },
    )
    def get(self, request: Request, id: str) -> HttpResponseBase:  # noqa: A002 - the route's name
        """Send every line once, from the first on, and go on until the attempt has ended.

        Each event's data is `[milliseconds since 1970, "o" or "e", text]`. A comment is sent
        when nothing comes for a while; at the end comes an event `end`. A client that was cut
        off goes on by sending `Last-Event-ID`, as every browser's EventSource does by itself.
        """
        query = QueryParameters(request, ["rank", "attempt", "first"])
        job = _job(request, id)
        rank, attempt = _rank_and_attempt(query)
        replica = _replica(job, rank=rank, attempt=attempt)
        last = request.headers.get("Last-Event-ID", "")
        first = query.integer("first", 1, minimum=1)
        if last:
            if not (last.isascii() and last.isdigit() and len(last) <= 16):
                raise ValidationError({"Last-Event-ID": ["must be the number of a line"]})
            first = int(last) + 1
        return follow_response(request, job=job, replica=replica, first=first)


class MetricsView(APIView):
    """What a program reported."""

    @extend_schema(
        tags=["jobs"],
        summary="Get a job's metrics",
        parameters=[_ATTEMPT],
        responses={200: MetricsSerializer},
    )
    def get(self, request: Request, id: str) -> Response:  # noqa: A002 - the route's name
        """Return every metric of an attempt, thinned to what a chart can show."""
        query = QueryParameters(request, ["attempt"])
        attempt = query.optional_integer("attempt", minimum=1, maximum=32_767)
        return Response({"series": selectors.metric_series(job=_job(request, id), attempt=attempt)})


class JobSamplesView(APIView):
    """What a job's containers used."""

    @extend_schema(
        tags=["jobs"],
        summary="Get what a job used",
        parameters=[_ATTEMPT, OpenApiParameter("since", OpenApiTypes.DATETIME)],
        responses={200: JobSamplesSerializer},
    )
    def get(self, request: Request, id: str) -> Response:  # noqa: A002 - the route's name
        """Return CPU, memory, I/O and GPU use of an attempt's containers over time."""
        query = QueryParameters(request, ["attempt", "since"])
        attempt = query.optional_integer("attempt", minimum=1, maximum=32_767)
        since = query.moment("since")
        series = selectors.job_samples(
            job=_job(request, id), now=timezone.now(), attempt=attempt, since=since
        )
        return Response({"series": series})


def _series(request: Request, subject: str) -> Response:
    query = QueryParameters(request, ["since", "until"])
    now = timezone.now()
    until = query.moment("until") or now
    since = query.moment("since") or until - timedelta(hours=1)
    if since >= until:
        raise ValidationError({"since": ["must be before until"]})
    resolution, rows = _samples(subject, since, until, now)
    return Response({"subject": subject, "resolution_s": resolution, "samples": rows})


def _samples(
    subject: str, since: datetime, until: datetime, now: datetime
) -> tuple[int, list[list[Any]]]:
    return selectors.samples(subject=subject, since=since, until=until, now=now)


class HostSamplesView(APIView):
    """What a host measured."""

    @extend_schema(
        tags=["hosts"],
        summary="Get what a host measured",
        parameters=[_SINCE, _UNTIL],
        responses={200: SeriesSerializer},
    )
    def get(self, request: Request, name: str) -> Response:
        """Return CPU, memory, disk and network use over time; the longer, the coarser."""
        if cluster_selectors.host_get(name) is None:
            raise NotFoundError("host", name)
        return _series(request, f"host:{name}")


class GpuSamplesView(APIView):
    """What a GPU measured."""

    @extend_schema(
        tags=["hosts"],
        summary="Get what a GPU measured",
        parameters=[_SINCE, _UNTIL],
        responses={200: SeriesSerializer},
    )
    def get(self, request: Request, uuid: str) -> Response:
        """Return utilisation, memory, power and temperature over time; the longer, the coarser."""
        if not Gpu.objects.filter(uuid=uuid).exists():
            raise NotFoundError("GPU", uuid)
        return _series(request, f"gpu:{uuid}")


class ClusterView(APIView):
    """The cluster as a whole."""

    @extend_schema(tags=["hosts"], summary="See the cluster", responses={200: ClusterSerializer})
    def get(self, request: Request) -> Response:
        """Return every host and GPU with its latest reading and what is claimed of it."""
        refuse_unknown(request, ())
        now = timezone.now()
        hosts = selectors.cluster_live(now=now)
        return Response(ClusterSerializer({"at": now, "hosts": hosts}).data)
