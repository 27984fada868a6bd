"""Loads, and where needed compiles, everything a placement uses, before time is measured."""

import numpy as np

from cluster.core.placement.baselines import HEURISTICS
from cluster.core.placement.bound import hosts_bound, prices
from cluster.core.placement.columns import Columns
from cluster.core.placement.files import EPOCH
from cluster.core.placement.options import PlacerOptions
from cluster.core.placement.packing import pack
from cluster.core.placement.planner import QueuePlanner
from cluster.core.placement.problem import Objective, ObjectiveWeights
from cluster.core.placement.search import Search
from cluster.core.placement.swarm import SwarmPlacer
from cluster.core.resources import (
    ClusterSnapshot,
    GpuState,
    GpuUuid,
    HostName,
    HostState,
    ResourceRequest,
)


def warm_up(*, programs: bool = True) -> None:
    """Place a handful of requests every way there is.

    Args:
        programs: Whether HiGHS is started, too. Not before a process forks: it has threads.
    """
    hosts = tuple(
        HostState(
            name=HostName(name),
            cpu_millis=4000,
            memory_mib=4000,
            gpus=(GpuState(uuid=GpuUuid(name), model="any", memory_total_mib=1000),),
        )
        for name in ("one", "two", "three")
    )
    requests = [
        ResourceRequest(key=str(number), cpu_millis=1000, memory_mib=900, gpus=number % 2)
        for number in range(5)
    ]
    snapshot = ClusterSnapshot(taken_at=EPOCH, hosts=hosts)
    HEURISTICS["bfd"].place(requests, snapshot)
    QueuePlanner(PlacerOptions(moves=1)).place(requests, snapshot)
    packing = pack(requests, snapshot)
    search = Search(
        packing,
        counts=packing.counts,
        base=packing.host,
        weights=ObjectiveWeights.of(Objective.HOSTS),
    )
    made, columns = search.empty(), Columns(search)
    search.decode(np.zeros(search.dimension), made)
    columns.add(made)
    if programs:
        columns.combine(np.zeros(search.dimension), made, seconds=1.0)
        prices(packing)
        hosts_bound(packing)
        for objective in Objective:
            SwarmPlacer(PlacerOptions(moves=1, objective=objective)).place(requests, snapshot)
