"""A proven lower bound on the hosts a plan needs, and the prices that come with it.

The bound relaxes placement to flows: how many replicas of each class go to each kind of host, and
how many hosts of each kind are opened, so that no kind's summed demand exceeds its summed
capacity. Dual-feasible functions (Fekete and Schepers 2001) sharpen each capacity row: a function
that never lets the sum over one host exceed 1 may replace the sizes. With whole numbers of hosts
the program's optimum is still no larger than what any plan needs.

The dual value of a class is the share of a host that one replica of it stands for at the optimum;
the reduced cost of a flow says how badly a class lies on a kind of host. Both steer the search.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from cluster.core.placement.packing import HostArrays, Packing

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: Above this many flows the program costs more than it is worth within a pass.
MAX_FLOWS: Final = 60_000
_EPSILON: Final = 1e-6
#: What a flow costs in seconds, with the functions and without; measured on one core.
_SHARPENED_S: Final = 2.5e-5
_PLAIN_S: Final = 8e-6
_WHOLE: Final = 1000
#: Which functions of Fekete and Schepers are tried: few for prices, many for the bound.
_FEW: Final = (1, 2, 3, 4, 5, 7)
_MANY: Final = (*range(1, 16), 17, 19, 23, 29, 31)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """What the relaxed program says.

    Attributes:
        bound: The relaxed optimum: hosts opened (``hosts``), or GPU thousandths placed.
        price: Share of a host that a replica of each class stands for, [C].
        guide: Minus the reduced cost of a class on a kind of host, [C, K]; 0 is as good as any.
        opened: How many hosts of each kind the optimum opens, [K].
    """

    bound: float
    price: Floats
    guide: Floats
    opened: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class _Program:
    """Columns: flows class by class, then one column a kind for its open hosts."""

    flows: Ints  # [F, 2] class and kind
    rows: Any  # sparse [R, F + K], each row <= 0 but for the constant part of hosts in use
    limit: Floats  # [R]
    demand: Any  # sparse [C, F + K]
    open_limit: Floats  # [K]
    opening: Floats  # [K] cost of a host


def hosts_bound(packing: Packing, *, seconds: float = 5.0) -> int:
    """Return a number of active hosts below which no plan for all requests can go.

    0 where the requests cannot all be placed even by the relaxation, or where the program is too
    large to be solved; hosts in use count as active.
    """
    from scipy import optimize

    program = _program(packing, _MANY)
    in_use = int(packing.host.used.sum())
    if program is None:
        return in_use if not len(packing.request_class) else 0
    flows, kinds = len(program.flows), len(packing.kinds)
    result = optimize.milp(
        np.concatenate([np.zeros(flows), program.opening]),
        constraints=[
            optimize.LinearConstraint(program.rows, -np.inf, program.limit),
            optimize.LinearConstraint(program.demand, packing.counts, packing.counts),
        ],
        bounds=optimize.Bounds(
            np.zeros(flows + kinds),
            np.concatenate([np.full(flows, np.inf), program.open_limit]),
        ),
        integrality=np.concatenate([np.zeros(flows), np.ones(kinds)]),
        options={"time_limit": seconds, "mip_rel_gap": 0.0},
    )
    proven = result.mip_dual_bound
    if proven is None or not math.isfinite(proven):
        return 0
    return in_use + math.ceil(float(proven) - _EPSILON)


def prices(
    packing: Packing, *, value: Floats | None = None, seconds: float = 0.5, sharp: bool = False
) -> Prices | None:
    """Return the relaxed optimum's prices, or ``None`` where there is none in time.

    Args:
        packing: The problem.
        value: With it, the program places the most value instead of everything on the fewest
            hosts; per replica of each class, [C].
        seconds: Time that the program may take.
        sharp: Whether the bound counts more than the time.
    """
    from scipy import optimize

    parts: Sequence[int] = _MANY
    if not sharp:
        flows = int((packing.classes.fits > 0).sum())
        parts = _FEW if value is None and flows * _SHARPENED_S <= seconds else ()
        if flows * _PLAIN_S > seconds:
            return None
    program = _program(packing, parts)
    if program is None:
        return None
    flows, kinds = len(program.flows), len(packing.kinds)
    if value is None:
        cost = np.concatenate([np.zeros(flows), program.opening])
        demand: dict[str, Any] = {"A_eq": program.demand, "b_eq": packing.counts}
        rows, limit = program.rows, program.limit
    else:
        from scipy import sparse

        cost = np.concatenate([-value[program.flows[:, 0]], np.zeros(kinds)])
        demand = {}
        rows = sparse.vstack([program.rows, program.demand], format="csr")
        limit = np.concatenate([program.limit, packing.counts])
    result = optimize.linprog(
        cost,
        A_ub=rows,
        b_ub=limit,
        bounds=np.column_stack(
            [
                np.zeros(flows + kinds),
                np.concatenate([np.full(flows, np.inf), program.open_limit]),
            ]
        ),
        method="highs",
        options={"time_limit": seconds},
        **demand,
    )
    if result.status != 0:
        return None
    reduced = np.asarray(result.lower.marginals)[:flows]
    guide = np.zeros((len(packing.classes.cpu), kinds))
    guide[program.flows[:, 0], program.flows[:, 1]] = -reduced
    if value is None:
        price = np.asarray(result.eqlin.marginals)
    else:
        price = value - _dual_of_demand(result, len(program.limit))
    return Prices(
        bound=float(abs(result.fun)),
        price=np.maximum(price, 0.0),
        guide=guide,
        opened=np.asarray(result.x)[flows:],
    )


def _dual_of_demand(result: Any, rows: int) -> Floats:
    """Return how much more each class would bring if there were one more of it, [C]."""
    dual: Floats = -np.asarray(result.ineqlin.marginals)[rows:]
    return dual


def _program(packing: Packing, parts: Sequence[int]) -> _Program | None:
    from scipy import sparse

    flows = np.argwhere(packing.classes.fits > 0).astype(np.int64)
    kinds, classes = len(packing.kinds), len(packing.classes.cpu)
    if not len(flows) or len(flows) > MAX_FLOWS:
        return None
    rows: list[Ints] = []
    columns: list[Ints] = []
    entries: list[Floats] = []
    limit: list[float] = []
    for kind in range(kinds):
        of_kind = np.flatnonzero(flows[:, 1] == kind)
        if not len(of_kind):
            continue
        host = int(packing.kinds[kind][0])
        for sizes, capacity in _rows_of(packing, flows[of_kind, 0], host, parts):
            held = np.flatnonzero(sizes)
            row = np.int64(len(limit))
            rows.append(np.full(len(held) + 1, row))
            columns.append(np.append(of_kind[held], len(flows) + kind))
            entries.append(np.append(sizes[held], -capacity))
            limit.append(0.0)
    shape = (len(limit), len(flows) + kinds)
    matrix = sparse.csr_matrix(
        (np.concatenate(entries), (np.concatenate(rows), np.concatenate(columns))), shape=shape
    )
    demand = sparse.csr_matrix(
        (np.ones(len(flows)), (flows[:, 0], np.arange(len(flows)))),
        shape=(classes, len(flows) + kinds),
    )
    used = np.array([packing.host.used[of_kind[0]] for of_kind in packing.kinds], np.float64)
    return _Program(
        flows=flows,
        rows=matrix,
        limit=np.array(limit),
        demand=demand,
        open_limit=np.array([len(of_kind) for of_kind in packing.kinds], np.float64),
        opening=1.0 - used,
    )


def _rows_of(
    packing: Packing, classes: Ints, host: int, parts: Sequence[int]
) -> Iterator[tuple[Floats, float]]:
    """Yield the capacity rows of one kind of host: sizes per class, and one host's capacity."""
    wanted, has = packing.classes, packing.host
    gpus, share = wanted.gpus[classes], wanted.share[classes]
    yield from _sharpened(wanted.cpu[classes], int(has.cpu[host]), parts)
    yield from _sharpened(wanted.memory[classes], int(has.memory[host]), parts)
    free = has.share[host][has.share[host] > 0]
    if not len(free) or not gpus.any():
        return
    yield from _sharpened(gpus * share, int(free.sum()), parts)
    memory = gpus * wanted.gpu_memory[classes]
    if memory.any():
        total = int(has.gpu_memory[host][has.share[host] > 0].sum())
        yield from _linear(memory, total)
    if (free == _WHOLE).all():
        for function in _functions(share, _WHOLE, parts):
            yield gpus * function, float(len(free))
    else:
        whole = np.where(share == _WHOLE, gpus, 0)
        yield whole.astype(np.float64), float((free == _WHOLE).sum())
    yield from _per_model(packing, classes, host)


