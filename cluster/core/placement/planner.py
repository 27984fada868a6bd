"""The pass over a queue: who is served is decided by its order, where by the swarm.

First every request in turn takes the best host there is for it. What was placed so is then packed
anew by the swarm within the pass's time, where that can gain anything; nothing that was placed is
given up for what comes later in the queue. What still waits is tried once more in the room that
was gained.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

import numpy as np

from cluster.core.placement import kernels
from cluster.core.placement.kernels import Solution, Terms
from cluster.core.placement.options import Budget, PlacerOptions
from cluster.core.placement.ordered import (
    InOrder,
    Order,
    Places,
    all_hosts,
    all_requests,
    hosts_active,
    no_terms,
    plan_of,
)
from cluster.core.placement.packing import Ints, Packing, movable, pack
from cluster.core.placement.problem import (
    Objective,
    ObjectiveWeights,
    objective_name,
    weights_of,
)
from cluster.core.placement.search import Floats, Search, empty_solution
from cluster.core.placement.swarm import (
    PlacerSettings,
    Run,
    Searching,
    assign,
    free_counts,
    pinned_base,
    replay,
)
from cluster.core.resources import (
    ClusterSnapshot,
    Placement,
    Plan,
    PlanReport,
    ResourceRequest,
)

#: Moves of the search for each request that was placed.
_MOVES: Final = 1500
#: Below so many requests no prices are asked for: they would cost more than the search.
_FEW: Final = 20
#: Hosts that a decision shows beside the chosen one.
_SHOWN: Final = 5
#: Decisions of one pass that are broken down; the rest say only how they were found.
_BROKEN_DOWN: Final = 100
#: Time for each decision that is written down, beside the placement itself.
_DECISION_S: Final = 5e-4


#: What a host is judged by when a request's turn comes; the sum is its score, lower is better:
#: GPUs that what waits could no longer use (FGD), how far the host moves from the cluster's mean
#: use, whether it must be opened, what it must fetch, and how much is left of it.
PARTS: Final = ("gpu_wasted", "imbalance", "opens_host", "fetch", "left")
#: What each part weighs beside the objective's own weights.
_BESIDE: Final = ObjectiveWeights(hosts=0.1, fragmentation=1.0, move=0.02)
#: Classes that stand for what waits, and the most looks at hosts for which waste is counted.
_LIKELY: Final = 32
_MOST_LOOKS: Final = 60_000


class Scores(NamedTuple):
    """The hosts that had room for a class, the best first, and their parts, [n, 5]."""

    hosts: Ints
    parts: Floats


class QueuePlanner:
    """Plans one scheduling pass; see the module.

    Args:
        options: ``seconds`` bounds the search of a pass; small queues take milliseconds.
    """

    name = "swarm"

    def __init__(self, options: PlacerOptions | None = None) -> None:
        self.options = options or PlacerOptions(objective=Objective.HOSTS)

    def place(self, requests: Sequence[ResourceRequest], snapshot: ClusterSnapshot) -> Plan:
        """Return the plan; see :class:`cluster.core.placement.problem.Placer`."""
        budget = Budget(self.options, without_clock=_MOVES * max(1, len(requests)))
        budget.reserve(1.5e-5 * len(requests) + _DECISION_S * min(len(requests), _BROKEN_DOWN))
        packing = pack(requests, snapshot)
        places = Places.none(packing)
        solution = empty_solution(packing.host, packing.classes, packing.counts)
        terms = self._terms(packing)
        self._in_turn(packing, solution, places, all_requests(packing), terms)
        first = np.flatnonzero(places.placed())
        proven, why = self._settled(packing, solution, first)
        iterations = 0
        if not proven:
            before = places.host.copy()
            proven, iterations = self._repack(packing, places, first, budget)
            if (before != places.host).any():
                why = _BY_SWARM
                solution = replay(packing, places)
                waiting = np.flatnonzero(~places.placed())
                self._in_turn(packing, solution, places, waiting, terms)
        report = PlanReport(
            placer=self.name,
            objective=objective_name(self.options.objective),
            hosts_active=hosts_active(packing, solution),
            proven=proven,
            seconds=budget.seconds_used(),
            iterations=iterations,
            reason=why,
        )
        plan = plan_of(packing, solution, places, report, why)
        return _with_decisions(plan, packing, report, terms)

    def _terms(self, packing: Packing) -> Terms:
        """Return what a host is judged by in turn; waste only where it can be counted in time."""
        if not packing.kinds:
            return no_terms(packing)
        chosen = weights_of(self.options.objective)
        looks = len(packing.requests) * len(packing.hosts)
        weights = ObjectiveWeights(
            hosts=max(chosen.hosts * _BESIDE.hosts, 0.1 * _BESIDE.hosts),
            balance=chosen.balance,
            fragmentation=0.0
            if chosen.balance or looks > _MOST_LOOKS
            else max(chosen.fragmentation, _BESIDE.fragmentation),
            move=max(chosen.move, _BESIDE.move),
        )
        terms = Search(
            packing, counts=packing.counts, base=packing.host, weights=weights
        ).terms._replace(fill=0.0)
        rare = np.argsort(-terms.likely, kind="stable")[_LIKELY:]
        terms.likely[rare] = 0.0
        return terms

    def _in_turn(
        self,
        packing: Packing,
        solution: Solution,
        places: Places,
        requests: Ints,
        terms: Terms,
    ) -> None:
        rule = kernels.COST if terms.fragmentation or terms.balance else kernels.BEST
        InOrder(packing, solution, terms, seed=self.options.seed).place(
            Order(requests=requests, hosts=all_hosts(packing), rule=rule), places
        )

    def _settled(self, packing: Packing, solution: Solution, placed: Ints) -> tuple[bool, str]:
        """Return whether taking turns is proven best, and the words for it."""
        if len(placed) == 1 and int(packing.replicas[placed[0]]) == 1:
            return True, _ONLY_ONE
        opened = hosts_active(packing, solution) - int(packing.host.used.sum())
        settled = opened == 0 and self.options.objective is Objective.HOSTS
        return settled or not len(placed), _IN_TURN

    def _repack(
        self, packing: Packing, places: Places, placed: Ints, budget: Budget
    ) -> tuple[bool, int]:
        """Pack what was placed anew; return whether the packing is proven best, and the steps."""
        free = np.array([at for at in placed if movable(packing.requests[at])], np.int64)
        if not len(free):
            return False, 0
        fixed = Places(places.host.copy(), places.mask.copy(), places.first)
        for request in free:
            fixed.host[places.first[request] : places.first[request + 1]] = -1
        base = pinned_base(packing, replay(packing, fixed))
        counts = free_counts(packing, free)
        start = empty_solution(base, packing.classes, counts)
        kept = Places(np.full_like(places.host, -1), places.mask.copy(), places.first)
        for request in free:
            rows = slice(places.first[request], places.first[request + 1])
            kept.host[rows] = places.host[rows]
        kernels.replay(
            packing.request_class, kept.first, kept.host, kept.mask, packing.classes, start
        )
        settings = PlacerSettings(use_prices=len(free) >= _FEW)
        found = Run(
            Searching(self.options, settings), packing, counts, base, budget, [start]
        ).best()
        if found.solution.unplaced.any():
            return False, found.iterations
        assign(packing, free, found.solution, places)
        return found.proven, found.iterations


_ONLY_ONE: Final = "the best host there is for it"
_IN_TURN: Final = "the best host there was when its turn came"
_BY_SWARM: Final = "the best packing of all that was placed with it"


def _with_decisions(plan: Plan, packing: Packing, report: PlanReport, terms: Terms) -> Plan:
    """Return the plan with what each decision rested on."""
    number = {request.key: at for at, request in enumerate(packing.requests)}
    row = {host.name: at for at, host in enumerate(packing.hosts)}
    known: dict[int, Scores] = {}
    untouched = empty_solution(packing.host, packing.classes, packing.counts)
    decided: list[Placement] = []
    for at, placement in enumerate(plan.placements):
        record: dict[str, Any] = {
            "placer": report.placer,
            "objective": report.objective,
            "reason": report.reason,
            "proven": report.proven,
            "seconds": round(report.seconds, 4),
        }
        if at < _BROKEN_DOWN:
            class_ = int(packing.request_class[number[placement.key]])
            if class_ not in known:
                known[class_] = _scores(packing, class_, untouched, terms)
            chosen = {row[replica.host] for replica in placement.replicas}
            record["candidates"] = _shown(packing, known[class_], chosen)
        decided.append(replace(placement, decision=record))
    return replace(plan, placements=tuple(decided))


def _scores(packing: Packing, class_: int, untouched: Solution, terms: Terms) -> Scores:
    """Return how the hosts suited a class when the pass began."""
    parts = np.empty((len(packing.hosts), len(PARTS)))
    kernels.weigh(class_, packing.host, packing.classes, untouched, terms, parts)
    fits = np.flatnonzero(~np.isnan(parts[:, 0]))
    order = fits[np.argsort(parts[fits].sum(axis=1), kind="stable")]
    return Scores(order, parts[order])


def _shown(packing: Packing, scores: Scores, chosen: set[int]) -> list[dict[str, Any]]:
    """Return the best hosts and the chosen ones with the parts of their scores."""
    rows = list(range(min(_SHOWN, len(scores.hosts))))
    for host in sorted(chosen)[:_SHOWN]:
        rows += [int(row) for row in np.flatnonzero(scores.hosts == host) if row >= _SHOWN]
    return [
        {
            "host": packing.hosts[scores.hosts[row]].name,
            "score": round(float(scores.parts[row].sum()), 4),
            "parts": {
                name: round(float(part), 4)
                for name, part in zip(PARTS, scores.parts[row], strict=True)
            },
            "chosen": int(scores.hosts[row]) in chosen,
        }
        for row in rows
    ]
