"""REST views of jobs, of what happened to them, and of the files they left."""

from collections.abc import Iterator
from datetime import datetime
from typing import Any, BinaryIO, Final

import django_filters
from django.db.models import QuerySet
from django.http import HttpResponseBase
from django.utils import timezone
from django.utils.http import content_disposition_header
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiExample, OpenApiParameter, OpenApiResponse, extend_schema
from rest_framework import mixins, status, viewsets
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from cluster.api.base import UUID_PATTERN, QueryParameters, as_uuid, refuse_empty, refuse_unknown
from jobs import selectors, services, storage
from jobs.api.serializers import (
    DecisionSerializer,
    EventSerializer,
    JobDetailSerializer,
    JobSerializer,
    NewJobSerializer,
    OutputFileSerializer,
)
from jobs.api.streams import file_response, streamed, zipped
from jobs.api.submission import specification_of
from jobs.errors import NotFoundError
from jobs.lifecycle import JobStatus, Reason
from jobs.models import Job, JobEvent
from jobs.specification import JobSpecification

_PAGE = ("limit", "cursor")
_ATTEMPT = OpenApiParameter(
    "attempt",
    {"type": "integer", "minimum": 1, "maximum": 32_767},
    description="Number of the attempt; by default the last.",
)
BINARY = OpenApiResponse(OpenApiTypes.BINARY, description="The bytes.")

#: What the document says of submitting; the REST root adds what it adds.
SUBMISSION: Final[dict[str, Any]] = {
    "summary": "Submit a job",
    "request": NewJobSerializer,
    "responses": {201: JobDetailSerializer},
    "examples": [
        OpenApiExample(
            "A script as text",
            request_only=True,
            value={
                "name": "hello",
                "environment": "tensorflow",
                "script": "import tensorflow as tf\nprint(tf.__version__)\n",
            },
        ),
        OpenApiExample(
            "A template with other parameters",
            request_only=True,
            value={
                "name": "digits, longer",
                "template": "digits-keras",
                "parameters": {"epochs": 20},
            },
        ),
    ],
}


class JobFilter(django_filters.FilterSet):
    """Which jobs are listed."""

    status = django_filters.MultipleChoiceFilter(
        choices=[(s.value, s.value) for s in JobStatus], help_text="may be given several times"
    )
    name = django_filters.CharFilter(lookup_expr="icontains", help_text="part of the name")
    owner = django_filters.CharFilter(field_name="owner__username", help_text="whose jobs")
    template = django_filters.CharFilter(help_text="slug of the template")
    submitted_after = django_filters.IsoDateTimeFilter(field_name="submitted_at", lookup_expr="gte")
    submitted_before = django_filters.IsoDateTimeFilter(field_name="submitted_at", lookup_expr="lt")

    class Meta:
        model = Job
        fields: list[str] = []


