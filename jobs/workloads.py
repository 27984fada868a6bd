"""Our own workload files, written; the simulator reads them."""

import json
from collections.abc import Mapping, Sequence
from typing import Any


def as_json(name: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a workload file of these jobs; docs/workloads.md describes its columns."""
    return json.dumps({"name": name, "jobs": list(rows)}, ensure_ascii=False)
