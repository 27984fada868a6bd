"""Queue policies: in which order requests are shown to a placer, and who may overtake whom.

A policy knows no placer: it is handed the function that places, and may call it as often as it
likes. Times are seconds of any one clock, so that a database row and a simulated job serve.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, runtime_checkable

from cluster.core.policy.claims import Held, with_claims, without_claims
from cluster.core.resources import (
    ClusterSnapshot,
    Placement,
    Plan,
    ReplicaPlacement,
    ResourceRequest,
)

#: What a placer does, by its ``place`` method.
Place = Callable[[Sequence[ResourceRequest], ClusterSnapshot], Plan]
#: How often a backfill is tried anew without those that would delay the head of the queue.
_ROUNDS: Final = 3
#: How many of the head of the queue are shown at first where nobody may overtake.
_HEAD: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingJob:
    """A job in the queue.

    Attributes:
        expected_s: How long it is expected to run: its walltime, or better what was learned.
        priority: The higher goes first, whatever the policy.
    """

    request: ResourceRequest
    submitted_s: float
    expected_s: float
    priority: int = 0
    owner: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningJob:
    """A job that holds a part of the cluster until about ``expected_end_s``.

    Attributes:
        speed: What is measured of its speed, 1 for alone; ``None`` for not measured.
        since_s: Since when those it shares GPUs with, and so its speed, have not changed.
    """

    request: ResourceRequest
    replicas: tuple[ReplicaPlacement, ...]
    started_s: float
    expected_end_s: float
    owner: str = ""
    speed: float | None = None
    since_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """Everything a policy decides on; ``waiting`` is sorted by priority, then by submission."""

    waiting: Sequence[WaitingJob]
    running: Sequence[RunningJob]
    snapshot: ClusterSnapshot
    now_s: float


class QueuePolicy(Protocol):
    """Decides which waiting jobs are placed now; pure, and equal input gives an equal plan."""

    @property
    def name(self) -> str:
        """Return the name that tables and pages show."""
        ...

    def plan(self, queue: Queue, place: Place) -> Plan:
        """Return what is placed now, and the deferrals of what does not fit.

        A job that is in neither waits for its turn: it would overtake another.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Review:
    """What a look at the running jobs leads to.

    Attributes:
        stop: Jobs that go back into the queue, from their last checkpoint.
        again_s: When the next look is due, whatever happens meanwhile; ``None`` for no need.
    """

    stop: tuple[str, ...] = ()
    again_s: float | None = None


@runtime_checkable
class ReviewingPolicy(Protocol):
    """A queue policy that also looks at what runs, before each pass."""

    def review(self, queue: Queue) -> Review:
        """Return what is stopped, and when to look again."""
        ...


class Greedy:
    """Shows the whole queue in order; what fits now starts, and so may overtake what does not."""

    name = "greedy"

    def plan(self, queue: Queue, place: Place) -> Plan:
        """Return the placer's own plan."""
        return place([job.request for job in queue.waiting], queue.snapshot)


class ShortestFirst:
    """As :class:`Greedy`, but within a priority the shortest expected job comes first."""

    name = "shortest"

    def plan(self, queue: Queue, place: Place) -> Plan:
        """Return the placer's own plan."""
        ordered = sorted(queue.waiting, key=lambda job: (-job.priority, job.expected_s))
        return place([job.request for job in ordered], queue.snapshot)


class Fifo:
    """Nobody overtakes: the first job that does not fit now holds up all behind it."""

    name = "fifo"

    def plan(self, queue: Queue, place: Place) -> Plan:
        """Return a plan of the longest head of the queue that fits."""
        placed, head = place_in_order([job.request for job in queue.waiting], queue.snapshot, place)
        if head is None:
            return placed
        deferred = tuple(one for one in placed.deferred if one.key == head.key or not one.ever)
        return Plan(placements=placed.placements, deferred=deferred, report=placed.report)


class Easy:
    """Backfills: others may overtake the head of the queue as long as they do not delay it.

    The head has a reservation for the moment at which, as far as is known, enough will have
    ended. Whoever ends before that moment may start; so may who leaves the head's room free.
    """

    name = "easy"

    def plan(self, queue: Queue, place: Place) -> Plan:
        """Return the head of the queue that fits, and the backfill behind it."""
        requests = [job.request for job in queue.waiting]
        first, head = place_in_order(requests, queue.snapshot, place)
        if head is None:
            return first
        started = {placement.key for placement in first.placements}
        position = next(row for row, request in enumerate(requests) if request.key == head.key)
        behind = [job for job in queue.waiting[position + 1 :] if job.request.key not in started]
        now = (
            with_claims(queue.snapshot, _held(first.placements, requests))
            if first.placements
            else queue.snapshot
        )
        backfill = self._backfill(behind, head, _Later(queue, first, now), place)
        return Plan(
            placements=(*first.placements, *backfill.placements),
            deferred=(*first.deferred, *backfill.deferred),
            report=first.report,
        )

    def _backfill(
        self, behind: Sequence[WaitingJob], head: ResourceRequest, later: "_Later", place: Place
    ) -> Plan:
        barred: set[str] = set()
        reserved = None
        plan = Plan()
        for _ in range(_ROUNDS):
            requests = [job.request for job in behind if job.request.key not in barred]
            plan = place(requests, later.now) if requests else Plan()
            if not plan.placements:
                return plan
            reserved = reserved or later.reservation(head, place)
            if reserved is None:
                return plan
            late = _delaying(plan.placements, behind, head, reserved, place)
            if not late:
                return plan
            barred |= late
        kept = tuple(one for one in plan.placements if one.key not in barred)
        return Plan(placements=kept, deferred=plan.deferred)


