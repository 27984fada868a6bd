"""Why a request was not placed: the constraint that binds, once per class of equal requests."""

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cluster.core.placement import sentences
from cluster.core.placement.kernels import Solution
from cluster.core.placement.packing import Ints, Packing
from cluster.core.placement.sentences import Short
from cluster.core.resources import (
    WHOLE_GPU_MILLI,
    Constraint,
    Deferral,
    ResourceRequest,
    Spread,
)

Truths = NDArray[np.bool_]


class _Shape(NamedTuple):
    """What, beside the class, decides why a request waits."""

    class_: int
    replicas: int
    spread: Spread
    same_zone: bool
    label: str


@dataclass(frozen=True, slots=True)
class _Hosts:
    """The hosts that a request may use, and the most that one of them has free."""

    allowed: Truths
    up: Ints
    most_cpu: int
    most_memory: int


class Reasons:
    """Answers for one plan; equal requests share an answer.

    Args:
        packing: The problem.
        solution: What is left of the hosts once the plan is applied.
    """

    def __init__(self, packing: Packing, solution: Solution) -> None:
        self.packing, self.solution = packing, solution
        self._known: dict[_Shape, Deferral] = {}
        self._hosts: dict[tuple[object, object], _Hosts] = {}
        self._gpus: dict[tuple[object, ...], Short | None] = {}
        self._schedulable = np.array([host.schedulable for host in packing.hosts], bool)
        # Hosts that are equal when empty are one make: there are few.
        whole = np.hstack(
            [
                packing.host.total,
                packing.host.zone[:, None],
                packing.host.model,
                packing.gpu_memory_total,
            ]
        )
        _, self._first, self._make = np.unique(
            whole, axis=0, return_index=True, return_inverse=True
        )

    def why(self, request: int) -> Deferral:
        """Return why the request of this number waits: the last filter that no host passes.

        The filters are asked in the order in which a person would mend them: is there a host,
        may the job go there, does it answer, has it the kind of GPU, then how much is free.
        """
        asked = self.packing.requests[request]
        shape = _Shape(
            int(self.packing.request_class[request]),
            asked.replicas,
            asked.spread,
            asked.same_zone,
            asked.anti_affinity,
        )
        if shape not in self._known:
            self._known[shape] = self._find(asked, shape.class_)
        return replace(self._known[shape], key=asked.key)

    def _find(self, request: ResourceRequest, class_: int) -> Deferral:
        hosts = self.packing.hosts
        if not hosts:
            return sentences.no_host(request)
        among = self._among(request)
        if not among.allowed.any():
            return sentences.not_allowed(request, len(hosts))
        up = among.allowed & self._schedulable
        # What fits on a host as it is needs no second look; neither do hosts that are all up.
        fits = request.replicas == 1 and bool(self.packing.classes.fits[class_].any())
        ever = fits or self._holds(request, class_, among.allowed)
        all_up = len(among.up) == int(among.allowed.sum())
        if not len(among.up) or (
            ever and not fits and not all_up and not self._holds(request, class_, up)
        ):
            down = [hosts[at] for at in np.flatnonzero(among.allowed & ~up).tolist()]
            counts = {"hosts": int(among.allowed.sum()), "hosts_up": len(among.up)}
            return sentences.hosts_down(request, down, counts, ever=ever)
        constraint, text, evidence = self._short(request, class_, among)
        return Deferral(
            key=request.key, constraint=constraint, text=text, ever=ever, evidence=evidence
        )

    def _among(self, request: ResourceRequest) -> _Hosts:
        key = (request.hosts_allowed, request.hosts_excluded)
        if key not in self._hosts:
            allowed = np.array(
                [
                    (request.hosts_allowed is None or host.name in request.hosts_allowed)
                    and host.name not in request.hosts_excluded
                    for host in self.packing.hosts
                ]
            )
            up = np.flatnonzero(allowed & self._schedulable)
            self._hosts[key] = _Hosts(
                allowed,
                up,
                int(self.solution.cpu[up].max(initial=0)),
                int(self.solution.memory[up].max(initial=0)),
            )
        return self._hosts[key]

    def _holds(self, request: ResourceRequest, class_: int, among: Truths) -> bool:
        """Return whether these hosts could hold the whole gang when nothing else ran on them."""
        packing, first = self.packing, self._first
        count = np.bincount(self._make[among], minlength=len(first))
        each = np.full(len(first), request.replicas)
        for column, size in ((0, request.cpu_millis), (1, request.memory_mib)):
            if size:
                each = np.minimum(each, packing.host.total[first, column] // size)
        if request.gpus:
            memory = packing.gpu_memory_total[first]
            suits = self._of_model(class_, first) & (memory >= (request.gpu_memory_mib or 0))
            per_gpu = np.full(suits.shape, WHOLE_GPU_MILLI // request.share_milli)
            if not request.whole_gpus and request.gpu_memory_mib:
                per_gpu = np.minimum(per_gpu, memory // request.gpu_memory_mib)
            places = np.where(suits, np.minimum(per_gpu, request.replicas), 0)
            enough = suits.sum(axis=1) >= request.gpus
            each = np.where(enough, np.minimum(each, places.sum(axis=1) // request.gpus), 0)
        if request.spread is Spread.PACK:
            return bool((each[count > 0] >= request.replicas).any())
        if request.spread is Spread.SPREAD:
            each = np.minimum(each, 1)
        if request.same_zone:
            by_zone = np.bincount(packing.host.zone[first], weights=each * count)
            return bool((by_zone >= request.replicas).any())
        return bool((each * count).sum() >= request.replicas)

    def _of_model(self, class_: int, hosts: Ints) -> Truths:
        model = self.packing.host.model[hosts]
        accepts = self.packing.classes.accepts[class_]
        if not len(accepts):
            return np.zeros(model.shape, bool)
        suits: Truths = (model >= 0) & (accepts[np.maximum(model, 0)] > 0)
        return suits

    def _short(self, request: ResourceRequest, class_: int, among: _Hosts) -> Short:
        if request.gpus:
            accepts = self.packing.classes.accepts[class_].tobytes()
            memory, share = request.gpu_memory_mib, request.gpu_share_milli
            key = (id(among), request.gpus, memory, share, request.gpu_models, accepts)
            if key not in self._gpus:
                self._gpus[key] = self._gpu_short(request, class_, among.up)
            found = self._gpus[key]
            if found is not None:
                return found
        for constraint, asked, free in (
            (Constraint.CPU, request.cpu_millis, among.most_cpu),
            (Constraint.MEMORY, request.memory_mib, among.most_memory),
        ):
            if asked > free:
                return sentences.amount_short(constraint, asked, free)
        return sentences.shape_short(request)

    def _gpu_short(self, request: ResourceRequest, class_: int, up: Ints) -> Short | None:
        """Return what is wrong about the GPUs alone, or ``None`` when some host has enough."""
        of_model = self._of_model(class_, up)
        if not of_model.any() and (request.gpu_model or request.gpu_models):
            return sentences.model_missing(request)
        free = (
            of_model
            & (self.solution.share[up] >= request.share_milli)
            & (self.solution.gpu_memory[up] >= (request.gpu_memory_mib or 0))
        )
        most_free = int(free.sum(axis=1).max())
        if most_free >= request.gpus:
            return None
        healthy = int((of_model & (self.packing.host.share[up] >= 0)).sum(axis=1).max())
        present = int(of_model.sum(axis=1).max())
        return sentences.gpus_short(request, free=most_free, healthy=healthy, present=present)
