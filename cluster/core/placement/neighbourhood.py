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
    draw,
    plain_cost,
    put,
    slots_fetch,
    slots_fill,
    spread_cost,
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
            solution.slot_class, solution.slot_count, host, solution.slots[host], terms.price
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
    fill: float,
    held: int,
    cpu: Ints,
    memory: Ints,
    share: Ints,
    gpu_memory: Ints,
    hosts: HostArrays,
    classes: ClassArrays,
    terms: Terms,
) -> float:
    """Return what one more replica of a class costs on a host that is being refilled."""
    in_use = hosts.used[host]
    before = plain_cost(
        held > 0 or in_use > 0, fill, in_use, 0.0, terms.hosts, terms.fill, terms.move
    )
    after = plain_cost(
        True,
        fill + terms.price[class_],
        in_use,
        classes.fetch[class_, hosts.kind[host]] / 1024.0,
        terms.hosts,
        terms.fill,
        terms.move,
    )
    if terms.balance > 0.0 or terms.fragmentation > 0.0:
        before += spread_cost(
            host, cpu[at], memory[at], share, gpu_memory, at, hosts, classes, terms
        )
        part, amount = classes.share[class_], classes.gpu_memory[class_]
        take(part, amount, mask, 1, share, gpu_memory, at)
        after += spread_cost(
            host,
            cpu[at] - classes.cpu[class_],
            memory[at] - classes.memory[class_],
            share,
            gpu_memory,
            at,
            hosts,
            classes,
            terms,
        )
        take(part, amount, mask, -1, share, gpu_memory, at)
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
    slots, unplaced = solution.slots, solution.unplaced
    slot_class, slot_mask, slot_count = (
        solution.slot_class,
        solution.slot_mask,
        solution.slot_count,
    )
    old_cpu, old_memory = solution.cpu, solution.memory
    old_share, old_gpu_memory = solution.share, solution.gpu_memory
    base_cpu, base_memory = base.cpu, base.memory
    base_share, base_gpu_memory = base.share, base.gpu_memory
    kind_of, in_use, model = hosts.kind, hosts.used, hosts.model
    class_cpu, class_memory, class_gpus = classes.cpu, classes.memory, classes.gpus
    class_share, class_gpu_memory = classes.share, classes.gpu_memory
    accepts, fits, fetch_mib = classes.accepts, classes.fits, classes.fetch
    fill, active, idle = board.fill, board.active, board.idle
    idle_count, start = board.idle_count, board.start
    price, value = terms.price, terms.value
    per_host, per_fill, per_fetch = terms.hosts, terms.fill, terms.move
    by_rest = terms.balance > 0.0 or terms.fragmentation > 0.0
    classes_n = len(unplaced)
    width = old_share.shape[1]
    depth = slot_class.shape[1]
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
    free = np.empty(MOST, np.int64)
    used = np.empty(MOST, np.int64)
    new_class = np.empty((MOST, depth), np.int64)
    new_mask = np.empty((MOST, depth), np.int64)
    new_count = np.empty((MOST, depth), np.int64)
    new_fill = np.empty(MOST, np.float64)
    order = np.empty(MOST, np.int64)
    extra_class = np.empty(MOST_LEFT_OUT, np.int64)
    extra_count = np.empty(MOST_LEFT_OUT, np.int64)
    kinds = len(idle_count)
    left_n = 0
    for class_ in range(classes_n):
        if unplaced[class_] > 0:
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
            host = active[int(draw(state) * board.n[0])]
            for _round in range(moves.rounds if n == 0 else moves.rounds - 1):
                other = active[int(draw(state) * board.n[0])]
                if fill[other] < fill[host]:
                    host = other
            known = False
            for at in range(n):
                known = known or chosen[at] == host
            if not known:
                chosen[n] = host
                n += 1
        if n == 0 or draw(state) < moves.swap:
            kind = int(draw(state) * kinds)
            if idle_count[kind] > 0:
                chosen[n] = idle[start[kind] + int(draw(state) * idle_count[kind])]
                n += 1
        if n == 0:
            continue
        # -- what they held, and some of what was left out
        old = 0.0
        pool = 0
        for at in range(n):
            host = chosen[at]
            fetch = 0.0
            if per_fetch > 0.0:
                fetch = slots_fetch(
                    slot_class,
                    slot_count,
                    host,
                    slots[host],
                    kind_of[host],
                    fetch_mib,
                )
            old += plain_cost(
                slots[host] > 0 or in_use[host] > 0,
                fill[host],
                in_use[host],
                fetch,
                per_host,
                per_fill,
                per_fetch,
            )
            if by_rest:
                old += spread_cost(
                    host,
                    old_cpu[host],
                    old_memory[host],
                    old_share,
                    old_gpu_memory,
                    host,
                    hosts,
                    classes,
                    terms,
                )
            for slot in range(slots[host]):
                class_ = slot_class[host, slot]
                where = slot_in_pool[class_]
                if where < 0:
                    where = pool
                    slot_in_pool[class_] = pool
                    pool_class[pool] = class_
                    pool_count[pool] = 0
                    pool += 1
                pool_count[where] += slot_count[host, slot]
            cpu[at] = base_cpu[host]
            memory[at] = base_memory[host]
            for gpu in range(width):
                share[at, gpu] = base_share[host, gpu]
                gpu_memory[at, gpu] = base_gpu_memory[host, gpu]
            used[at] = 0
            new_fill[at] = 0.0
        taken_value = 0.0
        extra = 0
        for _try in range(moves.left_out if left_n > 0 else 0):
            class_ = left_class[int(draw(state) * left_n)]
            amount = min(unplaced[class_], MOST_LEFT_OUT)
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
            taken_value += value[class_] * amount
        # -- the order of putting back: the hardest first, with chance
        lean = draw(state)
        for at in range(pool):
            class_ = pool_class[at]
            key = weights[0] * price[class_] + lean * (
                weights[1] * demand[class_, 0]
                + weights[2] * demand[class_, 1]
                + weights[3] * demand[class_, 2]
            )
            if left_n > 0:
                key += weights[0] * value[class_] * 1e-3
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
        for at in range(n):
            free[at] = 0
            for gpu in range(width):
                free[at] += max(share[at, gpu], 0)
        one_by_one = moves.insert > 0.0 and draw(state) < moves.insert
        for turn in range(1 if one_by_one else n):
            first = 0 if one_by_one else order[turn]
            last = n if one_by_one else order[turn] + 1
            for item in range(pool):
                class_ = pool_class[item]
                part = class_share[class_]
                amount = part * class_gpus[class_]
                while pool_count[item] > 0:
                    best = -1
                    best_mask = -1
                    best_rise = 1e300
                    for at in range(first, last):
                        host = chosen[at]
                        if (
                            cpu[at] < class_cpu[class_]
                            or memory[at] < class_memory[class_]
                            or free[at] < amount
                            or fits[class_, kind_of[host]] == 0
                            or used[at] == depth
                        ):
                            continue
                        mask = choose_gpus(
                            class_,
                            class_gpus[class_],
                            part,
                            class_gpu_memory[class_],
                            accepts,
                            share,
                            gpu_memory,
                            at,
                            model,
                            host,
                        )
                        if mask < 0:
                            continue
                        rise = 0.0
                        if one_by_one:
                            rise = rise_of(
                                at,
                                host,
                                class_,
                                mask,
                                new_fill[at],
                                used[at],
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
                    if best < 0:
                        break
                    times = 1
                    if best_mask == 0 and not one_by_one:
                        # Without GPUs as many at once as fit.
                        times = pool_count[item]
                        if class_cpu[class_] > 0:
                            times = min(times, cpu[best] // class_cpu[class_])
                        if class_memory[class_] > 0:
                            times = min(times, memory[best] // class_memory[class_])
                    cpu[best] -= times * class_cpu[class_]
                    memory[best] -= times * class_memory[class_]
                    if best_mask > 0:
                        free[best] -= amount
                        take(part, class_gpu_memory[class_], best_mask, 1, share, gpu_memory, best)
                    used[best] = put(
                        new_class, new_mask, new_count, best, used[best], class_, best_mask, times
                    )
                    new_fill[best] += times * price[class_]
                    pool_count[item] -= times
        # -- accept or not
        lost_value = 0.0
        for item in range(pool):
            lost_value += value[pool_class[item]] * pool_count[item]
        new = 0.0
        if lost_value <= taken_value:
            for at in range(n):
                host = chosen[at]
                fetch = 0.0
                if per_fetch > 0.0:
                    fetch = slots_fetch(
                        new_class, new_count, at, used[at], kind_of[host], fetch_mib
                    )
                new += plain_cost(
                    used[at] > 0 or in_use[host] > 0,
                    new_fill[at],
                    in_use[host],
                    fetch,
                    per_host,
                    per_fill,
                    per_fetch,
                )
                if by_rest:
                    new += spread_cost(
                        host, cpu[at], memory[at], share, gpu_memory, at, hosts, classes, terms
                    )
        if lost_value < taken_value or (lost_value == taken_value and new <= old + 1e-12):
            if lost_value < taken_value or new < old - 1e-9:
                better += 1
            for at in range(n):
                host = chosen[at]
                was = slots[host] > 0 or in_use[host] > 0
                old_cpu[host] = cpu[at]
                old_memory[host] = memory[at]
                for gpu in range(width):
                    old_share[host, gpu] = share[at, gpu]
                    old_gpu_memory[host, gpu] = gpu_memory[at, gpu]
                slots[host] = used[at]
                for slot in range(used[at]):
                    slot_class[host, slot] = new_class[at, slot]
                    slot_mask[host, slot] = new_mask[at, slot]
                    slot_count[host, slot] = new_count[at, slot]
                fill[host] = new_fill[at]
                is_ = used[at] > 0 or in_use[host] > 0
                if was != is_:
                    change_list(host, kind_of[host], is_, board)
            for at in range(extra):
                unplaced[extra_class[at]] -= extra_count[at]
            for item in range(pool):
                unplaced[pool_class[item]] += pool_count[item]
        for item in range(pool):
            slot_in_pool[pool_class[item]] = -1
    return better
