"""Jobs: list, page, and what can be done with one."""

from typing import Any, Final
from uuid import UUID

from django.contrib import messages
from django.core.paginator import Paginator
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_POST, require_safe

from cluster import selectors as cluster_selectors
from jobs import selectors, services
from jobs.errors import (
    InvalidInputError,
    JobsError,
    NotFoundError,
    NotPossibleNowError,
    UnsatisfiableError,
)
from jobs.lifecycle import ACTIVE, JobStatus, Reason
from jobs.models import Attempt, Job, JobEvent
from jobs.models.ownership import sees_all
from monitoring.status import status_message
from portal.decisions import decision_of
from portal.htmx import page_or_part
from portal.views.access import member, page

_PAGE_SIZE: Final = 30
_FILES: Final = 200
#: Value of the filter, its words, and the statuses it stands for.
FILTERS: Final[tuple[tuple[str, str, frozenset[JobStatus]], ...]] = (
    ("", "all", frozenset(JobStatus)),
    ("active", "waiting and running", ACTIVE),
    ("succeeded", "succeeded", frozenset({JobStatus.SUCCEEDED})),
    ("failed", "failed", frozenset({JobStatus.FAILED})),
    ("cancelled", "cancelled", frozenset({JobStatus.CANCELLED})),
)


@page
@require_safe
def job_list(request: HttpRequest) -> HttpResponse:
    """List the jobs one may see, newest first."""
    user = member(request)
    jobs = _filtered(request, selectors.job_list(user=user), is_staff=sees_all(user))
    context = {
        "jobs": Paginator(jobs, _PAGE_SIZE).get_page(request.GET.get("page")),
        "filters": FILTERS,
        "status": request.GET.get("status", ""),
        "q": request.GET.get("q", ""),
        "whose": request.GET.get("whose", ""),
        "sees_all": sees_all(user),
    }
    return page_or_part(request, "jobs/list.html", "jobs/_table.html", context)


def _filtered(request: HttpRequest, jobs: QuerySet[Job], *, is_staff: bool) -> QuerySet[Job]:
    statuses = {value: chosen for value, _, chosen in FILTERS}
    chosen = statuses.get(request.GET.get("status", ""))
    if chosen:
        jobs = jobs.filter(status__in=[status.value for status in chosen])
    words = request.GET.get("q", "").strip()
    if words:
        matches = Q(name__icontains=words)
        jobs = jobs.filter(matches | Q(owner__username__icontains=words) if is_staff else matches)
    if request.GET.get("whose") == "mine":
        jobs = jobs.filter(owner=member(request))
    return jobs


@page
@require_safe
def job_row(request: HttpRequest, public_id: UUID) -> HttpResponse:
    """Show one job as a row of a list, to be swapped when its state changes."""
    user = member(request)
    job = selectors.job_list(user=user).filter(public_id=public_id).first()
    if job is None:
        raise NotFoundError("job", public_id)
    return render(request, "jobs/_row.html", {"job": job, "sees_all": sees_all(user)})


@page
@require_safe
def job_detail(request: HttpRequest, public_id: UUID) -> HttpResponse:
    """Show a job: state, log, curves, charts, files, program and history."""
    user = member(request)
    job = selectors.job_get(user=user, public_id=public_id)
    attempt = _attempt(request, job)
    context = {
        **_state(request, job),
        **_files(job, attempt),
        "attempt": attempt,
        "decision": decision_of(attempt),
        "attempts": list(job.attempts.all()),
        "events": _events(job),
        "live": _live(job, attempt),
        **_program(job),
    }
    return render(request, "jobs/detail.html", context)


@page
@require_safe
def job_part(request: HttpRequest, public_id: UUID, part: str) -> HttpResponse:
    """Show one part of a job's page, to be swapped when the job's state changes."""
    user = member(request)
    job = selectors.job_get(user=user, public_id=public_id)
    attempt = _attempt(request, job)
    if part == "state":
        context: dict[str, Any] = _state(request, job)
    elif part == "files":
        context = {"job": job, **_files(job, attempt)}
    elif part == "facts":
        context = {"job": job, "attempt": attempt, "attempts": list(job.attempts.all())}
    elif part == "decision":
        context = {"decision": decision_of(attempt)}
    elif part == "history":
        context = {"job": job, "events": _events(job), "attempts": list(job.attempts.all())}
    else:
        raise NotFoundError("part", part)
    return render(request, f"jobs/_{part}.html", {**context, "attempt": attempt})


