"""Every read of accounts and tokens."""

from dataclasses import dataclass

from django.conf import settings
from django.db.models import QuerySet

from jobs import selectors as job_selectors
from jobs.models import Job
from portal.models import ApiToken, User


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
