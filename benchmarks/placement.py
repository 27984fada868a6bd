"""Fewest hosts, and most GPU placed, on instances drawn from a public trace.

``python -m benchmarks.placement --data FOLDER [--json]``, FOLDER with the openb lists of the
Alibaba cluster trace 2023. Every placer solves every instance in the same run, one second of one
core each including the relaxed program, compiled loops loaded; the proven bound stands beside it.
Then the swarm at a tenth of the time, demand beyond capacity, and the paired ablation: the same
instances at the same time, one part left out at a time.

An instance: N pods drawn without replacement from a mix, 1523 N / 8152 * 1.6 hosts drawn from all
1523; pods that fit no host are drawn again. Seeds whose bound says that not all pods can be placed
are passed over.
"""

import argparse
import json
import resource
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from cluster.core.errors import BadProblemError
from cluster.core.placement.baselines import HEURISTICS
from cluster.core.placement.bound import hosts_bound, prices
from cluster.core.placement.catalogue import placer_named, placer_names
from cluster.core.placement.files import hosts_from_text, requests_from_text
from cluster.core.placement.options import PlacerOptions
from cluster.core.placement.packing import pack
from cluster.core.placement.planner import QueuePlanner
from cluster.core.placement.problem import Objective, Placer
from cluster.core.placement.pso import SwarmSettings
from cluster.core.placement.search import values_of
from cluster.core.placement.swarm import PlacerSettings, SwarmPlacer
from cluster.core.placement.verify import verify
from cluster.core.placement.warm import warm_up
from cluster.core.resources import (
    ClusterSnapshot,
    GpuState,
    GpuUuid,
    HostName,
    HostState,
    ResourceRequest,
)

MIXES: Final = ("default", "gpuspec33", "gpushare100", "cpu250", "multigpu50")
SIZES: Final = (50, 200, 1000, 5000)
#: 1523 hosts for 8152 pods, with as much room again as makes every instance solvable.
_HOSTS_PER_POD: Final = 1523 / 8152 * 1.6
_CROWDED: Final = 0.75
_MOST_SEEDS: Final = 40

