"""The report of simulations as one HTML page that needs nothing else, not even a network."""

from collections.abc import Sequence
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any, Final

from django.contrib.staticfiles import finders
from django.template.loader import render_to_string
from django.utils.safestring import SafeString, mark_safe

from cluster.core.simulation.figures import ROWS, figures_of, table_of
from cluster.core.simulation.report import Report, WaitChange, wait_changes

#: How many of those who wait longer are named.
_NAMED: Final = 20


def report_page(reports: Sequence[Report]) -> str:
    """Return the page of one workload under one or more policies, side by side."""
    first = reports[0]
    return render_to_string(
        "cluster/simulation_report.html",
        {
            "workload": first.workload,
            "policies": ", ".join(report.policy for report in reports),
            "columns": [report.policy for report in reports],
            "jobs": len(first.jobs),
            "hosts": first.hosts,
            "gpus": first.gpus,
            "seed": first.seed,
            "rows": _rows(reports),
            "changes": [_changes(first, report) for report in reports[1:]],
            "figures": [asdict(figure) for figure in figures_of(reports)],
            "styles": _inlined("css/tokens.css", "css/simulation_report.css"),
            "plotly": _inlined("vendor/plotly-basic.min.js"),
            "script": _inlined("js/simulation_report.js"),
        },
    )


def text_table(reports: Sequence[Report]) -> str:
    """Return the same table for a terminal."""
    lines = [["", *(report.policy for report in reports)]]
    lines += [[row["title"], *row["cells"]] for row in _rows(reports)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if index else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def _rows(reports: Sequence[Report]) -> list[dict[str, Any]]:
    tables = [table_of(report) for report in reports]
    rows = [
        {
            "title": f"{title} ({unit})",
            "cells": [_number(table[name]) for table in tables],
        }
        for name, title, unit in ROWS
    ]
    for outcome in reports[0].outcomes:
        counts = [report.outcomes[outcome] for report in reports]
        if any(counts):
            title = f"Jobs: {outcome.replace('_', ' ')}"
            rows.append({"title": title, "cells": list(map(str, counts))})
    return rows


def _changes(base: Report, report: Report) -> dict[str, Any]:
    longer = (change for change in wait_changes(base, report) if _is_longer(change))
    return {
        "base": base.policy,
        "policy": report.policy,
        "jobs": [
            {
                "key": change.key,
                "owner": change.owner,
                "before": _seconds(change.before_s),
                "after": _seconds(change.after_s),
            }
            for change in islice(longer, _NAMED)
        ],
    }


def _is_longer(change: WaitChange) -> bool:
    if change.change_s is None:
        return change.before_s is not None
    return change.change_s > 0


def _seconds(value: float | None) -> str:
    return "never" if value is None else f"{_number(value)} s"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _inlined(*names: str) -> SafeString:
    """Return static files of ours as they are; none of them comes from a user."""
    texts: list[str] = []
    for name in names:
        path = finders.find(name)
        if path is None:
            raise FileNotFoundError(f"the static file {name} is missing")
        texts.append(Path(path).read_text(encoding="utf-8"))
    return mark_safe("\n".join(texts))  # noqa: S308
