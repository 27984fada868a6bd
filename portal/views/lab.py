"""The placement lab: a small problem, the swarm at work on it, and the heuristics beside it."""

from typing import Any, Final
from uuid import UUID

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from jobs import selectors, services
from jobs.errors import InvalidInputError, NotPossibleNowError, QuotaExceededError
from jobs.models import PlacementRun
from jobs.models.ownership import administers
from jobs.selectors.placement_examples import placement_examples
from portal.drawing import drawing_of
from portal.forms import add_errors
from portal.htmx import page_or_part
from portal.simulation_forms import OBJECTIVES, PlacementForm
from portal.views.access import member, page

_LAST: Final = 12


@page
@require_http_methods(["GET", "HEAD", "POST"])
def lab(request: HttpRequest) -> HttpResponse:
    """Offer the examples and one's last trials; take a problem and go to where it is placed."""
    user = member(request)
    if request.method != "POST":
        initial = {"source": "example", "example": "course", "objective": "hosts",
                   "method": "cold", "seconds": 5, "seed": 0}  # fmt: skip
        return _form(request, PlacementForm(examples=placement_examples(), initial=initial))
    form = PlacementForm(request.POST, request.FILES, examples=placement_examples())
    if form.is_valid():
        values = form.cleaned_data
        before = (
            selectors.placement_get(user=user, public_id=values["like"])
            if values["source"] == "kept"
            else None
        )
        try:
            question = form.question(before)
            run = services.placement_create(owner=user, question=question, now=timezone.now())
        except InvalidInputError as error:
            add_errors(form, error.fields)
        except QuotaExceededError as error:
            form.add_error(None, str(error))
        else:
            return redirect("portal:lab-detail", run.public_id)
    return _form(request, form, status=422)


@page
@require_safe
def lab_detail(request: HttpRequest, public_id: UUID) -> HttpResponse:
    """Show a trial: live while it runs, with its packing once it is over."""
    user = member(request)
    run = selectors.placement_get(user=user, public_id=public_id)
    initial = {"source": "kept", "like": run.public_id, "objective": run.objective,
               "method": run.method, "seconds": run.seconds, "seed": run.seed}  # fmt: skip
    picture = run.result.get("picture")
    context = {
        "run": run,
        "objective_words": OBJECTIVES[run.objective],  # type: ignore[index] # a StrEnum's word
        "form": PlacementForm(examples=placement_examples(), initial=initial),
        "may_change": run.owner_id == user.pk or administers(user),
        "rows": _rows(run),
        "bound": run.result.get("bound"),
        "picture": picture,
        "drawing": drawing_of(picture) if picture else None,
        "live": {
            "frames": reverse("v1:placement-frames", args=[run.public_id]),
            "is_over": run.is_over,
            "objective": run.objective,
            "seconds": run.seconds,
        },
    }
    return page_or_part(request, "lab/detail.html", "lab/_found.html", context)


@page
@require_POST
def lab_cancel(request: HttpRequest, public_id: UUID) -> HttpResponse:
    """End a trial."""
    user = member(request)
    run = selectors.placement_get(user=user, public_id=public_id)
    try:
        services.run_cancel(run=run, actor=user, now=timezone.now())
    except NotPossibleNowError:
        messages.info(request, "It was over already.")
    return redirect("portal:lab-detail", public_id)


@page
@require_POST
def lab_delete(request: HttpRequest, public_id: UUID) -> HttpResponse:
    """Forget a trial."""
    user = member(request)
    run = selectors.placement_get(user=user, public_id=public_id)
    services.run_delete(run=run, actor=user)
    messages.success(request, f"The trial {run.name} is deleted.")
    return redirect("portal:lab")


def _form(request: HttpRequest, form: PlacementForm, *, status: int = 200) -> HttpResponse:
    own = selectors.placement_list(user=request.user).filter(owner=member(request))
    context = {"form": form, "examples": placement_examples(), "runs": own[:_LAST]}
    return render(request, "lab/lab.html", context, status=status)


def _rows(run: PlacementRun) -> list[dict[str, Any]]:
    """Return the table of placers, the best marked; what leaves out less is better."""
    rows = run.result.get("rows", [])
    bound = run.result.get("bound")
    best = min(((row["left_out_cost"], row["cost"]) for row in rows), default=None)
    return [
        {
            **row,
            "is_best": (row["left_out_cost"], row["cost"]) == best,
            "gpus": row["gpu_milli"] / 1000,
            "above_pct": 100 * (row["hosts_active"] / bound - 1) if bound else None,
        }
        for row in rows
    ]
