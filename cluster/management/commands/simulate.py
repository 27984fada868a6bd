"""Simulates workloads under policies, or CloudSim's scenarios."""

import json
import os
import sys
import tempfile
from argparse import ArgumentParser
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final, TextIO

from django.core.management.base import BaseCommand, CommandError

from cluster.core.errors import FileProblem
from cluster.core.simulation.cloudsim import run_scenario
from cluster.core.simulation.cloudsim_files import scenarios_from_json
from cluster.core.simulation.models import ByUtilization, FailureModel, Interference
from cluster.core.simulation.policies import policy_named, policy_names
from cluster.core.simulation.report import Report
from cluster.core.simulation.run import SchedulingPolicy, SimulationOptions, simulate
from cluster.core.simulation.workload import Workload
from cluster.core.simulation.workload_files import (
    hosts_from_text,
    pairs_from_text,
    throughputs_from_json,
    utilizations_from_text,
    with_utilizations,
    workload_from_text,
)
from cluster.management.arguments import natural, one_line_for_errors, text_of
from cluster.report_page import report_page, text_table

_BAR: Final = 30


class Command(BaseCommand):
    help = "Simulate a workload on hosts under one or more policies, and compare them."

    def add_arguments(self, parser: ArgumentParser) -> None:
        placers, queues = policy_names()
        parser.add_argument("--hosts", metavar="FILE", help="openb nodes, cluster spec or JSON")
        parser.add_argument("--workload", metavar="FILE", help="see docs/workloads.md")
        parser.add_argument(
            "--policy",
            metavar="NAME",
            action="append",
            help=f"placer or placer+queue, again for more; placers: {', '.join(placers)} or "
            f"path.py:Class; queues: {', '.join(queues)}",
        )
        parser.add_argument("--seed", type=natural, default=0, help="of all chance (default 0)")
        parser.add_argument("--jobs", type=natural, metavar="N", help="only the first N jobs")
        output = parser.add_mutually_exclusive_group()
        output.add_argument("--json", action="store_true", help="print everything as JSON")
        output.add_argument("--html", metavar="REPORT", help="write a page with charts")
        parser.add_argument("--throughputs", metavar="FILE", help="Gavel's, for its traces")
        parser.add_argument("--gpu-model", default="v100", help="of the throughputs (v100)")
        parser.add_argument("--interference", metavar="FILE", help="measured speeds of pairs")
        parser.add_argument("--utilizations", metavar="FILE", help="what each kind uses of a GPU")
        parser.add_argument("--host-mtbf-s", type=float, default=0.0, help="mean time to a loss")
        parser.add_argument("--host-repair-s", type=float, default=3600.0, help="and until return")
        parser.add_argument("--attempt-failure-pct", type=float, default=0.0)
        parser.add_argument("--cloudsim", metavar="FILE", help="run CloudSim's scenarios instead")

    def handle(self, *args: Any, **options: Any) -> None:
        with one_line_for_errors():
            if options["cloudsim"]:
                self._cloudsim(options["cloudsim"])
            else:
                self._simulate(options)

    def _cloudsim(self, file: str) -> None:
        found = [
            {"name": scenario.name, "cloudlets": [asdict(one) for one in run_scenario(scenario)]}
            for scenario in scenarios_from_json(text_of(file), file)
        ]
        self.stdout.write(json.dumps(found))

    def _simulate(self, options: dict[str, Any]) -> None:
        for name in ("hosts", "workload", "policy"):
            if not options[name]:
                raise CommandError(f"--{name} is missing", returncode=2)
        report_file = _writable(options["html"]) if options["html"] else None
        policies = [policy_named(name, options["seed"]) for name in options["policy"]]
        hosts = hosts_from_text(text_of(options["hosts"]), options["hosts"])
        workload = _workload(options)
        world = _world(options)

        reports = [
            simulate(
                hosts,
                workload,
                policy,
                options["seed"],
                options=world,
                progress=_progress_bar(policy, sys.stderr),
            )
            for policy in policies
        ]

        self._show(reports, report_file, as_json=options["json"])

    def _show(self, reports: Sequence[Report], file: Path | None, *, as_json: bool) -> None:
        if as_json:
            self.stdout.write(json.dumps([report.as_dict() for report in reports]))
            return
        if file is not None:
            _write_whole(file, report_page(reports))
        self.stdout.write(text_table(reports))
        if file is not None:
            self.stdout.write(f"\nreport: {file}")


def _workload(options: dict[str, Any]) -> Workload:
    file = options["workload"]
    throughputs = None
    if table := options["throughputs"]:
        throughputs = throughputs_from_json(text_of(table), table, options["gpu_model"])
    workload = workload_from_text(text_of(file), file, throughputs)
    if table := options["utilizations"]:
        workload = with_utilizations(workload, utilizations_from_text(text_of(table), table))
    if options["jobs"] is not None:
        workload = replace(workload, jobs=workload.jobs[: options["jobs"]])
    return workload


def _world(options: dict[str, Any]) -> SimulationOptions:
    interference: Interference = ByUtilization()
    if table := options["interference"]:
        interference = pairs_from_text(text_of(table), table)
    return SimulationOptions(
        interference=interference,
        failures=FailureModel(
            host_mtbf_s=options["host_mtbf_s"],
            host_repair_s=options["host_repair_s"],
            attempt_pct=options["attempt_failure_pct"],
        ),
    )


def _progress_bar(policy: SchedulingPolicy, stream: TextIO) -> Callable[[float], None] | None:
    """Return what draws a bar, or nothing where nobody looks."""
    if not stream.isatty():
        return None

    def draw(done: float) -> None:
        filled = round(_BAR * done)
        bar = "#" * filled + "." * (_BAR - filled)
        stream.write(f"\r[{bar}] {100 * done:3.0f} %  {policy.name}")
        stream.write("\n" if done >= 1.0 else "")
        stream.flush()

    return draw


def _writable(name: str) -> Path:
    """Return the path of a report, refused before anything is simulated."""
    file = Path(name)
    if not file.parent.is_dir():
        raise FileProblem(name, f"there is no folder {file.parent}")
    if file.is_dir():
        raise FileProblem(name, "is a folder; name a file")
    return file


def _write_whole(file: Path, text: str) -> None:
    """Write a file whole or not at all."""
    handle, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
        temporary.chmod(0o644)
        temporary.replace(file)
    except OSError as error:
        raise FileProblem(str(file), f"cannot be written: {error.strerror}") from error
    finally:
        temporary.unlink(missing_ok=True)
