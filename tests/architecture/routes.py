"""Every way in: HTTP routes with their methods, and sockets, read from the URLconf."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from django.urls import URLPattern, URLResolver, get_resolver

from monitoring.routing import websocket_urlpatterns

_METHODS = ("get", "post", "put", "patch", "delete")


@dataclass(frozen=True)
class Route:
    """One address; ``methods`` is empty where the view itself decides."""

    name: str
    namespace: str
    pattern: str
    methods: tuple[str, ...]
    converters: tuple[str, ...]

    @property
    def full_name(self) -> str:
        return f"{self.namespace}:{self.name}" if self.namespace else self.name


def http_routes() -> list[Route]:
    """Return every route of the site."""
    return list(_walk(get_resolver().url_patterns, "", ""))


def _walk(patterns: Any, namespace: str, prefix: str) -> Iterator[Route]:
    for entry in patterns:
        pattern = prefix + str(entry.pattern)
        if isinstance(entry, URLResolver):
            inner = ":".join(filter(None, (namespace, entry.namespace)))
            yield from _walk(entry.url_patterns, inner, pattern)
        elif isinstance(entry, URLPattern):
            yield Route(
                name=entry.name or pattern,
                namespace=namespace,
                pattern=pattern,
                methods=_methods(entry.callback),
                converters=tuple(entry.pattern.regex.groupindex),
            )


def _methods(view: Any) -> tuple[str, ...]:
    actions = getattr(view, "actions", None)
    if actions:
        return tuple(m.upper() for m in actions if m in _METHODS)
    kind = getattr(view, "cls", None)
    if kind is None:
        return ()
    return tuple(m.upper() for m in _METHODS if hasattr(kind, m))


def socket_names() -> list[str]:
    """Return the names of all socket routes."""
    return [str(route.name) for route in websocket_urlpatterns]


def readable(pattern: str) -> str:
    """Return a pattern without the marks of regular expressions, for messages."""
    return re.sub(r"[\^$\\]", "", pattern)
