"""Errors of accounts and of the REST root; the text is for people, the fields are for code."""


class PortalError(Exception):
    """Something about an account or the way a request was made."""

    code = "portal_error"
    retryable = False


class IdempotencyMismatchError(PortalError):
    """A key that was used for one request came back with another."""

    code = "idempotency_mismatch"

    def __init__(self, key: str) -> None:
        super().__init__(
            f"the idempotency key {key!r} was already used for a different request; "
            "send the same request again, or use a new key for a new one"
        )
        self.key = key


class LastAdminError(PortalError):
    """The act would leave the site without anybody who can manage it."""

    code = "last_admin"

    def __init__(self) -> None:
        super().__init__("this is the last active admin; make somebody else an admin first")
