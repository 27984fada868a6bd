"""Large-neighbourhood search: empty a few hosts, fill them anew, keep what is not worse.

Shaw (1998); ruin and recreate of Schrimpf et al. (2000). A move empties two or three hosts that
are weakly filled, now and then offers an idle host of another kind, and refills them from what
they held and from some of what was left out. A move is kept when it leaves out less, or as much
at no higher cost; so cost never rises.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cluster.core.placement.compiled import compiled
from cluster.core.placement.kernels import (
    Solution,
    Terms,
    choose_gpus,
    cost_of,
    draw,
    host_cost,
    put,
    slots_fetch,
    slots_fill,
    take,
)
from cluster.core.placement.packing import ClassArrays, HostArrays

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

#: Hosts that one move may empty, with the idle one it may offer.
MOST = 5
#: Classes, and replicas of each, of what was left out that one move may try.
MOST_LEFT_OUT = 16


class Moves(NamedTuple):
    """How moves are drawn; a particle of the swarm may steer them.

    Attributes:
        two: Chance that two hosts are emptied; three otherwise, four in a quarter of those.
        swap: Chance that an idle host of another kind is offered.
        noise: Scale of the chance in the order in which classes are put back.
        rounds: Hosts that a tournament for the weakest draws from.
        left_out: Classes of what was left out that a move tries to place.
        insert: Chance that replicas are put back one by one where they cost least, instead of
            host by host.
    """

    two: float
    swap: float
    noise: float
    rounds: int
    left_out: int
    insert: float


class Board(NamedTuple):
    """Which hosts take part: ``active[:n[0]]`` hold something, ``idle`` are listed by kind."""

    active: Ints  # [H]
    place: Ints  # [H] position in ``active`` or within the kind's part of ``idle``
    idle: Ints  # [H], the kinds one after the other
    start: Ints  # [K + 1]
    idle_count: Ints  # [K]
    n: Ints  # [1]
    fill: Floats  # [H]


@compiled
def set_up(hosts: HostArrays, solution: Solution, terms: Terms, board: Board) -> None:
    """List the active and the idle hosts."""
    board.n[0] = 0
    board.idle_count[:] = 0
    for host in range(len(solution.slots)):
        kind = hosts.kind[host]
        if solution.slots[host] > 0 or hosts.used[host]:
            board.place[host] = board.n[0]
            board.active[board.n[0]] = host
            board.n[0] += 1
        else:
            at = board.start[kind] + board.idle_count[kind]
            board.idle[at] = host
            board.place[host] = at
            board.idle_count[kind] += 1
        board.fill[host] = slots_fill(
            solution.slots[host], solution.slot_class[host], solution.slot_count[host], terms.price
        )


@compiled
def change_list(host: int, kind: int, active: bool, board: Board) -> None:
    """Move a host between the lists of active and idle hosts."""
    at = board.place[host]
    if active:
        last = board.start[kind] + board.idle_count[kind] - 1
        other = board.idle[last]
        board.idle[at] = other
        board.place[other] = at
        board.idle_count[kind] -= 1
        board.active[board.n[0]] = host
        board.place[host] = board.n[0]
        board.n[0] += 1
    else:
        last = board.n[0] - 1
        other = board.active[last]
        board.active[at] = other
        board.place[other] = at
        board.n[0] -= 1
        into = board.start[kind] + board.idle_count[kind]
        board.idle[into] = host
        board.place[host] = into
        board.idle_count[kind] += 1


@compiled
def rise_of(
    at: int,
    host: int,
    class_: int,
    mask: int,
    used: Ints,
    new_class: Ints,
    new_count: Ints,
    new_fill: Floats,
    cpu: Ints,
    memory: Ints,
    share: Ints,
    gpu_memory: Ints,
    hosts: HostArrays,
    classes: ClassArrays,
    terms: Terms,
) -> float:
    """Return what one more replica of a class costs on a host that is being refilled."""
    kind = hosts.kind[host]
    fetch = slots_fetch(used[at], new_class[at], new_count[at], kind, classes)
    before = host_cost(
        host,
        used[at] > 0 or hosts.used[host] > 0,
        new_fill[at],
        fetch,
        cpu[at],
        memory[at],
        share[at],
        gpu_memory[at],
        hosts,
        classes,
        terms,
    )
    part, amount = classes.share[class_], classes.gpu_memory[class_]
    take(part, amount, mask, 1, share[at], gpu_memory[at])
    after = host_cost(
        host,
        True,
        new_fill[at] + terms.price[class_],
        fetch + classes.fetch[class_, kind] / 1024.0,
        cpu[at] - classes.cpu[class_],
        memory[at] - classes.memory[class_],
        share[at],
        gpu_memory[at],
        hosts,
        classes,
        terms,
    )
    take(part, amount, mask, -1, share[at], gpu_memory[at])
    return after - before


@compiled
def improve(
    count: int,
    moves: Moves,
    weights: Floats,
    demand: Floats,
    base: HostArrays,
    hosts: HostArrays,
    classes: ClassArrays,
    solution: Solution,
    terms: Terms,
    board: Board,
    state: Ints,
) -> int:
    """Try ``count`` moves and return how many changed something for the better.

    ``base`` is what hosts have when nothing movable lies on them; ``weights`` [4] say how much
    price and the three demands count in the order of refilling.
    """
    classes_n = len(solution.unplaced)
    width = solution.share.shape[1]
    depth = solution.slot_class.shape[1]
    chosen = np.empty(MOST, np.int64)
    pool_class = np.empty(classes_n, np.int64)
    pool_count = np.empty(classes_n, np.int64)
    pool_key = np.empty(classes_n, np.float64)
    slot_in_pool = np.full(classes_n, -1, np.int64)
    left_class = np.empty(classes_n, np.int64)
    cpu = np.empty(MOST, np.int64)
    memory = np.empty(MOST, np.int64)
    share = np.empty((MOST, width), np.int64)
    gpu_memory = np.empty((MOST, width), np.int64)
    used = np.empty(MOST, np.int64)
    new_class = np.empty((MOST, depth), np.int64)
    new_mask = np.empty((MOST, depth), np.int64)
    new_count = np.empty((MOST, depth), np.int64)
    new_fill = np.empty(MOST, np.float64)
    order = np.empty(MOST, np.int64)
    extra_class = np.empty(MOST_LEFT_OUT, np.int64)
    extra_count = np.empty(MOST_LEFT_OUT, np.int64)
    kinds = len(board.idle_count)
    left_n = 0
    for class_ in range(classes_n):
        if solution.unplaced[class_] > 0:
            left_class[left_n] = class_
            left_n += 1
    better = 0
    for _ in range(count):
        # -- ruin: which hosts
        wanted = 2
        if draw(state) >= moves.two:
            wanted = 4 if draw(state) < 0.25 else 3
        wanted = min(wanted, board.n[0])
        n = 0
        tries = 0
        while n < wanted and tries < 20:
            tries += 1
            host = board.active[int(draw(state) * board.n[0])]
            for _round in range(moves.rounds if n == 0 else moves.rounds - 1):
                other = board.active[int(draw(state) * board.n[0])]
                if board.fill[other] < board.fill[host]:
                    host = other
            known = False
            for at in range(n):
                known = known or chosen[at] == host
            if not known:
                chosen[n] = host
                n += 1
        offered = n
        if n == 0 or draw(state) < moves.swap:
            kind = int(draw(state) * kinds)
            if board.idle_count[kind] > 0:
                chosen[n] = board.idle[
                    board.start[kind] + int(draw(state) * board.idle_count[kind])
                ]
                n += 1
        if n == 0:
            continue
        # -- what they held, and some of what was left out
        old = 0.0
        pool = 0
        for at in range(n):
            host = chosen[at]
            old += cost_of(host, hosts, classes, solution, terms)
            for slot in range(solution.slots[host]):
                class_ = solution.slot_class[host, slot]
                where = slot_in_pool[class_]
                if where < 0:
                    where = pool
                    slot_in_pool[class_] = pool
                    pool_class[pool] = class_
                    pool_count[pool] = 0
                    pool += 1
                pool_count[where] += solution.slot_count[host, slot]
            cpu[at] = base.cpu[host]
            memory[at] = base.memory[host]
            for gpu in range(width):
                share[at, gpu] = base.share[host, gpu]
                gpu_memory[at, gpu] = base.gpu_memory[host, gpu]
            used[at] = 0
            new_fill[at] = 0.0
        taken_value = 0.0
        extra = 0
        for _try in range(moves.left_out if left_n > 0 else 0):
            class_ = left_class[int(draw(state) * left_n)]
            amount = min(solution.unplaced[class_], MOST_LEFT_OUT)
            known = False
            for at in range(extra):
                known = known or extra_class[at] == class_
            if known or amount == 0 or extra == MOST_LEFT_OUT:
                continue
            extra_class[extra] = class_
            extra_count[extra] = amount
            extra += 1
            where = slot_in_pool[class_]
            if where < 0:
                where = pool
                slot_in_pool[class_] = pool
                pool_class[pool] = class_
                pool_count[pool] = 0
                pool += 1
            pool_count[where] += amount
            taken_value += terms.value[class_] * amount
        # -- the order of putting back: the hardest first, with chance
        lean = draw(state)
        for at in range(pool):
            class_ = pool_class[at]
            key = weights[0] * terms.price[class_] + lean * (
                weights[1] * demand[class_, 0]
                + weights[2] * demand[class_, 1]
                + weights[3] * demand[class_, 2]
            )
            if left_n > 0:
                key += weights[0] * terms.value[class_] * 1e-3
            pool_key[at] = key * (1.0 + moves.noise * (draw(state) - 0.5))
        for at in range(1, pool):
            key, class_, amount = pool_key[at], pool_class[at], pool_count[at]
            back = at - 1
            while back >= 0 and pool_key[back] < key:
                pool_key[back + 1] = pool_key[back]
                pool_class[back + 1] = pool_class[back]
                pool_count[back + 1] = pool_count[back]
                back -= 1
            pool_key[back + 1] = key
            pool_class[back + 1] = class_
            pool_count[back + 1] = amount
        for at in range(n):
            order[at] = at
        for at in range(n - 1, 0, -1):
            other = int(draw(state) * (at + 1))
            order[at], order[other] = order[other], order[at]
        # -- recreate
        one_by_one = moves.insert > 0.0 and draw(state) < moves.insert
        for turn in range(1 if one_by_one else n):
            for item in range(pool):
                class_ = pool_class[item]
                while pool_count[item] > 0:
                    best = -1
                    best_mask = -1
                    best_rise = 1e300
                    for at in range(n):
                        if not one_by_one:
                            at = order[turn]
                        host = chosen[at]
                        if cpu[at] < classes.cpu[class_] or memory[at] < classes.memory[class_]:
                            mask = -1
                        elif classes.fits[class_, hosts.kind[host]] == 0 or used[at] == depth:
                            mask = -1
                        else:
                            mask = choose_gpus(
                                classes.gpus[class_],
                                classes.share[class_],
                                classes.gpu_memory[class_],
                                classes.accepts[class_],
                                share[at],
                                gpu_memory[at],
                                hosts.model[host],
                            )
                        if mask >= 0:
                            rise = 0.0
                            if one_by_one:
                                rise = rise_of(
                                    at,
                                    host,
                                    class_,
                                    mask,
                                    used,
                                    new_class,
                                    new_count,
                                    new_fill,
                                    cpu,
                                    memory,
                                    share,
                                    gpu_memory,
                                    hosts,
                                    classes,
                                    terms,
                                )
                            if rise < best_rise:
                                best_rise = rise
                                best = at
                                best_mask = mask
                        if not one_by_one:
                            break
                    if best < 0:
                        break
                    cpu[best] -= classes.cpu[class_]
                    memory[best] -= classes.memory[class_]
                    take(
                        classes.share[class_],
                        classes.gpu_memory[class_],
                        best_mask,
                        1,
                        share[best],
                        gpu_memory[best],
                    )
                    used[best] = put(
                        new_class[best],
                        new_mask[best],
                        new_count[best],
                        used[best],
                        class_,
                        best_mask,
                    )
                    new_fill[best] += terms.price[class_]
                    pool_count[item] -= 1
        # -- accept or not
        lost_value = 0.0
        for item in range(pool):
            lost_value += terms.value[pool_class[item]] * pool_count[item]
        new = 0.0
        if lost_value <= taken_value:
            for at in range(n):
                host = chosen[at]
                fetch = 0.0
                if terms.move > 0.0:
                    fetch = slots_fetch(
                        used[at], new_class[at], new_count[at], hosts.kind[host], classes
                    )
                new += host_cost(
                    host,
                    used[at] > 0 or hosts.used[host] > 0,
                    new_fill[at],
                    fetch,
                    cpu[at],
                    memory[at],
                    share[at],
                    gpu_memory[at],
                    hosts,
                    classes,
                    terms,
                )
        if lost_value < taken_value or (lost_value == taken_value and new <= old + 1e-12):
            if lost_value < taken_value or new < old - 1e-9:
                better += 1
            for at in range(n):
                host = chosen[at]
                was = solution.slots[host] > 0 or hosts.used[host] > 0
                solution.cpu[host] = cpu[at]
                solution.memory[host] = memory[at]
                for gpu in range(width):
                    solution.share[host, gpu] = share[at, gpu]
                    solution.gpu_memory[host, gpu] = gpu_memory[at, gpu]
                solution.slots[host] = used[at]
                for slot in range(used[at]):
                    solution.slot_class[host, slot] = new_class[at, slot]
                    solution.slot_mask[host, slot] = new_mask[at, slot]
                    solution.slot_count[host, slot] = new_count[at, slot]
                board.fill[host] = new_fill[at]
                is_ = used[at] > 0 or hosts.used[host] > 0
                if was != is_:
                    change_list(host, hosts.kind[host], is_, board)
            for at in range(extra):
                solution.unplaced[extra_class[at]] -= extra_count[at]
            for item in range(pool):
                solution.unplaced[pool_class[item]] += pool_count[item]
        for item in range(pool):
            slot_in_pool[pool_class[item]] = -1
    return better
