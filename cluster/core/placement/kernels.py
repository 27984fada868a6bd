"""The inner loops of placement, compiled where Numba is installed; see ``packing`` for the arrays.

A :class:`Solution` is what hosts have left and what was put on each: per host a row of slots, a
slot being so many replicas of one class on one set of GPUs. Nothing here allocates per step, so
that a move of the local search costs a few microseconds.

Chance comes from a multiplicative generator (Park and Miller 1988) whose state is an array of one
integer: the same sequence with and without the compiler.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cluster.core.placement.compiled import compiled
from cluster.core.placement.packing import ClassArrays, Flags, HostArrays

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

WHOLE = 1000
#: What tells hosts of equal cost apart: the sum of the fractions that are left of them.
TIGHTNESS = 0.01
#: Rules for the host of the next replica.
FIRST, BEST, WORST, DOT, RANDOM, COST = range(6)
#: How replicas of a request lie to each other.
ANY, PACK, SPREAD = range(3)
_MODULUS = 2147483647
_FACTOR = 48271


class Solution(NamedTuple):
    """What is left of the hosts, and what was placed."""

    cpu: Ints  # [H]
    memory: Ints  # [H]
    share: Ints  # [H, G]
    gpu_memory: Ints  # [H, G]
    slots: Ints  # [H] how many slots are taken
    slot_class: Ints  # [H, S]
    slot_mask: Ints  # [H, S]
    slot_count: Ints  # [H, S]
    unplaced: Ints  # [C]


class Terms(NamedTuple):
    """What the cost of a solution is made of; see ``objective``.

    ``value`` is what a replica of a class is worth when it is placed, ``price`` the share of a
    host that it stands for, ``likely`` the chance that the next request is of a class.
    """

    hosts: float
    balance: float
    fragmentation: float
    move: float
    fill: float
    target: Floats  # [3]
    value: Floats  # [C]
    price: Floats  # [C]
    likely: Floats  # [C]


@compiled
def draw(state: Ints) -> float:
    """Return the next number of the sequence, in [0, 1)."""
    state[0] = state[0] * _FACTOR % _MODULUS
    return float(state[0]) / _MODULUS


@compiled
def choose_gpus(
    class_: int,
    wanted: int,
    part: int,
    memory: int,
    accepts: Flags,
    share: Ints,
    gpu_memory: Ints,
    row: int,
    model: Ints,
    host: int,
) -> int:
    """Return the bits of the GPUs a replica gets, the fullest that fit; -1 where it does not.

    ``share`` and ``gpu_memory`` are what is free, in row ``row``; ``model`` is by ``host``.
    Arrays are handed over one by one here and below: a tuple of them costs more than the work.
    """
    mask = 0
    if wanted > 0 and part == WHOLE:
        for gpu in range(share.shape[1]):
            if (
                share[row, gpu] >= WHOLE
                and gpu_memory[row, gpu] >= memory
                and accepts[class_, model[host, gpu]]
            ):
                mask |= 1 << gpu
                wanted -= 1
                if wanted == 0:
                    break
        if wanted > 0:
            mask = -1
    elif wanted > 0:
        for _ in range(wanted):
            best = -1
            for gpu in range(share.shape[1]):
                if share[row, gpu] < part or gpu_memory[row, gpu] < memory or mask >> gpu & 1:
                    continue
                if model[host, gpu] < 0 or accepts[class_, model[host, gpu]] == 0:
                    continue
                if (
                    best < 0
                    or share[row, gpu] < share[row, best]
                    or (
                        share[row, gpu] == share[row, best]
                        and gpu_memory[row, gpu] < gpu_memory[row, best]
                    )
                ):
                    best = gpu
            if best < 0:
                mask = -1
                break
            mask |= 1 << best
    return mask


@compiled
def take(
    part: int, memory: int, mask: int, sign: int, share: Ints, gpu_memory: Ints, row: int
) -> None:
    """Take (``sign`` 1) or give back (-1) a replica's part of the GPUs in ``mask``."""
    gpu = 0
    while mask >> gpu:
        if mask >> gpu & 1:
            share[row, gpu] -= sign * part
            gpu_memory[row, gpu] -= sign * memory
        gpu += 1


