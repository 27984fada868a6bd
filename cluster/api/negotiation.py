"""In which form answers come; apart, because the framework itself imports it while it loads."""

from typing import Any

from rest_framework.negotiation import BaseContentNegotiation, DefaultContentNegotiation
from rest_framework.request import Request


class AnyAccept(BaseContentNegotiation):
    """Answers in the view's own media type whatever ``Accept`` says.

    There is one form of every answer, and a file, a stream of events and an error about either
    must all be able to come from one address.
    """

    def select_parser(self, request: Request, parsers: Any) -> Any:
        """Return the parser of the body's media type."""
        return DefaultContentNegotiation().select_parser(request, parsers)

    def select_renderer(
        self,
        request: Request,  # noqa: ARG002 - DRF's signature
        renderers: Any,
        format_suffix: str | None = None,  # noqa: ARG002 - DRF's signature
    ) -> Any:
        """Return the first renderer."""
        return renderers[0], renderers[0].media_type
