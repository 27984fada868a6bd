"""Trials of the placement lab: the swarm watched at work, the heuristics beside it, the bound."""

import time
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from cluster.core.placement.baselines import HEURISTICS
from cluster.core.placement.bound import hosts_bound
from cluster.core.placement.options import PlacerOptions, SwarmFrame
from cluster.core.placement.ordered import Places, hosts_active
from cluster.core.placement.packing import Packing, pack
from cluster.core.placement.problem import Objective, Placer, weights_of
from cluster.core.placement.search import Search
from cluster.core.placement.swarm import PlacerSettings, SwarmPlacer, replay
from cluster.core.resources import ClusterSnapshot, Plan, ResourceRequest
from jobs.models import PlacementFrames, PlacementRun
from jobs.services.placements import files_of, problem_of
from jobs.services.runs import Clock, Ledger, settle

#: Heuristics that are shown beside the swarm, in this order.
_BESIDE: Final = ("first-fit", "ffd", "best-fit", "bfd", "dot-product", "spread", "random")
_SETTINGS: Final = {
    "full": PlacerSettings(),
    "swarm": PlacerSettings(search=False, use_prices=False),
    "cold": PlacerSettings(search=False, use_prices=False, warm=False),
}
#: Frames are written this often while a search is watched.
_FLUSH_S: Final = 0.3
#: How long the proof of the bound may take.
_BOUND_S: Final = 2.0


def placement_execute(run: PlacementRun, ledger: Ledger, clock: Clock) -> None:
    """Place by the heuristics, prove the bound, and let the swarm be watched."""
    hosts, requests = problem_of(*files_of(run))
    judge = Judge(requests, hosts, Objective(run.objective))
    run.frames.all().delete()
    _load_loops(requests, hosts, Objective(run.objective))
    ledger.tell(1, "the heuristics")
    rows = [judge.row(HEURISTICS[name]) for name in _BESIDE]
    known: dict[str, Any] = {
        "rows": rows,
        "bound": judge.bound(rows),
        "objective": run.objective,
        "best_of_heuristics": min(rows, key=_rank)["placer"],
    }
    ledger.keep(known)
    film = Film(run, ledger)
    swarm = SwarmPlacer(
        PlacerOptions(
            objective=Objective(run.objective),
            seconds=run.seconds,
            seed=run.seed,
            clock=time.perf_counter,
            watch=film.take,
        ),
        settings=_SETTINGS[run.method],
    )
    began = time.perf_counter()
    plan = swarm.place(requests, hosts)
    film.flush()
    row = judge.judged("swarm", plan, time.perf_counter() - began)
    row["proven"] = bool(plan.report and plan.report.proven)
    row["iterations"] = plan.report.iterations if plan.report else 0
    known |= {"rows": [row, *rows], "picture": picture_of(hosts, requests, plan)}
    settle(run, result=known, now=clock())


def _load_loops(
    requests: Sequence[ResourceRequest], hosts: ClusterSnapshot, objective: Objective
) -> None:
    """Run every loop once: loading them must not count as anybody's thinking."""
    for name in _BESIDE:
        HEURISTICS[name].place(requests, hosts)
    SwarmPlacer(PlacerOptions(objective=objective, moves=1)).place(requests, hosts)


class Film:
    """Writes the frames of a search in small pieces, so that who watches sees it move."""

    def __init__(self, run: PlacementRun, ledger: Ledger) -> None:
        self._run, self._ledger = run, ledger
        self._frames: list[dict[str, Any]] = []
        self._first = 0
        self._flushed_s = 0.0

    def take(self, frame: SwarmFrame) -> None:
        """Keep one frame; written with its neighbours."""
        self._frames.append(_as_json(frame))
        if frame.seconds - self._flushed_s >= _FLUSH_S or self._first == 0:
            self._flushed_s = frame.seconds
            self.flush()
            share = min(1.0, frame.seconds / self._run.seconds)
            self._ledger.tell(5 + 95 * share, f"iteration {frame.iteration:,}")

    def flush(self) -> None:
        """Write what is there."""
        if not self._frames:
            return
        PlacementFrames.objects.create(run=self._run, first=self._first, frames=self._frames)
        self._first += len(self._frames)
        self._frames = []


