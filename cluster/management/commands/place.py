"""Places the requests of a file onto the hosts of a file, by any placer."""

import json
import math
import sys
import time
from argparse import ArgumentParser
from typing import Any, Final

from django.core.management.base import BaseCommand
from django.db import DatabaseError

from cluster import selectors
from cluster.core.errors import BadProblemError
from cluster.core.placement.bound import hosts_bound
from cluster.core.placement.catalogue import placer_named, placer_names
from cluster.core.placement.files import hosts_from_text, requests_from_text
from cluster.core.placement.online import OnlinePlacer
from cluster.core.placement.options import PlacerOptions, SwarmFrame
from cluster.core.placement.packing import pack
from cluster.core.placement.problem import Objective, Placer
from cluster.core.placement.scoring import OURS
from cluster.core.placement.verify import verify
from cluster.core.placement.warm import warm_up
from cluster.core.resources import ClusterSnapshot, Plan, ResourceRequest
from cluster.management.arguments import one_line_for_errors, text_of
from cluster.management.tuning import add_tuning_arguments, tuned

_BAR: Final = 30
_MOST_SECONDS: Final = 3600.0
#: Reasons that the table shows; JSON has all.
_REASONS: Final = 5
_OBJECTIVES: Final = ", ".join(one.value for one in Objective)


class Command(BaseCommand):
    help = "Place requests onto hosts and say how good the packing is; or tune the online score."
    requires_system_checks = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Take the files, the placer and what its plan should be good for."""
        parser.add_argument(
            "action", nargs="?", default="", help="'tune': find weights for the online score"
        )
        parser.add_argument("--hosts", metavar="FILE", help="openb nodes or JSON")
        parser.add_argument("--requests", metavar="FILE", help="openb pods or JSON")
        parser.add_argument(
            "--placer",
            metavar="NAME",
            default="swarm",
            help=f"{', '.join(placer_names())}, or path/to/file.py:ClassName",
        )
        parser.add_argument(
            "--objective",
            metavar="NAME",
            default=Objective.HOSTS.value,
            help=f"what the plan should be good for, once all that can be is placed: {_OBJECTIVES}",
        )
        parser.add_argument("--seconds", default="1", help="of search (default 1)")
        parser.add_argument("--seed", default="0", help="of all chance (default 0)")
        parser.add_argument("--json", action="store_true", help="print the plan as JSON")
        add_tuning_arguments(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        """Place, check the plan, and print it; or tune."""
        with one_line_for_errors():
            options["seed"] = _seed(options["seed"])
            if options["action"] == "tune":
                self._tell_tuned(tuned(options), as_json=options["json"])
            elif options["action"]:
                raise BadProblemError(f"there is no action {options['action']!r}; there is: tune")
            else:
                self._place(options)

    def _place(self, options: dict[str, Any]) -> None:
        asked = _asked(options)
        for name in ("hosts", "requests"):
            if not options[name]:
                raise BadProblemError(f"--{name} FILE is missing")
        placer = _placer(options["placer"], asked)
        snapshot = hosts_from_text(text_of(options["hosts"]), options["hosts"])
        requests = requests_from_text(text_of(options["requests"]), options["requests"])
        warm_up()
        began = time.perf_counter()
        plan = _placed(placer, requests, snapshot)
        seconds = time.perf_counter() - began
        if asked.watch is not None:
            sys.stderr.write("\n")
        _verified(placer, plan, requests, snapshot)
        found = _found(plan, snapshot, options, seconds)
        found["lower_bound"] = _bound(plan, requests, snapshot)
        if options["json"]:
            self.stdout.write(json.dumps(found))
        else:
            self._tell(found, plan)

    def _tell_tuned(self, found: dict[str, Any], *, as_json: bool) -> None:
        if as_json:
            self.stdout.write(json.dumps(found))
            return
        kept = f"the row {found['name']!r}" if "name" in found else found["file"]
        gains = ", ".join(f"{gain:+.2f}" for gain in found["gains"])
        self.stdout.write(
            f"{found['evaluations']} weights tried; GPU allocated beyond the best heuristic, "
            f"in points, for each history: {gains}\nkept in {kept}"
        )

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


def _seed(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or len(text) > 18:
        raise BadProblemError(f"--seed: expected a whole number of at least 0, got {text!r}")
    return int(text)


def _asked(options: dict[str, Any]) -> PlacerOptions:
    """Return what the options ask of a placer."""
    try:
        objective = Objective(options["objective"])
    except ValueError:
        raise BadProblemError(
            f"--objective: there is no {options['objective']!r}; there are: {_OBJECTIVES}"
        ) from None
    seconds = _seconds(options["seconds"])
    return PlacerOptions(
        objective=objective,
        seconds=seconds,
        seed=options["seed"],
        clock=time.perf_counter,
        watch=_bar(seconds) if sys.stderr.isatty() else None,
    )


def _placer(name: str, asked: PlacerOptions) -> Placer:
    """Return the placer of a name; the online score with the weights that are active."""
    if name != OURS:
        return placer_named(name, asked)
    try:
        weights = selectors.placement_weights_active()
    except DatabaseError:  # placing files needs no database
        weights = None
    return OnlinePlacer(asked, weights=weights)


def _verified(
    placer: Placer, plan: Plan, requests: tuple[ResourceRequest, ...], snapshot: ClusterSnapshot
) -> None:
    """Check a plan, whoever made it."""
    try:
        verify(plan, requests, snapshot)
    except BadProblemError as error:
        raise BadProblemError(f"the plan of {_name(placer)} cannot be: {error}") from error
    except Exception as error:
        raise BadProblemError(
            f"the plan of {_name(placer)} cannot be read: {type(error).__name__}: "
            f"{_one_line(error)}"
        ) from error


def _bound(plan: Plan, requests: tuple[ResourceRequest, ...], snapshot: ClusterSnapshot) -> int:
    """Return a number of hosts below which nobody can place what the plan places."""
    placed = {placement.key for placement in plan.placements}
    return hosts_bound(pack([one for one in requests if one.key in placed], snapshot))


def _name(placer: Placer) -> str:
    return str(getattr(placer, "name", type(placer).__name__))


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]


def _placed(
    placer: Placer, requests: tuple[ResourceRequest, ...], snapshot: ClusterSnapshot
) -> Plan:
    try:
        plan = placer.place(requests, snapshot)
    except BadProblemError:
        raise
    except Exception as error:
        raise BadProblemError(
            f"{_name(placer)} failed: {type(error).__name__}: {_one_line(error)}"
        ) from error
    if not isinstance(plan, Plan):
        raise BadProblemError(f"{_name(placer)} returned {type(plan).__name__}, not a Plan")
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
        raise BadProblemError(
            f"--seconds: expected a number above 0 and at most {_MOST_SECONDS:g}, got {text!r}"
        )
    return value