def place_in_order(
    requests: Sequence[ResourceRequest], snapshot: ClusterSnapshot, place: Place
) -> tuple[Plan, ResourceRequest | None]:
    """Return a plan in which nobody overtakes, and the first request that has to wait.

    Requests that no host can ever hold are passed over.
    """
    best = Plan()
    good, bad = 0, len(requests) + 1  # so many fit together, so many do not
    size = min(_HEAD, len(requests))
    while good + 1 < bad:
        plan = place(requests[:size], snapshot)
        missing, behind = _first_missing(requests[:size], plan)
        if missing is None:
            best, good = plan, size
            size = min(2 * size, bad - 1)
        elif not behind:
            return plan, requests[missing]
        else:
            # Whoever stands behind may have taken the head's place: ask again without them.
            bad = size
            size = min(max(good, missing) + 1, bad - 1)
    return best, None if good == len(requests) else requests[good]


def _first_missing(shown: Sequence[ResourceRequest], plan: Plan) -> tuple[int | None, bool]:
    """Return who is the first that is not placed but could be, and whether one behind is."""
    placed = {placement.key for placement in plan.placements}
    never = {deferral.key for deferral in plan.deferred if not deferral.ever}
    for row, request in enumerate(shown):
        if request.key not in placed and request.key not in never:
            return row, any(one.key in placed for one in shown[row + 1 :])
    return None, False


def delaying(
    queue: Queue,
    started: Plan,
    head: ResourceRequest,
    placements: Sequence[Placement],
    place: Place,
) -> set[str]:
    """Return which further placements would delay the head of the queue.

    Args:
        started: What the pass has placed so far, all of it from ``queue.waiting``.
        placements: What would be placed beside it, in the order in which it may.
    """
    held = _held(started.placements, [job.request for job in queue.waiting])
    now = with_claims(queue.snapshot, held) if held else queue.snapshot
    reserved = _Later(queue, started, now).reservation(head, place)
    if reserved is None:
        return set()
    return _delaying(placements, queue.waiting, head, reserved, place)


@dataclass(frozen=True, slots=True)
class _Reservation:
    """When the head can start at the latest, and what the cluster looks like then."""

    at_s: float
    now_s: float
    snapshot: ClusterSnapshot


class _Later:
    """The cluster at later moments, as running jobs are expected to end."""

    def __init__(self, queue: Queue, started: Plan, now: ClusterSnapshot) -> None:
        self.now = now
        self._now_s = queue.now_s
        jobs = {job.request.key: job for job in queue.waiting}
        ends: list[tuple[float, Held]] = [
            (max(job.expected_end_s, queue.now_s), (job.request, job.replicas))
            for job in queue.running
        ]
        for placement in started.placements:
            job = jobs[placement.key]
            ends.append((queue.now_s + job.expected_s, (job.request, placement.replicas)))
        self._ends = sorted(ends, key=lambda end: end[0])

    def reservation(self, head: ResourceRequest, place: Place) -> _Reservation | None:
        """Return when the head fits for the first time, ``None`` if all ends do not suffice."""

        def fits(ended: int) -> bool:
            return bool(place([head], self._after(ended)).placements)

        count = len(self._ends)
        ended = bisect_left(range(count), 1, key=lambda row: int(fits(row + 1))) + 1
        if ended > count:
            return None
        return _Reservation(self._ends[ended - 1][0], self._now_s, self._after(ended))

    def _after(self, ended: int) -> ClusterSnapshot:
        return without_claims(self.now, (held for _, held in self._ends[:ended]))


def _delaying(
    placements: Sequence[Placement],
    behind: Sequence[WaitingJob],
    head: ResourceRequest,
    reserved: _Reservation,
    place: Place,
) -> set[str]:
    """Return the keys of those that would still run when the head starts, and take its room."""
    jobs = {job.request.key: job for job in behind}
    late: set[str] = set()
    then = reserved.snapshot
    for placement in placements:
        job = jobs[placement.key]
        if reserved.now_s + job.expected_s <= reserved.at_s:
            continue
        with_it = with_claims(then, [(job.request, placement.replicas)])
        if place([head], with_it).placements:
            then = with_it
        else:
            late.add(placement.key)
    return late


def _held(
    placements: Sequence[Placement], requests: Sequence[ResourceRequest]
) -> list[tuple[ResourceRequest, tuple[ReplicaPlacement, ...]]]:
    by_key = {request.key: request for request in requests}
    return [(by_key[one.key], one.replicas) for one in placements]


#: By the name that a person gives.
QUEUE_POLICIES: Final[dict[str, QueuePolicy]] = {
    policy.name: policy for policy in (Greedy(), Fifo(), ShortestFirst(), Easy())
}
