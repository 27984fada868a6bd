"""Pages of lists that stay put while rows are added."""

from typing import Any

from django.core.exceptions import ValidationError as FormError
from django.db.models import QuerySet
from rest_framework.exceptions import NotFound, ValidationError
from rest_framework.pagination import CursorPagination
from rest_framework.request import Request


class KeysetPagination(CursorPagination):
    """Newest first; the cursor is a place in the order, so no row is skipped or repeated.

    A view may name another order in ``page_order``; it must be unique.
    """

    ordering = "-id"
    page_size_query_param = "limit"
    page_size_query_description = "How many results to return at most."
    cursor_query_description = "Where to go on; taken from `next` or `previous`."
    max_page_size = 200
    # A crafted cursor cannot make the database skip over many rows.
    offset_cutoff = 200

    def get_ordering(self, request: Request, queryset: QuerySet[Any], view: Any) -> tuple[str, ...]:
        """Return the view's own order, or the newest row first."""
        del request, queryset
        return (getattr(view, "page_order", self.ordering),)

    def get_page_size(self, request: Request) -> int:
        """Return ``limit``.

        Raises:
            ValidationError: If it is not a number from 1 to 200.
        """
        raw = request.query_params.get(self.page_size_query_param)
        if raw is None:
            return int(self.page_size or 50)
        if not (raw.isascii() and raw.isdigit() and len(raw) < 9 and self._allows(int(raw))):
            raise ValidationError({"limit": [f"must be a number from 1 to {self.max_page_size}"]})
        return int(raw)

    def _allows(self, size: int) -> bool:
        return 1 <= size <= self.max_page_size

    def paginate_queryset(
        self, queryset: Any, request: Request, view: Any = None
    ) -> list[Any] | None:
        """Return the page that the cursor asks for.

        Raises:
            ValidationError: If the cursor was not made by this list.
        """
        try:
            return super().paginate_queryset(queryset, request, view=view)
        except (NotFound, ValueError, TypeError, OverflowError, FormError) as error:
            raise ValidationError(
                {"cursor": ["was not made by this list; take it from next or previous"]}
            ) from error

    def get_paginated_response_schema(self, schema: dict[str, Any]) -> dict[str, Any]:
        """Return the page's shape for OpenAPI."""
        link = {"type": ["string", "null"], "format": "uri"}
        return {
            "type": "object",
            "required": ["next", "previous", "results"],
            "properties": {"next": link, "previous": link, "results": schema},
        }
