"""Which error becomes which answer, in one table."""

from typing import Any

from rest_framework.response import Response
from rest_framework.views import exception_handler


def handle(error: Exception, context: dict[str, Any]) -> Response | None:
    """Return the answer to an error; ``None`` lets Django make a 500 of it."""
    return exception_handler(error, context)
