"""What the policy of GPU states is compared with: hands, queues, and sharing by simpler rules."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.pair_tables import PairData
from cluster.core.policy.queue import Place, Queue, RunningJob, WaitingJob
from cluster.core.resources import GpuUuid, HostName, Placement, Plan, ReplicaPlacement

Card = tuple[HostName, GpuUuid]


@dataclass(frozen=True, slots=True, kw_only=True)
class ByHand:
    """Each job belongs to one GPU from the start, and waits there for its turn.

    Attributes:
        gpu_of: Number of the GPU by the job's key.
    """

    gpu_of: Mapping[str, int]
    name: str = "static"

    def plan(self, queue: Queue, place: Place) -> Plan:
        """Return the next job of every idle GPU."""
        del place
        cards = _cards(queue)
        busy = set(_tenants(queue))
        placements = []
        for job in queue.waiting:
            card = cards[self.gpu_of[job.request.key]]
            if card not in busy:
                busy.add(card)
                placements.append(_on(job, card))
        return Plan(placements=tuple(placements))


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharing:
    """Idle GPUs first, in the order of the queue; then the first GPU where the rule lets it in.

    Attributes:
        order: The first of the queue is the one with the smallest.
        allowed: Whether a waiting job may join a running one; memory is looked at before.
    """

    name: str
    data: PairData
    kind_of: Mapping[str, str]
    order: Callable[[WaitingJob], float]
    allowed: Callable[[WaitingJob, RunningJob], bool]

    def plan(self, queue: Queue, place: Place) -> Plan:
        """Return what starts now."""
        del place
        tenants: dict[Card, list[RunningJob | WaitingJob]] = {
            card: list(jobs) for card, jobs in _tenants(queue).items()
        }
        placements = []
        for job in sorted(queue.waiting, key=self.order):
            card = self._card(job, _cards(queue), tenants)
            if card is not None:
                tenants.setdefault(card, []).append(job)
                placements.append(_on(job, card))
        return Plan(placements=tuple(placements))

    def _card(
        self,
        job: WaitingJob,
        cards: Sequence[Card],
        tenants: Mapping[Card, Sequence[RunningJob | WaitingJob]],
    ) -> Card | None:
        for card in cards:
            if not tenants.get(card):
                return card
        for card in cards:
            there = tenants[card]
            if len(there) == 1 and isinstance(there[0], RunningJob) and self._joins(job, there[0]):
                return card
        return None

    def _joins(self, job: WaitingJob, other: RunningJob) -> bool:
        mine, theirs = self.kind_of[job.request.key], self.kind_of[other.request.key]
        memory = self.data.memory_mib[mine] + self.data.memory_mib[theirs]
        fits = memory <= self.data.gpu_memory_mib and self.data.measured(mine, theirs)
        return fits and self.allowed(job, other)


def _cards(queue: Queue) -> list[Card]:
    return [(host.name, gpu.uuid) for host in queue.snapshot.hosts for gpu in host.gpus]


def _tenants(queue: Queue) -> dict[Card, list[RunningJob]]:
    found: dict[Card, list[RunningJob]] = {}
    for job in queue.running:
        for replica in job.replicas:
            for uuid in replica.gpus:
                found.setdefault((replica.host, uuid), []).append(job)
    return found


def _on(job: WaitingJob, card: Card) -> Placement:
    replica = ReplicaPlacement(rank=0, host=card[0], gpus=(card[1],))
    return Placement(key=job.request.key, replicas=(replica,))
