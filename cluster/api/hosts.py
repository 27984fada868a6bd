"""REST views of hosts and GPUs."""

from typing import Any

from django.http import Http404
from django.utils import timezone
from drf_spectacular.utils import OpenApiExample, extend_schema
from rest_framework import mixins, status, viewsets
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.serializers import BaseSerializer

from cluster import health, selectors, services
from cluster.api.base import HOST_PATTERN, IsAdminOrReadOnly, refuse_unknown
from cluster.api.serializers import (
    AdminHostSerializer,
    EngineSerializer,
    GpuHealthEventsSerializer,
    GpuSerializer,
    GpuSwitchSerializer,
    HostModeSerializer,
    HostSerializer,
    NewHostSerializer,
)
from cluster.models import Gpu, Host, HostMode

_PAGE = ("limit", "cursor")


@extend_schema(tags=["hosts"])
class HostViewSet(mixins.ListModelMixin, mixins.RetrieveModelMixin, viewsets.GenericViewSet[Host]):
    """Machines that run containers. Everybody may look, admins manage."""

    permission_classes = [IsAdminOrReadOnly]
    serializer_class = HostSerializer
    queryset = Host.objects.none()
    lookup_field = "name"
    lookup_value_regex = HOST_PATTERN
    page_order = "name"

    def get_queryset(self) -> Any:
        """Return all hosts; they are nobody's secret."""
        return selectors.host_list()

    def get_serializer_class(self) -> type[BaseSerializer[Any]]:
        """Return the view with the endpoint for admins, the one without for others."""
        user: Any = getattr(self.request, "user", None)
        return AdminHostSerializer if user is not None and user.is_superuser else HostSerializer

    @extend_schema(summary="List hosts")
    def list(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Return the hosts by name, each with its GPUs."""
        refuse_unknown(request, _PAGE)
        return super().list(request, *args, **kwargs)

    @extend_schema(summary="Get a host")
    def retrieve(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Return one host with its GPUs."""
        return super().retrieve(request, *args, **kwargs)

    @extend_schema(
        summary="Register a host",
        request=NewHostSerializer,
        responses={201: AdminHostSerializer},
        examples=[
            OpenApiExample(
                "A machine with Docker over TLS",
                request_only=True,
                value={
                    "name": "gpu-1",
                    "url": "tcp://gpu-1.lab.example:2376",
                    "tls_ca": "/etc/starling/ca.pem",
                    "tls_cert": "/etc/starling/cert.pem",
                    "tls_key": "/etc/starling/key.pem",
                },
            )
        ],
    )
    def create(self, request: Request) -> Response:
        """Register a host. It takes work once its connection test has passed."""
        form = NewHostSerializer(data=request.data)
        form.is_valid(raise_exception=True)
        host = services.host_create(**form.validated_data)
        return Response(self._shown(host.name), status=status.HTTP_201_CREATED)

    @extend_schema(summary="Change a host's mode", request=HostModeSerializer)
    def partial_update(self, request: Request, name: str) -> Response:
        """Set `active` (takes work), `cordoned` (takes nothing new) or `draining` (gets empty)."""
        host = self.get_object()
        form = HostModeSerializer(data=request.data)
        form.is_valid(raise_exception=True)
        services.host_set_mode(host_id=host.pk, mode=HostMode(form.validated_data["mode"]))
        return Response(self._shown(name))

    @extend_schema(summary="Remove a host", responses={204: None})
    def destroy(self, request: Request, name: str) -> Response:  # noqa: ARG002 - DRF's signature
        """Forget a host that holds nothing; refused with 409 while a container is there."""
        services.host_remove(host_id=self.get_object().pk)
        return Response(status=status.HTTP_204_NO_CONTENT)

    @extend_schema(
        summary="Test a host's connection", request=None, responses={200: EngineSerializer}
    )
    @action(detail=True, methods=["post"])
    def test(self, request: Request, name: str) -> Response:  # noqa: ARG002 - DRF's signature
        """Ask the host's engine what it is; 504 when it does not answer, 502 when it refuses."""
        engine = services.host_test(host_id=self.get_object().pk, now=timezone.now())
        return Response(EngineSerializer(engine).data)

    def _shown(self, name: str) -> Any:
        host = selectors.host_get(name)
        if host is None:
            raise Http404
        return AdminHostSerializer(host).data


@extend_schema(tags=["hosts"])
class GpuViewSet(mixins.ListModelMixin, mixins.RetrieveModelMixin, viewsets.GenericViewSet[Gpu]):
    """GPUs, known by the driver's UUID."""

    permission_classes = [IsAdminOrReadOnly]
    serializer_class = GpuSerializer
    queryset = Gpu.objects.none()
    lookup_field = "uuid"
    lookup_value_regex = "[A-Za-z0-9-]{1,80}"
    page_order = "id"

    def get_queryset(self) -> Any:
        """Return all GPUs; they are nobody's secret."""
        return Gpu.objects.select_related("host")

    @extend_schema(summary="List GPUs")
    def list(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Return the GPUs of all hosts."""
        refuse_unknown(request, _PAGE)
        return super().list(request, *args, **kwargs)

    @extend_schema(summary="Get a GPU")
    def retrieve(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Return one GPU with its last reading."""
        return super().retrieve(request, *args, **kwargs)

    @extend_schema(
        summary="Switch a GPU on or off",
        request=GpuSwitchSerializer,
        responses={200: GpuSerializer},
    )
    def partial_update(self, request: Request, uuid: str) -> Response:  # noqa: ARG002 - DRF's signature
        """Keep new jobs off a GPU, or let them have it again; what runs there stays."""
        gpu = self.get_object()
        form = GpuSwitchSerializer(data=request.data)
        form.is_valid(raise_exception=True)
        services.gpu_set_enabled(gpu_id=gpu.pk, is_enabled=form.validated_data["is_enabled"])
        gpu.refresh_from_db()
        return Response(GpuSerializer(gpu).data)

    @extend_schema(
        summary="List changes of a GPU's health", responses={200: GpuHealthEventsSerializer}
    )
    @action(detail=True, methods=["get"])
    def events(self, request: Request, uuid: str) -> Response:  # noqa: ARG002 - DRF's signature
        """Return the last changes of what the GPU may be used for, with what was to be done."""
        events = selectors.gpu_events(self.get_object())
        return Response(GpuHealthEventsSerializer({"events": events}).data)

    @extend_schema(summary="Put a GPU back", request=None, responses={200: GpuSerializer})
    @action(detail=True, methods=["post"])
    def clear(self, request: Request, uuid: str) -> Response:  # noqa: ARG002 - DRF's signature
        """Take it that the GPU was mended; a fault that is still there returns at once."""
        gpu = self.get_object()
        health.gpu_clear(gpu_id=gpu.pk, now=timezone.now())
        gpu.refresh_from_db()
        return Response(GpuSerializer(gpu).data)
