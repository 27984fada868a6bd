"""The hosts and GPUs, live."""

from datetime import datetime
from typing import Any

from django.http import Http404, HttpRequest, HttpResponse
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_safe

from cluster import selectors as cluster_selectors
from cluster.core.policy.gpu_state import Fault
from cluster.models import Host
from jobs.models import Job, Replica
from jobs.models.ownership import sees_all
from monitoring import selectors
from portal.htmx import page_or_part
from portal.models import User
from portal.views.access import member, page


@page
@require_safe
def cluster(request: HttpRequest) -> HttpResponse:
    """Show every host with its latest readings; the page's socket goes on from there."""
    hosts = [_shown(host) for host in selectors.cluster_live(now=timezone.now())]
    context = {"hosts": hosts, "is_list": True}
    return page_or_part(request, "cluster/overview.html", "cluster/_updates.html", context)


@page
@require_safe
def host_detail(request: HttpRequest, name: str) -> HttpResponse:
    """Show one host: its use over time, its GPUs, and what runs there."""
    user = member(request)
    row = cluster_selectors.host_get(name)
    now = timezone.now()
    live = next((h for h in selectors.cluster_live(now=now) if h["name"] == name), None)
    if row is None or live is None:
        raise Http404(f"there is no host {name}")
    running = Replica.objects.filter(host_name=name, removed_at=None).select_related(
        "attempt__job__owner"
    )
    context = {
        "host": _with_users(_shown(live), user),
        "hosts": [_shown(live)],
        "engine": row.engine if user.is_superuser else {},
        "gpus_to_mend": _to_mend(row, now=now) if user.is_superuser else [],
        "health_events": cluster_selectors.host_gpu_events(row),
        "running": running.order_by("id"),
        "sees_all": sees_all(user),
    }
    return page_or_part(request, "cluster/host.html", "cluster/_updates.html", context)


def _to_mend(host: Host, *, now: datetime) -> list[dict[str, Any]]:
    """Return the GPUs of which something is wrong, each with what to do about it."""
    found = []
    for gpu in host.gpus.all():
        # A GPU that was divided on purpose lacks nothing.
        findings = [
            one
            for one in cluster_selectors.gpu_findings(gpu, now=now)
            if one["fault"] != Fault.DIVIDED
        ]
        if findings:
            found.append({"gpu": gpu, "findings": findings})
    return found


def _shown(host: dict[str, Any]) -> dict[str, Any]:
    """Return a host with what its scripts must know."""
    samples = reverse("v1:host-samples", args=[host["name"]])
    gpus = [
        {**gpu, "samples_url": reverse("v1:gpu-samples", args=[gpu["uuid"]])}
        for gpu in host["gpus"]
    ]
    return {**host, "gpus": gpus, "samples_url": samples, "state": _state(host)}


def _with_users(host: dict[str, Any], user: User) -> dict[str, Any]:
    """Return a host whose GPUs say who uses them; a job of somebody else has no name."""
    known = selectors.gpu_users(host["name"])
    for gpu in host["gpus"]:
        shares = gpu["values"].get("shares", {})
        gpu["users"] = [
            {
                "job": _visible(known.get(container), user),
                "is_job": container in known,
                "memory_mib": mib,
                "share_pct": shares.get(container),
            }
            for container, mib in gpu["values"].get("processes", {}).items()
        ]
    return host


def _visible(replica: Replica | None, user: User) -> Job | None:
    if replica is None:
        return None
    job = replica.attempt.job
    return job if sees_all(user) or job.owner_id == user.pk else None


def _state(host: dict[str, Any]) -> dict[str, str]:
    """Return one word for a host's badge and the class of its colour."""
    match host["connection"], host["mode"]:
        case "up", "active":
            return {"word": "takes work", "kind": "ok"}
        case "up", mode:
            return {"word": mode, "kind": mode}
        case "new", _:
            return {"word": "not tried yet", "kind": "warn"}
        case "refused", _:
            return {"word": "refuses us", "kind": "refused"}
        case _:
            return {"word": "unreachable", "kind": "unreachable"}
