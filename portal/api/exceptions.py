"""Which error becomes which answer, in one table; every answer has one shape."""

import logging
from collections.abc import Callable, Iterator, Mapping
from http import HTTPStatus
from typing import Any, Final

from django.core.exceptions import NON_FIELD_ERRORS, ValidationError
from django.core.exceptions import PermissionDenied as DjangoPermissionDenied
from django.http import Http404, HttpRequest, JsonResponse
from rest_framework import exceptions as rest
from rest_framework.response import Response
from rest_framework.views import set_rollback

from cluster import errors as cluster
from jobs import errors as jobs
from portal import errors as portal

logger = logging.getLogger(__name__)

_H = HTTPStatus

#: The first type that fits decides, so a type stands before what it is made from.
STATUSES: Final[tuple[tuple[type[Exception], HTTPStatus], ...]] = (
    (jobs.InvalidInputError, _H.BAD_REQUEST),
    (jobs.NotFoundError, _H.NOT_FOUND),
    (jobs.UnsatisfiableError, _H.UNPROCESSABLE_ENTITY),
    (jobs.StaleTransitionError, _H.CONFLICT),
    (jobs.UploadLockedError, _H.LOCKED),
    (jobs.UploadGoneError, _H.GONE),
    (jobs.UploadGoneError, _H.GONE),
    (jobs.UploadLockedError, _H.LOCKED),
    (jobs.NotPossibleNowError, _H.CONFLICT),
    (jobs.QuotaExceededError, _H.FORBIDDEN),
    (jobs.StorageFullError, _H.INSUFFICIENT_STORAGE),
    (jobs.UnsafeArchiveError, _H.BAD_REQUEST),
    (jobs.ChecksumMismatchError, _H.BAD_REQUEST),
    (jobs.StorageFullError, _H.INSUFFICIENT_STORAGE),
    (cluster.HostUnreachableError, _H.GATEWAY_TIMEOUT),
    (cluster.HostRefusedError, _H.BAD_GATEWAY),
    (cluster.ImageMissingError, _H.CONFLICT),
    (cluster.GpuUnavailableError, _H.BAD_GATEWAY),
    (cluster.LaunchFailedError, _H.BAD_GATEWAY),
    (cluster.NoRoomError, _H.CONFLICT),
    (cluster.HostInUseError, _H.CONFLICT),
    (cluster.StaleLeaseError, _H.CONFLICT),
    (portal.IdempotencyMismatchError, _H.UNPROCESSABLE_ENTITY),
    (portal.LastAdminError, _H.CONFLICT),
)

#: What an error knows beyond its text, shown under these names beside ``code``.
FACTS: Final[dict[type[Exception], tuple[str, ...]]] = {
    jobs.UnsatisfiableError: ("fits",),
    jobs.QuotaExceededError: ("limit", "used", "asked"),
    cluster.HostInUseError: ("holders",),
}

#: Codes of what the framework itself refuses, by status.
_REST_CODES: Final[dict[int, str]] = {
    400: "invalid",
    401: "not_authenticated",
    403: "permission_denied",
    404: "not_found",
    405: "method_not_allowed",
    406: "not_acceptable",
    409: "conflict",
    412: "unsupported_protocol",
    413: "too_large",
    415: "unsupported_media_type",
    429: "throttled",
}


def body(
    code: str, message: str, fields: Mapping[str, list[str]] | None = None, **facts: Any
) -> dict[str, Any]:
    """Return the one shape that every error has."""
    return {"code": code, "message": message, "fields": dict(fields or {}), **facts}


def handle(error: Exception, context: dict[str, Any]) -> Response | None:
    """Return the answer to an error; ``None`` for a bug, which then is logged and becomes a 500.

    A view may answer one of the table's errors with another status, by type, in
    ``error_statuses``: the upload protocol has numbers of its own.
    """
    view = context.get("view")
    overrides: Mapping[type[Exception], int] = getattr(view, "error_statuses", {})
    answer = _answer(_as_rest(error), overrides)
    if answer is not None:
        set_rollback()
    return answer


def _as_rest(error: Exception) -> Exception:
    if isinstance(error, Http404):
        return rest.NotFound()
    if isinstance(error, DjangoPermissionDenied):
        return rest.PermissionDenied()
    return error


