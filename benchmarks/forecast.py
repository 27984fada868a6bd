"""How good the foretold starts of waiting jobs are, on replays of durations from Philly's clusters.

Jobs arrive at random on a small cluster, first come first placed as far as they fit, and last as
long as Philly's did. At the arrival of every job that has to wait, its start is foretold from the
queue of that moment and from earlier runs of the programs in it; then it is seen when it starts.
An alternative that was told ("with 1 GPU instead of 2") is checked by running it in the simulator
from that moment on.

    python -m benchmarks.forecast --data ../shared/data [--seeds 10] [--json]
"""

import argparse
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean, median
from typing import Any, Final

import numpy as np

from cluster.core.placement.first_fit import FirstFit
from cluster.core.policy.forecast import (
    Alternative,
    Arrivals,
    StartForecast,
    alternatives,
    forecast_starts,
)
from cluster.core.policy.profiles import Duration, Learned, ObservedRun, estimate, learned
from cluster.core.policy.queue import Greedy, Place, Queue, WaitingJob
from cluster.core.resources import (
    ClusterSnapshot,
    GpuState,
    GpuUuid,
    HostName,
    HostState,
    Plan,
    ResourceRequest,
)
from cluster.core.simulation.run import SchedulingPolicy, simulate
from cluster.core.simulation.workload import Workload, WorkloadJob

_EARLIER_RUNS: Final = 5
_RUN_SPREAD: Final = 0.35
_CHECKED: Final = 12
_WINDOW_S: Final = 6 * 3600.0
_START: Final = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(slots=True)
class Foretelling:
    """A queue policy that places greedily and foretells each job once, when it has to wait."""

    durations: dict[str, Duration | None]
    found: dict[str, tuple[float, StartForecast]] = field(default_factory=dict)
    told: dict[str, tuple[Queue, Alternative]] = field(default_factory=dict)
    seen: dict[str, WaitingJob] = field(default_factory=dict)
    name: str = "foretelling"

    def plan(self, queue: Queue, place: Place) -> Plan:
        """Return the placer's plan, and note what was foretold of who came and waits."""
        self.seen |= {job.request.key: job for job in queue.waiting}
        plan = Greedy().plan(queue, place)
        started = {placement.key for placement in plan.placements}
        fresh = [
            job
            for job in queue.waiting
            if job.request.key not in started and job.request.key not in self.found
        ]
        if fresh:
            starts = forecast_starts(
                queue,
                self.durations,
                seed=len(self.found),
                arrivals=Arrivals.seen(list(self.seen.values()), queue.now_s, _WINDOW_S),
            )
            for job in fresh:
                self.found[job.request.key] = (queue.now_s, starts[job.request.key])
            self._tell(queue, fresh[0].request.key)
        return plan

    def _tell(self, queue: Queue, key: str) -> None:
        if len(self.told) < _CHECKED and len(self.found) % 5 == 0:
            offers = alternatives(queue, key, self.durations)
            if offers:
                self.told[key] = (queue, offers[0])


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark and print it; 1 if the interval holds too rarely or too often."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args(argv)
    file = chosen.data / "philly" / "philly_runtime.csv"
    if not file.is_file():
        sys.stderr.write(f"{file} is missing: it holds the runtimes of Philly's jobs\n")
        return 2
    found = measure(np.loadtxt(file, skiprows=1), seeds=chosen.seeds, jobs=chosen.jobs)
    if chosen.json:
        print(json.dumps(found, indent=1))
    else:
        _print(found)
    return 0 if 75 <= found["covered_pct"] <= 90 else 1


def measure(runtimes_s: np.ndarray[Any, Any], *, seeds: int, jobs: int) -> dict[str, Any]:
    """Return how often the interval held, how far the median was off, and what came of advice."""
    held: list[bool] = []
    errors: list[float] = []
    relative: list[float] = []
    checks: list[dict[str, Any]] = []
    for seed in range(seeds):
        work, durations = _drawn(runtimes_s, seed, jobs)
        policy = Foretelling(durations)
        report = _simulated(work, policy)
        for record in report.jobs:
            if record.key in policy.found and record.started_s is not None:
                at_s, start = policy.found[record.key]
                true_s = record.started_s - at_s
                held.append(start.earliest_s <= true_s <= start.p90_s)
                errors.append(abs(true_s - start.p50_s))
                relative.append(abs(true_s - start.p50_s) / max(true_s, 60.0))
        checks += [_checked(queue, offer, durations) for queue, offer in policy.told.values()]
    return {
        "forecasts": len(held),
        "covered_pct": round(100 * fmean(held), 1),
        "median_error_s": round(median(errors), 1),
        "median_error_pct": round(100 * median(relative), 1),
        "counterfactuals": checks,
        "counterfactuals_right_pct": round(100 * fmean(c["sooner"] for c in checks), 1)
        if checks
        else None,
    }


