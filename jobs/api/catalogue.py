"""REST views of environments, templates and code."""

from typing import Any

from django.utils import timezone
from drf_spectacular.utils import extend_schema
from rest_framework import mixins, status, viewsets
from rest_framework.parsers import MultiPartParser
from rest_framework.request import Request
from rest_framework.response import Response

from cluster.api.base import UUID_PATTERN, refuse_unknown
from jobs import selectors, services
from jobs.api.serializers import (
    CodeSerializer,
    EnvironmentSerializer,
    NewCodeSerializer,
    TemplateSerializer,
)
from jobs.errors import InvalidInputError
from jobs.models import CodeBundle, Environment, JobTemplate

_PAGE = ("limit", "cursor")
_MAX_CODE_BYTES = 50 * 2**20


@extend_schema(tags=["catalogue"])
class EnvironmentViewSet(viewsets.ReadOnlyModelViewSet[Environment]):
    """Sets of software that programs run in; admins manage them in the admin pages."""

    serializer_class = EnvironmentSerializer
    queryset = Environment.objects.none()
    lookup_field = "slug"
    lookup_value_regex = "[-a-zA-Z0-9_]+"
    page_order = "id"

    def get_queryset(self) -> Any:
        """Return those that the user may run jobs in."""
        return selectors.environment_list(user=self.request.user)

    @extend_schema(summary="List environments")
    def list(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Return the environments that you may run jobs in."""
        refuse_unknown(request, _PAGE)
        return super().list(request, *args, **kwargs)

    @extend_schema(summary="Get an environment")
    def retrieve(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Return one environment."""
        return super().retrieve(request, *args, **kwargs)


@extend_schema(tags=["catalogue"])
class TemplateViewSet(viewsets.ReadOnlyModelViewSet[JobTemplate]):
    """Scripts with sensible defaults, to be submitted as they are or changed first."""

    serializer_class = TemplateSerializer
    queryset = JobTemplate.objects.none()
    lookup_field = "slug"
    lookup_value_regex = "[-a-zA-Z0-9_]+"
    page_order = "id"

    def get_queryset(self) -> Any:
        """Return those whose environment the user may use."""
        return selectors.template_list(user=self.request.user)

    @extend_schema(summary="List templates")
    def list(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Return the templates whose environment you may use."""
        refuse_unknown(request, _PAGE)
        return super().list(request, *args, **kwargs)

    @extend_schema(summary="Get a template")
    def retrieve(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Return one template with its script."""
        return super().retrieve(request, *args, **kwargs)


@extend_schema(tags=["code"])
class CodeViewSet(
    mixins.ListModelMixin, mixins.RetrieveModelMixin, viewsets.GenericViewSet[CodeBundle]
):
    """Programs that people bring."""

    serializer_class = CodeSerializer
    queryset = CodeBundle.objects.none()
    parser_classes = [MultiPartParser]
    lookup_field = "public_id"
    lookup_url_kwarg = "id"
    lookup_value_regex = UUID_PATTERN

    def get_queryset(self) -> Any:
        """Return those that the user may see."""
        return CodeBundle.objects.for_user(self.request.user).select_related("owner")

    @extend_schema(summary="List code bundles")
    def list(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Return the programs that you brought, newest first."""
        refuse_unknown(request, _PAGE)
        return super().list(request, *args, **kwargs)

    @extend_schema(summary="Get a code bundle")
    def retrieve(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Return what is known of one program."""
        return super().retrieve(request, *args, **kwargs)

    @extend_schema(
        summary="Bring a program",
        request={"multipart/form-data": NewCodeSerializer},
        responses={201: CodeSerializer},
    )
    def create(self, request: Request) -> Response:
        """Send a script, a notebook or an archive; name its id when you submit a job."""
        form = NewCodeSerializer(data=request.data)
        form.is_valid(raise_exception=True)
        file = form.validated_data["file"]
        if file.size > _MAX_CODE_BYTES:
            raise InvalidInputError(
                {"file": ["Code may have 50 MiB; put larger files into a dataset."]}
            )
        bundle = services.code_create(
            owner=request.user, filename=file.name, content=file.read(), now=timezone.now()
        )
        return Response(CodeSerializer(bundle).data, status=status.HTTP_201_CREATED)
