"""Datasets: list, upload, look into, share, delete."""

from typing import Any, Final
from uuid import UUID

from django.contrib import messages
from django.core.paginator import Paginator
from django.db.models import Q
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils import timezone
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from jobs import selectors, services
from jobs.errors import InvalidInputError, NotPossibleNowError
from jobs.models import Dataset, DatasetVersion, VersionState
from jobs.models.ownership import administers, sees_all
from portal.forms import DatasetForm, add_errors
from portal.htmx import page_or_part
from portal.selectors import account_use
from portal.views.access import member, page

_PAGE_SIZE: Final = 30
_FILES: Final = 100
_JOBS: Final = 10


@page
@require_safe
def dataset_list(request: HttpRequest) -> HttpResponse:
    """List the datasets one may see, with a place to bring new ones."""
    user = member(request)
    datasets = selectors.dataset_list(user)
    words = request.GET.get("q", "").strip()
    if words:
        datasets = datasets.filter(Q(name__icontains=words) | Q(description__icontains=words))
    shown = Paginator(datasets, _PAGE_SIZE).get_page(request.GET.get("page"))
    context = {"datasets": shown, "q": words, "use": account_use(user)}
    return page_or_part(request, "jobs/dataset_list.html", "jobs/_dataset_table.html", context)


@page
@require_http_methods(["GET", "HEAD", "POST"])
def dataset_detail(request: HttpRequest, public_id: UUID) -> HttpResponse:
    """Show a dataset and one of its versions; take changes of name, description and sharing."""
    user = member(request)
    dataset = selectors.dataset_get(user, public_id)
    form = DatasetForm(request.POST or None, dataset=dataset, may_share=sees_all(user))
    if request.method == "POST" and form.is_valid():
        try:
            services.dataset_update(dataset_id=public_id, actor=user, **form.cleaned_data)
        except InvalidInputError as error:
            add_errors(form, error.fields)
        else:
            messages.success(request, "The dataset is saved.")
            return redirect("portal:dataset-detail", public_id)
    context = {**_detail(request, dataset), "form": form}
    return page_or_part(request, "jobs/dataset_detail.html", "jobs/_version.html", context)


@page
@require_POST
def dataset_delete(request: HttpRequest, public_id: UUID) -> HttpResponse:
    """Delete a dataset that no job waits for or uses."""
    user = member(request)
    dataset = selectors.dataset_get(user, public_id)
    try:
        services.dataset_delete(dataset_id=public_id, actor=user, now=timezone.now())
    except NotPossibleNowError as error:
        messages.error(request, f"It cannot be deleted now: {error}.")
        return redirect("portal:dataset-detail", public_id)
    messages.success(request, f"The dataset {dataset.name} is deleted.")
    return redirect("portal:dataset-list")


def _detail(request: HttpRequest, dataset: Dataset) -> dict[str, Any]:
    user = member(request)
    versions = list(dataset.versions.all())
    wanted = request.GET.get("version", "")
    version = next(
        (v for v in versions if str(v.number) == wanted), versions[0] if versions else None
    )
    context: dict[str, Any] = {
        "dataset": dataset,
        "versions": versions,
        "version": version,
        "may_change": dataset.owner_id == user.pk or administers(user),
        "may_share": sees_all(user),
    }
    if version is not None:
        context |= {"jobs": selectors.version_jobs(user, version)[:_JOBS]}
        if version.state == VersionState.READY:
            context |= _contents(request, version)
    return context


def _contents(request: HttpRequest, version: DatasetVersion) -> dict[str, Any]:
    """Return a page of a version's files, and a first look into them."""
    asked = request.GET.get("files", "0")
    offset = int(asked) if asked.isascii() and asked.isdigit() and len(asked) < 10 else 0
    files = selectors.version_files(version, offset=offset, limit=_FILES)
    return {
        "files": files,
        "files_from": offset + 1,
        "files_to": offset + len(files.entries),
        "files_before": max(0, offset - _FILES) if offset else None,
        "files_after": offset + _FILES if files.has_more else None,
        "preview": selectors.version_preview(version),
    }
