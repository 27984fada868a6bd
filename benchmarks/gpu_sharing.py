"""Series of training jobs on a few GPUs: by hand, by queue, by sharing, and by the GPUs' state.

Pairs run at the speeds that others measured (Lucid's table or Gavel's); everything else is the
production policy in the simulator. What it knows is as bad as in life: utilisation, memory and
measured speeds are off by 20 %, a kind of job that is new is first watched alone, and durations are
known only from a few earlier runs of the same program.

    python -m benchmarks.gpu_sharing --data FOLDER [--json] [--gpus 8] [--durations lognormal]
    python -m benchmarks.gpu_sharing --data FOLDER --series FILE [--json]

FOLDER holds single_data.csv and colocate_info.csv (Lucid), or simulation_throughputs.json (Gavel).
FILE holds ``{"gpus": 8, "jobs": [{"type": "...", "duration_s": 1800}]}``; all jobs come at once.
"""

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from benchmarks.pair_tables import PairData, kind_named, read_pairs
from benchmarks.sharing_baselines import ByHand, Sharing
from cluster.core.placement.first_fit import FirstFit
from cluster.core.policy.gpu_sharing import GpuStatePolicy, JobFacts, SharingMemory
from cluster.core.policy.profiles import Learned, ObservedRun, estimate, learned
from cluster.core.policy.queue import Fifo, QueuePolicy, RunningJob
from cluster.core.policy.settings import DEFAULTS, PolicySettings
from cluster.core.policy.sharing import PairSpeeds, Sharer, memory_cap_mib
from cluster.core.resources import (
    ClusterSnapshot,
    GpuState,
    GpuUuid,
    HostName,
    HostState,
    ResourceRequest,
)
from cluster.core.simulation.models import PairTable
from cluster.core.simulation.report import JobRecord
from cluster.core.simulation.run import SchedulingPolicy, SimulationOptions, simulate
from cluster.core.simulation.workload import Workload, WorkloadJob

ERROR: Final = 0.20
DURATIONS: Final = ("lognormal", "uniform", "philly")
_JOBS: Final = 120
_SEEDS: Final = 20
_USERS: Final = 8
#: Earlier runs of a job's program, and how far its runs lie apart: sigma of the logarithm.
_EARLIER_RUNS: Final = 5
_RUN_SPREAD: Final = 0.35
_CHECKPOINT_S: Final = 300.0
_LEAST_S, _MOST_S = 60.0, 14_400.0
_START: Final = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Series:
    """Jobs that all come at once, as kinds and seconds alone."""

    kinds: tuple[str, ...]
    durations_s: tuple[float, ...]
    gpus: int
    seed: int = 0

    def keys(self) -> list[str]:
        return [f"job-{number:04d}" for number in range(len(self.kinds))]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one series under one policy; times in seconds, utilisation in percent."""

    makespan_s: float
    turnaround_s: float
    utilisation_pct: float
    slowdown_mean: float
    slowdown_p95: float
    out_of_memory: int = 0
    parted: int = 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark and print it; 1 if a goal is missed, 2 if the input is wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--gpu", default="v100", help="which of Gavel's GPUs")
    parser.add_argument("--gpus", type=int, nargs="+", default=[8, 4])
    parser.add_argument("--durations", nargs="+", choices=DURATIONS, default=list(DURATIONS))
    parser.add_argument("--jobs", type=int, default=_JOBS)
    parser.add_argument("--seeds", type=int, default=_SEEDS)
    parser.add_argument("--history", type=int, help="earlier series in which pairs were learned")
    parser.add_argument(
        "--rules", action="store_true", help="also leave out one rule after another"
    )
    parser.add_argument("--series", type=Path, help="run this series instead")
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args(argv)
    try:
        found = _run(chosen)
    except (OSError, ValueError, KeyError) as error:
        sys.stderr.write(f"{error.args[0] if isinstance(error, KeyError) else error}\n")
        return 2
    if chosen.json:
        print(json.dumps(found, indent=1))
    else:
        _print(found)
    return 0 if all(goal["met"] for goal in found["goals"]) else 1


def _run(chosen: argparse.Namespace) -> dict[str, Any]:
    data = read_pairs(chosen.data, chosen.gpu)
    history = chosen.history if chosen.history is not None else default_history(data)
    bench = Bench(data, history, rules=chosen.rules)
    if chosen.series is not None:
        series = read_series(chosen.series, data)
        rows = bench.rows([series], {"durations": "given"})
        return {"data": data.name, "history": history, "rows": rows, "goals": []}
    rows = []
    for gpus in chosen.gpus:
        for durations in chosen.durations:
            drawn = [
                draw(data, durations, gpus, chosen.jobs, seed, chosen.data)
                for seed in range(chosen.seeds)
            ]
            rows += bench.rows(drawn, {"durations": durations})
    return {"data": data.name, "history": history, "rows": rows, "goals": goals(data, rows)}


def default_history(data: PairData) -> int:
    """Return how many earlier series are run: none where utilisation foretells a pair's speed."""
    return 0 if data.utilization_pct else 30


