"""Every read of accounts and tokens."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.conf import settings
from django.db.models import QuerySet

from cluster import selectors as cluster_selectors
from cluster.core.resources import GpuHealth
from cluster.models import Allocation, AllocationState, Gpu, HostConnection
from jobs import selectors as job_selectors
from jobs.lifecycle import VERDICTS, JobStatus, RetryClass
from jobs.models import Job
from portal.models import ApiToken, Role, User


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountUse:
    """What an account may use, and what it uses now; ``None`` is no limit."""

    storage_used_bytes: int
    storage_limit_bytes: int
    active_jobs: int
    max_active_jobs: int
    max_gpus: int | None


def token_list(user: User) -> QuerySet[ApiToken]:
    """Return the user's tokens, the newest first; expired ones too."""
    tokens: QuerySet[ApiToken] = ApiToken.objects.filter(user=user).order_by("-created")
    return tokens


def account_use(user: User) -> AccountUse:
    """Return the user's limits, own or the site's, and how much of each is used."""
    site = settings.STARLING
    storage_mib = user.storage_quota_mib
    active_jobs = user.max_active_jobs
    return AccountUse(
        storage_used_bytes=job_selectors.storage_used_bytes(user),
        storage_limit_bytes=(site["STORAGE_QUOTA_MIB"] if storage_mib is None else storage_mib)
        * 2**20,
        active_jobs=Job.objects.filter(owner=user).active().count(),
        max_active_jobs=site["MAX_ACTIVE_JOBS"] if active_jobs is None else active_jobs,
        max_gpus=user.max_gpus,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """Something that an admin should look at.

    Attributes:
        level: ``error`` or ``warning``.
        url_name, query: Where it is seen in the admin pages.
    """

    level: str
    text: str
    advice: str
    url_name: str
    query: str = ""


def attention(*, now: datetime) -> list[Attention]:
    """Return what needs an admin, the worst first; an empty list when all is well."""
    found = [
        *_hosts_in_trouble(),
        *_gpus_in_trouble(now),
        *_room_in_trouble(),
        *_jobs_in_trouble(now),
    ]
    return sorted(found, key=lambda item: item.level != "error")


def _hosts_in_trouble() -> Iterator[Attention]:
    hosts = list(cluster_selectors.host_list())
    if not hosts:
        yield Attention(
            level="error",
            text="There is no host, so no job can run.",
            advice="Add one: this machine's Docker engine is unix:///var/run/docker.sock.",
            url_name="admin:cluster_host_add",
        )
    for host in hosts:
        if host.connection in {HostConnection.UNREACHABLE, HostConnection.REFUSED}:
            yield Attention(
                level="error",
                text=f"{host.name} {HostConnection(host.connection).label}.",
                advice=host.connection_text or "Test its connection.",
                url_name="admin:cluster_host_changelist",
                query=f"?q={host.name}",
            )
        elif host.connection == HostConnection.NEW:
            yield Attention(
                level="warning",
                text=f"{host.name} was never tried.",
                advice="Test its connection.",
                url_name="admin:cluster_host_changelist",
                query=f"?q={host.name}",
            )
        elif host.probe_text:
            yield Attention(
                level="warning",
                text=f"{host.name} says: {host.probe_text}",
                advice="Look at the GPU driver of the host.",
                url_name="admin:cluster_host_changelist",
                query=f"?q={host.name}",
            )


def _gpus_in_trouble(now: datetime) -> Iterator[Attention]:
    for gpu in Gpu.objects.select_related("host").filter(is_enabled=True):
        health, why = cluster_selectors.gpu_health(gpu, now=now)
        if health is GpuHealth.QUARANTINED or (
            health is GpuHealth.STALE and gpu.host.connection == HostConnection.UP
        ):
            yield Attention(
                level="error" if health is GpuHealth.QUARANTINED else "warning",
                text=f"GPU {gpu.index} of {gpu.host.name} is {health.value}: {why}.",
                advice=cluster_selectors.gpu_findings(gpu, now=now)[0]["advice"],
                url_name="admin:cluster_gpu_changelist",
                query=f"?q={gpu.uuid}",
            )


def _room_in_trouble() -> Iterator[Attention]:
    kept = Allocation.objects.filter(state=AllocationState.QUARANTINED).count()
    if kept:
        yield Attention(
            level="warning",
            text=f"{kept} claim(s) are kept because nobody can prove that the container is gone.",
            advice="They end by themselves when the host answers again.",
            url_name="admin:cluster_host_changelist",
        )


def _jobs_in_trouble(now: datetime) -> Iterator[Attention]:
    blamed = Job.objects.filter(
        reason__in=[
            reason.value
            for reason, verdict in VERDICTS.items()
            if verdict.retry is RetryClass.PLATFORM
        ],
        status=JobStatus.FAILED,
        finished_at__gt=now - timedelta(days=1),
    )
    count = blamed.order_by().count()
    if count:
        yield Attention(
            level="warning",
            text=f"{count} job(s) failed since yesterday through no fault of their own.",
            advice="The reason names the host.",
            url_name="admin:jobs_job_changelist",
            query="?status__exact=failed",
        )


def is_last_admin(user: User) -> bool:
    """Return whether nobody else could manage the site without this account."""
    others = User.objects.get_queryset().admins().exclude(pk=user.pk)
    return user.role == Role.ADMIN and user.is_active and not others.exists()
