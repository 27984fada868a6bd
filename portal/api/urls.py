"""Routes of the REST root; a route that is not here is answered in the errors' one shape."""

from http import HTTPStatus
from typing import Any

from django.urls import URLPattern, URLResolver, include, path, re_path
from django.views.decorators.csrf import csrf_exempt
from rest_framework.routers import SimpleRouter

from cluster.api.hosts import GpuViewSet, HostViewSet
from jobs.api import uploads
from jobs.api.catalogue import CodeViewSet, EnvironmentViewSet, TemplateViewSet
from jobs.api.datasets import DatasetViewSet
from jobs.api.simulations import PlacementViewSet, SimulationViewSet
from monitoring.api.urls import urlpatterns as monitoring_urls
from portal.api.exceptions import bare
from portal.api.jobs import JobViewSet
from portal.api.schema import SchemaView, docs
from portal.api.tokens import MeView, TokenViewSet

router = SimpleRouter()
router.register("datasets", DatasetViewSet, "dataset")
router.register("code", CodeViewSet, "code")
router.register("environments", EnvironmentViewSet, "environment")
router.register("templates", TemplateViewSet, "template")
router.register("jobs", JobViewSet, "job")
router.register("simulations", SimulationViewSet, "simulation")
router.register("placements", PlacementViewSet, "placement")
router.register("hosts", HostViewSet, "host")
router.register("gpus", GpuViewSet, "gpu")
router.register("tokens", TokenViewSet, "token")

v1: list[URLPattern | URLResolver] = [
    path("schema/", SchemaView.as_view(), name="schema"),
    path("docs/", docs, name="docs"),
    path("me/", MeView.as_view(), name="me"),
    *monitoring_urls,
    *uploads.urlpatterns,
    *router.urls,
]


@csrf_exempt
def nothing_here(request: Any, rest: str = "") -> Any:  # noqa: ARG001 - Django's signature
    """Answer an address that leads nowhere; a forgotten slash at the end is the usual reason."""
    return bare(HTTPStatus.NOT_FOUND)


urlpatterns = [
    path("v1/", include((v1, "v1"))),
    re_path(r"^(?P<rest>.*)$", nothing_here, name="api-nothing"),
]