# Series


def draw(data: PairData, durations: str, gpus: int, jobs: int, seed: int, folder: Path) -> Series:
    """Return a series of kinds drawn evenly and durations of one family, 1 min to 4 h."""
    chance = np.random.default_rng([seed, DURATIONS.index(durations)])
    seconds: NDArray[np.float64]
    if durations == "lognormal":
        seconds = chance.lognormal(math.log(1800.0), 0.6, jobs)
    elif durations == "uniform":
        seconds = chance.uniform(_LEAST_S, 7200.0, jobs)
    else:
        seconds = chance.choice(_philly_s(folder), jobs)
    kinds = chance.integers(0, len(data.kinds), jobs)
    return Series(
        kinds=tuple(data.kinds[int(kind)] for kind in kinds),
        durations_s=tuple(float(one) for one in np.clip(seconds, _LEAST_S, _MOST_S)),
        gpus=gpus,
        seed=seed,
    )


def _philly_s(folder: Path) -> NDArray[np.float64]:
    file = folder.resolve().parent / "philly" / "philly_runtime.csv"
    if not file.is_file():
        raise FileNotFoundError(
            f"{file} is missing; put Philly's runtimes there, or ask for other --durations"
        )
    return np.loadtxt(file, skiprows=1)


def read_series(file: Path, data: PairData) -> Series:
    """Return the series of a file.

    Raises:
        ValueError: If it is no JSON of the form above, or a number is not above 0.
        KeyError: If the table has no such type.
    """
    try:
        said = json.loads(file.read_text())
    except json.JSONDecodeError as error:
        raise ValueError(f"{file} is no JSON: {error}") from error
    jobs = said.get("jobs") if isinstance(said, dict) else None
    if not isinstance(jobs, list) or not jobs:
        raise ValueError(f'{file}: expected {{"gpus": 8, "jobs": [...]}} with at least one job')
    gpus = said.get("gpus", 8)
    if not isinstance(gpus, int) or gpus < 1:
        raise ValueError(f"{file}: gpus must be a whole number above 0, got {gpus!r}")
    for number, job in enumerate(jobs, 1):
        seconds = job.get("duration_s") if isinstance(job, dict) else None
        if not isinstance(seconds, int | float) or not seconds > 0 or not math.isfinite(seconds):
            raise ValueError(f"{file}: job {number} needs a duration_s above 0, got {seconds!r}")
        if "type" not in job:
            raise ValueError(f"{file}: job {number} has no type")
    return Series(
        kinds=tuple(kind_named(data, str(job["type"])) for job in jobs),
        durations_s=tuple(float(job["duration_s"]) for job in jobs),
        gpus=gpus,
    )


# Policies