@page
@require_POST
def job_cancel(request: HttpRequest, public_id: UUID) -> HttpResponse:
    """End a job; an admin who ends another's gives no grace."""
    user = member(request)
    job = services.changeable(job_id=public_id, actor=user)
    own = job.owner_id == user.pk
    try:
        services.job_cancel(
            job_id=public_id,
            actor=user,
            now=timezone.now(),
            reason=Reason.CANCELLED if own else Reason.FORCE_ENDED,
        )
    except NotPossibleNowError as error:
        messages.warning(request, str(error))
    else:
        messages.success(request, "The job is being ended. What it has written so far is kept.")
    return redirect("portal:job-detail", public_id)


@page
@require_POST
def job_rerun(request: HttpRequest, public_id: UUID) -> HttpResponse:
    """Submit a job once more as it was."""
    try:
        job = services.job_resubmit(job_id=public_id, actor=member(request), now=timezone.now())
    except NotFoundError:
        raise
    except (InvalidInputError, UnsatisfiableError) as error:
        sentences = " ".join(text for texts in error.fields.values() for text in texts)
        messages.error(request, f"It cannot run again as it was. {sentences}")
        return redirect("portal:job-clone", public_id)
    except JobsError as error:
        messages.error(request, str(error))
        return redirect("portal:job-detail", public_id)
    messages.success(request, f"{job.name} is submitted again.")
    return redirect("portal:job-detail", job.public_id)


@page
@require_POST
def job_delete(request: HttpRequest, public_id: UUID) -> HttpResponse:
    """Forget a job that has ended, with its log and files."""
    user = member(request)
    name = services.changeable(job_id=public_id, actor=user).name
    try:
        services.job_delete(job_id=public_id, actor=user)
    except NotPossibleNowError as error:
        messages.error(request, str(error))
        return redirect("portal:job-detail", public_id)
    messages.success(request, f"The job {name} is deleted with its log and files.")
    return redirect("portal:job-list")


def _attempt(request: HttpRequest, job: Job) -> Attempt | None:
    """Return the attempt that is asked for, the last by default."""
    attempts = list(job.attempts.all())
    wanted = request.GET.get("attempt", "")
    if not wanted:
        return attempts[-1] if attempts else None
    found = next((a for a in attempts if str(a.number) == wanted), None)
    if found is None:
        raise NotFoundError("attempt", wanted)
    return found


def _state(request: HttpRequest, job: Job) -> dict[str, Any]:
    return {
        "job": job,
        "state": status_message(job),
        "may_change": selectors.may_change(user=request.user, job=job),
    }


def _files(job: Job, attempt: Attempt | None) -> dict[str, Any]:
    files = list(
        selectors.job_outputs(job=job, attempt=attempt.number if attempt else None)[: _FILES + 1]
    )
    return {"files": files[:_FILES], "more_files": len(files) > _FILES}


def _events(job: Job) -> QuerySet[JobEvent]:
    return job.events.select_related("actor").order_by("-at", "-id")


def _program(job: Job) -> dict[str, Any]:
    """Return the program as text, as far as it still is there."""
    try:
        return {
            "source": selectors.code_text(job.code, job.entrypoint),
            "code_files": selectors.code_files(job.code),
        }
    except NotFoundError:
        return {"source": None, "code_files": []}


def _live(job: Job, attempt: Attempt | None) -> dict[str, Any]:
    """Return what the page's scripts must know: addresses, limits, and whose samples are shown."""
    replicas = list(attempt.replicas.all()) if attempt else []
    claims = cluster_selectors.claims_of([replica.public_id for replica in replicas])
    uuids = [uuid for claimed in claims.values() for uuid in claimed]
    gpus = {gpu.uuid: gpu for gpu in cluster_selectors.gpu_list().filter(uuid__in=uuids)}
    return {
        "job": str(job.public_id),
        "attempt": attempt.number if attempt else None,
        "is_latest": attempt is None or attempt.number == len(job.attempts.all()),
        "is_terminal": JobStatus(job.status).is_terminal,
        "gpu_count": job.gpus,
        "cpu_limit_pct": job.cpu_millis / 10,
        "memory_limit_mib": job.memory_mib,
        "replicas": [
            {"id": str(r.public_id), "rank": r.rank, "host": r.host_name} for r in replicas
        ],
        "gpus": [
            {
                "uuid": uuid,
                "memory_total_mib": gpus[uuid].memory_total_mib,
                "samples": reverse("v1:gpu-samples", args=[uuid]),
            }
            for uuid in uuids
            if uuid in gpus
        ],
        "urls": {
            "socket": f"/ws/jobs/{job.public_id}/",
            "cluster_socket": "/ws/cluster/",
            "logs": reverse("v1:job-logs", args=[job.public_id]),
            "search": reverse("v1:job-logs-search", args=[job.public_id]),
            "metrics": reverse("v1:job-metrics", args=[job.public_id]),
            "samples": reverse("v1:job-samples", args=[job.public_id]),
        },
    }