@extend_schema(tags=["jobs"])
class JobViewSet(mixins.ListModelMixin, viewsets.GenericViewSet[Job]):
    """Programs to be run once to their end."""

    serializer_class = JobSerializer
    queryset = Job.objects.none()
    filterset_class = JobFilter
    lookup_field = "public_id"
    lookup_url_kwarg = "id"
    lookup_value_regex = UUID_PATTERN

    def get_queryset(self) -> QuerySet[Job]:
        """Return the jobs that the user may see."""
        return selectors.job_list(user=self.request.user)

    @extend_schema(summary="List jobs")
    def list(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Return the jobs that you may see, newest first."""
        refuse_unknown(request, [*_PAGE, *JobFilter.base_filters], repeatable=["status"])
        refuse_empty(request, ["status", "submitted_after", "submitted_before"])
        return super().list(request, *args, **kwargs)

    @extend_schema(**SUBMISSION)
    def create(self, request: Request, *args: Any, **kwargs: Any) -> Response:  # noqa: ARG002 - DRF's signature
        """Put a job into the queue.

        What no host could ever hold is refused with 422; `fits` then says the most that could be
        asked for.
        """
        return self.make(request, self.prepare(request))

    def prepare(self, request: Request) -> JobSpecification:
        """Return what is asked for, its program kept; nothing of it needs a transaction.

        Keeping a program waits for files, and whoever holds those may wait for the database.
        """
        form = NewJobSerializer(data=request.data)
        form.is_valid(raise_exception=True)
        return specification_of(user=request.user, values=form.validated_data, now=timezone.now())

    def make(self, request: Request, wanted: JobSpecification) -> Response:
        """Put the job into the queue and show it."""
        job = services.job_submit(owner=request.user, specification=wanted, now=timezone.now())
        return self._shown(job.public_id, status.HTTP_201_CREATED)

    @extend_schema(summary="Get a job", responses={200: JobDetailSerializer})
    def retrieve(self, request: Request, id: str) -> Response:  # noqa: A002, ARG002 - the route's name
        """Return a job with everything that was asked for and every attempt."""
        return self._shown(id)

    @extend_schema(summary="Delete a job", responses={204: None})
    def destroy(self, request: Request, id: str) -> Response:  # noqa: A002 - the route's name
        """Forget a job that has ended, with its log and files; 409 while it has not."""
        services.job_delete(job_id=as_uuid(id), actor=request.user)
        return Response(status=status.HTTP_204_NO_CONTENT)

    @extend_schema(summary="Cancel a job", request=None, responses={202: JobDetailSerializer})
    @action(detail=True, methods=["post"])
    def cancel(self, request: Request, id: str) -> Response:  # noqa: A002 - the route's name
        """End a job: at once while it waits, else with a grace time for a last checkpoint.

        May be sent again; 409 when the job has already ended in another way.
        """
        job = selectors.job_get(user=request.user, public_id=as_uuid(id))
        own = job.owner_id == request.user.pk
        services.job_cancel(
            job_id=job.public_id,
            actor=request.user,
            now=timezone.now(),
            reason=Reason.CANCELLED if own else Reason.FORCE_ENDED,
        )
        return self._shown(id, status.HTTP_202_ACCEPTED)

    @extend_schema(summary="Run a job again", request=None, responses={201: JobDetailSerializer})
    @action(detail=True, methods=["post"])
    def rerun(self, request: Request, id: str) -> Response:  # noqa: A002 - the route's name
        """Submit a job once more, exactly as it was."""
        job = services.job_resubmit(job_id=as_uuid(id), actor=request.user, now=timezone.now())
        return self._shown(job.public_id, status.HTTP_201_CREATED)

    @extend_schema(
        summary="List what happened to a job",
        responses={200: EventSerializer(many=True)},
        filters=False,
    )
    @action(detail=True, filterset_class=None, serializer_class=EventSerializer)
    def events(self, request: Request, id: str) -> Response:  # noqa: A002 - the route's name
        """Return the job's history, oldest first."""
        refuse_unknown(request, _PAGE)
        self.page_order = "id"
        job = selectors.job_get(user=request.user, public_id=as_uuid(id))
        events = JobEvent.objects.filter(job=job).select_related("actor")
        return self._page(events, EventSerializer)

    @extend_schema(
        summary="Tell why a job runs where it runs",
        parameters=[_ATTEMPT],
        responses={200: DecisionSerializer},
        filters=False,
    )
    @action(detail=True, filterset_class=None, pagination_class=None)
    def decision(self, request: Request, id: str) -> Response:  # noqa: A002 - the route's name
        """Return the hosts that were weighed for an attempt, each with the parts of its score."""
        query = QueryParameters(request, ["attempt"])
        job = selectors.job_get(user=request.user, public_id=as_uuid(id))
        number = query.optional_integer("attempt", minimum=1, maximum=32_767)
        attempts = job.attempts.all()
        found = [a for a in attempts if number is None or a.number == number]
        if not found:
            raise NotFoundError("decision", f"attempt {number or 'any'}")
        return Response(DecisionSerializer(found[-1]).data)

    @extend_schema(
        summary="List a job's files",
        parameters=[_ATTEMPT],
        responses={200: OutputFileSerializer(many=True)},
        filters=False,
    )
    @action(detail=True, filterset_class=None, serializer_class=OutputFileSerializer)
    def files(self, request: Request, id: str) -> Response:  # noqa: A002 - the route's name
        """Return the files that an attempt left, by path."""
        query = QueryParameters(request, [*_PAGE, "attempt"])
        job = selectors.job_get(user=request.user, public_id=as_uuid(id))
        attempt = query.optional_integer("attempt", minimum=1, maximum=32_767)
        self.page_order = "path"
        files = selectors.job_outputs(job=job, attempt=attempt).select_related("attempt")
        return self._page(files, OutputFileSerializer)

    @extend_schema(
        summary="Download one of a job's files",
        parameters=[
            OpenApiParameter("path", str, required=True, description="As `files/` lists it."),
            _ATTEMPT,
        ],
        responses={
            (200, "application/octet-stream"): BINARY,
            (206, "application/octet-stream"): BINARY,
        },
        filters=False,
    )
    @action(detail=True, url_path="files/content", filterset_class=None, pagination_class=None)
    def content(self, request: Request, id: str) -> HttpResponseBase:  # noqa: A002 - the route's name
        """Return the file, or the part of it that the header `Range` asks for."""
        query = QueryParameters(request, ["path", "attempt"])
        job = selectors.job_get(user=request.user, public_id=as_uuid(id))
        attempt = query.optional_integer("attempt", minimum=1, maximum=32_767)
        path = query.text("path")
        found = selectors.job_outputs(job=job, attempt=attempt).filter(path=path)
        output = found.select_related("attempt").first()
        if output is None:
            raise NotFoundError("file", path)
        file = storage.open_beneath(
            storage.attempt_dir(job.public_id, output.attempt.number, 0), path
        )
        return file_response(request, file, path=path)

    @extend_schema(
        summary="Download all of a job's files",
        parameters=[_ATTEMPT],
        responses={(200, "application/zip"): BINARY},
        filters=False,
    )
    @action(detail=True, filterset_class=None, pagination_class=None)
    def archive(self, request: Request, id: str) -> HttpResponseBase:  # noqa: A002 - the route's name
        """Return the files of an attempt as one ZIP archive, made while it is sent."""
        query = QueryParameters(request, ["attempt"])
        job = selectors.job_get(user=request.user, public_id=as_uuid(id))
        attempt = query.optional_integer("attempt", minimum=1, maximum=32_767)
        rows = list(
            selectors.job_outputs(job=job, attempt=attempt).values_list(
                "path", "modified_at", "attempt__number"
            )
        )
        number = rows[0][2] if rows else 1
        answer = streamed(
            request,
            _archive_of(job, number, [(path, at) for path, at, _ in rows]),
            content_type="application/zip",
        )
        answer["Content-Disposition"] = str(
            content_disposition_header(as_attachment=True, filename=f"{job.name}.zip")
        )
        return answer

    def _shown(self, public_id: Any, code: int = status.HTTP_200_OK) -> Response:
        job = selectors.job_get(user=self.request.user, public_id=public_id)
        return Response(JobDetailSerializer(job).data, status=code)

    def _page(self, rows: QuerySet[Any], serializer: Any) -> Response:
        page = self.paginate_queryset(rows)
        return self.get_paginated_response(serializer(page, many=True).data)


def _archive_of(job: Job, number: int, files: list[tuple[str, datetime]]) -> Iterator[bytes]:
    root = storage.attempt_dir(job.public_id, number, 0)

    def opened(path: str) -> BinaryIO:
        return storage.open_beneath(root, path)

    return zipped(files, opened)