@compiled
def put(
    slot_class: Ints,
    slot_mask: Ints,
    slot_count: Ints,
    row: int,
    used: int,
    class_: int,
    mask: int,
    times: int,
) -> int:
    """Write replicas into a host's slots; return how many slots are taken then."""
    found = -1
    for slot in range(used):
        if slot_class[row, slot] == class_ and slot_mask[row, slot] == mask:
            found = slot
            break
    if found >= 0:
        slot_count[row, found] += times
        return used
    slot_class[row, used] = class_
    slot_mask[row, used] = mask
    slot_count[row, used] = times
    return used + 1


@compiled
def occupy(host: int, class_: int, mask: int, classes: ClassArrays, solution: Solution) -> None:
    """Put one replica on a host and the GPUs of ``mask``, which must have room."""
    solution.cpu[host] -= classes.cpu[class_]
    solution.memory[host] -= classes.memory[class_]
    take(
        classes.share[class_],
        classes.gpu_memory[class_],
        mask,
        1,
        solution.share,
        solution.gpu_memory,
        host,
    )
    solution.slots[host] = put(
        solution.slot_class,
        solution.slot_mask,
        solution.slot_count,
        host,
        solution.slots[host],
        class_,
        mask,
        1,
    )


@compiled
def place_one(
    host: int, class_: int, hosts: HostArrays, classes: ClassArrays, solution: Solution
) -> int:
    """Put one replica on a host if it fits; return its GPUs' bits, or -1."""
    mask = -1
    if (
        solution.cpu[host] >= classes.cpu[class_]
        and solution.memory[host] >= classes.memory[class_]
        and classes.fits[class_, hosts.kind[host]]
        and solution.slots[host] < solution.slot_class.shape[1]
    ):
        mask = choose_gpus(
            class_,
            classes.gpus[class_],
            classes.share[class_],
            classes.gpu_memory[class_],
            classes.accepts,
            solution.share,
            solution.gpu_memory,
            host,
            hosts.model,
            host,
        )
    if mask >= 0:
        occupy(host, class_, mask, classes, solution)
    return mask


@compiled
def remove_one(host: int, class_: int, mask: int, classes: ClassArrays, solution: Solution) -> None:
    """Take one replica off a host."""
    for slot in range(solution.slots[host]):
        if solution.slot_class[host, slot] == class_ and solution.slot_mask[host, slot] == mask:
            solution.slot_count[host, slot] -= 1
            if solution.slot_count[host, slot] == 0:
                last = solution.slots[host] - 1
                solution.slot_class[host, slot] = solution.slot_class[host, last]
                solution.slot_mask[host, slot] = solution.slot_mask[host, last]
                solution.slot_count[host, slot] = solution.slot_count[host, last]
                solution.slots[host] = last
            break
    solution.cpu[host] += classes.cpu[class_]
    solution.memory[host] += classes.memory[class_]
    take(
        classes.share[class_],
        classes.gpu_memory[class_],
        mask,
        -1,
        solution.share,
        solution.gpu_memory,
        host,
    )


@compiled
def fragment(
    cpu: int,
    memory: int,
    share: Ints,
    gpu_memory: Ints,
    row: int,
    model: Ints,
    host: int,
    classes: ClassArrays,
    likely: Floats,
) -> float:
    """Return the free GPU that the next request probably cannot use, in GPUs (FGD, ATC'23)."""
    width = share.shape[1]
    free = 0
    for gpu in range(width):
        free += max(share[row, gpu], 0)
    lost = 0.0
    for class_ in range(len(likely) if free > 0 else 0):
        if likely[class_] == 0.0:
            continue
        suitable = 0
        usable = 0
        for gpu in range(width):
            if (
                share[row, gpu] >= classes.share[class_]
                and gpu_memory[row, gpu] >= classes.gpu_memory[class_]
                and model[host, gpu] >= 0
                and classes.accepts[class_, model[host, gpu]]
            ):
                suitable += 1
                usable += share[row, gpu]
        if (
            classes.gpus[class_] == 0
            or suitable < classes.gpus[class_]
            or cpu < classes.cpu[class_]
            or memory < classes.memory[class_]
        ):
            usable = 0
        lost += likely[class_] * (free - usable)
    return lost / WHOLE


