"""How REST clients prove who they are: a token, or the session of the pages."""

from datetime import timedelta
from typing import Any, Final

from django.utils import timezone
from knox.crypto import hash_token
from rest_framework.authentication import BaseAuthentication, get_authorization_header
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.request import Request

from portal.models import ApiToken

_PREFIXES: Final = {b"token", b"bearer"}
#: ``last_used_at`` is for people: once a minute is often enough.
_NOTE_EVERY: Final = timedelta(minutes=1)


class ApiTokenAuthentication(BaseAuthentication):
    """``Authorization: Token …`` (or ``Bearer …``) with a token from the account page."""

    def authenticate(self, request: Request) -> tuple[Any, ApiToken] | None:
        """Return who the token speaks for, or ``None`` when the request carries no token.

        Raises:
            AuthenticationFailed: If the token is unknown, revoked or expired, or its owner
                may not sign in.
        """
        words = get_authorization_header(request).split()
        if not words or words[0].lower() not in _PREFIXES:
            return None
        if len(words) != 2:
            raise AuthenticationFailed("write the header as 'Authorization: Token <your token>'")
        token = _find(words[1])
        return token.user, token

    def authenticate_header(self, request: Request) -> str:  # noqa: ARG002 - the base's signature
        """Return the scheme for ``WWW-Authenticate``; with it an anonymous answer is a 401."""
        return 'Token realm="api"'


def _find(secret: bytes) -> ApiToken:
    now = timezone.now()
    try:
        digest = hash_token(secret.decode("ascii"))
    except UnicodeDecodeError:
        raise AuthenticationFailed("this token is not known") from None
    # The hash of a long random text is looked up whole; there is nothing to compare in steps.
    token: ApiToken | None = ApiToken.objects.select_related("user").filter(digest=digest).first()
    if token is None:
        raise AuthenticationFailed("this token is not known, or was revoked")
    if token.expiry is not None and token.expiry <= now:
        raise AuthenticationFailed(
            f"this token expired on {token.expiry:%Y-%m-%d}; make a new one on the account page"
        )
    if not token.user.is_active:
        raise AuthenticationFailed("this account is switched off; ask an admin")
    if token.last_used_at is None or now - token.last_used_at > _NOTE_EVERY:
        ApiToken.objects.filter(pk=token.pk).update(last_used_at=now)
    return token
