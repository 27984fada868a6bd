"""The OpenAPI document as a page for people, rendered here: no script, no other site."""

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from drf_spectacular.generators import SchemaGenerator

_METHODS: Final = ("get", "post", "put", "patch", "delete", "head", "options")


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """A parameter, or a field of a body: its name, type in words, and what it is for."""

    name: str
    kind: str
    is_required: bool
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One thing that can be asked of one address."""

    key: str
    method: str
    path: str
    text: str
    parameters: tuple[Field, ...]
    body: tuple[Field, ...]
    answers: tuple[tuple[str, str], ...]
    example: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The operations about one kind of thing."""

    name: str
    operations: tuple[Operation, ...]


@lru_cache(maxsize=1)
def groups() -> tuple[Group, ...]:
    """Return every operation of the interface by what it is about; made once per process."""
    generator = SchemaGenerator()  # type: ignore[no-untyped-call] # drf-spectacular's
    document: dict[str, Any] = generator.get_schema(request=None, public=True)  # type: ignore[no-untyped-call]
    found: dict[str, list[Operation]] = defaultdict(list)
    for path, methods in document["paths"].items():
        for method in _METHODS:
            if method in methods:
                operation = methods[method]
                name = (operation.get("tags") or ["other"])[0]
                found[name].append(_operation(document, path, method, operation))
    return tuple(
        Group(name=name, operations=tuple(operations)) for name, operations in found.items()
    )


def _operation(
    document: Mapping[str, Any], path: str, method: str, found: Mapping[str, Any]
) -> Operation:
    body = tuple(_body(document, found))
    return Operation(
        key=str(found["operationId"]).replace("_", "-"),
        method=method.upper(),
        path=path,
        text=str(found.get("description") or found.get("summary") or ""),
        parameters=tuple(
            Field(
                name=parameter["name"],
                kind=f"{_kind(document, parameter.get('schema', {}))}, in {parameter['in']}",
                is_required=bool(parameter.get("required")),
                text=str(parameter.get("description", "")),
            )
            for parameter in found.get("parameters", ())
        ),
        body=body,
        answers=tuple(
            (status, str(_resolved(document, answer).get("description") or "What was asked for."))
            for status, answer in sorted(found["responses"].items())
        ),
        example=_example(path, method, body),
    )


def _body(document: Mapping[str, Any], found: Mapping[str, Any]) -> Iterator[Field]:
    content = found.get("requestBody", {}).get("content", {})
    if not content:
        return
    schema = _resolved(document, next(iter(content.values())).get("schema", {}))
    required = set(schema.get("required", ()))
    for name, field in schema.get("properties", {}).items():
        yield Field(
            name=name,
            kind=_kind(document, field),
            is_required=name in required,
            text=str(field.get("description", "")),
        )


def _kind(document: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    """Return a schema in a few words."""
    schema = _resolved(document, schema)
    for several in ("oneOf", "anyOf", "allOf"):
        if several in schema:
            kinds = [_kind(document, part) for part in schema[several]]
            return " or ".join(dict.fromkeys(kinds))
    if "enum" in schema:
        return " | ".join(str(value) for value in schema["enum"] if value not in {"", None})
    kind = schema.get("type", "any")
    words = [str(word) for word in kind] if isinstance(kind, list) else [str(kind)]
    if "array" in words:
        return f"list of {_kind(document, schema.get('items', {}))}"
    if schema.get("format"):
        words[0] += f" ({schema['format']})"
    return " or ".join(words)


def _resolved(document: Mapping[str, Any], schema: Mapping[str, Any]) -> Mapping[str, Any]:
    while "$ref" in schema:
        found: Any = document
        for step in str(schema["$ref"]).removeprefix("#/").split("/"):
            found = found[step]
        schema = found
    return schema


def _example(path: str, method: str, body: tuple[Field, ...]) -> str:
    command = f'curl -H "Authorization: Token $TOKEN" "$PORTAL{path}"'
    if method != "get":
        command += f" -X {method.upper()}"
    needed = {field.name: "…" for field in body if field.is_required}
    if needed:
        command += f" \\\n  -H 'Content-Type: application/json' -d '{json.dumps(needed)}'"
    return command.replace("\\u2026", "…")
