"""Answers to requests that replace a part of a page instead of the whole."""

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse


def is_fragment(request: HttpRequest) -> bool:
    """Return whether htmx asks for a part of the page that is already there."""
    htmx: Any = getattr(request, "htmx", None)
    return bool(htmx) and not htmx.boosted


def page_or_part(
    request: HttpRequest, page: str, part: str, context: dict[str, Any]
) -> HttpResponse:
    """Render the whole page, or the part of it that htmx asks for."""
    answer = render(request, part if is_fragment(request) else page, context)
    # The two must not stand for each other in a cache, the browser's own included.
    answer["Vary"] = "HX-Request"
    return answer


def go_to(request: HttpRequest, name: str, *args: Any) -> HttpResponse:
    """Send the browser to another page, also where htmx made the request."""
    if is_fragment(request):
        return HttpResponse(headers={"HX-Redirect": reverse(name, args=args)})
    return redirect(name, *args)
