"""What the pages say in tables is what the code has in tables."""

from __future__ import annotations

import re
from pathlib import Path

from cluster.core.resources import Constraint
from jobs import explain
from jobs.lifecycle import STATUS_WORDS, SUCCESSORS, VERDICTS, JobStatus, Reason

DOCS = Path(__file__).parent.parent.parent / "docs"


def table(page: str, head: str) -> list[list[str]]:
    """Return the cells of the table below the line that begins with ``head``."""
    lines = (DOCS / page).read_text().splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith(head))
    rows: list[list[str]] = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


def words(cell: str) -> set[str]:
    return set(re.findall(r"`([^`]+)`", cell))


def test_the_moves_of_a_job() -> None:
    rows = table("lifecycle.md", "| status |")

    assert {row[0].strip("`"): row[1] for row in rows} == {
        s.value: STATUS_WORDS[s] for s in JobStatus
    }
    assert {row[0].strip("`"): words(row[2]) for row in rows} == {
        source.value: {target.value for target in after} for source, after in SUCCESSORS.items()
    }


def test_the_reasons_of_an_end() -> None:
    rows = table("lifecycle.md", "| reason |")

    assert {tuple(cell.strip("`") for cell in row) for row in rows} == {
        (reason.value, verdict.status.value, verdict.retry.value, verdict.words)
        for reason, verdict in VERDICTS.items()
    }
    assert len(rows) == len(Reason)


def test_the_reasons_to_wait() -> None:
    documented = {code for row in table("scheduling.md", "| code |") for code in words(row[0])}

    assert documented == {constraint.value for constraint in Constraint} | {
        explain.NOT_EVALUATED_YET,
        explain.UNSATISFIABLE,
        explain.BACK_OFF,
        explain.LOST_RACE,
    }
