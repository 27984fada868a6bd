"""The swarm and its placer: what holds whatever the problem."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.core.errors import BadProblemError
from cluster.core.placement.baselines import HEURISTICS
from cluster.core.placement.bound import hosts_bound
from cluster.core.placement.catalogue import placer_named, placer_names
from cluster.core.placement.options import PlacerOptions
from cluster.core.placement.packing import pack
from cluster.core.placement.planner import QueuePlanner
from cluster.core.placement.problem import Objective, ObjectiveWeights
from cluster.core.placement.pso import Swarm, SwarmSettings
from cluster.core.placement.search import Search
from cluster.core.placement.swarm import PlacerSettings, SwarmPlacer
from cluster.core.placement.verify import verify
from cluster.core.resources import (
    ClusterSnapshot,
    GpuState,
    GpuUuid,
    HostName,
    HostState,
    Placement,
    Plan,
    ReplicaPlacement,
    ResourceRequest,
    Spread,
)

NOW = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)
MODELS = ("A100", "T4")


def host(name: str, *, gpus: int = 0, model: str = "T4", cpu: int = 8000) -> HostState:
    return HostState(
        name=HostName(name),
        cpu_millis=cpu,
        memory_mib=8000,
        zone=name[:1],
        gpus=tuple(
            GpuState(uuid=GpuUuid(f"{name}/{at}"), model=model, memory_total_mib=16_000)
            for at in range(gpus)
        ),
    )


@st.composite
def problems(draw: st.DrawFn) -> tuple[list[ResourceRequest], ClusterSnapshot]:
    hosts = tuple(
        host(
            f"{draw(st.sampled_from('ab'))}{at}",
            gpus=draw(st.integers(0, 4)),
            model=draw(st.sampled_from(MODELS)),
            cpu=draw(st.sampled_from([4000, 8000])),
        )
        for at in range(draw(st.integers(1, 6)))
    )
    requests = [
        ResourceRequest(
            key=f"r{at}",
            cpu_millis=draw(st.sampled_from([500, 1000, 3000])),
            memory_mib=draw(st.sampled_from([100, 2000])),
            gpus=draw(st.integers(0, 2)),
            gpu_share_milli=draw(st.sampled_from([None, 300, 500, 1000])),
            gpu_memory_mib=draw(st.sampled_from([None, 4000, 9000])),
            gpu_models=draw(st.sampled_from([frozenset(), frozenset({"T4"})])),
            replicas=draw(st.sampled_from([1, 1, 1, 2, 3])),
            spread=draw(st.sampled_from([Spread.ANY, Spread.ANY, Spread.PACK, Spread.SPREAD])),
            anti_affinity=draw(st.sampled_from(["", "", "", "web"])),
            same_zone=draw(st.booleans()),
        )
        for at in range(draw(st.integers(0, 12)))
    ]
    return requests, ClusterSnapshot(taken_at=NOW, hosts=hosts)


@pytest.mark.parametrize("name", ["swarm", "first-fit", "bfd-scarce", "random"])
@settings(max_examples=40, deadline=None)
@given(problem=problems())
def test_every_plan_passes_a_count_that_did_not_make_it(
    name: str, problem: tuple[list[ResourceRequest], ClusterSnapshot]
) -> None:
    requests, snapshot = problem

    verify(placer_named(name, PlacerOptions(moves=1000)).place(requests, snapshot), *problem)
    verify(QueuePlanner(PlacerOptions(moves=1000)).place(requests, snapshot), *problem)


@settings(max_examples=25, deadline=None)
@given(problem=problems(), objective=st.sampled_from(Objective), seed=st.integers(0, 3))
def test_equal_seeds_give_equal_plans_and_cost_never_rises(
    problem: tuple[list[ResourceRequest], ClusterSnapshot], objective: Objective, seed: int
) -> None:
    def run(moves: int) -> Plan:
        options = PlacerOptions(objective=objective, moves=moves, seed=seed)
        return SwarmPlacer(options).place(*problem)

    short, again, longer = run(500), run(500), run(4000)

    assert again.placements == short.placements
    assert longer.report is not None
    assert short.report is not None
    assert len(longer.deferred) <= len(short.deferred) or objective is Objective.GPU
    if len(longer.deferred) == len(short.deferred):
        assert longer.report.cost <= short.report.cost + 1e-9


@settings(max_examples=40, deadline=None)
@given(problem=problems())
def test_no_placer_needs_fewer_hosts_than_the_bound(
    problem: tuple[list[ResourceRequest], ClusterSnapshot],
) -> None:
    requests, snapshot = problem
    bound = hosts_bound(pack(requests, snapshot))

    for name in ("swarm", "ffd-gpu", "bfd"):
        plan = placer_named(name, PlacerOptions(moves=1000)).place(requests, snapshot)
        assert plan.report is not None
        if not plan.deferred:
            assert plan.report.hosts_active >= bound


def crowd(count: int) -> tuple[list[ResourceRequest], ClusterSnapshot]:
    """Return hosts of two kinds and requests that fill about half of them."""
    hosts = tuple(host(f"h{at}", gpus=4 if at % 2 else 2, cpu=16_000) for at in range(count))
    random = np.random.default_rng(5)
    sizes = random.choice([1000, 2000, 5000], 2 * count)
    gpus = random.choice([0, 1, 1, 2], 2 * count)
    requests = [
        ResourceRequest(
            key=f"r{at}",
            cpu_millis=int(sizes[at]),
            memory_mib=500,
            gpus=int(gpus[at]),
            gpu_share_milli=500 if gpus[at] == 1 and at % 3 == 0 else None,
        )
        for at in range(2 * count)
    ]
    return requests, ClusterSnapshot(taken_at=NOW, hosts=hosts)


def test_the_swarm_is_never_worse_than_a_heuristic() -> None:
    problem = crowd(30)

    plan = SwarmPlacer(PlacerOptions(moves=20_000)).place(*problem)

    assert plan.report is not None
    assert not plan.deferred
    for heuristic in HEURISTICS.values():
        other = heuristic.place(*problem)
        assert other.report is not None
        assert other.deferred or plan.report.hosts_active <= other.report.hosts_active


@pytest.mark.parametrize(
    "settings_",
    [
        PlacerSettings(),
        PlacerSettings(swarming=False),
        PlacerSettings(warm=False),
        PlacerSettings(use_prices=False),
        PlacerSettings(search=False),
        PlacerSettings(combine_at=0.0),
    ],
    ids=["all", "drawn", "cold", "unpriced", "alone", "columns"],
)
def test_every_part_can_be_left_out_and_the_plan_holds(settings_: PlacerSettings) -> None:
    problem = crowd(400)

    plan = SwarmPlacer(PlacerOptions(moves=40_000), settings=settings_).place(*problem)

    verify(plan, *problem)
    assert not plan.deferred


def test_a_plan_that_meets_the_bound_says_that_it_is_proven() -> None:
    hosts = tuple(host(f"h{at}", gpus=1) for at in range(5))
    requests = [
        ResourceRequest(key=str(at), cpu_millis=100, memory_mib=1, gpus=1) for at in range(3)
    ]

    plan = SwarmPlacer(PlacerOptions(moves=5000)).place(
        requests, ClusterSnapshot(taken_at=NOW, hosts=hosts)
    )

    assert plan.report is not None
    assert plan.report.proven
    assert plan.report.hosts_active == 3


def test_a_queue_is_served_in_its_order_even_where_more_gpus_could_be_placed() -> None:
    one = ClusterSnapshot(taken_at=NOW, hosts=(host("h", gpus=4),))
    small = ResourceRequest(key="small", cpu_millis=100, memory_mib=1, gpus=1)
    large = ResourceRequest(key="large", cpu_millis=100, memory_mib=1, gpus=4)

    plan = QueuePlanner(PlacerOptions(moves=2000)).place([small, large], one)

    assert [placement.key for placement in plan.placements] == ["small"]
    most = SwarmPlacer(PlacerOptions(moves=2000, objective=Objective.GPU)).place(
        [small, large], one
    )
    assert [placement.key for placement in most.placements] == ["large"]


def test_what_was_placed_in_turn_is_packed_anew() -> None:
    """In turn the third opens a third host; together they fill two."""
    hosts = tuple(host(f"h{at}", cpu=4000) for at in range(4))
    requests = [
        ResourceRequest(key=str(at), cpu_millis=size, memory_mib=10)
        for at, size in enumerate((2000, 1000, 3000, 2000))
    ]
    snapshot = ClusterSnapshot(taken_at=NOW, hosts=hosts)

    plan = QueuePlanner(PlacerOptions(moves=5000)).place(requests, snapshot)

    in_turn = HEURISTICS["best-fit"].place(requests, snapshot)
    assert in_turn.report is not None
    assert plan.report is not None
    assert (in_turn.report.hosts_active, plan.report.hosts_active) == (3, 2)
    assert plan.report.reason == "the best packing of all that was placed with it"


def test_data_that_is_there_draws_what_needs_it() -> None:
    hosts = tuple(host(f"h{at}") for at in range(4))
    request = ResourceRequest(
        key="r",
        cpu_millis=100,
        memory_mib=1,
        data_mib=4096,
        data_hosts=frozenset({HostName("h2")}),
    )

    plan = SwarmPlacer(PlacerOptions(objective=Objective.MOVE, moves=2000)).place(
        [request], ClusterSnapshot(taken_at=NOW, hosts=hosts)
    )

    assert plan.placements[0].replicas[0].host == "h2"


def test_balance_spreads_what_hosts_packs() -> None:
    hosts = tuple(host(f"h{at}") for at in range(4))
    requests = [ResourceRequest(key=str(at), cpu_millis=2000, memory_mib=2000) for at in range(4)]

    def used(objective: Objective) -> int:
        plan = SwarmPlacer(PlacerOptions(objective=objective, moves=4000)).place(
            requests, ClusterSnapshot(taken_at=NOW, hosts=hosts)
        )
        return len({one.replicas[0].host for one in plan.placements})

    assert used(Objective.HOSTS) == 1
    assert used(Objective.BALANCE) == 4


def test_ten_thousand_wait_on_a_thousand_hosts_and_the_plan_holds() -> None:
    requests, snapshot = crowd(1000)
    requests = [
        ResourceRequest(
            key=f"{turn}-{one.key}",
            cpu_millis=one.cpu_millis + turn,
            memory_mib=one.memory_mib,
            gpus=one.gpus,
            gpu_share_milli=one.gpu_share_milli,
        )
        for turn in range(5)
        for one in requests
    ]

    plan = QueuePlanner(PlacerOptions(moves=20_000)).place(requests, snapshot)

    verify(plan, requests, snapshot)
    assert plan.deferred
    assert all(deferral.text for deferral in plan.deferred)


def test_there_is_a_placer_for_every_name() -> None:
    requests, snapshot = crowd(4)

    for name in placer_names():
        verify(
            placer_named(name, PlacerOptions(moves=200)).place(requests, snapshot),
            requests,
            snapshot,
        )


def sphere(positions: np.ndarray) -> np.ndarray:
    costs: np.ndarray = (positions**2).sum(axis=1)
    return costs


def test_the_swarm_finds_the_bottom_of_a_bowl_and_its_best_never_rises() -> None:
    swarm = Swarm(dimension=5, size=20, seed=1)
    bests = []
    for _ in range(150):
        swarm.tell(sphere(swarm.ask()))
        bests.append(swarm.best_cost)

    assert bests == sorted(bests, reverse=True)
    assert swarm.best_cost < 1e-3
    assert sphere(swarm.best_position[None])[0] == swarm.best_cost


def test_equal_seeds_move_alike_and_others_do_not() -> None:
    def path(seed: int) -> np.ndarray:
        swarm = Swarm(dimension=3, size=6, seed=seed)
        for _ in range(10):
            swarm.tell(sphere(swarm.ask()))
        return swarm.positions

    assert (path(4) == path(4)).all()
    assert not (path(4) == path(5)).all()


def test_a_swarm_that_has_collapsed_is_scattered() -> None:
    start = np.zeros((10, 4))
    settings_ = SwarmSettings(patience=2, collapse=0.5)
    swarm = Swarm(dimension=4, size=10, seed=2, start=start, settings=settings_)
    swarm.velocities[:] = 0.0

    diversities = []
    for _ in range(4):
        swarm.tell(np.ones(len(swarm.ask())))
        diversities.append(swarm.diversity)

    assert diversities[0] == 0.0
    assert max(diversities) > 0.3


def test_a_swarm_refuses_what_it_cannot_use() -> None:
    with pytest.raises(BadProblemError, match="at least one"):
        Swarm(dimension=0, size=3, seed=1)
    with pytest.raises(BadProblemError, match="start"):
        Swarm(dimension=2, size=1, seed=1, start=np.zeros((2, 2)))
    swarm = Swarm(dimension=2, size=3, seed=1)
    with pytest.raises(BadProblemError, match="after ask"):
        swarm.tell(np.zeros(3))
    swarm.ask()
    with pytest.raises(BadProblemError, match="tell the costs"):
        swarm.ask()
    swarm.tell(np.array([np.nan, 1.0, 2.0]))
    assert swarm.best_cost == 1.0


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        ([], "neither placed nor deferred"),
        ([("r", "nowhere", ())], "no host"),
        ([("r", "h", ())], "asks for 1 GPU"),
        ([("r", "h", ("h/9",))], "which h has not"),
        ([("r", "h", ("h/0",)), ("r", "h", ("h/1",))], "2 times"),
        ([("who", "h", ())], "nobody asked"),
        ([("r", "h", ("h/0",)), ("s", "h", ("h/0",))], "2000 thousandths"),
    ],
)
def test_the_count_names_what_is_wrong_with_a_plan(
    broken: list[tuple[str, str, tuple[str, ...]]], words: str
) -> None:
    requests = [ResourceRequest(key="r", cpu_millis=1, memory_mib=1, gpus=1)]
    if any(key == "s" for key, _, _ in broken):
        requests.append(ResourceRequest(key="s", cpu_millis=1, memory_mib=1, gpus=1))
    plan = Plan(
        placements=tuple(
            Placement(
                key=key,
                replicas=(
                    ReplicaPlacement(
                        rank=0, host=HostName(name), gpus=tuple(GpuUuid(one) for one in gpus)
                    ),
                ),
            )
            for key, name, gpus in broken
        )
    )

    with pytest.raises(BadProblemError, match=words):
        verify(plan, requests, ClusterSnapshot(taken_at=NOW, hosts=(host("h", gpus=2),)))


def test_a_search_never_loses_a_replica() -> None:
    requests, snapshot = crowd(20)
    packing = pack(requests, snapshot)
    search = Search(
        packing,
        counts=packing.counts,
        base=packing.host,
        weights=ObjectiveWeights.of(Objective.HOSTS),
    )
    solution = search.empty()
    search.decode(search.start_positions()[0], solution)
    search.open(solution)
    for _ in range(20):
        search.improve(solution, PlacerSettings().moves, 500)
        held = solution.unplaced.copy()
        for at in range(len(solution.slots)):
            for slot in range(solution.slots[at]):
                held[solution.slot_class[at, slot]] += solution.slot_count[at, slot]
        assert (held == packing.counts).all()
        assert (solution.cpu >= 0).all()
        assert (solution.share[packing.host.share >= 0] >= 0).all()


WITHOUT_NUMBA = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "numba":
            raise ModuleNotFoundError("No module named 'numba'")

sys.meta_path.insert(0, Absent())
import importlib.util
real = importlib.util.find_spec
importlib.util.find_spec = lambda name, *more: None if name == "numba" else real(name, *more)
from tests.unit.core.test_swarm import crowd
from cluster.core.placement.compiled import COMPILED
from cluster.core.placement.options import PlacerOptions
from cluster.core.placement.swarm import SwarmPlacer

plan = SwarmPlacer(PlacerOptions(moves=200)).place(*crowd(12))
print(COMPILED, "numba" in sys.modules, [str(one) for one in plan.placements])
"""


def test_without_the_compiler_the_plan_is_the_same() -> None:
    shown = subprocess.run(
        [sys.executable, "-c", WITHOUT_NUMBA],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[3],
    )

    plan = SwarmPlacer(PlacerOptions(moves=200)).place(*crowd(12))
    placements = [str(one) for one in plan.placements]
    assert shown.stdout.strip() == f"False False {placements}"
