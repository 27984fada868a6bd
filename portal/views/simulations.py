"""What would have been: asked by instructors and admins, shown under an address to share."""

import json
from typing import Any, Final
from uuid import UUID

from django.contrib import messages
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from cluster import selectors as cluster_selectors
from jobs import selectors, services
from jobs.errors import InvalidInputError, NotFoundError, NotPossibleNowError, QuotaExceededError
from jobs.models import SimulationRun
from jobs.models.ownership import administers, sees_all
from portal.forms import add_errors
from portal.htmx import page_or_part
from portal.models import User
from portal.simulation_forms import SimulationForm, initial_of_simulation
from portal.templatetags.starling import span
from portal.views.access import member, page

_PAGE_SIZE: Final = 30
#: What a new question compares: today's production beside the plainest there is.
_POLICIES: Final = ("first-fit", "swarm")


@page
@require_safe
def simulation_list(request: HttpRequest) -> HttpResponse:
    """List the simulations, newest first."""
    user = _staff(request)
    runs = Paginator(selectors.simulation_list(user=user), _PAGE_SIZE)
    context = {"runs": runs.get_page(request.GET.get("page"))}
    return page_or_part(request, "simulations/list.html", "simulations/_table.html", context)


@page
@require_http_methods(["GET", "HEAD", "POST"])
def simulation_create(request: HttpRequest) -> HttpResponse:
    """Offer the form, also filled in like another simulation; take it and go to the answer."""
    user = _staff(request)
    if request.method != "POST":
        return _form(request, SimulationForm(**_names(), initial=_initial(request, user)))
    form = SimulationForm(request.POST, request.FILES, **_names())
    if form.is_valid():
        now = timezone.now()
        try:
            run = services.simulation_create(owner=user, question=form.question(now=now), now=now)
        except InvalidInputError as error:
            add_errors(form, error.fields)
        except QuotaExceededError as error:
            form.add_error(None, str(error))
        else:
            return redirect("portal:simulation-detail", run.public_id)
    return _form(request, form, status=422)


@page
@require_safe
def simulation_detail(request: HttpRequest, public_id: UUID) -> HttpResponse:
    """Show how far a simulation is, and its answer; htmx asks for the part that changes."""
    user = _staff(request)
    run = selectors.simulation_get(user=user, public_id=public_id)
    context = {
        "run": run,
        "may_change": run.owner_id == user.pk or administers(user),
        **_answer(run),
    }
    return page_or_part(request, "simulations/detail.html", "simulations/_answer.html", context)


@page
@require_POST
def simulation_cancel(request: HttpRequest, public_id: UUID) -> HttpResponse:
    """End a simulation; what was answered so far stays."""
    user = _staff(request)
    run = selectors.simulation_get(user=user, public_id=public_id)
    try:
        services.run_cancel(run=run, actor=user, now=timezone.now())
    except NotPossibleNowError:
        messages.info(request, "It was over already.")
    return redirect("portal:simulation-detail", public_id)


@page
@require_POST
def simulation_delete(request: HttpRequest, public_id: UUID) -> HttpResponse:
    """Forget a simulation and its address."""
    user = _staff(request)
    run = selectors.simulation_get(user=user, public_id=public_id)
    services.run_delete(run=run, actor=user)
    messages.success(request, f"The simulation {run.name} is deleted.")
    return redirect("portal:simulation-list")


def _staff(request: HttpRequest) -> User:
    """Return who asks, if they may simulate.

    Raises:
        NotFoundError: For students, to whom these pages are not there.
    """
    user = member(request)
    if not sees_all(user):
        raise NotFoundError("page", request.path)
    return user


def _names() -> dict[str, Any]:
    # Only these pages need the placers, with their compiled loops.
    from cluster.core.simulation.policies import policy_names

    placers, queues = policy_names()
    return {"placers": placers, "queues": queues}


def _initial(request: HttpRequest, user: User) -> dict[str, Any]:
    like = request.GET.get("like", "")
    try:
        run = selectors.simulation_get(user=user, public_id=UUID(like)) if like else None
    except ValueError:
        run = None
    if run is not None:
        return initial_of_simulation(run)
    has_history = selectors.job_list(user=user).exclude(started_at=None).exists()
    return {
        "source": "recorded" if has_history else "example",
        "window": "week",
        "policies": _POLICIES,
    }


def _form(request: HttpRequest, form: SimulationForm, *, status: int = 200) -> HttpResponse:
    snapshot = cluster_selectors.cluster_snapshot(now=timezone.now())
    names = [host.name for host in snapshot.hosts]
    like = form["like"].value()
    context = {"form": form, "host_names": names, "like": like}
    return render(request, "simulations/form.html", context, status=status)


def _answer(run: SimulationRun) -> dict[str, Any]:
    """Return the answer as tables; the best value of each row is marked."""
    result = run.result
    if not result:
        return {"result": None}
    changes = result["changes"]
    keys = [job["key"] for change in changes for job in change["jobs"]]
    names = selectors.names_of_jobs(keys)
    return {
        "result": result,
        "rows": [{**row, "cells": _cells(row)} for row in result["rows"]],
        "outcomes": _outcomes(result),
        "changes": [_change(change, names) for change in changes],
        # In an attribute: what is swapped into a page carries no script, not even one of values.
        "figures": json.dumps(result["figures"]),
    }


def _change(change: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    jobs = [{**job, "name": names.get(job["key"], "")} for job in change["jobs"]]
    owners = [{**row, "words": _signed(row["mean_s"])} for row in change["owners"]]
    return {**change, "jobs": jobs, "owners": owners}


def _signed(seconds: float) -> str:
    if abs(seconds) < 1:
        return "the same"
    return f"{span(abs(seconds))} {'longer' if seconds > 0 else 'shorter'}"


#: Rows in which more is better.
_MORE_IS_BETTER: Final = {"gpu_pct", "gpu_busy_pct", "cpu_pct"}


def _cells(row: dict[str, Any]) -> list[dict[str, Any]]:
    values = row["values"]
    best = max(values) if row["name"] in _MORE_IS_BETTER else min(values)
    differ = len(values) > 1 and max(values) - min(values) > 1e-6 * abs(best)
    return [
        {"text": _amount(value, row["unit"]), "is_best": differ and value == best}
        for value in values
    ]


def _amount(value: float, unit: str) -> str:
    if unit == "s":
        return span(value)
    digits = 1 if unit == "%" or value >= 100 else 2
    return f"{value:,.{digits}f} {unit}".strip()


def _outcomes(result: dict[str, Any]) -> list[dict[str, Any]]:
    names = [name for name in result["outcomes"][0] if any(o[name] for o in result["outcomes"])]
    return [{"name": name, "counts": [o[name] for o in result["outcomes"]]} for name in names]
