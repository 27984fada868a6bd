"""The form that makes jobs: new, like another, and what it answers when it cannot be taken."""

from typing import Any
from uuid import UUID

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.views.decorators.http import require_http_methods, require_safe

from cluster import selectors as cluster_selectors
from jobs import selectors, services
from jobs.errors import InvalidInputError, NotFoundError, QuotaExceededError, UnsatisfiableError
from jobs.models import CodeBundle, CodeKind, JobTemplate
from portal import services as portal_services
from portal.errors import IdempotencyMismatchError
from portal.forms import JobForm, add_errors, folder_name, initial_of_job, initial_of_template
from portal.views.access import member, page

_SCOPE = "job-form"


@page
@require_http_methods(["GET", "HEAD", "POST"])
def job_create(request: HttpRequest) -> HttpResponse:
    """Offer the form, filled in from a template; take it and go to the job it has made."""
    if request.method == "POST":
        return _submit(request)
    user = member(request)
    templates = list(selectors.template_list(user=user))
    versions = list(selectors.version_list_ready(user))
    wanted = request.GET.get("template", templates[0].slug if templates else "")
    template = next((t for t in templates if t.slug == wanted), None)
    initial = initial_of_template(template, versions)
    if request.GET.get("source") == "editor":
        initial["source"] = "editor"
    _choose_dataset(request, initial)
    return _form(request, JobForm(**_choices(request), initial=initial))


@page
@require_safe
def job_clone(request: HttpRequest, public_id: UUID) -> HttpResponse:
    """Offer the form filled in with what another job asked for."""
    user = member(request)
    job = selectors.job_get(user=user, public_id=public_id)
    script = None
    try:
        if job.code.kind != CodeKind.ARCHIVE:
            script = selectors.code_text(job.code)
    except NotFoundError:
        messages.warning(request, "The program is no longer kept; bring it again.")
        script = ""
    initial = initial_of_job(selectors.job_specification(job), job.code, script)
    return _form(request, JobForm(**_choices(request), initial=initial))


def _choose_dataset(request: HttpRequest, initial: dict[str, Any]) -> None:
    """Put the dataset version that a link names first, instead of the template's."""
    wanted = request.GET.get("dataset", "")
    versions = {str(v.public_id): v for v in selectors.version_list_ready(member(request))}
    if wanted in versions:
        initial["datasets"] = [(wanted, folder_name(versions[wanted]))]


def _submit(request: HttpRequest) -> HttpResponse:
    form = JobForm(request.POST, request.FILES, **_choices(request))
    if not form.is_valid():
        _keep_file(request, form)
        return _form(request, form, status=422)
    try:
        job_id = _make(request, form)
    except (InvalidInputError, UnsatisfiableError) as error:
        add_errors(form, error.fields)
        if isinstance(error, UnsatisfiableError):
            form.add_error(None, str(error))
    except QuotaExceededError as error:
        form.add_error(None, str(error))
    else:
        return redirect("portal:job-detail", job_id)
    _keep_file(request, form)
    return _form(request, form, status=422)


def _make(request: HttpRequest, form: JobForm) -> str:
    """Submit the job once, however often the same form comes."""
    user, now = member(request), timezone.now()
    token = str(form.cleaned_data["token"])
    sent = {name: str(value) for name, value in form.cleaned_data.items() if name != "file"}
    sent["file"] = _file_name(form)

    # Before the transaction: the program waits for the contents' lock, whose holder may wait for
    # the database. The same program twice is one bundle.
    code = _code(request, form)

    def act() -> dict[str, str]:
        job = services.job_submit(owner=user, specification=form.specification(code=code), now=now)
        return {"job": str(job.public_id)}

    fingerprint = portal_services.fingerprint(sent)
    try:
        answer = portal_services.idempotent(
            user=user,
            scope=_SCOPE,
            key=token,
            request_fingerprint=fingerprint,
            now=now,
            act=act,
        )
    except IdempotencyMismatchError:
        # Somebody went back, changed the form and sent it again: that is another job.
        answer = portal_services.idempotent(
            user=user,
            scope=_SCOPE,
            key=f"{token}.{fingerprint}"[:255],
            request_fingerprint=fingerprint,
            now=now,
            act=act,
        )
    if not answer.replayed:
        messages.success(request, "The job is submitted.")
    return str(answer.body["job"])