@compiled
def plain_cost(
    active: bool,
    fill: float,
    used_before: int,
    fetch: float,
    per_host: float,
    per_fill: float,
    per_fetch: float,
) -> float:
    """Return a host's part of the cost that needs no look at its GPUs.

    Equal costs are told apart by the squares of what hosts are filled with: a full host and an
    empty one are better than two half full ones.
    """
    cost = per_fetch * fetch
    if active:
        whole = fill + used_before
        cost += per_host - per_fill * whole * whole
    return cost


@compiled
def spread_cost(
    host: int,
    cpu: int,
    memory: int,
    share: Ints,
    gpu_memory: Ints,
    row: int,
    hosts: HostArrays,
    classes: ClassArrays,
    terms: Terms,
) -> float:
    """Return a host's part of the cost by what it has left; its GPUs are in row ``row``."""
    cost = 0.0
    if terms.balance > 0.0:
        cost += terms.balance * imbalance(cpu, memory, share, row, hosts.total, host, terms.target)
    if terms.fragmentation > 0.0:
        cost += terms.fragmentation * fragment(
            cpu, memory, share, gpu_memory, row, hosts.model, host, classes, terms.likely
        )
    return cost


@compiled
def imbalance(
    cpu: int, memory: int, share: Ints, row: int, total: Ints, host: int, target: Floats
) -> float:
    """Return the squared distances of a host's used fractions from the cluster's."""
    cost = 0.0
    if total[host, 0] > 0:
        away = 1.0 - max(cpu, 0) / total[host, 0] - target[0]
        cost += away * away
    if total[host, 1] > 0:
        away = 1.0 - max(memory, 0) / total[host, 1] - target[1]
        cost += away * away
    if total[host, 2] > 0:
        free = 0
        for gpu in range(share.shape[1]):
            free += max(share[row, gpu], 0)
        away = 1.0 - free / total[host, 2] - target[2]
        cost += away * away
    return cost


@compiled
def slots_fill(slot_class: Ints, slot_count: Ints, row: int, used: int, weights: Floats) -> float:
    """Return the sum of a weight per class over what lies in a host's slots."""
    total = 0.0
    for slot in range(used):
        total += weights[slot_class[row, slot]] * slot_count[row, slot]
    return total


@compiled
def slots_fetch(
    slot_class: Ints, slot_count: Ints, row: int, used: int, kind: int, fetch: Ints
) -> float:
    """Return what the replicas in a host's slots must fetch, in GiB."""
    total = 0.0
    for slot in range(used):
        total += fetch[slot_class[row, slot], kind] * slot_count[row, slot] / 1024.0
    return total


@compiled
def cost_of(
    host: int, hosts: HostArrays, classes: ClassArrays, solution: Solution, terms: Terms
) -> float:
    """Return the cost of a host as it is in the solution."""
    used = solution.slots[host]
    fetch = 0.0
    if terms.move > 0.0:
        fetch = slots_fetch(
            solution.slot_class, solution.slot_count, host, used, hosts.kind[host], classes.fetch
        )
    cost = plain_cost(
        used > 0 or hosts.used[host] > 0,
        slots_fill(solution.slot_class, solution.slot_count, host, used, terms.price),
        hosts.used[host],
        fetch,
        terms.hosts,
        terms.fill,
        terms.move,
    )
    if terms.balance > 0.0 or terms.fragmentation > 0.0:
        cost += spread_cost(
            host,
            solution.cpu[host],
            solution.memory[host],
            solution.share,
            solution.gpu_memory,
            host,
            hosts,
            classes,
            terms,
        )
    return cost


