"""What the documents point to is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from portal.settings import base

ROOT = Path(__file__).resolve().parents[2]
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
LINK = re.compile(r"\]\((?!https?:|#|mailto:)([^)#\s]+)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_relative_link_leads_to_a_file(page: Path) -> None:
    targets = LINK.findall(page.read_text())

    assert [target for target in targets if not (page.parent / target).exists()] == []


def test_every_variable_that_is_read_is_documented() -> None:
    settings = [ROOT / "portal" / "settings" / f"{name}.py" for name in ("base", "dev", "prod")]
    read = {
        name
        for path in settings
        for name in re.findall(r"env\.\w+\(\s*\"([A-Z_]+)\"", path.read_text())
    }
    told = (ROOT / "docs" / "operations.md").read_text()

    assert base.STARLING
    unknown = {
        name for name in read if name not in told and f"`_{name.rpartition('_')[2]}`" not in told
    }
    assert unknown == set()
