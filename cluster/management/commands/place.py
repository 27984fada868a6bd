"""Places the requests of a file onto the hosts of a file, by any placer."""

import json
import math
import sys
import time
from argparse import ArgumentParser, ArgumentTypeError
from typing import Any, Final

from django.core.management.base import BaseCommand, CommandError

from cluster.core.errors import BadProblemError
from cluster.core.placement.bound import hosts_bound
from cluster.core.placement.catalogue import placer_named, placer_names
from cluster.core.placement.files import hosts_from_text, requests_from_text
from cluster.core.placement.options import PlacerOptions, SwarmFrame
from cluster.core.placement.packing import pack
from cluster.core.placement.problem import Objective, Placer
from cluster.core.placement.verify import verify
from cluster.core.placement.warm import warm_up
from cluster.core.resources import ClusterSnapshot, Plan, ResourceRequest
from cluster.management.arguments import natural, one_line_for_errors, text_of

_BAR: Final = 30
_MOST_SECONDS: Final = 3600.0
#: Reasons that the table shows; JSON has all.
_REASONS: Final = 5


class Command(BaseCommand):
    help = "Place requests onto hosts, and say how good the packing is."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Take the files, the placer and what its plan should be good for."""
        parser.add_argument("--hosts", metavar="FILE", required=True, help="openb nodes or JSON")
        parser.add_argument("--requests", metavar="FILE", required=True, help="openb pods or JSON")
        parser.add_argument(
            "--placer",
            metavar="NAME",
            default="swarm",
            help=f"{', '.join(placer_names())}, or path/to/file.py:ClassName",
        )
        parser.add_argument(
            "--objective",
            choices=[one.value for one in Objective],
            default=Objective.HOSTS.value,
            help="what the plan should be good for, once all that can be is placed",
        )
        parser.add_argument("--seconds", type=_seconds, default=1.0, help="of search (default 1)")
        parser.add_argument("--seed", type=natural, default=0, help="of all chance (default 0)")
        parser.add_argument("--json", action="store_true", help="print the plan as JSON")

    def handle(self, *args: Any, **options: Any) -> None:
        """Place, check the plan, and print it."""
        with one_line_for_errors():
            snapshot = hosts_from_text(text_of(options["hosts"]), options["hosts"])
            requests = requests_from_text(text_of(options["requests"]), options["requests"])
            placer = placer_named(
                options["placer"],
                PlacerOptions(
                    objective=Objective(options["objective"]),
                    seconds=options["seconds"],
                    seed=options["seed"],
                    clock=time.perf_counter,
                    watch=_bar(options["seconds"]) if sys.stderr.isatty() else None,
                ),
            )
            warm_up()
            began = time.perf_counter()
            plan = _placed(placer, requests, snapshot)
            seconds = time.perf_counter() - began
            verify(plan, requests, snapshot)
            found = _found(plan, snapshot, options, seconds)
            found["lower_bound"] = hosts_bound(pack(requests, snapshot))
        if options["json"]:
            self.stdout.write(json.dumps(found))
        else:
            self._tell(found, plan)

    def _tell(self, found: dict[str, Any], plan: Plan) -> None:
        bound = found["lower_bound"]
        self.stdout.write(
            f"{found['placed']} of {found['placed'] + found['unplaced']} placed "
            f"on {found['hosts_active']} hosts by {found['placer']} "
            f"in {found['seconds']:.2f} s"
        )
        if bound and not found["unplaced"]:
            ratio = found["hosts_active"] / bound
            self.stdout.write(f"no plan needs fewer than {bound} hosts; this one is {ratio:.3f} x")
        if plan.report and plan.report.reason:
            self.stdout.write(f"how: {plan.report.reason}")
        texts = list(dict.fromkeys(deferral.text for deferral in plan.deferred))
        for text in texts[:_REASONS]:
            count = sum(deferral.text == text for deferral in plan.deferred)
            self.stdout.write(f"not placed ({count}): {text}")


def _placed(
    placer: Placer, requests: tuple[ResourceRequest, ...], snapshot: ClusterSnapshot
) -> Plan:
    try:
        plan = placer.place(requests, snapshot)
    except BadProblemError:
        raise
    except Exception as error:
        raise CommandError(
            f"{placer.name} failed: {type(error).__name__}: {error}", returncode=2
        ) from error
    if not isinstance(plan, Plan):
        raise CommandError(
            f"{placer.name} returned {type(plan).__name__}, not a Plan", returncode=2
        )
    return plan


def _found(
    plan: Plan, snapshot: ClusterSnapshot, options: dict[str, Any], seconds: float
) -> dict[str, Any]:
    index = {gpu.uuid: number for host in snapshot.hosts for number, gpu in enumerate(host.gpus)}
    assignment: dict[str, Any] = {}
    for placement in plan.placements:
        places = [
            {"host": replica.host, "gpus": [index[uuid] for uuid in replica.gpus]}
            for replica in placement.replicas
        ]
        assignment[placement.key] = places[0] if len(places) == 1 else places
    return {
        "placer": options["placer"],
        "objective": options["objective"],
        "hosts_active": len(
            {replica.host for placement in plan.placements for replica in placement.replicas}
        ),
        "placed": len(plan.placements),
        "unplaced": len(plan.deferred),
        "lower_bound": 0,
        "seconds": round(seconds, 4),
        "iterations": plan.report.iterations if plan.report else 0,
        "proven": bool(plan.report and plan.report.proven),
        "assignment": assignment,
        "deferred": {
            deferral.key: {"constraint": deferral.constraint.value, "text": deferral.text}
            for deferral in plan.deferred
        },
    }


def _bar(seconds: float) -> Any:
    """Return what draws the passing of time and the best cost so far."""

    def draw(frame: SwarmFrame) -> None:
        filled = min(_BAR, round(_BAR * frame.seconds / seconds))
        bar = "#" * filled + "." * (_BAR - filled)
        sys.stderr.write(f"\r[{bar}] cost {frame.best_cost:.2f}, {frame.left_out} left out ")
        sys.stderr.flush()

    return draw


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value <= _MOST_SECONDS:
        raise ArgumentTypeError(
            f"expected seconds above 0 and at most {_MOST_SECONDS:g}, got {text!r}"
        )
    return value
