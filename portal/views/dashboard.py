"""The page after sign-in."""

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import require_safe

from cluster import selectors as cluster_selectors
from cluster.core.resources import ClusterSnapshot
from jobs import selectors as job_selectors
from jobs.lifecycle import TERMINAL
from portal import selectors
from portal.views.access import member, page

_SHOWN = 8


@page
@require_safe
def dashboard(request: HttpRequest) -> HttpResponse:
    """Show what one's own jobs are doing, how much is stored, and what the cluster has free."""
    user = member(request)
    own = job_selectors.job_list(user=user).filter(owner=user)
    ended = own.filter(status__in=[status.value for status in TERMINAL])
    context = {
        "active_jobs": own.active(),  # type: ignore[attr-defined]
        "recent_jobs": ended[:_SHOWN],
        "use": selectors.account_use(user),
        "cluster": summary(cluster_selectors.cluster_snapshot(now=timezone.now())),
        "has_datasets": job_selectors.dataset_list(user).filter(owner=user).exists(),
    }
    return render(request, "portal/dashboard.html", context)


def summary(snapshot: ClusterSnapshot) -> dict[str, int]:
    """Return what the hosts that take work have, and how much of it nobody has claimed."""
    usable = [host for host in snapshot.hosts if host.schedulable]
    gpus = [gpu for host in usable for gpu in host.gpus]
    return {
        "hosts": len(snapshot.hosts),
        "hosts_usable": len(usable),
        "cpu_millis": sum(host.cpu_millis for host in usable),
        "cpu_free_millis": sum(max(0, host.cpu_free_millis) for host in usable),
        "memory_mib": sum(host.memory_mib for host in usable),
        "memory_free_mib": sum(max(0, host.memory_free_mib) for host in usable),
        "gpus": len(gpus),
        "gpus_free": sum(gpu.free for gpu in gpus),
    }
