"""The OpenAPI document, the page that shows it, and what every operation has in common."""

from typing import Any, Final

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe
from drf_spectacular.extensions import OpenApiAuthenticationExtension
from drf_spectacular.views import SpectacularAPIView
from rest_framework.negotiation import DefaultContentNegotiation
from rest_framework.permissions import AllowAny

from portal.api import reference

_ERROR: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["code", "message", "fields"],
    "properties": {
        "code": {"type": "string", "description": "For programs; never changes."},
        "message": {"type": "string", "description": "For people: what is wrong, what to do."},
        "fields": {
            "type": "object",
            "additionalProperties": {"type": "array", "items": {"type": "string"}},
            "description": "Texts by field, nested fields by their dotted path.",
        },
        "fits": {
            "type": "object",
            "additionalProperties": {"type": "integer"},
            "description": "With `unsatisfiable`: the most that could be asked for.",
        },
        "limit": {"type": "integer", "description": "With `quota_exceeded`."},
        "used": {"type": "integer", "description": "With `quota_exceeded`."},
        "asked": {"type": "integer", "description": "With `quota_exceeded`."},
        "holders": {"type": "integer", "description": "With `host_in_use`."},
    },
}
_WORDS: Final[dict[str, str]] = {
    "400": "The request cannot be accepted; `fields` says why.",
    "401": "No token or session, or one that is refused.",
    "403": "You may not do this, or your quota is used up.",
    "404": "There is no such thing, or it is not yours to see.",
    "405": "This method does nothing here.",
    "409": "It does not fit the state of the thing; the message says what does.",
    "410": "It is over; begin again.",
    "412": "The upload protocol's version is not spoken here.",
    "413": "Too large, or your quota of storage is used up.",
    "415": "The body's media type is not understood.",
    "416": "The file has no such part.",
    "422": "No host could ever hold it, or the key was used for another request.",
    "423": "Another request is writing to it.",
    "429": "Too many requests; wait as `Retry-After` says.",
    "460": "The bytes that arrived are not the bytes that were sent.",
    "502": "The host refuses us.",
    "504": "The host does not answer.",
    "507": "The disk of the portal is full.",
}
_ALWAYS: Final = ("400", "401", "403", "404", "405", "429")
_WITH_BODY: Final = ("409", "413", "415", "422")
_BY_TAG: Final = {"uploads": ("410", "412", "423", "460", "507"), "hosts": ("409", "502", "504")}


def describe_errors(result: dict[str, Any], **_: Any) -> dict[str, Any]:
    """Add the errors that every operation may answer with; drf-spectacular calls it at its end."""
    components = result.setdefault("components", {})
    components.setdefault("schemas", {})["Error"] = _ERROR
    components["responses"] = {
        f"Error{status}": {
            "description": text,
            "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
        }
        for status, text in _WORDS.items()
    }
    for path in result["paths"].values():
        for method, operation in path.items():
            if method not in {"parameters", "summary", "description"}:
                _describe(method, operation)
    return result


def _describe(method: str, operation: dict[str, Any]) -> None:
    statuses = {*_ALWAYS, *(_WITH_BODY if method in {"post", "put", "patch", "delete"} else ())}
    for tag in operation.get("tags", ()):
        statuses |= set(_BY_TAG.get(tag, ()))
    responses = operation["responses"]
    if "206" in responses:
        statuses.add("416")
    if any("path" in p.get("name", "") for p in operation.get("parameters", ())):
        statuses.add("409")
    for status in sorted(statuses - set(responses)):
        responses[status] = {"$ref": f"#/components/responses/Error{status}"}


class ApiTokenScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call] # drf-spectacular registers it so
    """Describes the tokens of the account page."""

    target_class = "portal.api.authentication.ApiTokenAuthentication"
    name = "token"

    def get_security_definition(self, auto_schema: Any) -> dict[str, Any]:  # noqa: ARG002 - the base's signature
        """Return the scheme; a bearer token is taken too."""
        return {
            "type": "http",
            "scheme": "bearer",
            "description": (
                "A token from your account page, as `Authorization: Bearer <token>` "
                "or `Authorization: Token <token>`."
            ),
        }


class SchemaView(SpectacularAPIView):
    """The OpenAPI document; it says nothing that is not in the handbook, so anybody may read it."""

    permission_classes = [AllowAny]
    # As YAML or as JSON: what ``Accept`` or ``?format`` asks for.
    content_negotiation_class = DefaultContentNegotiation


@require_safe
def docs(request: HttpRequest) -> HttpResponse:
    """Show the document as a page for people; it names nobody, so anybody may read it."""
    return render(request, "api/docs.html", {"groups": reference.groups()})
