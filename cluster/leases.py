"""Leases: the right to do one thing for a while, with a fence token that only grows."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta

from django.db import IntegrityError, transaction
from django.db.models import F, Q

from cluster.models import Lease


def acquire(*, name: str, holder: str, ttl: timedelta, now: datetime) -> int | None:
    """Return the fence token if the lease was free, expired or the holder's own; else ``None``.

    One conditional UPDATE decides between processes that ask at the same moment.
    """
    taken = (
        Lease.objects.filter(name=name)
        .filter(Q(expires_at__lte=now) | Q(holder=holder) | Q(holder=""))
        .update(holder=holder, expires_at=now + ttl, fence=F("fence") + 1)
    )
    if not taken:
        try:
            with transaction.atomic():
                Lease.objects.create(name=name, holder=holder, fence=1, expires_at=now + ttl)
        except IntegrityError:
            return None
        return 1
    return Lease.objects.values_list("fence", flat=True).get(name=name)


def release(*, name: str, holder: str) -> None:
    """Give the lease back; not an error if it was lost meanwhile."""
    Lease.objects.filter(name=name, holder=holder).update(holder="")


@contextmanager
def held(*, name: str, holder: str, ttl: timedelta, now: datetime) -> Iterator[int | None]:
    """Hold a lease for a block; yields the fence token, or ``None`` where it was not free."""
    fence = acquire(name=name, holder=holder, ttl=ttl, now=now)
    try:
        yield fence
    finally:
        if fence is not None:
            release(name=name, holder=holder)
