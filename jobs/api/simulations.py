"""REST views of what-if simulations and of trials of placement."""

from typing import Any

from django.db.models import QuerySet
from django.utils import timezone
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import mixins, status, viewsets
from rest_framework.decorators import action
from rest_framework.parsers import JSONParser
from rest_framework.request import Request
from rest_framework.response import Response

from cluster.api.base import UUID_PATTERN, QueryParameters, as_uuid, refuse_unknown
from jobs import selectors, services
from jobs.api.simulation_serializers import (
    FramesSerializer,
    NewPlacementSerializer,
    NewSimulationSerializer,
    PlacementDetailSerializer,
    PlacementSerializer,
    SimulationDetailSerializer,
    SimulationSerializer,
)
from jobs.errors import NotFoundError
from jobs.models import PlacementRun, SimulationRun
from jobs.models.ownership import sees_all

_PAGE = ("limit", "cursor")


@extend_schema(tags=["simulations"])
class SimulationViewSet(mixins.ListModelMixin, viewsets.GenericViewSet[SimulationRun]):
    """What would have been under other policies or with other hosts: instructors and admins."""

    serializer_class = SimulationSerializer
    queryset = SimulationRun.objects.none()
    filterset_class = None
    # A form could not tell an empty text from one that is not sent.
    parser_classes = [JSONParser]
    lookup_field = "public_id"
    lookup_url_kwarg = "id"
    lookup_value_regex = UUID_PATTERN

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """Refuse students as if nothing was here.

        Raises:
            NotFoundError: For those who may not simulate.
        """
        super().initial(request, *args, **kwargs)
        # A method that nothing answers is refused as everywhere.
        if getattr(self, "action", None) and not sees_all(request.user):
            raise NotFoundError("page", request.path)

    def get_queryset(self) -> QuerySet[SimulationRun]:
        """Return the simulations that the user may see."""
        return selectors.simulation_list(user=self.request.user)

    @extend_schema(summary="List simulations", filters=False)
    def list(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Return all simulations, newest first."""
        refuse_unknown(request, _PAGE)
        return super().list(request, *args, **kwargs)

    @extend_schema(
        summary="Ask what would have been",
        request=NewSimulationSerializer,
        responses={201: SimulationDetailSerializer},
    )
    def create(self, request: Request) -> Response:
        """Simulate a workload on hosts under up to four policies.

        The workload is the time from `since` to `until` of this portal's own history, a file's
        text, or that of another simulation (`like`). The hosts are those of now, or a file's, or
        with `like` those of the other simulation; `without` and `added` change them.
        """
        form = NewSimulationSerializer(data=request.data)
        form.is_valid(raise_exception=True)
        run = services.simulation_create(
            owner=request.user, question=form.question(), now=timezone.now()
        )
        return self._shown(run.public_id, status.HTTP_201_CREATED)

    @extend_schema(summary="Get a simulation", responses={200: SimulationDetailSerializer})
    def retrieve(self, request: Request, id: str) -> Response:  # noqa: A002, ARG002 - the route's name
        """Return a simulation, with its answer as far as it is computed."""
        return self._shown(id)

    @extend_schema(summary="Delete a simulation", responses={204: None})
    def destroy(self, request: Request, id: str) -> Response:  # noqa: A002 - the route's name
        """Forget a simulation and its address."""
        run = selectors.simulation_get(user=request.user, public_id=as_uuid(id))
        services.run_delete(run=run, actor=request.user)
        return Response(status=status.HTTP_204_NO_CONTENT)

    @extend_schema(
        summary="Cancel a simulation", request=None, responses={202: SimulationDetailSerializer}
    )
    @action(detail=True, methods=["post"])
    def cancel(self, request: Request, id: str) -> Response:  # noqa: A002 - the route's name
        """End a simulation; what was answered so far stays. 409 when it is over."""
        run = selectors.simulation_get(user=request.user, public_id=as_uuid(id))
        services.run_cancel(run=run, actor=request.user, now=timezone.now())
        return self._shown(id, status.HTTP_202_ACCEPTED)

    def _shown(self, public_id: Any, code: int = status.HTTP_200_OK) -> Response:
        run = selectors.simulation_get(user=self.request.user, public_id=public_id)
        return Response(SimulationDetailSerializer(run).data, status=code)


@extend_schema(tags=["placements"])
class PlacementViewSet(mixins.ListModelMixin, viewsets.GenericViewSet[PlacementRun]):
    """Trials of the placement lab: the swarm at work on a small problem."""

    serializer_class = PlacementSerializer
    queryset = PlacementRun.objects.none()
    filterset_class = None
    # A form could not tell an empty text from one that is not sent.
    parser_classes = [JSONParser]
    lookup_field = "public_id"
    lookup_url_kwarg = "id"
    lookup_value_regex = UUID_PATTERN

    def get_queryset(self) -> QuerySet[PlacementRun]:
        """Return the trials that the user may see."""
        return selectors.placement_list(user=self.request.user)

    @extend_schema(summary="List trials of placement", filters=False)
    def list(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Return the trials that you may see, newest first; they are kept for 30 days."""
        refuse_unknown(request, _PAGE)
        return super().list(request, *args, **kwargs)

    @extend_schema(
        summary="Place a small problem",
        request=NewPlacementSerializer,
        responses={201: PlacementDetailSerializer},
    )
    def create(self, request: Request) -> Response:
        """Let the swarm and the common heuristics place an example or a problem of yours.

        Hosts and requests are openb lists or our JSON; one JSON file may be both.
        """
        form = NewPlacementSerializer(data=request.data)
        form.is_valid(raise_exception=True)
        run = services.placement_create(
            owner=request.user, question=form.question(), now=timezone.now()
        )
        return self._shown(run.public_id, status.HTTP_201_CREATED)

    @extend_schema(summary="Get a trial of placement", responses={200: PlacementDetailSerializer})
    def retrieve(self, request: Request, id: str) -> Response:  # noqa: A002, ARG002 - the route's name
        """Return a trial, with its packing once it is over."""
        return self._shown(id)

    @extend_schema(summary="Delete a trial of placement", responses={204: None})
    def destroy(self, request: Request, id: str) -> Response:  # noqa: A002 - the route's name
        """Forget a trial."""
        run = selectors.placement_get(user=request.user, public_id=as_uuid(id))
        services.run_delete(run=run, actor=request.user)
        return Response(status=status.HTTP_204_NO_CONTENT)

    @extend_schema(
        summary="Cancel a trial of placement",
        request=None,
        responses={202: PlacementDetailSerializer},
    )
    @action(detail=True, methods=["post"])
    def cancel(self, request: Request, id: str) -> Response:  # noqa: A002 - the route's name
        """End a trial; 409 when it is over."""
        run = selectors.placement_get(user=request.user, public_id=as_uuid(id))
        services.run_cancel(run=run, actor=request.user, now=timezone.now())
        return self._shown(id, status.HTTP_202_ACCEPTED)

    @extend_schema(
        summary="Watch a trial of placement",
        parameters=[
            OpenApiParameter(
                "first",
                {"type": "integer", "minimum": 0},
                description="Number of the first frame that is wanted, from 0.",
            )
        ],
        responses={200: FramesSerializer},
        filters=False,
    )
    @action(detail=True, pagination_class=None)
    def frames(self, request: Request, id: str) -> Response:  # noqa: A002 - the route's name
        """Return what the swarm did from a frame on, at most ten frames a second."""
        query = QueryParameters(request, ["first"])
        first = query.integer("first", 0, maximum=100_000)
        run = selectors.placement_get(user=request.user, public_id=as_uuid(id))
        # The state is read first: what is missing here then comes with the next question.
        values = {
            "state": run.state,
            "progress_text": run.progress_text,
            "first": first,
            "frames": selectors.placement_frames(run, first=first),
            "rows": run.result.get("rows", []),
            "bound": run.result.get("bound"),
        }
        return Response(FramesSerializer(values).data)

    def _shown(self, public_id: Any, code: int = status.HTTP_200_OK) -> Response:
        run = selectors.placement_get(user=self.request.user, public_id=public_id)
        return Response(PlacementDetailSerializer(run).data, status=code)
