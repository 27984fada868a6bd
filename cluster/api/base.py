"""What every REST view of the project is made from: strict input, permissions, page numbers."""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from django.http import QueryDict
from django.utils import timezone
from rest_framework import serializers
from rest_framework.exceptions import ValidationError
from rest_framework.permissions import SAFE_METHODS, BasePermission
from rest_framework.request import Request
from rest_framework.views import APIView

#: What a public id looks like in a route; any other text is no address at all.
UUID_PATTERN: Final = "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
HOST_PATTERN: Final = "[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"

_JSON_TYPES: Final[tuple[tuple[tuple[type, ...], tuple[type, ...], str], ...]] = (
    ((serializers.BooleanField,), (bool,), "true or false"),
    ((serializers.IntegerField,), (int,), "a whole number"),
    ((serializers.FloatField,), (int, float), "a number"),
    ((serializers.CharField, serializers.UUIDField, serializers.ChoiceField), (str,), "a text"),
)


class StrictSerializer(serializers.Serializer):
    """Input that names a field we do not know is refused: a typing error never passes silently."""

    def to_internal_value(self, given: Any) -> Any:
        """Return the checked values.

        Raises:
            ValidationError: If a field is not acceptable, or not known.
        """
        if isinstance(given, Mapping):
            known = {name for name, field in self.fields.items() if not field.read_only}
            unknown = sorted(str(name) for name in given if name not in known)
            if unknown:
                names = ", ".join(sorted(known))
                raise ValidationError(
                    {name[:200]: [f"is not a field; the fields are: {names}"] for name in unknown}
                )
            if not isinstance(given, QueryDict):  # a form can carry texts only
                self._refuse_other_types(given)
        return super().to_internal_value(given)

    def _refuse_other_types(self, given: Mapping[str, Any]) -> None:
        problems = {
            name: [problem]
            for name, field in self.fields.items()
            if name in given and (problem := _type_problem(field, given[name]))
        }
        if problems:
            raise ValidationError(problems)


def _type_problem(field: Any, value: Any) -> str:
    """Return why a JSON value is not of the field's type; the framework would make it so."""
    if value is None:
        return ""
    if isinstance(field, serializers.ListField):
        inner = value if isinstance(value, list) else []
        return next(filter(None, (_type_problem(field.child, item) for item in inner)), "")
    for kinds, types, word in _JSON_TYPES:
        if isinstance(field, kinds):
            is_right = isinstance(value, types) and (bool in types or not isinstance(value, bool))
            return "" if is_right else f"must be {word}"
    return ""


class IsAdminOrReadOnly(BasePermission):
    """Everybody signed in may look; only admins may change."""

    message = "only admins may change this"

    def has_permission(self, request: Request, view: APIView) -> bool:  # noqa: ARG002 - DRF's signature
        """Return whether the request may go on."""
        user: Any = request.user
        if not user.is_authenticated:
            return False
        return request.method in SAFE_METHODS or bool(user.is_superuser)


class QueryParameters:
    """Reads a request's query by name and refuses what it does not know or cannot read."""

    def __init__(self, request: Request, allowed: Iterable[str]) -> None:
        self._query = request.query_params
        refuse_unknown(request, allowed)

    def text(self, name: str, default: str = "") -> str:
        """Return a text without null bytes."""
        value = self._query.get(name, default)
        if "\x00" in value:
            raise ValidationError({name: ["must not contain null bytes"]})
        return value

    def integer(self, name: str, default: int, *, minimum: int = 0, maximum: int = 2**53) -> int:
        """Return a whole number within the bounds."""
        raw = self._query.get(name)
        if raw is None:
            return default
        if raw.isascii() and raw.isdigit() and len(raw) <= 16 and minimum <= int(raw) <= maximum:
            return int(raw)
        raise ValidationError({name: [f"must be a whole number from {minimum} to {maximum}"]})

    def signed_integer(self, name: str, default: int, *, minimum: int, maximum: int) -> int:
        """Return a whole number that may be below zero."""
        raw = self._query.get(name, "")
        if not raw.startswith("-"):
            return self.integer(name, default, minimum=max(0, minimum), maximum=maximum)
        rest = raw[1:]
        if rest.isascii() and rest.isdigit() and len(rest) <= 16 and -int(rest) >= minimum:
            return -int(rest)
        raise ValidationError({name: [f"must be a whole number from {minimum} to {maximum}"]})

    def optional_integer(self, name: str, *, minimum: int = 0, maximum: int = 2**31) -> int | None:
        """Return a whole number, or ``None`` where it is not given."""
        if self._query.get(name) is None:
            return None
        return self.integer(name, minimum, minimum=minimum, maximum=maximum)

    def moment(self, name: str) -> datetime | None:
        """Return an aware moment, or ``None`` where it is not given."""
        raw = self._query.get(name)
        if raw is None:
            return None
        moment = serializers.DateTimeField(default_timezone=timezone.get_default_timezone())
        try:
            value: datetime = moment.to_internal_value(raw)
        except ValidationError as error:
            raise ValidationError({name: error.detail}) from error
        if not 2000 <= value.year < 2200:
            raise ValidationError({name: ["must be in the years 2000 to 2199"]})
        return value


def refuse_unknown(
    request: Request, allowed: Iterable[str], *, repeatable: Iterable[str] = ()
) -> None:
    """Refuse query parameters that nothing reads; a filter with a typing error filters nothing.

    Args:
        repeatable: Those that may be given several times; of another only one would be read.

    Raises:
        ValidationError: Naming each, and what there is.
    """
    given = request.query_params
    twice = [n for n in given if len(given.getlist(n)) > 1 and n not in set(repeatable)]
    if twice:
        raise ValidationError({name[:200]: ["give it once"] for name in twice})
    known = sorted(allowed)
    unknown = sorted(set(request.query_params) - set(known))
    if unknown:
        words = f"the parameters are: {', '.join(known)}" if known else "there are none here"
        raise ValidationError({name[:200]: [f"is not a parameter; {words}"] for name in unknown})


def refuse_empty(request: Request, names: Iterable[str]) -> None:
    """Refuse a parameter that is named and left empty: it would filter nothing.

    Raises:
        ValidationError: Naming each.
    """
    given = request.query_params
    empty = [name for name in names if name in given and not all(given.getlist(name))]
    if empty:
        raise ValidationError({name: ["give a value, or leave it out"] for name in empty})


def as_uuid(text: str) -> UUID:
    """Return a route's text as the id that its pattern has promised."""
    return UUID(text)
