"""Every write of accounts, tokens and answered requests."""

import hashlib
import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from django.contrib.sessions.models import Session
from django.core.serializers.json import DjangoJSONEncoder
from django.db import transaction

from jobs.errors import InvalidInputError, NotFoundError, QuotaExceededError
from portal.errors import IdempotencyMismatchError
from portal.models import ApiToken, IdempotencyKey, User

logger = logging.getLogger(__name__)

MAX_TOKENS: Final = 50
TOKEN_DAYS: Final = 90
MAX_TOKEN_DAYS: Final = 366
IDEMPOTENCY_LIFETIME: Final = timedelta(hours=24)
#: How long an expired token is still listed, so that its owner sees why a program stopped.
EXPIRED_TOKEN_KEPT: Final = timedelta(days=30)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The answer to a request that may have been sent before.

    Attributes:
        body: What the act returned, after a trip through JSON.
        replayed: Whether it is the answer of an earlier request with the same key.
    """

    body: Any
    replayed: bool


@transaction.atomic
def token_create(*, user: User, name: str, days: int, now: datetime) -> tuple[ApiToken, str]:
    """Make a token; return its row and the secret, which is shown now and never again.

    Raises:
        InvalidInputError: If the name is empty or taken, or the lifetime out of range.
        QuotaExceededError: If the owner has :data:`MAX_TOKENS` that have not expired.
    """
    name = name.strip()
    fields: dict[str, list[str]] = {}
    if not name or len(name) > 80:
        fields["name"] = ["give the token a name of 1 to 80 characters, for instance a computer's"]
    if not 1 <= days <= MAX_TOKEN_DAYS:
        fields["days"] = [f"choose a lifetime of 1 to {MAX_TOKEN_DAYS} days"]
    if fields:
        raise InvalidInputError(fields)
    # The owner's row is the lock: two requests at once cannot both take the last place.
    User.objects.select_for_update().get(pk=user.pk)
    living = ApiToken.objects.filter(user=user, expiry__gt=now)
    if living.filter(name=name).exists():
        raise InvalidInputError({"name": ["you have a token of this name; revoke it first"]})
    used = living.count()
    if used >= MAX_TOKENS:
        raise QuotaExceededError(
            f"you have {used} tokens; revoke one first", limit=MAX_TOKENS, used=used, asked=1
        )
    token, secret = ApiToken.objects.create(user=user, name=name, expiry=None)
    token.expiry = now + timedelta(days=days)
    token.save(update_fields=["expiry"])
    logger.info("token made", extra={"user_id": user.pk, "token": str(token.public_id)})
    return token, secret


def token_revoke(*, user: User, public_id: UUID) -> None:
    """End a token of the user at once.

    Raises:
        NotFoundError: If the user has no such token.
    """
    deleted, _ = ApiToken.objects.filter(user=user, public_id=public_id).delete()
    if not deleted:
        raise NotFoundError("token", public_id)
    logger.info("token revoked", extra={"user_id": user.pk, "token": str(public_id)})


def fingerprint(request: Any) -> str:
    """Return the SHA-256 of a request's content; equal contents have equal ones."""
    text = json.dumps(request, sort_keys=True, cls=DjangoJSONEncoder, default=str)
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


@transaction.atomic
def idempotent(
    *,
    user: User,
    scope: str,
    key: str,
    request_fingerprint: str,
    now: datetime,
    act: Callable[[], Any],
) -> Answer:
    """Do ``act`` once however often the request comes, and give everybody the same answer.

    Key and act are one transaction: the second of two requests waits in the database for the
    first, then finds its answer; when the first fails, nothing of it is left and the second
    acts. An error of ``act`` is not kept: the request may be sent again.

    Args:
        user: Whose keys these are; two people never meet in one key.
        scope: What is asked for; the same key may be used once in each scope.
        key: The client's own name for the request, 1 to 255 characters.
        request_fingerprint: See :func:`fingerprint`.
        act: Does the work, and returns what JSON can hold.

    Raises:
        InvalidInputError: If the key is empty, too long or not printable.
        IdempotencyMismatchError: If the key was used for another request.
    """
    if not 1 <= len(key) <= 255 or not key.isprintable():
        raise InvalidInputError(
            {"Idempotency-Key": ["use 1 to 255 printable characters, for instance a UUID"]}
        )
    row, is_new = IdempotencyKey.objects.get_or_create(
        user=user,
        scope=scope,
        key=key,
        defaults={"fingerprint": request_fingerprint, "created_at": now},
    )
    if not is_new and row.created_at > now - IDEMPOTENCY_LIFETIME:
        if row.fingerprint != request_fingerprint:
            raise IdempotencyMismatchError(key)
        return Answer(body=row.answer, replayed=True)
    body = json.loads(json.dumps(act(), cls=DjangoJSONEncoder))
    IdempotencyKey.objects.filter(pk=row.pk).update(
        answer=body, fingerprint=request_fingerprint, created_at=now
    )
    return Answer(body=body, replayed=False)


def sweep(*, now: datetime) -> None:
    """Delete what has expired: answered requests, sessions, and tokens of long ago."""
    IdempotencyKey.objects.filter(created_at__lte=now - IDEMPOTENCY_LIFETIME).delete()
    Session.objects.filter(expire_date__lt=now).delete()
    ApiToken.objects.filter(expiry__lt=now - EXPIRED_TOKEN_KEPT).delete()