@compiled
def total_cost(
    hosts: HostArrays, classes: ClassArrays, solution: Solution, terms: Terms
) -> tuple[float, float]:
    """Return the value that was left out, and the cost of all hosts."""
    slots, slot_class, slot_count = solution.slots, solution.slot_class, solution.slot_count
    in_use, kind_of, price, fetch_mib = hosts.used, hosts.kind, terms.price, classes.fetch
    by_rest = terms.balance > 0.0 or terms.fragmentation > 0.0
    left_out = 0.0
    for class_ in range(len(solution.unplaced)):
        left_out += terms.value[class_] * solution.unplaced[class_]
    cost = 0.0
    for host in range(len(slots)):
        used = slots[host]
        fetch = 0.0
        if terms.move > 0.0:
            fetch = slots_fetch(slot_class, slot_count, host, used, kind_of[host], fetch_mib)
        cost += plain_cost(
            used > 0 or in_use[host] > 0,
            slots_fill(slot_class, slot_count, host, used, price),
            in_use[host],
            fetch,
            terms.hosts,
            terms.fill,
            terms.move,
        )
        if by_rest:
            cost += spread_cost(
                host,
                solution.cpu[host],
                solution.memory[host],
                solution.share,
                solution.gpu_memory,
                host,
                hosts,
                classes,
                terms,
            )
    return left_out, cost


@compiled
def reset(hosts: HostArrays, counts: Ints, solution: Solution) -> None:
    """Empty a solution."""
    solution.cpu[:] = hosts.cpu
    solution.memory[:] = hosts.memory
    solution.share[:] = hosts.share
    solution.gpu_memory[:] = hosts.gpu_memory
    solution.slots[:] = 0
    solution.unplaced[:] = counts


@compiled
def copy(source: Solution, target: Solution) -> None:
    """Write one solution over another."""
    target.cpu[:] = source.cpu
    target.memory[:] = source.memory
    target.share[:] = source.share
    target.gpu_memory[:] = source.gpu_memory
    target.unplaced[:] = source.unplaced
    target.slots[:] = source.slots
    for host in range(len(source.slots)):
        for slot in range(source.slots[host]):
            target.slot_class[host, slot] = source.slot_class[host, slot]
            target.slot_mask[host, slot] = source.slot_mask[host, slot]
            target.slot_count[host, slot] = source.slot_count[host, slot]


@compiled
def fill_host(
    host: int,
    seed_class: int,
    candidates: Ints,
    keys: Floats,
    weights: Floats,
    demand: Floats,
    guide: Floats,
    hosts: HostArrays,
    classes: ClassArrays,
    solution: Solution,
) -> int:
    """Fill a host with what fits best, one replica at a time; return how many it took.

    The score of a class is its key, plus the weighted product of its demand with what the host
    has free, plus its reduced cost on this kind of host (``guide`` times ``weights[3]``).
    """
    unplaced, fits = solution.unplaced, classes.fits
    free_cpus, free_memories, shares = solution.cpu, solution.memory, solution.share
    class_cpu, class_memory = classes.cpu, classes.memory
    class_gpus, class_share = classes.gpus, classes.share
    width = shares.shape[1]
    placed = 0
    if seed_class >= 0 and place_one(host, seed_class, hosts, classes, solution) >= 0:
        unplaced[seed_class] -= 1
        placed += 1
    kind = hosts.kind[host]
    cpu_total = max(hosts.total[host, 0], 1)
    memory_total = max(hosts.total[host, 1], 1)
    gpu_total = max(hosts.total[host, 2], 1)
    left = 0
    for class_ in range(len(unplaced)):
        if unplaced[class_] > 0 and fits[class_, kind]:
            candidates[left] = class_
            left += 1
    while left > 0:
        free_gpu = 0
        for gpu in range(width):
            free_gpu += max(shares[host, gpu], 0)
        cpu, memory = free_cpus[host], free_memories[host]
        pull_cpu = cpu / cpu_total * weights[0]
        pull_memory = memory / memory_total * weights[1]
        pull_gpu = free_gpu / gpu_total * weights[2]
        best = -1
        best_score = -1e300
        at = 0
        while at < left:
            class_ = candidates[at]
            if (
                cpu < class_cpu[class_]
                or memory < class_memory[class_]
                or free_gpu < class_gpus[class_] * class_share[class_]
            ):
                left -= 1
                candidates[at] = candidates[left]
                continue
            score = (
                keys[class_]
                + demand[class_, 0] * pull_cpu
                + demand[class_, 1] * pull_memory
                + demand[class_, 2] * pull_gpu
                + weights[3] * guide[class_, kind]
            )
            # Ties by number: the order of the candidates changes as they are struck out.
            if score > best_score or (score == best_score and class_ < candidates[best]):
                best_score = score
                best = at
            at += 1
        if best < 0:
            break
        class_ = candidates[best]
        if place_one(host, class_, hosts, classes, solution) < 0:
            left -= 1
            candidates[best] = candidates[left]
            continue
        placed += 1
        unplaced[class_] -= 1
        if unplaced[class_] == 0:
            left -= 1
            candidates[best] = candidates[left]
    return placed