@dataclass(frozen=True, slots=True)
class Rule:
    """The policy of GPU states with one rule changed.

    Attributes:
        known: Whether all kinds have been watched before, so that no profiling is paid for.
        exact: Whether everything is known exactly, durations included.
        cold: Whether no pair has been measured before.
    """

    name: str
    settings: PolicySettings = DEFAULTS
    known: bool = False
    exact: bool = False
    cold: bool = False


OURS: Final = Rule("gpu-state")
RULES: Final = (
    Rule("without prices", PolicySettings(price_pairs=False)),
    Rule("without longest first", PolicySettings(longest_first=False)),
    Rule("without length of partners", PolicySettings(length_weight=0.0)),
    Rule("without least speed", PolicySettings(speed_least=0.0, speed_undo=0.0)),
    Rule("without parting", PolicySettings(speed_undo=0.0)),
    Rule("without learned pairs", cold=True),
    Rule("without profiling cost", known=True),
    Rule("without error", known=True, exact=True),
    Rule("shortest first", PolicySettings(shortest_first=True, longest_first=False)),
)


class Bench:
    """Runs series under all policies on one pair table."""

    def __init__(self, data: PairData, history: int, *, rules: bool = False) -> None:
        self._data = data
        self._rules = (OURS, *RULES) if rules else (OURS,)
        self._table = PairTable(speeds=data.speeds)
        self._pairs = PairSpeeds()
        for number in range(history):
            self._learn(number)

    def rows(self, drawn: Sequence[Series], said: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return one row a policy: means over the series, ratios to static allocation by hand."""
        outcomes: dict[str, list[Outcome]] = {}
        for series in drawn:
            for name, outcome in self._outcomes(series):
                outcomes.setdefault(name, []).append(outcome)
        static = outcomes["static round robin"]
        common = {
            "data": self._data.name,
            **said,
            "gpus": drawn[0].gpus,
            "jobs": len(drawn[0].kinds),
            "seeds": len(drawn),
        }
        rows = [{**common, **_row(name, mine, static)} for name, mine in outcomes.items()]
        bounds = [self.fluid_s(series) for series in drawn]
        ratios = [bound / one.makespan_s for bound, one in zip(bounds, static, strict=True)]
        rows.append(
            {
                **common,
                "policy": "fluid lower bound",
                "makespan_s": round(fmean(bounds), 1),
                "makespan_ratio": round(fmean(ratios), 4),
            }
        )
        return rows

    def fluid_s(self, series: Series) -> float:
        """Return a time in which no schedule that shares GPUs in pairs can be done."""
        work: dict[str, float] = {}
        for kind, seconds in zip(series.kinds, series.durations_s, strict=True):
            work[kind] = work.get(kind, 0.0) + seconds
        return max(self._data.least_gpu_s(work) / series.gpus, *series.durations_s)

    def _outcomes(self, series: Series) -> Iterable[tuple[str, Outcome]]:
        keys = series.keys()
        kind_of = dict(zip(keys, series.kinds, strict=True))
        robin = {key: number % series.gpus for number, key in enumerate(keys)}
        yield "static round robin", self._play(series, ByHand(gpu_of=robin), whole=True)
        by_user = {key: user % series.gpus for key, user in zip(keys, _users(series), strict=True)}
        yield "static per user", self._play(series, ByHand(gpu_of=by_user), whole=True)
        yield "exclusive FIFO", self._play(series, Fifo(), whole=True)
        naive = Sharing(
            name="memory only",
            data=self._data,
            kind_of=kind_of,
            order=lambda job: job.submitted_s,
            allowed=lambda _, __: True,
        )
        yield "memory only", self._play(series, naive)
        if self._data.labels:
            yield "Lucid labels", self._play(series, self._lucid(series, kind_of))
        for rule in self._rules:
            yield rule.name, self._state(series, rule)

    def _lucid(self, series: Series, kind_of: Mapping[str, str]) -> Sharing:
        """Lucid's packing: labels add up to 2 at most, and no long job joins a short one."""
        expected = {key: facts.duration for key, facts in self._facts(series, OURS).items()}

        def median_s(key: str) -> float:
            duration = expected[key]
            return duration.median_s if duration else math.inf

        def allowed(job: Any, other: RunningJob) -> bool:
            labels = self._data.labels
            mine, theirs = job.request.key, other.request.key
            together = labels[kind_of[mine]] + labels[kind_of[theirs]]
            return together <= 2 and median_s(mine) <= 2 * median_s(theirs)

        return Sharing(
            name="Lucid labels",
            data=self._data,
            kind_of=kind_of,
            order=lambda job: median_s(job.request.key),
            allowed=allowed,
        )

    def _state(self, series: Series, rule: Rule) -> Outcome:
        pairs = PairSpeeds(rule.settings) if rule.cold else deepcopy(self._pairs)
        if rule.exact:
            pairs = self._true_pairs(rule.settings)
        return self._shared(series, rule, pairs)

    def _learn(self, number: int) -> None:
        """Run an earlier series that tries every pair it would not part at once."""
        series = draw(self._data, "lognormal", 8, _JOBS, 10_000 + number, Path())
        trying = PolicySettings(speed_least=0.45, speed_undo=0.5)
        self._shared(series, Rule("earlier", trying), self._pairs)

    def _shared(self, series: Series, rule: Rule, pairs: PairSpeeds) -> Outcome:
        facts = self._facts(series, rule)
        memory = SharingMemory(pairs=pairs)
        policy = GpuStatePolicy(
            facts=facts.__getitem__,
            settings=rule.settings,
            memory=memory,
            never=lambda one, other: not self._data.measured(one, other),
            meter=_exact if rule.exact else _Meter(series.seed),
        )
        caps = {key: one.sharer.cap_mib or 0 for key, one in facts.items()}
        outcome = self._play(series, policy, caps=caps)
        beyond = sum(
            self._data.memory_mib[kind] > caps[key]
            for key, kind in zip(series.keys(), series.kinds, strict=True)
        )
        return replace(outcome, out_of_memory=beyond, parted=memory.parted)

    def _true_pairs(self, settings: PolicySettings) -> PairSpeeds:
        pairs = PairSpeeds(settings)
        for (one, other), speed in self._data.speeds.items():
            for _ in range(100):
                pairs.observe(one, other, speed)
        return pairs

    def _facts(self, series: Series, rule: Rule) -> dict[str, JobFacts]:
        """Return what is known of each job: its kind's profile, and its program's earlier runs."""
        chance = np.random.default_rng([series.seed, 77])
        error = 0.0 if rule.exact else ERROR
        profiles: dict[str, Learned] = {}
        for kind in sorted(set(series.kinds)):
            use = self._data.utilization_pct.get(kind)
            off = float(np.clip(chance.normal(1.0, error), 0.4, 1.6))
            peak = self._data.memory_mib[kind] * float(chance.uniform(1 - error, 1 + error))
            seen = ObservedRun(
                utilization_pct=None if use is None else min(100.0, use * off),
                memory_peak_mib=int(peak),
                alone_s=math.inf,
            )
            profiles[kind] = replace(learned(None, seen), alone_runs=1)
        facts = {}
        for key, kind, seconds in zip(series.keys(), series.kinds, series.durations_s, strict=True):
            spread = 0.0 if rule.exact else _RUN_SPREAD
            known: Learned | None = profiles[kind]
            # This run is as far from its program's median as any other of its runs.
            median_s = seconds * math.exp(-spread * float(chance.normal()))
            for lag in chance.normal(size=_EARLIER_RUNS):
                earlier_s = median_s * math.exp(spread * float(lag))
                known = learned(known, ObservedRun(duration_s=earlier_s))
            expected = estimate([known])
            if not self._data.utilization_pct:
                expected = replace(expected, utilization_pct=None)
            sharer = Sharer(
                kind=kind,
                estimate=expected,
                cap_mib=memory_cap_mib(
                    expected, settings=rule.settings, most_mib=self._data.gpu_memory_mib
                ),
                known=rule.known,
            )
            facts[key] = JobFacts(sharer=sharer, duration=expected.duration)
        return facts

    def _play(
        self,
        series: Series,
        policy: QueuePolicy,
        *,
        whole: bool = False,
        caps: Mapping[str, int] | None = None,
    ) -> Outcome:
        """Run a series under a policy, with whole GPUs or with memory alone."""
        jobs = tuple(
            WorkloadJob(
                request=ResourceRequest(
                    key=key,
                    cpu_millis=1000,
                    memory_mib=1024,
                    gpus=1,
                    gpu_memory_mib=None
                    if whole
                    else (caps[key] if caps else self._data.memory_mib[kind]),
                ),
                submitted_s=0.0,
                duration_s=seconds,
                kind=kind,
                gpu_utilization_pct=self._data.utilization_pct.get(kind),
                checkpoint_s=0.0 if whole else _CHECKPOINT_S,
            )
            for key, kind, seconds in zip(
                series.keys(), series.kinds, series.durations_s, strict=True
            )
        )
        report = simulate(
            _hosts(series.gpus, self._data.gpu_memory_mib),
            Workload(name="series", jobs=jobs),
            SchedulingPolicy(name=policy.name, placer=FirstFit(), queue=policy),
            options=SimulationOptions(interference=self._table),
        )
        return self._outcome(series, report.jobs, report.makespan_s)

    def _outcome(self, series: Series, records: Sequence[JobRecord], makespan_s: float) -> Outcome:
        unplaced = [record.key for record in records if record.turnaround_s is None]
        if unplaced:
            raise ValueError(f"{unplaced[0]} never ran: it fits on no GPU")
        slowdowns = [record.busy_s / record.duration_s for record in records]
        # Work that was done twice is no use of the GPU: each job's own seconds alone count once.
        used = sum(
            seconds * self._data.utilization_pct.get(kind, 100.0)
            for kind, seconds in zip(series.kinds, series.durations_s, strict=True)
        )
        return Outcome(
            makespan_s=makespan_s,
            turnaround_s=fmean(record.turnaround_s or math.nan for record in records),
            utilisation_pct=used / (makespan_s * series.gpus),
            slowdown_mean=fmean(slowdowns),
            slowdown_p95=float(np.percentile(slowdowns, 95)),
        )


class _Meter:
    """Measures speeds that are off by 20 %, the same however often one pair of jobs is asked."""

    def __init__(self, seed: int) -> None:
        self._chance = np.random.default_rng([seed, 99])

    def __call__(self, job: RunningJob) -> float | None:
        if job.speed is None:
            return None
        return max(0.05, job.speed * float(np.clip(self._chance.normal(1.0, ERROR), 0.4, 1.6)))


def _exact(job: RunningJob) -> float | None:
    return job.speed


def _users(series: Series) -> list[int]:
    """Return a user for each job; the first has most, as is usual."""
    chance = np.random.default_rng([series.seed, 55])
    weights = 1.0 / np.arange(1, _USERS + 1)
    users = chance.choice(_USERS, len(series.kinds), p=weights / weights.sum())
    return [int(user) for user in users]


def _hosts(gpus: int, memory_mib: int) -> ClusterSnapshot:
    cards = tuple(
        GpuState(uuid=GpuUuid(f"GPU-{n:03d}"), model="GPU", memory_total_mib=memory_mib)
        for n in range(gpus)
    )
    host = HostState(
        name=HostName("host"), cpu_millis=4000 * gpus, memory_mib=65_536 * gpus, gpus=cards
    )
    return ClusterSnapshot(taken_at=_START, hosts=(host,))


# Results


def _row(name: str, mine: Sequence[Outcome], static: Sequence[Outcome]) -> dict[str, Any]:
    def ratio(value: Callable[[Outcome], float]) -> float:
        pairs = zip(mine, static, strict=True)
        return round(fmean(value(one) / value(other) for one, other in pairs), 4)

    return {
        "policy": name,
        "makespan_s": round(fmean(one.makespan_s for one in mine), 1),
        "makespan_ratio": ratio(lambda one: one.makespan_s),
        "turnaround_ratio": ratio(lambda one: one.turnaround_s),
        "utilisation_pct": round(fmean(one.utilisation_pct for one in mine), 2),
        "utilisation_ratio": ratio(lambda one: one.utilisation_pct),
        "slowdown_mean": round(fmean(one.slowdown_mean for one in mine), 4),
        "slowdown_p95": round(fmean(one.slowdown_p95 for one in mine), 4),
        "out_of_memory": sum(one.out_of_memory for one in mine),
        "pairs_parted": round(fmean(one.parted for one in mine), 2),
    }


#: What ``gpu-state`` is to reach on 8 GPUs: makespan by hand, by table and durations.
_MAKESPAN_GOALS: Final[Mapping[tuple[str, str], float]] = {
    ("lucid", "lognormal"): 0.58,
    ("lucid", "philly"): 0.48,
    ("gavel-v100", "lognormal"): 0.62,
}


def goals(data: PairData, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return what was to be reached on 8 GPUs, what was reached, and whether that is enough."""
    found: list[dict[str, Any]] = []
    at_eight = [row for row in rows if row["gpus"] == 8]
    for ours in (row for row in at_eight if row["policy"] == OURS.name):
        durations = ours["durations"]
        fifo = next(
            row
            for row in at_eight
            if row["policy"] == "exclusive FIFO" and row["durations"] == durations
        )
        limits = [
            ("turnaround_ratio", ours["turnaround_ratio"], fifo["turnaround_ratio"]),
            ("slowdown_p95", ours["slowdown_p95"], 1.4),
            ("slowdown_mean", ours["slowdown_mean"], 1.3),
            ("out_of_memory", ours["out_of_memory"], 0),
        ]
        if (data.name, durations) in _MAKESPAN_GOALS:
            goal = _MAKESPAN_GOALS[data.name, durations]
            limits.append(("makespan_ratio", ours["makespan_ratio"], goal))
        found += [
            {
                "durations": durations,
                "what": what,
                "value": value,
                "limit": limit,
                "met": value <= limit,
            }
            for what, value, limit in limits
        ]
        used = ours["utilisation_ratio"]
        found.append(
            {
                "durations": durations,
                "what": "utilisation_ratio at least",
                "value": used,
                "limit": 1.4,
                "met": used >= 1.4,
            }
        )
    return found


def _print(found: Mapping[str, Any]) -> None:
    columns = (
        "makespan_ratio",
        "turnaround_ratio",
        "utilisation_pct",
        "slowdown_mean",
        "slowdown_p95",
    )
    titles = ("makespan", "turnaround", "util %", "slowdown", "p95")
    before = None
    for row in found["rows"]:
        here = (row["gpus"], row["durations"], row["jobs"], row["seeds"])
        if here != before:
            before = here
            print(
                f"\n{found['data']}, {row['gpus']} GPUs, {row['jobs']} jobs, {row['durations']}, "
                f"{row['seeds']} series, pairs learned in {found['history']} series before"
            )
            print(f"{'':<28}" + "".join(f"{title:>12}" for title in titles))
        cells = (f"{row[name]:>12.3f}" if name in row else f"{'':>12}" for name in columns)
        print(f"{row['policy']:<28}" + "".join(cells))
    for goal in found["goals"]:
        word = "met" if goal["met"] else "MISSED"
        print(
            f"{word:>7}  {goal['durations']:<10} {goal['what']:<28}"
            f"{goal['value']:>8.3f}  limit {goal['limit']:.3f}"
        )


if __name__ == "__main__":
    sys.exit(main())
