"""Who may come in: those who are signed in, and what is not theirs is not there for them."""

from collections.abc import Callable
from functools import wraps
from http import HTTPStatus
from typing import Any

from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase

from jobs.errors import NotFoundError
from portal.htmx import is_fragment
from portal.models import User

View = Callable[..., HttpResponseBase]


def page(view: View) -> View:
    """Guard a view: strangers sign in first, and what one may not see answers 404."""

    @wraps(view)
    def guarded(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        try:
            return view(request, *args, **kwargs)
        except NotFoundError as error:
            raise Http404(str(error)) from error

    signed_in = login_required(guarded)

    @wraps(view)
    def whole(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        if is_fragment(request) and not request.user.is_authenticated:
            # The sign-in page must not be swapped into a part of the page that was left open.
            return HttpResponse(status=HTTPStatus.UNAUTHORIZED, headers={"HX-Refresh": "true"})
        return signed_in(request, *args, **kwargs)

    return whole


def member(request: HttpRequest) -> User:
    """Return who is signed in; only for guarded views.

    Raises:
        Http404: If nobody is.
    """
    if not isinstance(request.user, User):
        raise Http404
    return request.user