@compiled
def repeat(host: int, other: int, solution: Solution) -> bool:
    """Fill an untouched host exactly as an equal one was, if enough of each class is left."""
    used = solution.slots[host]
    enough = True
    taken = 0
    for slot in range(used):
        class_ = solution.slot_class[host, slot]
        solution.unplaced[class_] -= solution.slot_count[host, slot]
        taken += 1
        if solution.unplaced[class_] < 0:
            enough = False
            break
    if not enough:
        for slot in range(taken):
            solution.unplaced[solution.slot_class[host, slot]] += solution.slot_count[host, slot]
        return False
    solution.cpu[other] = solution.cpu[host]
    solution.memory[other] = solution.memory[host]
    solution.share[other] = solution.share[host]
    solution.gpu_memory[other] = solution.gpu_memory[host]
    solution.slots[other] = used
    for slot in range(used):
        solution.slot_class[other, slot] = solution.slot_class[host, slot]
        solution.slot_mask[other, slot] = solution.slot_mask[host, slot]
        solution.slot_count[other, slot] = solution.slot_count[host, slot]
    return True


@compiled
def decode(
    position: Floats,
    hardness: Floats,
    openness: Floats,
    demand: Floats,
    guide: Floats,
    kind_hosts: Ints,
    kind_start: Ints,
    hosts: HostArrays,
    classes: ClassArrays,
    solution: Solution,
) -> None:
    """Turn a particle's position into a packing, host by host.

    A position is [fill key a class | seed key a class | key a kind of host | 4 log weights].
    A host is opened for the hardest class that is left, of the best-keyed kind that holds it, and
    filled by :func:`fill_host`. ``hardness`` [C] and ``openness`` [K] are added to the keys.
    Hosts in use are filled before any is opened.
    """
    count = len(solution.unplaced)
    kinds = len(kind_start) - 1
    fill_keys = position[:count]
    weights = np.exp(position[2 * count + kinds :])
    candidates = np.empty(count, np.int64)
    next_host = kind_start[:-1].copy()
    hopeless = np.zeros(count, np.uint8)
    for at in range(len(kind_hosts)):
        host = kind_hosts[at]
        if hosts.used[host]:
            fill_host(
                host, -1, candidates, fill_keys, weights, demand, guide, hosts, classes, solution
            )
    while True:
        seed = -1
        hardest = -1e300
        for class_ in range(count):
            if solution.unplaced[class_] > 0 and not hopeless[class_]:
                key = position[count + class_] + hardness[class_]
                if key > hardest:
                    hardest = key
                    seed = class_
        if seed < 0:
            break
        chosen = -1
        best = -1e300
        for kind in range(kinds):
            while (
                next_host[kind] < kind_start[kind + 1] and hosts.used[kind_hosts[next_host[kind]]]
            ):
                next_host[kind] += 1
            if next_host[kind] < kind_start[kind + 1] and classes.fits[seed, kind]:
                key = position[2 * count + kind] + openness[kind] + weights[3] * guide[seed, kind]
                if key > best:
                    best = key
                    chosen = kind
        if chosen < 0:
            hopeless[seed] = 1
            continue
        host = kind_hosts[next_host[chosen]]
        next_host[chosen] += 1
        taken = fill_host(
            host, seed, candidates, fill_keys, weights, demand, guide, hosts, classes, solution
        )
        if taken == 0:
            hopeless[seed] = 1
            continue
        # The next host of this kind would be filled alike as long as no class runs out.
        while next_host[chosen] < kind_start[chosen + 1]:
            other = kind_hosts[next_host[chosen]]
            if hosts.used[other] or not repeat(host, other, solution):
                break
            next_host[chosen] += 1


