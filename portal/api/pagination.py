"""Pages of lists that stay put while rows are added."""

from rest_framework.pagination import CursorPagination


class KeysetPagination(CursorPagination):
    """Newest first; the cursor is a place in the order, so no row is skipped or repeated."""

    ordering = "-id"
    page_size_query_param = "limit"
    max_page_size = 200
