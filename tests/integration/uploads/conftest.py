from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def state(settings: object, tmp_path: Path) -> Path:
    settings.STATE_DIR = tmp_path / "state"  # type: ignore[attr-defined]
    return tmp_path / "state"