@compiled
def place_in_order(
    request_class: Ints,
    replicas: Ints,
    spread: Ints,
    label: Ints,
    same_zone: Ints,
    host_order: Ints,
    rule: int,
    used_first: bool,
    label_hosts: NDArray[np.uint8],
    hosts: HostArrays,
    classes: ClassArrays,
    solution: Solution,
    terms: Terms,
    state: Ints,
    place_host: Ints,
    place_mask: Ints,
    first_place: Ints,
) -> None:
    """Place requests one after the other, each gang whole or not at all.

    ``place_host`` and ``place_mask`` get each replica's host (-1 for none) and GPUs, request
    ``i``'s replicas from ``first_place[i]`` on. ``label_hosts`` [L, H] is 1 where a request of an
    anti-affinity label lies.
    """
    free_cpu, free_memory, slots = solution.cpu, solution.memory, solution.slots
    free_share, free_gpu_memory = solution.share, solution.gpu_memory
    kind_of, in_use, zone, model = hosts.kind, hosts.used, hosts.zone, hosts.model
    fits, accepts, total = classes.fits, classes.accepts, hosts.total
    free_gpu = np.zeros(len(free_cpu), np.int64)
    for host in range(len(free_cpu)):
        for gpu in range(free_share.shape[1]):
            free_gpu[host] += max(free_share[host, gpu], 0)
    # Of untouched hosts that are alike only the first is looked at.
    alike = rule in {BEST, WORST, DOT, COST}
    seen = np.full(len(kind_of), -1, np.int64)
    turn = -1
    # Room only shrinks: the hosts at the head that are too full for a class stay so.
    resume = np.zeros(len(classes.cpu), np.int64)
    for request in range(len(request_class)):
        class_ = request_class[request]
        cpu, memory = classes.cpu[class_], classes.memory[class_]
        gpus, part = classes.gpus[class_], classes.share[class_]
        gpu_memory = classes.gpu_memory[class_]
        start = first_place[request]
        head = resume[class_]
        placed = 0
        for rank in range(replicas[request]):
            best = -1
            best_score = 1e300
            turn += 1
            simple = alike and label[request] < 0 and rank == 0
            for pass_ in range(2):
                # Hosts in use first, then the rest; without that wish all in one pass.
                if pass_ == 1 and (not used_first or best >= 0):
                    break
                leading = True
                for at in range(resume[class_], len(host_order)):
                    host = host_order[at]
                    if (
                        free_cpu[host] < cpu
                        or free_memory[host] < memory
                        or free_gpu[host] < gpus * part
                        or fits[class_, kind_of[host]] == 0
                    ):
                        if leading:
                            resume[class_] = at + 1
                        continue
                    if used_first:
                        busy = slots[host] > 0 or in_use[host] > 0
                        if busy == (pass_ == 1):
                            leading = False
                            continue
                    if simple and slots[host] == 0:
                        if seen[kind_of[host]] == turn:
                            leading = False
                            continue
                        seen[kind_of[host]] = turn
                    if label[request] >= 0 and label_hosts[label[request], host]:
                        leading = False
                        continue
                    if rank > 0:
                        first = place_host[start]
                        if spread[request] == PACK and host != first:
                            leading = False
                            continue
                        if same_zone[request] and zone[host] != zone[first]:
                            leading = False
                            continue
                        if spread[request] == SPREAD:
                            taken = False
                            for earlier in range(start, start + rank):
                                taken = taken or place_host[earlier] == host
                            if taken:
                                leading = False
                                continue
                    mask = choose_gpus(
                        class_,
                        gpus,
                        part,
                        gpu_memory,
                        accepts,
                        free_share,
                        free_gpu_memory,
                        host,
                        model,
                        host,
                    )
                    if mask < 0:
                        if leading:
                            resume[class_] = at + 1
                        continue
                    leading = False
                    # A host that is opened is the first in the order, whatever the rule.
                    first_will_do = rule == FIRST or pass_ == 1
                    if first_will_do:
                        score = -1e299
                    elif rule == RANDOM:
                        score = draw(state)
                    else:
                        score = rule_score(
                            rule,
                            cpu,
                            memory,
                            gpus * part,
                            free_cpu[host],
                            free_memory[host],
                            free_gpu[host],
                            max(total[host, 0], 1),
                            max(total[host, 1], 1),
                            max(total[host, 2], 1),
                        )
                        if rule == COST:
                            rise = rise_in_cost(host, class_, mask, hosts, classes, solution, terms)
                            score = rise + TIGHTNESS * score
                    if score < best_score:
                        best_score = score
                        best = host
                    if first_will_do:
                        break
            if best < 0:
                break
            place_host[start + rank] = best
            place_mask[start + rank] = place_one(best, class_, hosts, classes, solution)
            free_gpu[best] -= gpus * part
            placed += 1
        if placed < replicas[request]:
            for rank in range(placed):
                remove_one(
                    place_host[start + rank], class_, place_mask[start + rank], classes, solution
                )
                free_gpu[place_host[start + rank]] += gpus * part
                place_host[start + rank] = -1
            resume[class_] = head
            continue
        solution.unplaced[class_] -= placed
        if label[request] >= 0:
            for rank in range(placed):
                label_hosts[label[request], place_host[start + rank]] = 1


