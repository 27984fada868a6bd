"""What a report shows as curves: values only, for whatever draws them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from cluster.core.simulation.report import MAX_POINTS, Report

#: Series of a report, with a title and a unit.
_SERIES: Final = (
    ("gpu_pct", "GPU claimed", "%"),
    ("gpu_busy_pct", "GPU used", "%"),
    ("cpu_pct", "CPU claimed", "%"),
    ("waiting", "Jobs waiting", ""),
    ("running", "Jobs running", ""),
    ("hosts_active", "Hosts with jobs", ""),
    ("fragmentation_pct", "GPU free but of no use", "%"),
    ("power_w", "Power", "W"),
)
#: Rows of the table: name in the report, heading, unit.
ROWS: Final = (
    ("makespan_s", "Makespan", "s"),
    ("wait_s.mean", "Wait, mean", "s"),
    ("wait_s.p95", "Wait, 95th percentile", "s"),
    ("turnaround_s.mean", "Turnaround, mean", "s"),
    ("slowdown.mean", "Slowdown, mean", "times"),
    ("slowdown.p95", "Slowdown, 95th percentile", "times"),
    ("gpu_pct", "GPU claimed", "%"),
    ("gpu_busy_pct", "GPU used", "%"),
    ("cpu_pct", "CPU claimed", "%"),
    ("fragmentation_pct", "GPU free but of no use", "%"),
    ("energy_kwh", "Energy, all hosts on", "kWh"),
    ("energy_active_kwh", "Energy, idle hosts off", "kWh"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One line; with ``steps`` a value holds until the next."""

    name: str
    x: tuple[float, ...]
    y: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """Curves of the same unit over seconds, or over whatever ``x_title`` says."""

    title: str
    unit: str
    x_title: str
    curves: tuple[Curve, ...]
    steps: bool = True


def figures_of(reports: Sequence[Report]) -> tuple[Figure, ...]:
    """Return one figure a quantity, with a curve for each report."""
    seconds, word = _time_unit(reports)
    over_time = tuple(
        Figure(
            title=title,
            unit=unit,
            x_title=word,
            curves=tuple(
                Curve(
                    name=report.policy,
                    x=tuple(time_s / seconds for time_s in report.series.time_s),
                    y=tuple(map(float, getattr(report.series, name))),
                )
                for report in reports
            ),
        )
        for name, title, unit in _SERIES
    )
    waits = Figure(
        title="Jobs by wait",
        unit="% of jobs",
        x_title="seconds waited at most",
        curves=tuple(map(_waits, reports)),
        steps=False,
    )
    return (*over_time, waits)


def table_of(report: Report) -> Mapping[str, float]:
    """Return the rows of the table for one report, by the names of :data:`ROWS`."""
    found: dict[str, Any] = report.as_dict(jobs=False)
    rows: dict[str, float] = {}
    for name, _, _ in ROWS:
        outer, _, inner = name.partition(".")
        rows[name] = float(found[outer][inner] if inner else found[outer])
    return rows


def _time_unit(reports: Sequence[Report]) -> tuple[float, str]:
    """Return the unit that keeps the numbers of the axis short, in seconds, and its name."""
    longest_s = max((report.makespan_s for report in reports), default=0.0)
    for seconds, word in ((86_400.0, "days"), (3_600.0, "hours"), (60.0, "minutes")):
        if longest_s > 3 * seconds:
            return seconds, word
    return 1.0, "seconds"


def _waits(report: Report) -> Curve:
    """Return the cumulative distribution of waits; jobs that never start keep it below 100."""
    waits = np.sort([job.wait_s for job in report.jobs if job.wait_s is not None])
    if not len(waits):
        return Curve(name=report.policy, x=(), y=())
    places = np.unique(np.linspace(0, len(waits) - 1, min(len(waits), MAX_POINTS)).astype(int))
    return Curve(
        name=report.policy,
        x=tuple(waits[places].tolist()),
        y=tuple((100.0 * (places + 1) / len(report.jobs)).tolist()),
    )
