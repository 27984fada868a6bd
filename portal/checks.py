"""System checks of the installation; ``manage.py check`` prints them."""

from typing import Any

from django.conf import settings
from django.core import checks
from django.core.checks import CheckMessage, Tags
from django.core.checks import register as register_check

from cluster.probe.simulated import PROFILES, tidy


def register() -> None:
    """Add the checks to Django's."""
    register_check(process_runtime_is_for_one, Tags.security, deploy=True)
    register_check(signup_is_closed, Tags.security, deploy=True)
    register_check(simulated_machine_is_known)


def process_runtime_is_for_one(**_: Any) -> list[CheckMessage]:
    """Warn where students' programs may run as the portal's own user."""
    if not settings.STARLING["PROCESS_RUNTIME"]:
        return []
    return [
        checks.Warning(
            "The process runtime is allowed: programs run as the portal's own user.",
            hint="Set STARLING_PROCESS_RUNTIME=no where more than one person uses the portal.",
            id="portal.W001",
        )
    ]


def signup_is_closed(**_: Any) -> list[CheckMessage]:
    """Warn where strangers may make accounts."""
    if not settings.SIGNUP_OPEN:
        return []
    return [
        checks.Warning(
            "Anybody who reaches the portal may make an account.",
            hint="Set STARLING_SIGNUP_OPEN=no and make accounts in the admin pages.",
            id="portal.W002",
        )
    ]


def simulated_machine_is_known(**_: Any) -> list[CheckMessage]:
    """Refuse a simulated machine that nobody can simulate."""
    name = settings.STARLING["SIMULATED_GPUS"]
    try:
        tidy(name or next(iter(PROFILES)))
    except ValueError as error:
        return [
            checks.Error(
                f"{error}.",
                hint="Set STARLING_SIMULATED_GPUS to one of them, or leave it empty.",
                id="portal.E001",
            )
        ]
    return []