#: The swarm with one part left out, or put back to the textbook's.
PARTS: Final = {
    "all parts": PlacerSettings(),
    "without the swarm (drawn anew each time)": PlacerSettings(swarming=False),
    "without the warm start": PlacerSettings(warm=False),
    "without prices": PlacerSettings(use_prices=False),
    "without columns": PlacerSettings(combine_at=1.0),
    "without the search (swarm alone)": PlacerSettings(search=False),
    "without search and swarm (drawn anew)": PlacerSettings(search=False, swarming=False),
    "search on one particle only": PlacerSettings(patience=10**9),
    "swarm without diversity": PlacerSettings(swarm=SwarmSettings(diversity=False)),
    "swarm without adaptive inertia": PlacerSettings(swarm=SwarmSettings(adaptive=False)),
    "swarm without the ring": PlacerSettings(swarm=SwarmSettings(leader_share=1.0)),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """One drawn problem and what is proven of it."""

    mix: str
    size: int
    seed: int
    snapshot: ClusterSnapshot
    requests: tuple[ResourceRequest, ...]
    bound: int


class Trace:
    """The lists of the trace, read once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._hosts = self._read_hosts("openb_node_list_all_node.csv")
        self._gpu_hosts = self._read_hosts("openb_node_list_gpu_node.csv")
        self._pods: dict[str, tuple[ResourceRequest, ...]] = {}

    def _read_hosts(self, name: str) -> tuple[HostState, ...]:
        return hosts_from_text((self._folder / name).read_text(), name).hosts

    def pods(self, mix: str) -> tuple[ResourceRequest, ...]:
        """Return the requests of a mix."""
        if mix not in self._pods:
            name = f"openb_pod_list_{mix}.csv"
            self._pods[mix] = requests_from_text((self._folder / name).read_text(), name)
        return self._pods[mix]

    def draw(self, mix: str, size: int, seed: int) -> Instance:
        """Return an instance in which every pod fits some host."""
        return self._draw(mix, size, seed, self._hosts, _HOSTS_PER_POD)

    def draw_crowded(self, mix: str, size: int, seed: int) -> Instance:
        """Return an instance on hosts with GPUs in which demand exceeds what there is."""
        pods = self.pods(mix)
        gpus = sum(len(host.gpus) for host in self._gpu_hosts)
        asked = sum(pod.gpus * pod.share_milli for pod in pods) / 1000
        per_pod = len(self._gpu_hosts) * asked / gpus / len(pods)
        return self._draw(mix, size, seed, self._gpu_hosts, per_pod * _CROWDED)

    def _draw(
        self, mix: str, size: int, seed: int, hosts: Sequence[HostState], per_pod: float
    ) -> Instance:
        random = np.random.default_rng(seed)
        count = min(len(hosts), max(1, round(per_pod * size)))
        chosen = tuple(hosts[at] for at in sorted(random.choice(len(hosts), count, replace=False)))
        snapshot = ClusterSnapshot(taken_at=_EPOCH, hosts=chosen)
        pods = self.pods(mix)
        drawn = [pods[at] for at in random.permutation(len(pods))]
        packing = pack(drawn, snapshot)
        fits = np.asarray(packing.classes.fits.any(axis=1))[packing.request_class]
        requests = tuple(pod for pod, fine in zip(drawn, fits, strict=True) if fine)[:size]
        return Instance(
            mix=mix, size=size, seed=seed, snapshot=snapshot, requests=requests, bound=0
        )


_EPOCH: Final = hosts_from_text("id,cpu_milli,memory_mib,gpu\nh,1,1,0\n", "").taken_at


def solvable(trace: Trace, mix: str, size: int, seeds: int) -> Iterator[Instance]:
    """Yield the first instances that the bound does not refuse."""
    found = 0
    for seed in range(1, _MOST_SEEDS + 1):
        instance = trace.draw(mix, size, seed)
        if len(instance.requests) < size:
            return
        bound = hosts_bound(pack(instance.requests, instance.snapshot))
        if bound:
            yield replace(instance, bound=bound)
            found += 1
        if found == seeds:
            return


def options(seconds: float, seed: int, objective: Objective = Objective.HOSTS) -> PlacerOptions:
    """Return what a placer may use."""
    return PlacerOptions(objective=objective, seconds=seconds, seed=seed, clock=time.perf_counter)


def solve(placer: Placer, instance: Instance, label: str) -> dict[str, Any]:
    """Return one row: what a placer made of an instance."""
    began = time.perf_counter()
    plan = placer.place(instance.requests, instance.snapshot)
    report = plan.report
    return {
        "mix": instance.mix,
        "size": instance.size,
        "seed": instance.seed,
        "placer": label,
        "hosts": report.hosts_active if report else 0,
        "bound": instance.bound,
        "unplaced": len(plan.deferred),
        "seconds": round(time.perf_counter() - began, 4),
        "iterations": report.iterations if report else 0,
        "proven": bool(report and report.proven),
    }


def compare(trace: Trace, chosen: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield a row for every placer on every instance."""
    for mix in chosen.mixes:
        for size in chosen.sizes:
            for instance in solvable(trace, mix, size, chosen.seeds):
                for name in placer_names():
                    # The textbook's swarm takes a second to fail: not at thousands of requests.
                    if name == "textbook-pso" and size > 1000:
                        continue
                    placer = placer_named(name, options(chosen.seconds, instance.seed))
                    yield solve(placer, instance, name)
                quick = SwarmPlacer(options(0.1 * chosen.seconds, instance.seed))
                yield solve(quick, instance, "swarm, a tenth of the time")


def ablate(trace: Trace, chosen: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield a row for every part left out, on the same instances at the same time."""
    for mix in chosen.mixes[:2]:
        for size in chosen.sizes:
            for instance in solvable(trace, mix, size, chosen.seeds):
                for part, settings in PARTS.items():
                    placer = SwarmPlacer(options(chosen.seconds, instance.seed), settings=settings)
                    yield solve(placer, instance, part)


def crowd(trace: Trace, chosen: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield rows of instances with more demand than room: the most GPU placed."""
    names = ["swarm", *(name for name in HEURISTICS)]
    for mix in chosen.mixes[:2]:
        for size in chosen.sizes[1:]:
            for seed in range(1, min(chosen.seeds, 4) + 1):
                instance = trace.draw_crowded(mix, size, seed)
                packing = pack(instance.requests, instance.snapshot)
                relaxed = prices(packing, value=values_of(packing), seconds=20.0, sharp=True)
                gpu = {
                    request.key: request.gpus * request.share_milli for request in instance.requests
                }
                there = sum(len(host.gpus) for host in instance.snapshot.hosts) * 1000
                for name in names:
                    made = options(chosen.seconds, seed, Objective.GPU)
                    began = time.perf_counter()
                    plan = placer_named(name, made).place(instance.requests, instance.snapshot)
                    placed = sum(gpu[placement.key] for placement in plan.placements)
                    yield {
                        "mix": mix,
                        "size": size,
                        "seed": seed,
                        "placer": name,
                        "gpu_placed_pct": round(100 * placed / there, 3),
                        "bound_pct": round(100 * (relaxed.bound if relaxed else there) / there, 3),
                        "seconds": round(time.perf_counter() - began, 3),
                    }


def queue(seconds: float) -> dict[str, Any]:
    """Return how long a pass over ten thousand requests on a thousand hosts takes."""
    random = np.random.default_rng(1)
    hosts = tuple(
        HostState(
            name=HostName(f"h{at}"),
            cpu_millis=96_000,
            memory_mib=768_000,
            gpus=tuple(
                GpuState(uuid=GpuUuid(f"h{at}/{gpu}"), model=model, memory_total_mib=32_000)
                for gpu in range(8)
            ),
        )
        for at, model in enumerate(random.choice(["A100", "V100", "T4"], 1000))
    )
    gpus = random.choice([0, 0, 1, 1, 1, 2, 4, 8], 10_000)
    requests = [
        ResourceRequest(
            key=f"r{at}",
            cpu_millis=int(random.integers(1, 16_000)),
            memory_mib=int(random.integers(100, 64_000)),
            gpus=int(count),
            gpu_memory_mib=8000 if count == 1 and at % 3 == 0 else None,
            replicas=2 if at % 10 == 0 else 1,
        )
        for at, count in enumerate(gpus)
    ]
    snapshot = ClusterSnapshot(taken_at=_EPOCH, hosts=hosts)
    began = time.perf_counter()
    plan = QueuePlanner(options(seconds, 1)).place(requests, snapshot)
    took = time.perf_counter() - began
    verify(plan, requests, snapshot)
    return {
        "requests": len(requests),
        "hosts": len(hosts),
        "placed": len(plan.placements),
        "deferred": len(plan.deferred),
        "seconds": round(took, 3),
        "peak_memory_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }


def summed(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return for each mix, size and placer the sums over seeds and their ratio to the bound."""
    groups: dict[tuple[str, int, str], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        groups[row["mix"], row["size"], row["placer"]].append(row)
    return [
        {
            "mix": mix,
            "size": size,
            "placer": placer,
            "instances": len(group),
            "hosts": sum(row["hosts"] for row in group),
            "bound": sum(row["bound"] for row in group),
            "ratio": round(
                sum(row["hosts"] for row in group) / sum(row["bound"] for row in group), 4
            ),
            "unplaced": sum(row["unplaced"] for row in group),
            "seconds_max": max(row["seconds"] for row in group),
        }
        for (mix, size, placer), group in groups.items()
    ]


def paired(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return for each part left out the mean difference in hosts, and its standard error."""
    base = {
        (row["mix"], row["size"], row["seed"]): row for row in rows if row["placer"] == "all parts"
    }
    groups: dict[tuple[str, int, str], list[int]] = defaultdict(list)
    left: dict[tuple[str, int, str], int] = defaultdict(int)
    for row in rows:
        key = (row["mix"], row["size"], row["placer"])
        groups[key].append(row["hosts"] - base[row["mix"], row["size"], row["seed"]]["hosts"])
        left[key] += row["unplaced"]
    return [
        {
            "mix": mix,
            "size": size,
            "part": part,
            "pairs": len(group),
            "more_hosts_mean": round(float(np.mean(group)), 2),
            "standard_error": round(float(np.std(group, ddof=1) / len(group) ** 0.5), 2)
            if len(group) > 1
            else 0.0,
            "unplaced": left[mix, size, part],
        }
        for (mix, size, part), group in groups.items()
    ]


def crowded(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return for each mix, size and placer the GPU placed as a part of what is possible."""
    groups: dict[tuple[str, int, str], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        groups[row["mix"], row["size"], row["placer"]].append(row)
    return [
        {
            "mix": mix,
            "size": size,
            "placer": placer,
            "gpu_placed_pct": round(float(np.mean([row["gpu_placed_pct"] for row in group])), 3),
            "of_bound": round(
                float(np.mean([row["gpu_placed_pct"] / row["bound_pct"] for row in group])), 5
            ),
        }
        for (mix, size, placer), group in groups.items()
    ]


def collected(rows: Iterator[dict[str, Any]], what: str) -> list[dict[str, Any]]:
    """Return all rows, with a word a row on standard error."""
    found = []
    for row in rows:
        found.append(row)
        sys.stderr.write(f"\r{what}: {len(found)} solved")
    sys.stderr.write("\n")
    return found


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return rows as a table of text."""
    if not rows:
        return "nothing measured\n"
    names = list(rows[0])
    cells = [names] + [[str(row[name]) for name in names] for row in rows]
    widths = [max(len(line[at]) for line in cells) for at in range(len(names))]
    return "".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        + "\n"
        for line in cells
    )


def arguments() -> argparse.Namespace:
    """Return what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--data", type=Path, required=True, help="the folder with the openb lists")
    parser.add_argument("--mixes", nargs="+", default=list(MIXES), choices=MIXES)
    parser.add_argument("--sizes", nargs="+", type=int, default=list(SIZES))
    parser.add_argument("--seeds", type=int, default=5, help="instances of each mix and size")
    parser.add_argument("--seconds", type=float, default=1.0, help="time of one solve")
    parser.add_argument("--only", choices=["queue", "compare", "ablation", "crowded"])
    parser.add_argument("--json", action="store_true", help="print all rows as JSON")
    return parser.parse_args()


def main() -> int:
    """Run the benchmark."""
    chosen = arguments()
    try:
        trace = Trace(chosen.data)
    except (OSError, BadProblemError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    warm_up()
    found: dict[str, Any] = {}
    if chosen.only in {None, "queue"}:
        found["queue"] = [queue(0.5 * chosen.seconds)]
    if chosen.only in {None, "compare"}:
        rows = collected(compare(trace, chosen), "comparison")
        found |= {"instances": rows, "summary": summed(rows)}
    if chosen.only in {None, "ablation"}:
        rows = collected(ablate(trace, chosen), "ablation")
        found |= {"ablation_instances": rows, "ablation": paired(rows)}
    if chosen.only in {None, "crowded"}:
        rows = collected(crowd(trace, chosen), "demand beyond capacity")
        found |= {"crowded_instances": rows, "crowded": crowded(rows)}
    if chosen.json:
        sys.stdout.write(json.dumps(found) + "\n")
    else:
        for name in ("queue", "summary", "ablation", "crowded"):
            sys.stdout.write(f"{name}\n{table(found.get(name, []))}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
