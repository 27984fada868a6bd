"""One packing being searched: the arrays that kernels work on, and what they are asked to do."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from cluster.core.placement import kernels, neighbourhood
from cluster.core.placement.bound import Prices, default_prices
from cluster.core.placement.kernels import Solution, Terms
from cluster.core.placement.neighbourhood import Board, Moves
from cluster.core.placement.packing import ClassArrays, HostArrays, Packing
from cluster.core.placement.problem import ObjectiveWeights

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


def empty_solution(hosts: HostArrays, classes: ClassArrays, counts: Ints) -> Solution:
    """Return a solution in which nothing is placed yet."""
    depth = slot_depth(hosts, classes, counts)
    shape = (len(hosts.cpu), depth)
    return Solution(
        cpu=hosts.cpu.copy(),
        memory=hosts.memory.copy(),
        share=hosts.share.copy(),
        gpu_memory=hosts.gpu_memory.copy(),
        slots=np.zeros(len(hosts.cpu), np.int64),
        slot_class=np.zeros(shape, np.int64),
        slot_mask=np.zeros(shape, np.int64),
        slot_count=np.zeros(shape, np.int64),
        unplaced=counts.copy(),
    )


def slot_depth(hosts: HostArrays, classes: ClassArrays, counts: Ints) -> int:
    """Return how many slots one host can need: a class without GPUs takes one, whatever its count."""
    with_gpu = classes.gpus > 0
    plain = int((~with_gpu & (counts > 0)).sum())
    if not with_gpu.any():
        return max(1, plain)
    smallest = max(1, int((classes.share * classes.gpus)[with_gpu].min()))
    free = int(np.maximum(hosts.share, 0).sum(axis=1).max(initial=0))
    return max(1, plain + min(free // smallest + 1, int(counts[with_gpu].sum())))
