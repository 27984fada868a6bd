"""The policy that reads the running state of GPUs: who is profiled, who shares with whom.

An idle GPU comes first; a job of a kind that nobody has watched runs alone until it is known. Who
finds no idle GPU joins a job that it goes well with. Pairs are measured and, if bad, parted.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from cluster.core.policy.choice import (
    GpuCondition,
    Joiners,
    Openings,
    PairValues,
    join_scores,
    pair_prices,
)
from cluster.core.policy.claims import with_claims
from cluster.core.policy.order import Ordering, UsageLedger, in_order
from cluster.core.policy.profiles import Duration
from cluster.core.policy.queue import (
    Easy,
    Place,
    Queue,
    Review,
    RunningJob,
    WaitingJob,
    delaying,
    place_in_order,
)
from cluster.core.policy.settings import DEFAULTS, PolicySettings
from cluster.core.policy.sharing import PairSpeeds, Refusal, Sharer, reserve_mib
from cluster.core.resources import (
    WHOLE_GPU_MILLI,
    ClusterSnapshot,
    GpuState,
    GpuUuid,
    HostName,
    HostState,
    Placement,
    Plan,
    ReplicaPlacement,
    ResourceRequest,
)

Card = tuple[HostName, GpuUuid]
Pair = frozenset[str]
#: Prices are found anew once so large a part of the queue has gone.
_STALE_PART = 0.06


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFacts:
    """What the policy knows of one job.

    Attributes:
        duration: ``None`` where nothing is known, so that its walltime counts.
    """

    sharer: Sharer
    duration: Duration | None = None


@dataclass(slots=True)
class SharingMemory:
    """What the policy remembers from pass to pass.

    Attributes:
        profiled: Kinds that have been watched alone since it began.
        requeued: Jobs that were put back once their kind was known.
        barred: Until when two kinds are kept apart.
        measured: Pairs of jobs whose speeds were counted.
        parted: How many pairs were parted.
    """

    pairs: PairSpeeds = field(default_factory=PairSpeeds)
    profiled: set[str] = field(default_factory=set)
    requeued: set[str] = field(default_factory=set)
    barred: dict[Pair, float] = field(default_factory=dict)
    measured: set[Pair] = field(default_factory=set)
    parted: int = 0
    usage: UsageLedger = field(default_factory=UsageLedger)


@dataclass(slots=True, kw_only=True)
class GpuStatePolicy:
    """Orders the queue, fills idle GPUs through the placer, and lets the rest share.

    Attributes:
        facts: What is known of a job, by its key.
        condition: What is read of a GPU.
        never: Pairs of kinds that are kept apart whatever is known of them.
        meter: The speed that is measured of a running job, 1 for alone.
    """

    facts: Callable[[str], JobFacts]
    settings: PolicySettings = DEFAULTS
    memory: SharingMemory = field(default_factory=SharingMemory)
    condition: Callable[[Card], GpuCondition] = field(default=lambda _: GpuCondition())
    never: Callable[[str, str], bool] = field(default=lambda _, __: False)
    meter: Callable[[RunningJob], float | None] = field(default=lambda job: job.speed)
    name: str = "gpu-state"
    _prices: tuple[tuple[str, ...], int, NDArray[np.float64]] | None = None

    # Who comes first

    def plan(self, queue: Queue, place: Place) -> Plan:
        """Return what starts now, on idle GPUs and beside others."""
        self.memory.usage.advance(queue.now_s, queue.running)
        ordering = self._ordering(queue)
        ordered = self._unknown_first(in_order(queue.waiting, ordering), queue.running)
        alone = self._alone(queue, ordered)
        due = bool(ordered) and ordering.due(ordered[0])
        if due:
            plan, head = place_in_order(
                [job.request for job in alone.waiting], queue.snapshot, place
            )
            ordered = [job for job in ordered if ordering.due(job)]
        else:
            plan = Easy().plan(alone, place)
            head = _first_left(alone.waiting, plan)
        left = _not_in(plan, ordered)
        joins = self._joins(replace(queue, waiting=left), _after(plan, queue))
        if joins and head is not None and self._needs_idle(head.key):
            late = delaying(self._with_late_ends(alone, queue), plan, head, joins, place)
            joins = [join for join in joins if join.key not in late]
        joined = {join.key for join in joins}
        return Plan(
            placements=(*plan.placements, *joins),
            deferred=tuple(one for one in plan.deferred if one.key not in joined),
            report=plan.report,
        )

    def _ordering(self, queue: Queue) -> Ordering:
        return Ordering(
            now_s=queue.now_s,
            durations={
                job.request.key: self.facts(job.request.key).duration for job in queue.waiting
            },
            used=self.memory.usage.used,
            settings=self.settings,
        )

    def _unknown_first(
        self, ordered: list[WaitingJob], running: Sequence[RunningJob]
    ) -> list[WaitingJob]:
        """Bring one job of each kind to be profiled to the front of its priority."""
        if not self.settings.sharing or not self.settings.profile_requeue:
            return ordered
        seen = {self.facts(job.request.key).sharer.kind for job in running}
        first: set[str] = set()
        for job in ordered:
            sharer = self.facts(job.request.key).sharer
            if self._to_profile(sharer) and sharer.kind not in seen:
                seen.add(sharer.kind)
                first.add(job.request.key)
        return sorted(
            ordered,
            key=lambda job: (
                -job.priority,
                job.request.key not in first,
                self._to_profile(self.facts(job.request.key).sharer),
            ),
        )

    def _to_profile(self, sharer: Sharer) -> bool:
        return sharer.consents and sharer.single and not self._known(sharer)

    def _known(self, sharer: Sharer) -> bool:
        return sharer.known or sharer.kind in self.memory.profiled

    def _sharer(self, key: str) -> Sharer:
        return self.facts(key).sharer

    def _needs_idle(self, key: str) -> bool:
        sharer = self._sharer(key)
        refusal = sharer.refusal(self.settings)
        watched = sharer.cap_mib is not None and sharer.kind in self.memory.profiled
        return refusal is not None and not (refusal is Refusal.UNKNOWN and watched)

    def _alone(self, queue: Queue, ordered: Sequence[WaitingJob]) -> Queue:
        """Return the queue as if nobody shared, with times that are kept nine times in ten."""
        waiting = [
            replace(job, request=_whole(job.request), expected_s=self._late_s(job.request.key, job))
            for job in _worth_asking(ordered, queue.snapshot)
        ]
        running = [
            replace(job, expected_end_s=queue.now_s + self._left_s(job, queue.now_s, 0.9))
            for job in queue.running
        ]
        return replace(queue, waiting=waiting, running=running)

    def _with_late_ends(self, alone: Queue, queue: Queue) -> Queue:
        """Return the queue with all that wait, as they ask, and with times that are kept."""
        waiting = [
            replace(job, expected_s=self._late_s(job.request.key, job)) for job in queue.waiting
        ]
        return replace(alone, waiting=waiting)

    def _late_s(self, key: str, job: WaitingJob) -> float:
        duration = self.facts(key).duration
        return job.expected_s if duration is None else duration.quantile_s(0.9)

    def _left_s(self, job: RunningJob, now_s: float, part: float) -> float:
        duration = self.facts(job.request.key).duration
        if duration is None:
            return max(0.0, job.expected_end_s - now_s)
        return duration.left(now_s - job.started_s, part)

    # Who shares

    def _joins(self, queue: Queue, snapshot: ClusterSnapshot) -> list[Placement]:
        if self.settings.jobs_per_gpu < 2:
            return []
        sharing = [job for job in queue.waiting if not self._needs_idle(job.request.key)]
        openings = self._openings(queue, snapshot) if sharing else []
        if not openings:
            return []
        kinds = self._kinds([*(job.request.key for job in sharing), *(o.tenant for o in openings)])
        values = self._values(kinds, queue)
        row = {kind: number for number, kind in enumerate(kinds)}
        joiners = Joiners(
            kinds=_ints(row[self._sharer(job.request.key).kind] for job in sharing),
            caps_mib=_ints(self._sharer(job.request.key).cap_mib or 0 for job in sharing),
        )
        open_to = Openings(
            kinds=_ints(row[self._sharer(one.tenant).kind] for one in openings),
            room_mib=_ints(one.room_mib for one in openings),
            worth=np.array([self.condition(one.card).worth(self.settings) for one in openings]),
        )
        scores = join_scores(joiners, open_to, values, self.settings)
        return self._pick(scores, sharing, openings)

    def _openings(self, queue: Queue, snapshot: ClusterSnapshot) -> list["_Opening"]:
        tenants: dict[Card, list[RunningJob]] = {}
        for job in queue.running:
            for replica in job.replicas:
                for uuid in replica.gpus:
                    tenants.setdefault((replica.host, uuid), []).append(job)
        found = []
        for host in snapshot.hosts:
            if not host.schedulable:
                continue
            for gpu in host.gpus:
                opening = self._opening(host, gpu, tenants.get((host.name, gpu.uuid), []))
                if opening is not None:
                    found.append(opening)
        return found

    def _opening(
        self, host: HostState, gpu: GpuState, tenants: Sequence[RunningJob]
    ) -> "_Opening | None":
        if len(tenants) != 1 or gpu.claims != 1 or gpu.exclusive or not gpu.health.takes_work:
            return None
        key = tenants[0].request.key
        if self._needs_idle(key):
            return None
        room = gpu.memory_free_mib - reserve_mib(gpu.memory_total_mib, self.settings)
        return _Opening(host=host, gpu=gpu, tenant=key, room_mib=room) if room > 0 else None

    def _kinds(self, keys: Iterable[str]) -> list[str]:
        return sorted({self._sharer(key).kind for key in keys})

    def _values(self, kinds: list[str], queue: Queue) -> PairValues:
        settings, memory = self.settings, self.memory
        use: dict[str, float | None] = {}
        for key in (*_keys(queue.waiting), *_keys(queue.running)):
            sharer = self.facts(key).sharer
            use[sharer.kind] = sharer.estimate.utilization_pct
        rows = memory.pairs.rows_of({kind: use[kind] for kind in kinds})
        speeds = memory.pairs.table()[np.ix_(rows, rows)]
        allowed = np.minimum(speeds, speeds.T) >= settings.speed_least
        for one, kind in enumerate(kinds):
            for other in range(one, len(kinds)):
                if allowed[one, other] and self._apart(kind, kinds[other], queue.now_s):
                    allowed[one, other] = allowed[other, one] = False
        return PairValues(
            speeds=speeds, allowed=allowed, prices=self._priced(kinds, speeds, allowed, queue)
        )

    def _apart(self, kind: str, other: str, now_s: float) -> bool:
        if self.memory.barred.get(frozenset((kind, other)), now_s) > now_s:
            return True
        return self.never(kind, other)

    def _priced(
        self,
        kinds: list[str],
        speeds: NDArray[np.float64],
        allowed: NDArray[np.bool_],
        queue: Queue,
    ) -> NDArray[np.float64]:
        """Return the prices, from earlier in the pass's neighbourhood if little has changed."""
        if not self.settings.price_pairs:
            return np.ones(len(kinds))
        waiting = len(queue.waiting)
        if self._prices is not None:
            known, then, prices = self._prices
            if set(kinds) <= set(known) and abs(then - waiting) <= _STALE_PART * then:
                at = {kind: number for number, kind in enumerate(known)}
                return prices[[at[kind] for kind in kinds]]
        work = dict.fromkeys(kinds, 0.0)
        for job in queue.waiting:
            facts = self.facts(job.request.key)
            length = job.expected_s if facts.duration is None else facts.duration.median_s
            if facts.sharer.kind in work:
                work[facts.sharer.kind] += length
        for run in queue.running:
            kind = self.facts(run.request.key).sharer.kind
            if kind in work:
                work[kind] += self._left_s(run, queue.now_s, 0.5)
        amounts = np.maximum(1.0, np.array([work[kind] for kind in kinds]))
        prices = pair_prices(amounts, speeds, allowed)
        self._prices = (tuple(kinds), waiting, prices)
        return prices

    def _pick(
        self,
        scores: NDArray[np.float64],
        jobs: Sequence[WaitingJob],
        openings: Sequence["_Opening"],
    ) -> list[Placement]:
        """Take the best pair, then the best of the rest, as long as the hosts have room."""
        hosts = {one.host.name: one.host for one in openings}
        picked: list[Placement] = []
        while scores.size:
            row, column = divmod(int(np.argmax(scores)), scores.shape[1])
            if not np.isfinite(scores[row, column]):
                break
            job, opening = jobs[row].request, openings[column]
            host = hosts[opening.host.name]
            if not _fits(job, host, opening.gpu):
                scores[row, column] = -np.inf
                continue
            hosts[host.name] = replace(
                host,
                cpu_claimed_millis=host.cpu_claimed_millis + job.cpu_millis,
                memory_claimed_mib=host.memory_claimed_mib + job.memory_mib,
            )
            picked.append(self._placement(job, opening, float(scores[row, column])))
            scores[row, :] = -np.inf
            scores[:, column] = -np.inf
        return picked

    def _placement(self, job: ResourceRequest, opening: "_Opening", score: float) -> Placement:
        kind, other = self._sharer(job.key).kind, self._sharer(opening.tenant).kind
        mine, theirs = self.memory.pairs.speed(kind, other), self.memory.pairs.speed(other, kind)
        return Placement(
            key=job.key,
            replicas=(ReplicaPlacement(rank=0, host=opening.host.name, gpus=(opening.gpu.uuid,)),),
            reason=(
                f"No GPU is idle. It shares one on {opening.host.name} and is expected to run at "
                f"{mine * 100:.0f} % of its speed, the other job at {theirs * 100:.0f} %."
            ),
            decision={
                "shares_with": opening.tenant,
                "speed": round(mine, 3),
                "speed_other": round(theirs, 3),
                "score": round(score, 4),
            },
        )

    # What runs

    def review(self, queue: Queue) -> Review:
        """Learn from what runs; stop who has been profiled, and who is half of a bad pair."""
        self.memory.usage.advance(queue.now_s, queue.running)
        stop: list[str] = []
        looks: list[float] = []
        for jobs in _by_card(queue.running).values():
            if len(jobs) == 1:
                self._watch_alone(jobs[0], queue, stop, looks)
            elif len(jobs) == 2:
                self._watch_pair(jobs[0], jobs[1], queue, stop, looks)
        return Review(stop=tuple(stop), again_s=min(looks, default=None))

    def _watch_alone(
        self, job: RunningJob, queue: Queue, stop: list[str], looks: list[float]
    ) -> None:
        sharer = self.facts(job.request.key).sharer
        if not self.settings.sharing or not self._to_profile(sharer):
            return
        ready_s = job.started_s + self.settings.profile_s
        if queue.now_s < ready_s:
            looks.append(ready_s)
            return
        self.memory.profiled.add(sharer.kind)
        others = any(self._to_profile(self.facts(one.request.key).sharer) for one in queue.waiting)
        key = job.request.key
        # What was done so far is lost: who is nearly through, or has hardly more to do, goes on.
        long = self._left_s(job, queue.now_s, 0.5) > self.settings.profile_worth * (
            queue.now_s - job.started_s
        )
        again = self.settings.profile_requeue and key not in self.memory.requeued
        if others and long and again:
            self.memory.requeued.add(key)
            stop.append(key)

    def _watch_pair(
        self,
        job: RunningJob,
        other: RunningJob,
        queue: Queue,
        stop: list[str],
        looks: list[float],
    ) -> None:
        pair = frozenset((job.request.key, other.request.key))
        if pair in self.memory.measured:
            return
        ready_s = max(job.started_s, other.started_s) + self.settings.measure_after_s
        if queue.now_s < ready_s:
            looks.append(ready_s)
            return
        self.memory.measured.add(pair)
        mine, theirs = (self.facts(one.request.key).sharer.kind for one in (job, other))
        pairs = self.memory.pairs
        speeds = self.meter(job), self.meter(other)
        for kind, beside, speed in ((mine, theirs, speeds[0]), (theirs, mine, speeds[1])):
            if speed is not None:
                pairs.observe(kind, beside, speed)
        if min(pairs.speed(mine, theirs), pairs.speed(theirs, mine)) < self.settings.speed_undo:
            self.memory.barred[frozenset((mine, theirs))] = queue.now_s + self.settings.barred_s
            self.memory.parted += 1
            late = max((job, other), key=lambda one: (one.started_s, one.request.key))
            stop.append(late.request.key)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Opening:
    """A GPU with one job that would share it."""

    host: HostState
    gpu: GpuState
    tenant: str
    room_mib: int

    @property
    def card(self) -> Card:
        return (self.host.name, self.gpu.uuid)


