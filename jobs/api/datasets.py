"""REST views of datasets, their versions and the files in them."""

from typing import Any

import django_filters
from django.http import HttpResponseBase
from django.utils import timezone
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema, extend_schema_field
from rest_framework import mixins, serializers, status, viewsets
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from cluster.api.base import (
    UUID_PATTERN,
    QueryParameters,
    StrictSerializer,
    as_uuid,
    refuse_empty,
    refuse_unknown,
)
from jobs import selectors, services
from jobs.api.jobs import BINARY
from jobs.api.streams import file_response
from jobs.models import Dataset, DatasetVersion

_PAGE = ("limit", "cursor")
_VERSION_ROUTE = r"versions/(?P<number>[1-9][0-9]{0,8})"
_PATH = OpenApiParameter("path", str, required=True, description="As `files/` lists it.")
_NUMBER = OpenApiParameter(
    "number", {"type": "integer", "minimum": 1, "maximum": 999_999_999}, OpenApiParameter.PATH
)


class VersionSerializer(serializers.ModelSerializer[DatasetVersion]):
    """One immutable state of a dataset."""

    id = serializers.UUIDField(source="public_id", read_only=True)
    sha256 = serializers.SerializerMethodField(help_text="of the content; null until it is ready")
    size_bytes = serializers.SerializerMethodField()
    file_count = serializers.SerializerMethodField()

    class Meta:
        model = DatasetVersion
        fields = [
            "id",
            "number",
            "state",
            "error",
            "original_name",
            "sha256",
            "size_bytes",
            "file_count",
            "created_at",
        ]
        read_only_fields = fields

    @extend_schema_field(serializers.CharField(allow_null=True))
    def get_sha256(self, version: DatasetVersion) -> str | None:
        """Return the address of the content."""
        return version.content.sha256 if version.content else None

    @extend_schema_field(serializers.IntegerField(allow_null=True))
    def get_size_bytes(self, version: DatasetVersion) -> int | None:
        """Return how large all files are together."""
        return version.content.size_bytes if version.content else None

    @extend_schema_field(serializers.IntegerField(allow_null=True))
    def get_file_count(self, version: DatasetVersion) -> int | None:
        """Return how many files there are."""
        return version.content.file_count if version.content else None


class DatasetSerializer(serializers.ModelSerializer[Dataset]):
    """A named series of versions, the newest first."""

    id = serializers.UUIDField(source="public_id", read_only=True)
    owner = serializers.CharField(source="owner.username", read_only=True)
    versions = VersionSerializer(many=True, read_only=True)

    class Meta:
        model = Dataset
        fields = ["id", "name", "owner", "description", "is_shared", "created_at", "versions"]
        read_only_fields = fields


class DatasetChangeSerializer(StrictSerializer):
    """What may change of a dataset; versions never do."""

    name = serializers.CharField(max_length=120, required=False)
    description = serializers.CharField(max_length=4000, required=False, allow_blank=True)
    is_shared = serializers.BooleanField(
        required=False, help_text="everybody may see it and train on it"
    )


class FileEntrySerializer(serializers.Serializer):
    """One file of a version."""

    path = serializers.CharField()
    size_bytes = serializers.IntegerField()
    sha256 = serializers.CharField()


class FilePageSerializer(serializers.Serializer):
    """Some of a version's files, in the order of their paths."""

    results = FileEntrySerializer(source="entries", many=True)
    has_more = serializers.BooleanField(help_text="go on with offset = offset + limit")


class TablePreviewSerializer(serializers.Serializer):
    """The first rows of a table."""

    path = serializers.CharField()
    header = serializers.ListField(child=serializers.CharField())
    rows = serializers.ListField(child=serializers.ListField(child=serializers.CharField()))
    columns = serializers.IntegerField()


class ArraySummarySerializer(serializers.Serializer):
    """One array, by its header."""

    name = serializers.CharField()
    shape = serializers.ListField(child=serializers.IntegerField())
    dtype = serializers.CharField()


class ArraysPreviewSerializer(serializers.Serializer):
    """The arrays of an npy or npz file."""

    path = serializers.CharField()
    arrays = ArraySummarySerializer(many=True)
    error = serializers.CharField(allow_blank=True)


class TextPreviewSerializer(serializers.Serializer):
    """The beginning of a text file."""

    path = serializers.CharField()
    text = serializers.CharField()
    truncated = serializers.BooleanField()


class PreviewSerializer(serializers.Serializer):
    """A first look into a version."""

    tables = TablePreviewSerializer(many=True)
    arrays = ArraysPreviewSerializer(many=True)
    texts = TextPreviewSerializer(many=True)
    images = serializers.ListField(child=serializers.CharField(), help_text="paths")


class DatasetFilter(django_filters.FilterSet):
    """Which datasets are listed."""

    name = django_filters.CharFilter(lookup_expr="icontains", help_text="part of the name")
    owner = django_filters.CharFilter(field_name="owner__username", help_text="whose datasets")
    is_shared = extend_schema_field({"type": "boolean"})(
        django_filters.TypedChoiceFilter(
            choices=[("true", "true"), ("false", "false")], coerce=lambda text: text == "true"
        )
    )

    class Meta:
        model = Dataset
        fields: list[str] = []