def _drawn(
    runtimes_s: np.ndarray[Any, Any], seed: int, jobs: int
) -> tuple[list[WorkloadJob], dict[str, Duration | None]]:
    """Return jobs with Philly's durations, and what earlier runs of each one's program say."""
    chance = np.random.default_rng([seed, 3])
    seconds = np.clip(chance.choice(runtimes_s, jobs), 60.0, 14_400.0)
    gpus = chance.choice([1, 2, 4], jobs, p=[0.6, 0.25, 0.15])
    load_s = float((seconds * gpus).sum()) / 16
    arrivals = np.sort(chance.uniform(0.0, load_s / 1.1, jobs))
    work: list[WorkloadJob] = []
    durations: dict[str, Duration | None] = {}
    for number in range(jobs):
        key, true_s = f"job-{number:04d}", float(seconds[number])
        # The program's runs scatter around its own median, this one like the earlier ones.
        median_s = true_s * math.exp(-_RUN_SPREAD * float(chance.normal()))
        known: Learned | None = None
        for lag in chance.normal(size=_EARLIER_RUNS):
            earlier_s = median_s * math.exp(_RUN_SPREAD * float(lag))
            known = learned(known, ObservedRun(duration_s=earlier_s))
        durations[key] = estimate([known]).duration
        work.append(
            WorkloadJob(
                request=ResourceRequest(
                    key=key, cpu_millis=2000, memory_mib=8192, gpus=int(gpus[number])
                ),
                submitted_s=float(arrivals[number]),
                duration_s=true_s,
            )
        )
    return work, durations


def _simulated(work: Sequence[WorkloadJob], policy: Any) -> Any:
    return simulate(
        _hosts(),
        Workload(name="philly", jobs=tuple(work)),
        SchedulingPolicy(name=policy.name, placer=FirstFit(), queue=policy),
    )


def _hosts() -> ClusterSnapshot:
    hosts = tuple(
        HostState(
            name=HostName(f"host-{number}"),
            cpu_millis=32_000,
            memory_mib=131_072,
            gpus=tuple(
                GpuState(uuid=GpuUuid(f"GPU-{number}-{at}"), model="GPU", memory_total_mib=24_576)
                for at in range(4)
            ),
        )
        for number in range(4)
    )
    return ClusterSnapshot(taken_at=_START, hosts=hosts)


def _checked(
    queue: Queue, offer: Alternative, durations: dict[str, Duration | None]
) -> dict[str, Any]:
    """Run the cluster on from the queue's moment with and without the advice, at medians."""
    before_s = _start_s(queue, offer.request.key, durations, None)
    after_s = _start_s(queue, offer.request.key, durations, offer.request)
    return {
        "advice": offer.text,
        "foretold_s": round(offer.start_s, 1),
        "simulated_s": round(after_s, 1),
        "simulated_without_s": round(before_s, 1),
        "sooner": after_s < before_s,
    }


def _start_s(
    queue: Queue,
    key: str,
    durations: dict[str, Duration | None],
    request: ResourceRequest | None,
) -> float:
    """Return the simulated start of a job, with what runs now placed first and as it lies."""
    work = []
    for run in queue.running:
        duration = durations[run.request.key]
        left_s = duration.left(queue.now_s - run.started_s, 0.5) if duration else 0.0
        work.append(
            WorkloadJob(
                request=replace(run.request, hosts_allowed=frozenset(r.host for r in run.replicas)),
                submitted_s=0.0,
                duration_s=left_s,
                priority=1,
            )
        )
    for job in queue.waiting:
        duration = durations[job.request.key]
        asked = request if request is not None and job.request.key == key else job.request
        lasts_s = duration.median_s if duration else job.expected_s
        work.append(WorkloadJob(request=asked, submitted_s=1.0, duration_s=lasts_s))
    report = _simulated(work, Greedy())
    started_s = next(record.started_s for record in report.jobs if record.key == key)
    return math.inf if started_s is None else started_s - 1.0


def _print(found: dict[str, Any]) -> None:
    print(f"{found['forecasts']} starts foretold when the job came")
    print(f"in the interval  {found['covered_pct']:.1f} %   (75 to 90 % is right for one of 80 %)")
    print(
        f"median error     {found['median_error_s']:.0f} s, {found['median_error_pct']:.0f} % "
        "of the wait"
    )
    print(f"advice that held {found['counterfactuals_right_pct']} %")
    for check in found["counterfactuals"][:20]:
        print(
            f"  {check['advice']}: simulated {check['simulated_s']:.0f} s, "
            f"without it {check['simulated_without_s']:.0f} s"
        )


if __name__ == "__main__":
    sys.exit(main())
