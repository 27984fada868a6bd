"""When a waiting job will start: an interval, and what would start it sooner.

The queue is played forward many times in the order it has, each time with other durations drawn
from what is known of them. What fits starts; nobody is let in that is not in the queue yet.
"""

import heapq
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from cluster.core.policy.profiles import Duration
from cluster.core.policy.queue import Queue, RunningJob, WaitingJob
from cluster.core.policy.sharing import reserve_mib
from cluster.core.resources import (
    WHOLE_GPU_MILLI,
    GpuUuid,
    HostName,
    HostState,
    ResourceRequest,
)

#: How many waiting jobs are played forward; of the rest the pace is carried on.
MOST_JOBS: Final = 300
_MOST_ARRIVALS: Final = 60
_SAMPLES_MOST: Final = 40
_SAMPLES_LEAST: Final = 10
_EVENTS: Final = 3000
#: An alternative is told if it starts so much sooner: a part of the wait, and seconds.
_SOONER_PART: Final = 0.2
_SOONER_S: Final = 60.0
_MANY: Final = 1 << 30
_NEVER: Final = 1e12


@dataclass(frozen=True, slots=True, kw_only=True)
class StartForecast:
    """Seconds from now until a job starts; in eight of ten cases between the first and the last.

    Attributes:
        earliest_s: One in ten starts before.
        p90_s: One in ten starts later.
    """

    earliest_s: float
    p50_s: float
    p90_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """Jobs like those that came of late, which may come again and overtake who waits.

    Attributes:
        jobs: What came, with its expected times.
        rate_s: How many come in a second.
    """

    jobs: Sequence[WaitingJob]
    rate_s: float

    @classmethod
    def seen(cls, jobs: Sequence[WaitingJob], now_s: float, window_s: float) -> "Arrivals | None":
        """Return what came in the last ``window_s`` as what will go on coming."""
        recent = [job for job in jobs if now_s - job.submitted_s <= window_s]
        if len(recent) < 3:
            return None
        since_s = max(60.0, now_s - min(job.submitted_s for job in recent))
        return cls(jobs=recent, rate_s=len(recent) / since_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """What could be asked for instead, and when the job would start then.

    Attributes:
        request: The changed request.
        start_s: Seconds from now, at median durations; ``before_s`` is the same as it is.
    """

    text: str
    request: ResourceRequest
    start_s: float
    before_s: float


def forecast_starts(
    queue: Queue,
    durations: Mapping[str, Duration | None],
    seed: int = 0,
    arrivals: Arrivals | None = None,
) -> dict[str, StartForecast]:
    """Return when each waiting job will start; jobs that fit on no host are left out.

    Args:
        queue: ``waiting`` is in the order in which jobs are placed.
        durations: By the job's key; without one its expected time is the median.
        arrivals: What may come meanwhile; without it nothing does.
    """
    waiting = queue.waiting[:MOST_JOBS]
    if not waiting:
        return {}
    base = _Hosts(queue.snapshot.hosts)
    events = len(waiting) + len(queue.running)
    samples = min(_SAMPLES_MOST, max(_SAMPLES_LEAST, _EVENTS // events))
    chance = np.random.default_rng(seed)
    parts = np.array(
        [(chance.permutation(samples) + 0.5) / samples for _ in range(events)]
    ).T.tolist()
    starts: dict[str, list[float]] = {job.request.key: [] for job in waiting}
    shown = replace(queue, waiting=waiting)
    for job in (*waiting, *(arrivals.jobs if arrivals else ())):
        base.shape_of(job.request)
    for sample in parts:
        coming = _drawn(arrivals, durations, chance) if arrivals else []
        for key, start_s in _Future(shown, durations, base, sample, coming).starts().items():
            starts[key].append(start_s)
    found = {key: _interval(seen) for key, seen in starts.items() if len(seen) == samples}
    return found | _carried_on(queue.waiting[MOST_JOBS:], list(found.values()))


def median_starts(queue: Queue, durations: Mapping[str, Duration | None]) -> dict[str, float]:
    """Return the seconds until each job starts if all last as long as their medians."""
    parts = [0.5] * (len(queue.waiting) + len(queue.running))
    return _Future(queue, durations, _Hosts(queue.snapshot.hosts), parts).starts()


def alternatives(
    queue: Queue, key: str, durations: Mapping[str, Duration | None], most: int = 3
) -> tuple[Alternative, ...]:
    """Return what would start a waiting job sooner, the soonest first.

    Raises:
        KeyError: If no such job waits.
    """
    rows = {job.request.key: row for row, job in enumerate(queue.waiting)}
    row = rows[key]
    job = queue.waiting[row]
    short = replace(queue, waiting=queue.waiting[: max(row + 1, 50)])
    before_s = median_starts(short, durations).get(key, _NEVER)
    if before_s <= _SOONER_S:
        return ()
    found = []
    for request, words in _variants(job.request, queue):
        waiting = [*short.waiting]
        waiting[row] = replace(job, request=request)
        start_s = median_starts(replace(short, waiting=waiting), durations).get(key, _NEVER)
        if before_s - start_s < max(_SOONER_S, _SOONER_PART * min(before_s, 1e9)):
            continue
        text = f"{words} {_when(start_s)}"
        found.append(Alternative(text=text, request=request, start_s=start_s, before_s=before_s))
    return tuple(sorted(found, key=lambda one: (one.start_s, one.text))[:most])


def _variants(request: ResourceRequest, queue: Queue) -> Iterator[tuple[ResourceRequest, str]]:
    for gpus in sorted({request.gpus // 2, 1}, reverse=True):
        if 0 < gpus < request.gpus:
            words = f"with {gpus} GPU{'s' if gpus > 1 else ''} instead of {request.gpus}"
            yield replace(request, gpus=gpus), words
    if request.gpus and (request.gpu_model or request.gpu_models):
        yield replace(request, gpu_model="", gpu_models=frozenset()), "on any GPU model"
    if request.gpus and request.whole_gpus and request.gpus * request.replicas == 1:
        yield from _half_a_gpu(request, queue)
    if request.hosts_allowed is not None:
        yield from _elsewhere(request, request.hosts_allowed, queue)
    if request.memory_mib > 2048:
        half_gib, all_gib = request.memory_mib / 2048, request.memory_mib / 1024
        words = f"with {half_gib:.3g} GiB of memory instead of {all_gib:.3g}"
        yield replace(request, memory_mib=request.memory_mib // 2), words


def _half_a_gpu(request: ResourceRequest, queue: Queue) -> Iterator[tuple[ResourceRequest, str]]:
    totals = [gpu.memory_total_mib for host in queue.snapshot.hosts for gpu in host.gpus]
    half = max(((total - reserve_mib(total)) // 2 for total in totals), default=0)
    if half > 0:
        shared = replace(request, gpu_memory_mib=half, gpu_share_milli=None)
        yield shared, f"with {half / 1024:.3g} GiB of a GPU instead of all of it"


def _elsewhere(
    request: ResourceRequest, allowed: frozenset[HostName], queue: Queue
) -> Iterator[tuple[ResourceRequest, str]]:
    for host in queue.snapshot.hosts:
        free = sum(gpu.free and request.accepts_model(gpu.model) for gpu in host.gpus)
        if host.name in allowed or not host.schedulable or free < request.gpus:
            continue
        has = f"{free} free GPU{'' if free == 1 else 's'}" if request.gpus else "room"
        words = f"host {host.name} has {has}, but the environment is not allowed there; with it"
        yield replace(request, hosts_allowed=allowed | {host.name}), words
        return


def _when(start_s: float) -> str:
    if start_s < 1:
        return "at once"
    if start_s < 5400:
        return f"in about {max(1, round(start_s / 60))} minutes"
    return f"in about {round(start_s / 3600)} hours"


def _interval(starts: Sequence[float]) -> StartForecast:
    low, middle, high = np.quantile(np.asarray(starts), [0.1, 0.5, 0.9])
    return StartForecast(earliest_s=float(low), p50_s=float(middle), p90_s=float(high))


def _carried_on(
    rest: Sequence[WaitingJob], found: Sequence[StartForecast]
) -> dict[str, StartForecast]:
    """Let the pace at which the first ones start go on for those behind them."""
    if not rest or not found:
        return {}
    last = max(found, key=lambda one: one.p50_s)
    count = len(found)
    return {
        job.request.key: StartForecast(
            earliest_s=last.earliest_s * (count + behind) / count,
            p50_s=last.p50_s * (count + behind) / count,
            p90_s=last.p90_s * (count + behind) / count,
        )
        for behind, job in enumerate(rest, 1)
    }


# Playing forward


_Held = tuple[int, tuple[int, ...]]


_Coming = tuple[float, ResourceRequest, float]


def _drawn(
    arrivals: Arrivals, durations: Mapping[str, Duration | None], chance: np.random.Generator
) -> list[_Coming]:
    """Return when which requests come and how long they last, in the order of their coming.

    Nobody knows whether the rush goes on or is just over: any rate in between is as likely.
    """
    rate_s = arrivals.rate_s * float(chance.uniform(0.02, 1.0))
    gaps = chance.exponential(1.0 / rate_s, _MOST_ARRIVALS)
    parts = chance.uniform(0.01, 0.99, _MOST_ARRIVALS).tolist()
    rows = chance.integers(0, len(arrivals.jobs), _MOST_ARRIVALS).tolist()
    found = []
    for at_s, part, row in zip(np.cumsum(gaps).tolist(), parts, rows, strict=True):
        job = arrivals.jobs[row]
        duration = durations.get(job.request.key)
        lasts_s = job.expected_s if duration is None else duration.quantile_s(part)
        found.append((at_s, job.request, lasts_s))
    return found


class _Future:
    """One way in which things may go on: each job lasts as long as its part says."""

    def __init__(
        self,
        queue: Queue,
        durations: Mapping[str, Duration | None],
        base: "_Hosts",
        parts: Sequence[float],
        coming: Sequence[_Coming] = (),
    ) -> None:
        self._queue, self._durations = queue, durations
        self._hosts = base.copy()
        running = len(queue.running)
        self._requests = [job.request for job in queue.waiting]
        self._lasts_s = [
            self._whole_s(job, parts[running + row]) for row, job in enumerate(queue.waiting)
        ]
        self._requests += [request for _, request, _ in coming]
        self._lasts_s += [lasts_s for _, _, lasts_s in coming]
        self._shapes = [self._hosts.shape_of(request) for request in self._requests]
        self._coming = [at_s for at_s, _, _ in coming]
        self._ends: list[tuple[float, int, ResourceRequest, list[_Held]]] = []
        for row, job in enumerate(queue.running):
            held = [one for r in job.replicas if (one := self._hosts.held(r.host, r.gpus))]
            heapq.heappush(
                self._ends, (self._left_s(job, parts[row]), row - running, job.request, held)
            )

    def starts(self) -> dict[str, float]:
        """Return when each waiting job starts that ever does, in seconds from now."""
        count, came = len(self._queue.waiting), 0
        found: dict[int, float] = {}
        now_s, order = 0.0, list(range(count))
        while True:
            order = self._start(order, now_s, found)
            if not order or order[0] >= count or not self._ends:
                break
            now_s = self._ends[0][0]
            if came < len(self._coming) and self._coming[came] < now_s:
                now_s = self._coming[came]
                order.append(count + came)
                came += 1
            while self._ends and self._ends[0][0] <= now_s:
                _, _, request, held = heapq.heappop(self._ends)
                self._hosts.release(request, held)
        keys = [job.request.key for job in self._queue.waiting]
        return {keys[row]: start_s for row, start_s in found.items() if row < count}

    def _start(self, order: list[int], now_s: float, found: dict[int, float]) -> list[int]:
        left: list[int] = []
        for at, row in enumerate(order):
            if not self._hosts.most:
                return [*left, *order[at:]]
            held = self._hosts.start(self._shapes[row], self._requests[row])
            if held is None:
                left.append(row)
                continue
            found[row] = now_s
            end_s = now_s + self._lasts_s[row]
            heapq.heappush(self._ends, (end_s, row, self._requests[row], held))
        return left

    def _whole_s(self, job: WaitingJob, part: float) -> float:
        duration = self._durations.get(job.request.key)
        return job.expected_s if duration is None else duration.quantile_s(part)

    def _left_s(self, job: RunningJob, part: float) -> float:
        duration = self._durations.get(job.request.key)
        if duration is None:
            return max(0.0, job.expected_end_s - self._queue.now_s)
        return duration.left(self._queue.now_s - job.started_s, part)


class _Hosts:
    """What is free on hosts, and how many replicas of each shape of request each could take."""

    def __init__(self, hosts: Sequence[HostState]) -> None:
        self._hosts = hosts
        self._row = {host.name: row for row, host in enumerate(hosts)}
        self._cpu = [host.cpu_free_millis if host.schedulable else -1 for host in hosts]
        self._memory = [host.memory_free_mib for host in hosts]
        self._share = [
            [gpu.share_free_milli if gpu.health.takes_work else -_MANY for gpu in host.gpus]
            for host in hosts
        ]
        self._gpu_memory = [[gpu.memory_free_mib for gpu in host.gpus] for host in hosts]
        self._shapes: dict[tuple[object, ...], int] = {}
        self._requests: list[ResourceRequest] = []
        self._slots: list[list[int]] = []
        self._total: list[int] = []

    def copy(self) -> "_Hosts":
        """Return hosts that can be changed without changing these."""
        other = copy(self)
        for name in ("_cpu", "_memory", "_requests", "_total", "_shapes"):
            setattr(other, name, getattr(self, name).copy())
        for name in ("_share", "_gpu_memory", "_slots"):
            setattr(other, name, [row[:] for row in getattr(self, name)])
        return other

    @property
    def most(self) -> int:
        """Return how many replicas of some shape could start."""
        return max(self._total, default=0)

    def shape_of(self, request: ResourceRequest) -> int:
        """Return the number of the request's shape; a new one is counted on all hosts."""
        key = (
            request.cpu_millis,
            request.memory_mib,
            request.gpus,
            request.gpu_memory_mib,
            request.gpu_share_milli,
            request.gpu_model,
            request.gpu_models,
            request.hosts_allowed,
            request.hosts_excluded,
        )
        shape = self._shapes.get(key)
        if shape is None:
            shape = self._shapes[key] = len(self._requests)
            self._requests.append(request)
            self._slots.append([self._count(request, row) for row in range(len(self._hosts))])
            self._total.append(sum(self._slots[shape]))
        return shape

    def start(self, shape: int, request: ResourceRequest) -> list[_Held] | None:
        """Take room for all replicas on the first hosts that have it, ``None`` for too little."""
        if self._total[shape] < request.replicas:
            return None
        taken: list[_Held] = []
        for row, slots in enumerate(self._slots[shape]):
            more = min(slots, request.replicas - len(taken))
            taken += [self._take(row, request) for _ in range(more)]
            if len(taken) == request.replicas:
                break
        for row in {row for row, _ in taken}:
            self._recount(row)
        return taken

    def held(self, host: HostName, gpus: Sequence[GpuUuid]) -> _Held | None:
        """Return what a replica that runs holds; ``None`` on a host that is not there."""
        row = self._row.get(host)
        if row is None:
            return None
        uuids = [gpu.uuid for gpu in self._hosts[row].gpus]
        return (row, tuple(at for at, uuid in enumerate(uuids) if uuid in gpus))

    def release(self, request: ResourceRequest, held: Sequence[_Held]) -> None:
        """Give back what a job held."""
        for row, gpus in held:
            self._move(row, gpus, request, 1)
        for row in {row for row, _ in held}:
            self._recount(row)

    def _take(self, row: int, request: ResourceRequest) -> _Held:
        free = [at for at in range(len(self._share[row])) if self._gpu_slots(request, row, at)]
        gpus = tuple(free[: request.gpus])
        self._move(row, gpus, request, -1)
        return (row, gpus)

    def _move(self, row: int, gpus: Sequence[int], request: ResourceRequest, sign: int) -> None:
        self._cpu[row] += sign * request.cpu_millis
        self._memory[row] += sign * request.memory_mib
        for at in gpus:
            gpu = self._hosts[row].gpus[at]
            whole = request.whole_gpus
            if whole and sign > 0:
                # A GPU of its own comes back whole; a claim of all of it left nothing free.
                self._share[row][at] = WHOLE_GPU_MILLI if gpu.health.takes_work else -_MANY
                self._gpu_memory[row][at] = gpu.memory_total_mib
                continue
            memory = gpu.memory_total_mib if whole else (request.gpu_memory_mib or 0)
            self._share[row][at] += sign * request.share_milli
            self._gpu_memory[row][at] += sign * memory

    def _recount(self, row: int) -> None:
        for shape, request in enumerate(self._requests):
            slots = self._count(request, row)
            self._total[shape] += slots - self._slots[shape][row]
            self._slots[shape][row] = slots

    def _count(self, request: ResourceRequest, row: int) -> int:
        host = self._hosts[row]
        allowed = request.hosts_allowed is None or host.name in request.hosts_allowed
        if not allowed or host.name in request.hosts_excluded or self._cpu[row] < 0:
            return 0
        slots = self._cpu[row] // request.cpu_millis if request.cpu_millis else _MANY
        if request.memory_mib:
            slots = min(slots, self._memory[row] // request.memory_mib)
        if request.gpus:
            gpus = sum(self._gpu_slots(request, row, at) for at in range(len(self._share[row])))
            slots = min(slots, gpus // request.gpus)
        return max(0, slots)

    def _gpu_slots(self, request: ResourceRequest, row: int, at: int) -> int:
        gpu = self._hosts[row].gpus[at]
        if not request.accepts_model(gpu.model):
            return 0
        slots = self._share[row][at] // request.share_milli
        if request.gpu_memory_mib:
            slots = min(slots, self._gpu_memory[row][at] // request.gpu_memory_mib)
        return max(0, min(slots, 1) if request.gpus > 1 else slots)
