"""One packing being searched: the arrays that kernels work on, and what they are asked to do."""


import numpy as np
from numpy.typing import NDArray

from cluster.core.placement.kernels import Solution
from cluster.core.placement.packing import ClassArrays, HostArrays

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
    """Return how many slots one host can need.

    A class without GPUs takes one slot at most, whatever its count; of those with GPUs no more
    fit than the smallest ones would, by the GPUs and by the CPU of the largest host.
    """
    with_gpu = (classes.gpus > 0) & (counts > 0)
    plain = ~with_gpu & (counts > 0)
    free_gpu = int(np.maximum(hosts.share, 0).sum(axis=1).max(initial=0))
    free_cpu = int(hosts.cpu.max(initial=0))
    shares = classes.share * classes.gpus
    return (
        1
        + min(
            _most(shares[with_gpu], counts[with_gpu], free_gpu),
            _most(classes.cpu[with_gpu], counts[with_gpu], free_cpu),
        )
        + min(int(plain.sum()), _most(classes.cpu[plain], counts[plain], free_cpu))
    )


def _most(sizes: Ints, counts: Ints, capacity: int) -> int:
    """Return how many fit at most when the smallest are taken first."""
    order = np.argsort(sizes, kind="stable")
    placed = 0
    for size, count in zip(sizes[order].tolist(), counts[order].tolist(), strict=True):
        fits = count if size == 0 else min(count, capacity // size)
        placed += fits
        capacity -= fits * size
        if fits < count:
            break
    return placed