@compiled
def rule_score(
    rule: int,
    cpu: int,
    memory: int,
    gpu: int,
    free_cpu: int,
    free_memory: int,
    free_gpu: int,
    cpu_total: int,
    memory_total: int,
    gpu_total: int,
) -> float:
    """Return how bad a host is for a replica by one of the rules; lower is better."""
    if rule == DOT:
        along = cpu / cpu_total * (free_cpu / cpu_total)
        along += memory / memory_total * (free_memory / memory_total)
        along += gpu / gpu_total * (free_gpu / gpu_total)
        return float(-along)
    left = (free_cpu - cpu) / cpu_total + (free_memory - memory) / memory_total
    left += (free_gpu - gpu) / gpu_total
    return float(-left if rule == WORST else left)


@compiled
def rise_in_cost(
    host: int,
    class_: int,
    mask: int,
    hosts: HostArrays,
    classes: ClassArrays,
    solution: Solution,
    terms: Terms,
) -> float:
    """Return what a replica adds to the cost of a host."""
    before = cost_of(host, hosts, classes, solution, terms)
    place_one(host, class_, hosts, classes, solution)
    after = cost_of(host, hosts, classes, solution, terms)
    remove_one(host, class_, mask, classes, solution)
    return after - before


@compiled
def weigh(
    class_: int,
    hosts: HostArrays,
    classes: ClassArrays,
    solution: Solution,
    terms: Terms,
    parts: Floats,
) -> None:
    """Write for every host what makes up its score for a class, [H, 5]; see ``planner.PARTS``.

    NaN where a host has no room.
    """
    for host in range(len(solution.cpu)):
        before = solution.slots[host]
        wasted = 0.0
        if terms.fragmentation > 0.0:
            wasted = fragment(
                solution.cpu[host],
                solution.memory[host],
                solution.share,
                solution.gpu_memory,
                host,
                hosts.model,
                host,
                classes,
                terms.likely,
            )
        away = imbalance(
            solution.cpu[host],
            solution.memory[host],
            solution.share,
            host,
            hosts.total,
            host,
            terms.target,
        )
        mask = place_one(host, class_, hosts, classes, solution)
        parts[host, :] = np.nan
        if mask < 0:
            continue
        cpu, memory = solution.cpu[host], solution.memory[host]
        free = 0
        for gpu in range(solution.share.shape[1]):
            free += max(solution.share[host, gpu], 0)
        left = cpu / max(hosts.total[host, 0], 1) + memory / max(hosts.total[host, 1], 1)
        left += free / max(hosts.total[host, 2], 1)
        parts[host, 0] = 0.0
        if terms.fragmentation > 0.0:
            after = fragment(
                cpu,
                memory,
                solution.share,
                solution.gpu_memory,
                host,
                hosts.model,
                host,
                classes,
                terms.likely,
            )
            parts[host, 0] = terms.fragmentation * (after - wasted)
        parts[host, 1] = terms.balance * (
            imbalance(cpu, memory, solution.share, host, hosts.total, host, terms.target) - away
        )
        parts[host, 2] = terms.hosts if before == 0 and hosts.used[host] == 0 else 0.0
        parts[host, 3] = terms.move * classes.fetch[class_, hosts.kind[host]] / 1024.0
        parts[host, 4] = TIGHTNESS * left
        remove_one(host, class_, mask, classes, solution)


