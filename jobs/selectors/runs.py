"""Reads of simulations and of trials of placement."""

from typing import Any
from uuid import UUID

from django.db.models import QuerySet

from jobs.errors import NotFoundError
from jobs.models import Job, PlacementRun, SimulationRun


def simulation_list(*, user: Any) -> QuerySet[SimulationRun]:
    """Return the simulations that ``user`` may see, newest first, without their large columns."""
    found = SimulationRun.objects.for_user(user).select_related("owner")
    return found.defer("workload", "hosts", "result").order_by("-id")


def simulation_get(*, user: Any, public_id: UUID | str) -> SimulationRun:
    """Return one simulation.

    Raises:
        NotFoundError: If there is none, or ``user`` may not see it.
    """
    found = SimulationRun.objects.for_user(user).select_related("owner").defer("workload")
    run = found.filter(public_id=public_id).first()
    if run is None:
        raise NotFoundError("simulation", public_id)
    return run


def placement_list(*, user: Any) -> QuerySet[PlacementRun]:
    """Return the trials of placement that ``user`` may see, newest first, small columns only."""
    found = PlacementRun.objects.for_user(user).select_related("owner")
    return found.defer("problem", "result").order_by("-id")


def placement_get(*, user: Any, public_id: UUID | str) -> PlacementRun:
    """Return one trial of placement.

    Raises:
        NotFoundError: If there is none, or ``user`` may not see it.
    """
    found = PlacementRun.objects.for_user(user).select_related("owner")
    run = found.filter(public_id=public_id).first()
    if run is None:
        raise NotFoundError("placement", public_id)
    return run


def placement_frames(run: PlacementRun, *, first: int) -> list[dict[str, Any]]:
    """Return what could be watched of a search from frame number ``first`` on."""
    pieces = run.frames.order_by("first").values_list("first", "frames")
    numbered = (
        (start + place, frame) for start, piece in pieces for place, frame in enumerate(piece)
    )
    return [frame for number, frame in numbered if number >= first]


def names_of_jobs(keys: list[str]) -> dict[str, str]:
    """Return the names of the jobs among these ids; what is no job of ours has none."""
    ids = [key for key in keys if _is_uuid(key)]
    rows = Job.objects.filter(public_id__in=ids).values_list("public_id", "name")
    return {str(public_id): name for public_id, name in rows}


def _is_uuid(text: str) -> bool:
    try:
        UUID(text)
    except ValueError:
        return False
    return True
