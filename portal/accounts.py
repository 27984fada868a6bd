"""How accounts are made; allauth asks here."""

from allauth.account.adapter import DefaultAccountAdapter
from django.conf import settings
from django.http import HttpRequest


class AccountAdapter(DefaultAccountAdapter):
    """Closes sign-up where the setting says so."""

    def is_open_for_signup(self, request: HttpRequest) -> bool:  # noqa: ARG002 - allauth's signature
        """Return whether strangers may make an account."""
        return bool(settings.SIGNUP_OPEN)
