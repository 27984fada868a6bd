"""The page about the interface says what its document says."""

from __future__ import annotations

import pytest
from django.test import Client

from portal.api.reference import groups

pytestmark = pytest.mark.django_db


def test_every_operation_of_the_document_is_on_the_page(client: Client) -> None:
    document = client.get("/api/v1/schema/", headers={"accept": "application/json"}).json()
    page = client.get("/api/v1/docs/").content.decode()

    told = {(one.method, one.path) for group in groups() for one in group.operations}
    named = {
        (method.upper(), path)
        for path, methods in document["paths"].items()
        for method in methods
        if method != "parameters"
    }
    assert told == named
    assert all(f"<code>{path}</code>" in page for _, path in named)


def test_what_an_operation_needs_is_in_its_example() -> None:
    operations = {one.key: one for group in groups() for one in group.operations}
    create = next(one for key, one in operations.items() if key.endswith("tokens-create"))

    needed = {field.name for field in create.body if field.is_required}

    assert needed
    assert all(f'"{name}"' in create.example for name in needed)
    assert "-X POST" in create.example
