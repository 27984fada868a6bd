"""Who may see a row: the default is nobody but its owner."""

from typing import Any, Self, TypeVar

from django.db import models
from django.db.models import Q

_M = TypeVar("_M", bound=models.Model)

#: Roles that see what every student does; the words are :class:`portal.models.Role`'s.
STAFF_ROLES = ("instructor", "admin")


def sees_all(user: Any) -> bool:
    """Return whether the user may see what belongs to others: instructors and admins."""
    return bool(
        user.is_authenticated and user.is_active and (user.is_superuser or user.role in STAFF_ROLES)
    )


def administers(user: Any) -> bool:
    """Return whether the user may change what belongs to others: admins only."""
    return bool(
        user.is_authenticated and user.is_active and (user.is_superuser or user.role == "admin")
    )


class OwnedQuerySet(models.QuerySet[_M]):
    """Rows with an ``owner``; the one place that says who sees them."""

    def for_user(self, user: Any) -> Self:
        """Return the rows that ``user`` may see."""
        if not user.is_authenticated or not user.is_active:
            return self.none()
        return self if sees_all(user) else self.filter(self._visible(user))

    def _visible(self, user: Any) -> Q:
        return Q(owner=user)