def _by_card(running: Sequence[RunningJob]) -> dict[Card, list[RunningJob]]:
    found: dict[Card, list[RunningJob]] = {}
    for job in running:
        for replica in job.replicas:
            for uuid in replica.gpus:
                found.setdefault((replica.host, uuid), []).append(job)
    return found


def _worth_asking(ordered: Sequence[WaitingJob], snapshot: ClusterSnapshot) -> Sequence[WaitingJob]:
    """Leave out all but the first that need a GPU where none is idle: none of them can start."""
    if any(gpu.free for host in snapshot.hosts if host.schedulable for gpu in host.gpus):
        return ordered
    first = next((job for job in ordered if job.request.gpus), None)
    return [job for job in ordered if job is first or not job.request.gpus]


def _keys(jobs: Sequence[WaitingJob] | Sequence[RunningJob]) -> list[str]:
    return [job.request.key for job in jobs]


def _whole(request: ResourceRequest) -> ResourceRequest:
    """Return the request as one for GPUs that nobody else is on."""
    if request.whole_gpus or not request.gpus:
        return request
    return replace(request, gpu_share_milli=WHOLE_GPU_MILLI)


def _first_left(waiting: Sequence[WaitingJob], plan: Plan) -> ResourceRequest | None:
    placed = {placement.key for placement in plan.placements}
    never = {one.key for one in plan.deferred if not one.ever}
    left = (job.request for job in waiting if job.request.key not in placed | never)
    return next(left, None)


def _not_in(plan: Plan, waiting: Sequence[WaitingJob]) -> list[WaitingJob]:
    placed = {placement.key for placement in plan.placements}
    return [job for job in waiting if job.request.key not in placed]


def _after(plan: Plan, queue: Queue) -> ClusterSnapshot:
    if not plan.placements:
        return queue.snapshot
    requests = {job.request.key: job.request for job in queue.waiting}
    return with_claims(
        queue.snapshot, ((requests[one.key], one.replicas) for one in plan.placements)
    )


def _fits(request: ResourceRequest, host: HostState, gpu: GpuState) -> bool:
    allowed = request.hosts_allowed is None or host.name in request.hosts_allowed
    return (
        allowed
        and host.name not in request.hosts_excluded
        and request.accepts_model(gpu.model)
        and host.cpu_free_millis >= request.cpu_millis
        and host.memory_free_mib >= request.memory_mib
    )


def _ints(values: Iterable[int]) -> NDArray[np.int64]:
    return np.fromiter(values, dtype=np.int64)