def _per_model(packing: Packing, classes: Ints, host: int) -> Iterator[tuple[Floats, float]]:
    """Yield for a host with several models the room of each model's GPUs."""
    model, share = packing.host.model[host], packing.host.share[host]
    present = np.unique(model[(model >= 0) & (share > 0)])
    if len(present) < 2:
        return
    accepts = packing.classes.accepts[classes]
    for one in present:
        only = accepts[:, one].astype(bool) & (accepts[:, present].sum(axis=1) == 1)
        sizes = np.where(only, packing.classes.gpus[classes] * packing.classes.share[classes], 0)
        yield from _linear(sizes, int(share[(model == one) & (share > 0)].sum()))


def _linear(sizes: Ints, capacity: int) -> Iterator[tuple[Floats, float]]:
    if capacity > 0 and sizes.any():
        yield sizes / capacity, 1.0


def _sharpened(sizes: Ints, capacity: int, parts: Sequence[int]) -> Iterator[tuple[Floats, float]]:
    """Yield the row itself and its sharpenings, in units of one host."""
    if capacity <= 0 or not sizes.any():
        return
    yield from _linear(sizes, capacity)
    for function in _functions(sizes, capacity, parts):
        yield function, 1.0


def _functions(sizes: Ints, capacity: int, parts: Sequence[int]) -> Iterator[Floats]:
    """Yield dual-feasible functions of ``sizes / capacity`` that change something, exactly."""
    plain = sizes / capacity
    for part in parts:
        scaled = sizes * (part + 1)
        function = np.where(scaled % capacity == 0, plain, (scaled // capacity) / part)
        if (function > plain + 1e-12).any():
            yield function
    small = np.unique(sizes[(sizes > 0) & (2 * sizes <= capacity)])
    for size in _spread(small, len(parts)) if parts else ():
        # Larger than 1 - e is a whole host, smaller than e is nothing.
        function = np.where(sizes + size > capacity, 1.0, np.where(sizes < size, 0.0, plain))
        if (function > plain + 1e-12).any():
            yield function


def _spread(values: Ints, count: int) -> Ints:
    """Return at most ``count`` of the sorted values, evenly spread."""
    if len(values) <= count:
        return values
    chosen: Ints = values[np.linspace(0, len(values) - 1, count).astype(np.int64)]
    return chosen


def default_prices(packing: Packing) -> Floats:
    """Return prices without a program: the largest of a class's shares of the largest host, [C]."""
    return _largest_share(packing.classes, packing.host)


def _largest_share(classes: Any, host: HostArrays) -> Floats:
    total = np.maximum(host.total.max(axis=0, initial=1), 1)
    shares = np.stack(
        [
            classes.cpu / total[0],
            classes.memory / total[1],
            classes.gpus * classes.share / total[2],
        ]
    )
    largest: Floats = shares.max(axis=0)
    return largest