def _answer(error: Exception, overrides: Mapping[type[Exception], int]) -> Response | None:
    if isinstance(error, ValidationError):
        return Response(_validation_body(error), status=_H.BAD_REQUEST)
    if isinstance(error, rest.APIException):
        return _rest_answer(error)
    for kind, status in STATUSES:
        if isinstance(error, kind):
            return Response(_known_body(error, kind), status=overrides.get(kind, status))
    return None


def _known_body(error: Exception, kind: type[Exception]) -> dict[str, Any]:
    facts = {name: getattr(error, name) for name in FACTS.get(kind, ())}
    fields: Mapping[str, list[str]] = getattr(error, "fields", {})
    code: str = getattr(error, "code", "invalid")
    return body(code, sentence(str(error)), fields, **facts)


def _validation_body(error: ValidationError) -> dict[str, Any]:
    if hasattr(error, "error_dict"):
        fields = {("" if k == NON_FIELD_ERRORS else k): v for k, v in error.message_dict.items()}
    else:
        fields = {"": list(error.messages)}
    return body("invalid", _summary(fields), fields)


def _rest_answer(error: rest.APIException) -> Response:
    headers = {}
    if getattr(error, "auth_header", None):
        headers["WWW-Authenticate"] = str(error.auth_header)  # type: ignore[attr-defined]
    if getattr(error, "wait", None):
        headers["Retry-After"] = str(int(error.wait) + 1)  # type: ignore[attr-defined]
    status = error.status_code
    if isinstance(error, rest.ValidationError):
        fields = _flattened(error.detail)
        answer = body("invalid", _summary(fields), fields)
    else:
        code = "parse_error" if isinstance(error, rest.ParseError) else _REST_CODES.get(status)
        answer = body(code or "error", sentence(str(error.detail)))
    return Response(answer, status=status, headers=headers)


def _summary(fields: Mapping[str, list[str]]) -> str:
    """Return one sentence that stands alone, for clients that show nothing else."""
    name, texts = next(iter(fields.items()), ("", ["the request cannot be accepted"]))
    text = texts[0] if texts else "cannot be accepted"
    more = sum(len(t) for t in fields.values()) - 1
    also = f" (and {more} more)" if more > 0 else ""
    return sentence(f"{name}: {text}{also}" if name else f"{text}{also}")


def _flattened(detail: Any) -> dict[str, list[str]]:
    """Return texts by dotted path; what belongs to no field is under the empty name."""
    fields: dict[str, list[str]] = {}
    for path, text in _walk(detail, ()):
        # A lone surrogate, which JSON can carry in, cannot be sent back out.
        name = ".".join(path).encode(errors="replace").decode()
        fields.setdefault(name, []).append(text.encode(errors="replace").decode())
    return fields


def _walk(detail: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str]]:
    if isinstance(detail, Mapping):
        for name, inner in detail.items():
            step = () if name == "non_field_errors" else (str(name),)
            yield from _walk(inner, (*path, *step))
    elif isinstance(detail, list | tuple):
        nested = any(isinstance(inner, Mapping) for inner in detail)
        for index, inner in enumerate(detail):
            yield from _walk(inner, (*path, str(index)) if nested else path)
    else:
        yield path, str(detail)


def sentence(text: str) -> str:
    """Return the text as a sentence: a capital at its start, a full stop at its end."""
    text = text.strip()
    if not text:
        return text
    end = "" if text[-1] in ".!?…" else "."
    return text[0].upper() + text[1:] + end


_BARE: Final[dict[HTTPStatus, tuple[str, str]]] = {
    _H.BAD_REQUEST: ("invalid", "The request cannot be understood."),
    _H.FORBIDDEN: ("permission_denied", "You may not do this."),
    _H.NOT_FOUND: ("not_found", "There is nothing at this address."),
    _H.INTERNAL_SERVER_ERROR: (
        "internal_error",
        "Something went wrong here; it was noted. Try again, and tell an admin if it stays.",
    ),
}


def bare(status: HTTPStatus) -> JsonResponse:
    """Return an error's answer where no view ran, or where one broke."""
    code, message = _BARE[status]
    return JsonResponse(body(code, message), status=status)


def for_api(status: HTTPStatus, page: Callable[..., Any]) -> Callable[..., Any]:
    """Return an error page that answers REST clients in their shape, and people with ``page``."""

    def choose(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        if request.path.startswith("/api/"):
            return bare(status)
        return page(request, *args, **kwargs)

    return choose