class Judge:
    """Costs of whole plans of one problem, whoever made them."""

    def __init__(
        self, requests: Sequence[ResourceRequest], hosts: ClusterSnapshot, objective: Objective
    ) -> None:
        self._requests, self._hosts, self._objective = requests, hosts, objective
        self._packing: Packing = pack(requests, hosts)
        self._search = Search(
            self._packing,
            counts=self._packing.counts,
            base=self._packing.host,
            weights=weights_of(objective),
        )
        self._number = {request.key: at for at, request in enumerate(requests)}
        self._row = {host.name: at for at, host in enumerate(hosts.hosts)}

    def row(self, placer: Placer) -> dict[str, Any]:
        """Return one row of the table: what a placer makes of the problem, and how fast."""
        began = time.perf_counter()
        plan = placer.place(self._requests, self._hosts)
        return self.judged(placer.name, plan, time.perf_counter() - began)

    def judged(self, placer: str, plan: Plan, seconds: float) -> dict[str, Any]:
        """Return the row of a plan."""
        solution = replay(self._packing, self._places(plan))
        cost = self._search.cost(solution)
        reason = HEURISTICS[placer].sentence if placer in HEURISTICS else ""
        return {
            "placer": placer,
            "sentence": reason,
            "cost": round(cost.cost, 6),
            "left_out_cost": round(cost.left_out, 6),
            "hosts_active": hosts_active(self._packing, solution),
            "placed": len(plan.placements),
            "gpu_milli": sum(
                request.replicas * request.gpus * request.share_milli
                for placement in plan.placements
                for request in [self._requests[self._number[placement.key]]]
            ),
            "left_out": len(plan.deferred),
            "seconds": round(seconds, 4),
        }

    def bound(self, rows: Sequence[dict[str, Any]]) -> int | None:
        """Return a proven number of hosts that no plan goes below; ``None`` where none is known."""
        if self._objective is not Objective.HOSTS or all(row["left_out"] for row in rows):
            return None
        return hosts_bound(self._packing, seconds=_BOUND_S) or None

    def _places(self, plan: Plan) -> Places:
        places = Places.none(self._packing)
        for placement in plan.placements:
            first = int(places.first[self._number[placement.key]])
            for replica in placement.replicas:
                row = self._row[replica.host]
                gpus = self._hosts.hosts[row].gpus
                chosen = set(replica.gpus)
                places.host[first + replica.rank] = row
                places.mask[first + replica.rank] = np.int64(
                    sum(1 << index for index, gpu in enumerate(gpus) if gpu.uuid in chosen)
                )
        return places


def picture_of(
    hosts: ClusterSnapshot, requests: Sequence[ResourceRequest], plan: Plan
) -> dict[str, Any]:
    """Return a packing as it is drawn: hosts with what lies on them, and what was left out."""
    by_key = {request.key: request for request in requests}
    by_name = {host.name: host for host in hosts.hosts}
    lying: dict[str, list[dict[str, Any]]] = {host.name: [] for host in hosts.hosts}
    for placement in plan.placements:
        request = by_key[placement.key]
        for replica in placement.replicas:
            gpus = by_name[replica.host].gpus
            index = {gpu.uuid: place for place, gpu in enumerate(gpus)}
            lying[replica.host].append(
                {
                    "id": placement.key,
                    "cpu_millis": request.cpu_millis,
                    "memory_mib": request.memory_mib,
                    "gpus": [index[uuid] for uuid in replica.gpus],
                    "share_milli": request.share_milli if request.gpus else 0,
                    "gpu_memory_mib": request.gpu_memory_mib,
                }
            )
    return {
        "hosts": [
            {
                "name": host.name,
                "cpu_millis": host.cpu_millis,
                "memory_mib": host.memory_mib,
                "gpus": [gpu.model for gpu in host.gpus],
                "requests": lying[host.name],
            }
            for host in hosts.hosts
        ],
        "left_out": [
            {"id": deferral.key, "why": deferral.text} for deferral in plan.deferred[:100]
        ],
    }


def _as_json(frame: SwarmFrame) -> dict[str, Any]:
    """Return a frame with no more digits than can be seen; an infinite cost is ``None``."""
    return {
        "iteration": frame.iteration,
        "seconds": round(frame.seconds, 3),
        "best_cost": _finite(frame.best_cost),
        "left_out": frame.left_out,
        "diversity": _finite(frame.diversity),
        "positions": [[round(x, 4), round(y, 4)] for x, y in frame.positions],
        "costs": [_finite(cost) for cost in frame.costs],
    }


def _finite(value: float) -> float | None:
    return round(value, 5) if np.isfinite(value) else None


def _rank(row: dict[str, Any]) -> tuple[float, float]:
    return row["left_out_cost"], row["cost"]