@compiled
def replicas_of(
    request_class: Ints, replicas: Ints, first: Ints, requests: Ints, count: int
) -> tuple[Ints, Ints]:
    """Return the places of the requests' replicas, class after class, and where each begins."""
    start = np.zeros(count + 1, np.int64)
    for request in requests:
        start[request_class[request] + 1] += replicas[request]
    for class_ in range(count):
        start[class_ + 1] += start[class_]
    at = start[:-1].copy()
    place = np.empty(start[-1], np.int64)
    for request in requests:
        class_ = request_class[request]
        for rank in range(replicas[request]):
            place[at[class_]] = first[request] + rank
            at[class_] += 1
    return place, start


@compiled
def hand_out(
    place: Ints,
    start: Ints,
    slots: Ints,
    slot_class: Ints,
    slot_mask: Ints,
    slot_count: Ints,
    place_host: Ints,
    place_mask: Ints,
) -> None:
    """Give what lies in the slots to the replicas of each class, in their order."""
    at = start[:-1].copy()
    for host in range(len(slots)):
        for slot in range(slots[host]):
            class_ = slot_class[host, slot]
            for _ in range(slot_count[host, slot]):
                place_host[place[at[class_]]] = host
                place_mask[place[at[class_]]] = slot_mask[host, slot]
                at[class_] += 1


@compiled
def replay(
    request_class: Ints,
    first: Ints,
    place_host: Ints,
    place_mask: Ints,
    classes: ClassArrays,
    solution: Solution,
) -> None:
    """Put every placed replica where it lies."""
    for request in range(len(request_class)):
        class_ = request_class[request]
        for place in range(first[request], first[request + 1]):
            host = place_host[place]
            if host < 0:
                continue
            occupy(host, class_, place_mask[place], classes, solution)
            solution.unplaced[class_] -= 1


@compiled
def count_slots(
    filled: Ints, slots: Ints, slot_class: Ints, slot_count: Ints, rows: NDArray[np.int16]
) -> None:
    """Write for each filled host how many replicas of each class it holds, from column 1 on."""
    for row in range(len(filled)):
        host = filled[row]
        for slot in range(slots[host]):
            rows[row, 1 + slot_class[host, slot]] += slot_count[host, slot]


@compiled
def fill_columns(
    kind: Ints,
    held: Ints,
    times: Ints,
    kind_hosts: Ints,
    kind_start: Ints,
    hosts: HostArrays,
    classes: ClassArrays,
    solution: Solution,
) -> None:
    """Fill hosts as the columns say, each so many times, leaving out what is placed already."""
    next_host = kind_start[:-1].copy()
    for column in range(len(kind)):
        of_kind = kind[column]
        for _ in range(times[column]):
            while (
                next_host[of_kind] < kind_start[of_kind + 1]
                and hosts.used[kind_hosts[next_host[of_kind]]]
            ):
                next_host[of_kind] += 1
            if next_host[of_kind] == kind_start[of_kind + 1]:
                break
            host = kind_hosts[next_host[of_kind]]
            next_host[of_kind] += 1
            # What asks for whole GPUs goes first: shares of other classes must not break them.
            for whole_first in range(2):
                for class_ in range(held.shape[1]):
                    if (classes.share[class_] == WHOLE) == (whole_first == 1):
                        continue
                    for _replica in range(min(held[column, class_], solution.unplaced[class_])):
                        if place_one(host, class_, hosts, classes, solution) < 0:
                            break
                        solution.unplaced[class_] -= 1
