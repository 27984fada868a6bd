"""Tuning the online score from the command line: what it takes, and where the result is kept."""

import json
import sys
from argparse import ArgumentParser
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from django.core.exceptions import ValidationError
from django.core.management.base import CommandError
from django.utils import timezone

from cluster import selectors, services
from cluster.core.errors import BadProblemError, FileProblem
from cluster.core.placement.files import hosts_from_text, requests_from_text
from cluster.core.placement.packing import pack
from cluster.core.placement.scoring import Arrivals, resampled
from cluster.core.placement.tuning import Tuned, tune
from cluster.core.resources import ClusterSnapshot, ResourceRequest
from cluster.core.simulation.workload_files import workload_from_text
from cluster.management.arguments import natural, text_of

_BAR = 30


def add_tuning_arguments(parser: ArgumentParser) -> None:
    """Add the arguments that only tuning takes."""
    group = parser.add_argument_group("place tune")
    group.add_argument(
        "--history",
        metavar="FILE",
        nargs="+",
        action="extend",
        help="past requests: openb pods, JSON, or what export_history wrote",
    )
    group.add_argument("--evaluations", type=natural, default=600, help="weights tried (600)")
    group.add_argument(
        "--shuffles",
        type=natural,
        default=1,
        help="shuffled orders in which each history comes, drawn again until it asks for 130 %% "
        "of all GPUs; 0 for the order of the file as it is (default 1)",
    )
    group.add_argument(
        "--part", default="1", help="part of the hosts that a replay has, by lot (default 1)"
    )
    group.add_argument("--name", help="of the row that keeps the weights")
    group.add_argument("--output", metavar="FILE", help="write the weights there, not into a row")


def tuned(options: dict[str, Any]) -> dict[str, Any]:
    """Tune the weights as the options say and keep them; return what was found.

    Raises:
        BadProblemError: If a file or number is wrong.
    """
    if not options["history"]:
        raise BadProblemError("place tune needs --history FILE")
    if not options["evaluations"]:
        raise BadProblemError("place tune needs at least one evaluation")
    part = _part(options["part"])
    output = _writable(options["output"]) if options["output"] else None
    hosts = _hosts(options["hosts"])
    histories = [
        arrivals
        for number, file in enumerate(options["history"])
        for arrivals in _histories(
            _requests(file), hosts, part, options, first_seed=options["seed"] + 100 * number
        )
    ]
    result = tune(
        histories,
        evaluations=options["evaluations"],
        seed=options["seed"],
        progress=_progress(options["evaluations"], sys.stderr),
    )
    trained_on = {
        "histories": [Path(file).name for file in options["history"]],
        "hosts": Path(options["hosts"]).name if options["hosts"] else "the cluster",
        "part": part,
        "shuffles": options["shuffles"],
        "seed": options["seed"],
        "evaluations": result.evaluations,
    }
    return _kept(result, trained_on, output, options["name"])


def _kept(
    result: Tuned, trained_on: dict[str, Any], output: Path | None, name: str | None
) -> dict[str, Any]:
    now = timezone.now()
    found = asdict(result) | {"weights": result.weights.as_dict(), "trained_on": trained_on}
    if output is not None:
        try:
            output.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        except OSError as error:
            raise FileProblem(str(output), f"cannot be written: {error.strerror}") from error
        return found | {"file": str(output)}
    try:
        row = services.placement_weights_store(
            name=name or f"tuned {now:%Y-%m-%d %H:%M:%S}",
            weights=result.weights,
            score=result.score,
            trained_on=trained_on,
            now=now,
            is_active=True,
        )
    except ValidationError as error:
        raise CommandError("--name: " + "; ".join(error.messages), returncode=2) from error
    return found | {"name": row.name}


def _part(text: str) -> float:
    try:
        part = float(text)
    except ValueError:
        part = 0.0
    if not 0.0 < part <= 1.0:
        raise BadProblemError(f"--part: expected a number above 0 and at most 1, got {text!r}")
    return part


def _writable(name: str) -> Path:
    file = Path(name)
    if not file.parent.is_dir() or file.is_dir():
        raise FileProblem(name, "is no file that could be written")
    return file


def _hosts(file: str | None) -> ClusterSnapshot:
    """Return the hosts of a file, or those of the cluster as if nothing ran on them."""
    if file is not None:
        return hosts_from_text(text_of(file), file)
    now = selectors.cluster_snapshot(now=timezone.now())
    if not now.hosts:
        raise BadProblemError("the cluster has no hosts; name a file with --hosts")
    return replace(
        now,
        hosts=tuple(
            replace(
                host,
                cpu_claimed_millis=0,
                memory_claimed_mib=0,
                schedulable=True,
                gpus=tuple(
                    replace(
                        gpu,
                        memory_claimed_mib=0,
                        share_claimed_milli=0,
                        claims=0,
                        exclusive=False,
                    )
                    for gpu in host.gpus
                ),
            )
            for host in now.hosts
        ),
    )


def _requests(file: str) -> Sequence[ResourceRequest]:
    """Return the requests of a list or of a workload, in their order, each of one replica."""
    text = text_of(file)
    try:
        found = requests_from_text(text, file)
    except FileProblem as problem:
        try:
            found = tuple(job.request for job in workload_from_text(text, file).jobs)
        except FileProblem:
            raise problem from None
    return [
        replace(request, key=f"{number}", replicas=1, anti_affinity="", same_zone=False)
        for number, request in enumerate(
            one for request in found for one in [request] * request.replicas
        )
    ]


def _histories(
    requests: Sequence[ResourceRequest],
    hosts: ClusterSnapshot,
    part: float,
    options: dict[str, Any],
    *,
    first_seed: int,
) -> list[Arrivals]:
    if not options["shuffles"]:
        packing = pack(requests, _drawn(hosts, part, first_seed))
        return [Arrivals(packing, np.arange(len(requests), dtype=np.int64))]
    return [
        resampled(pack(requests, _drawn(hosts, part, seed)), seed=seed)
        for seed in range(first_seed, first_seed + options["shuffles"])
    ]


def _drawn(hosts: ClusterSnapshot, part: float, seed: int) -> ClusterSnapshot:
    """Return a part of the hosts, in their order."""
    count = max(1, round(part * len(hosts.hosts)))
    chosen = np.random.default_rng(seed).choice(len(hosts.hosts), count, replace=False)
    return replace(hosts, hosts=tuple(hosts.hosts[index] for index in sorted(chosen.tolist())))


def _progress(evaluations: int, stream: TextIO) -> Callable[[int, float], None] | None:
    """Return what draws a bar, or nothing where nobody looks."""
    if not stream.isatty():
        return None

    def draw(done: int, best: float) -> None:
        filled = min(_BAR, round(_BAR * done / evaluations))
        bar = "#" * filled + "." * (_BAR - filled)
        stream.write(f"\r[{bar}] {done} tried, best {best:+.2f} points ")
        stream.write("\n" if done >= evaluations else "")
        stream.flush()

    return draw