def _file_name(form: JobForm) -> str:
    file = form.cleaned_data.get("file")
    return f"{file.name} {file.size}" if file else ""


def _code(request: HttpRequest, form: JobForm) -> UUID:
    """Return the program's bundle, made of what the chosen way of bringing it has.

    Raises:
        InvalidInputError: If the program cannot be kept, by field of the form.
    """
    user, now, values = member(request), timezone.now(), form.cleaned_data
    match values["source"]:
        case "template":
            found = selectors.template_list(user=user).filter(slug=values["template"]).first()
            if found is None:
                raise InvalidInputError({"template": ["There is no such template any more."]})
            script = found.script
        case "editor":
            script = str(values["script"]).replace("\r\n", "\n")
        case _ if values["code"] and not values["file"]:
            return UUID(str(values["code"]))
        case _:
            return _uploaded(request, form).public_id
    try:
        bundle = services.code_create(
            owner=user, filename="main.py", content=script.encode(errors="replace"), now=now
        )
    except InvalidInputError as error:
        raise InvalidInputError(
            {"script": [text for texts in error.fields.values() for text in texts]}
        ) from error
    return bundle.public_id


def _uploaded(request: HttpRequest, form: JobForm) -> CodeBundle:
    file, user = form.cleaned_data["file"], member(request)
    try:
        return services.code_create(
            owner=user,
            filename=file.name,
            content=file.read(),
            entrypoint=form.cleaned_data["entrypoint"],
            now=timezone.now(),
        )
    except InvalidInputError as error:
        named = {
            ("entrypoint" if name == "entrypoint" else "file"): texts
            for name, texts in error.fields.items()
        }
        raise InvalidInputError(named) from error


def _keep_file(request: HttpRequest, form: JobForm) -> None:
    """Keep an uploaded program over a faulty form: a browser never sends a file by itself again."""
    if form.cleaned_data.get("source") != "upload" or not form.cleaned_data.get("file"):
        return
    if "file" in form.errors or "entrypoint" in form.errors:
        return
    form.cleaned_data["file"].seek(0)
    form.cleaned_data.setdefault("entrypoint", "")
    try:
        bundle = _uploaded(request, form)
    except (InvalidInputError, QuotaExceededError):
        return
    data = request.POST.copy()
    data["code"] = str(bundle.public_id)
    form.data = data


def _choices(request: HttpRequest) -> dict[str, Any]:
    user = member(request)
    return {
        "environments": list(selectors.environment_list(user=user)),
        "versions": list(selectors.version_list_ready(user)),
    }


def _form(request: HttpRequest, form: JobForm, status: int = 200) -> HttpResponse:
    user = member(request)
    templates = list(selectors.template_list(user=user))
    chosen = str(form["template"].value() or "")
    template = next((t for t in templates if t.slug == chosen), None)
    context = {
        "form": form,
        "templates": templates,
        "template": template,
        "environments": list(selectors.environment_list(user=user)),
        "versions": list(selectors.version_list_ready(user)),
        "kept": _kept(request, form),
        "parameter_help": _parameter_help(template),
        "most": _most(request),
    }
    return render(request, "jobs/form.html", context, status=status)


def _kept(request: HttpRequest, form: JobForm) -> CodeBundle | None:
    """Return the bundle that the form keeps, if it keeps one that its owner may use."""
    try:
        return selectors.code_get(member(request), UUID(str(form["code"].value())))
    except (ValueError, NotFoundError):
        return None


def _parameter_help(template: JobTemplate | None) -> dict[str, str]:
    if template is None:
        return {}
    return {p["name"]: p.get("help", "") for p in template.parameters}


def _most(request: HttpRequest) -> dict[str, Any]:
    """Return the most of each amount that one host has, for the hints beside the fields."""
    hosts = cluster_selectors.cluster_snapshot(now=timezone.now()).hosts
    gpus = [gpu for host in hosts for gpu in host.gpus]
    return {
        "cpu_millis": max((host.cpu_millis for host in hosts), default=0),
        "memory_mib": max((host.memory_mib for host in hosts), default=0),
        "gpus": max((len(host.gpus) for host in hosts), default=0),
        "gpu_memory_mib": max((gpu.memory_total_mib for gpu in gpus), default=0),
        "gpu_models": sorted({gpu.model for gpu in gpus}),
        "max_gpus": member(request).max_gpus,
    }