@extend_schema(tags=["datasets"])
class DatasetViewSet(mixins.ListModelMixin, viewsets.GenericViewSet[Dataset]):
    """Files to train on; new ones come through uploads."""

    serializer_class = DatasetSerializer
    queryset = Dataset.objects.none()
    filterset_class = DatasetFilter
    lookup_field = "public_id"
    lookup_url_kwarg = "id"
    lookup_value_regex = UUID_PATTERN

    def get_queryset(self) -> Any:
        """Return the datasets that the user may see."""
        return selectors.dataset_list(self.request.user)

    @extend_schema(summary="List datasets")
    def list(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Return your datasets and the shared ones, newest first."""
        refuse_unknown(request, [*_PAGE, *DatasetFilter.base_filters])
        refuse_empty(request, ["is_shared"])
        return super().list(request, *args, **kwargs)

    @extend_schema(summary="Get a dataset", responses={200: DatasetSerializer})
    def retrieve(self, request: Request, id: str) -> Response:  # noqa: A002, ARG002 - the route's name
        """Return a dataset with its versions."""
        return self._shown(id)

    @extend_schema(
        summary="Change a dataset",
        request=DatasetChangeSerializer,
        responses={200: DatasetSerializer},
    )
    def partial_update(self, request: Request, id: str) -> Response:  # noqa: A002 - the route's name
        """Change the name, the description, or whether it is shared."""
        form = DatasetChangeSerializer(data=request.data)
        form.is_valid(raise_exception=True)
        services.dataset_update(dataset_id=as_uuid(id), actor=request.user, **form.validated_data)
        return self._shown(id)

    @extend_schema(summary="Delete a dataset", responses={204: None})
    def destroy(self, request: Request, id: str) -> Response:  # noqa: A002 - the route's name
        """Delete a dataset with its versions; 409 while a job that has not ended uses it."""
        services.dataset_delete(dataset_id=as_uuid(id), actor=request.user, now=timezone.now())
        return Response(status=status.HTTP_204_NO_CONTENT)

    @extend_schema(
        summary="Get a version", parameters=[_NUMBER], responses={200: VersionSerializer}
    )
    @action(detail=True, url_path=_VERSION_ROUTE, filterset_class=None, pagination_class=None)
    def version(self, request: Request, id: str, number: str) -> Response:  # noqa: A002 - the route's name
        """Return one version of a dataset."""
        refuse_unknown(request, ())
        return Response(VersionSerializer(self._version(request, id, number)).data)

    @extend_schema(
        summary="List a version's files",
        parameters=[
            _NUMBER,
            OpenApiParameter("prefix", str, description="Only paths that begin so."),
            OpenApiParameter("offset", {"type": "integer", "minimum": 0, "maximum": 2**31 - 1}),
            OpenApiParameter("limit", {"type": "integer", "minimum": 1, "maximum": 1000}),
        ],
        responses={200: FilePageSerializer},
    )
    @action(
        detail=True,
        url_path=f"{_VERSION_ROUTE}/files",
        filterset_class=None,
        pagination_class=None,
    )
    def files(self, request: Request, id: str, number: str) -> Response:  # noqa: A002 - the route's name
        """Return some of a version's files, in the order of their paths."""
        query = QueryParameters(request, ["prefix", "offset", "limit"])
        page = selectors.version_files(
            self._version(request, id, number),
            offset=query.integer("offset", 0, maximum=2**31 - 1),
            limit=query.integer("limit", 100, minimum=1, maximum=1000),
            prefix=query.text("prefix"),
        )
        return Response(FilePageSerializer(page).data)

    @extend_schema(
        summary="Download one of a version's files",
        parameters=[_NUMBER, _PATH],
        responses={
            (200, "application/octet-stream"): BINARY,
            (206, "application/octet-stream"): BINARY,
        },
    )
    @action(
        detail=True,
        url_path=f"{_VERSION_ROUTE}/files/content",
        filterset_class=None,
        pagination_class=None,
    )
    def content(self, request: Request, id: str, number: str) -> HttpResponseBase:  # noqa: A002 - the route's name
        """Return the file, or the part of it that the header `Range` asks for."""
        path = QueryParameters(request, ["path"]).text("path")
        file = selectors.version_file_open(self._version(request, id, number), path)
        return file_response(request, file, path=path)

    @extend_schema(
        summary="Look into a version", parameters=[_NUMBER], responses={200: PreviewSerializer}
    )
    @action(
        detail=True,
        url_path=f"{_VERSION_ROUTE}/preview",
        filterset_class=None,
        pagination_class=None,
    )
    def preview(self, request: Request, id: str, number: str) -> Response:  # noqa: A002 - the route's name
        """Return the first rows of tables, the shapes of arrays, texts, and paths of images."""
        refuse_unknown(request, ())
        preview = selectors.version_preview(self._version(request, id, number))
        return Response(PreviewSerializer(preview).data)

    @extend_schema(
        summary="Get a small picture of an image",
        parameters=[_NUMBER, _PATH],
        responses={(200, "image/png"): OpenApiTypes.BINARY},
    )
    @action(
        detail=True,
        url_path=f"{_VERSION_ROUTE}/thumbnail",
        filterset_class=None,
        pagination_class=None,
    )
    def thumbnail(self, request: Request, id: str, number: str) -> HttpResponseBase:  # noqa: A002 - the route's name
        """Return a PNG of one of a version's images."""
        path = QueryParameters(request, ["path"]).text("path")
        picture = selectors.version_thumbnail(self._version(request, id, number), path)
        return file_response(request, picture.open("rb"), path=picture.name, attachment=False)

    def _version(self, request: Request, dataset_id: str, number: str) -> DatasetVersion:
        return selectors.version_get(request.user, as_uuid(dataset_id), int(number))

    def _shown(self, dataset_id: str) -> Response:
        dataset = selectors.dataset_get(self.request.user, as_uuid(dataset_id))
        return Response(DatasetSerializer(dataset).data)
