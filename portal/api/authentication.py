"""How REST clients prove who they are."""

from knox.auth import TokenAuthentication


class ApiTokenAuthentication(TokenAuthentication):
    """``Authorization: Token …`` with a token from the account page."""
