"""The page about the interface says what its document says."""

from __future__ import annotations

import pytest
from django.test import Client

from portal.api.reference import groups
from portal.templatetags.starling import with_code

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


def test_no_mark_of_code_is_left_on_the_page(client: Client) -> None:
    page = client.get("/api/v1/docs/").content.decode()

    assert "`" not in page
    assert "as <code>files/</code> lists it." in page.lower()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("give `since` or `like`", "give <code>since</code> or <code>like</code>"),
        ("`<b>` & <i>", "<code>&lt;b&gt;</code> &amp; &lt;i&gt;"),
        ("a lone ` stays", "a lone ` stays"),
        ("`one` and a lone `", "<code>one</code> and a lone `"),
        ("", ""),
    ],
)
def test_code_in_a_description_is_code_and_the_rest_is_escaped(text: str, shown: str) -> None:
    assert with_code(text) == shown
