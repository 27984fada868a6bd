"""The question every placer answers, and the room that is left while it is being answered."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from cluster.core.resources import ClusterSnapshot, Plan, ResourceRequest


class Placer(Protocol):
    """Maps requests to hosts and GPUs; pure, and equal input gives an equal plan.

    A student can write one in a file and compare it with ours.
    """

    @property
    def name(self) -> str:
        """Return the name that tables and pages show."""
        ...

    def place(self, requests: Sequence[ResourceRequest], snapshot: ClusterSnapshot) -> Plan:
        """Return a plan in which every request is either placed whole or deferred with a reason.

        The requests come in queue order. No placement may exceed what the snapshot says is free.
        """
        ...


class Objective(StrEnum):
    """What a plan is good for, once everything that can be placed is placed."""

    HOSTS = "hosts"  # fewest active hosts
    BALANCE = "balance"  # hosts and resources equally used
    FRAGMENTATION = "fragmentation"  # least free GPU that nothing asked for could use
    GPU = "gpu"  # most GPU placed, when not everything can be
    MOVE = "move"  # fewest bytes fetched before the start


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectiveWeights:
    """What one unit of each term costs; a placer minimises their weighted sum.

    Feasibility is no term: no plan exceeds a capacity. What is left out comes first whatever
    the weights: a plan that places more GPU is better.

    Attributes:
        hosts: Per host that holds anything.
        balance: Per host and resource, the squared distance of its used fraction from the
            cluster's; 1 is a resource idle on one host while the rest is full.
        fragmentation: Per GPU (1000 thousandths) that is free and that a request drawn from the
            queue could not use (Weng et al., ATC'23).
        move: Per GiB that a host must fetch before a replica can start.
    """

    hosts: float = 0.0
    balance: float = 0.0
    fragmentation: float = 0.0
    move: float = 0.0

    @classmethod
    def of(cls, objective: Objective) -> "ObjectiveWeights":
        """Return the weights that stand for one objective by name."""
        return _WEIGHTS[objective]


_WEIGHTS = {
    Objective.HOSTS: ObjectiveWeights(hosts=1.0),
    Objective.BALANCE: ObjectiveWeights(balance=1.0),
    Objective.FRAGMENTATION: ObjectiveWeights(fragmentation=1.0),
    Objective.GPU: ObjectiveWeights(),
    Objective.MOVE: ObjectiveWeights(move=1.0),
}


def weights_of(objective: Objective | ObjectiveWeights) -> ObjectiveWeights:
    """Return the weights of an objective given by name or by its weights."""
    if isinstance(objective, ObjectiveWeights):
        return objective
    return ObjectiveWeights.of(objective)


def objective_name(objective: Objective | ObjectiveWeights) -> str:
    """Return the name that reports show."""
    return objective.value if isinstance(objective, Objective) else "weighted"
