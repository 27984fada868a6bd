"""The inner loops of placing one arriving request at a time; see ``scoring`` for the formulae.

A request of a class takes the host and GPUs with the lowest score. Scores are kept per class and
host and only looked at anew where a host changed since the class was seen last, so that an arrival
costs some tens of microseconds on a thousand hosts.

Everything lies in few arrays, since handing over tuples of arrays costs more than the work:
``room[H, FIRST_GPU + 3 G]`` is what hosts have free, ``asked[C, FIRST_MODEL + M]`` what one replica
of each class wants, both by the columns below; ``known`` is what has been learnt of the arrivals.
"""

import numpy as np
from numpy.typing import NDArray

from cluster.core.placement.compiled import compiled
from cluster.core.placement.kernels import draw

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Flags = NDArray[np.uint8]

WHOLE = 1000
#: Rules for one arriving request.
SCORE, RANDOM, FIRST_FIT, BEST_FIT, LEAST_LOADED, DOT, PACKING, CLUSTERING, FGD = range(9)
#: Columns of a host's row, then the shares (-1 for no GPU), memories and models of its GPUs.
CPU, MEMORY, TOTAL_CPU, TOTAL_MEMORY, GPUS, FIRST_GPU = range(6)
#: Columns of a class's row; the first two are as a host's. Then, per GPU model, if it will do.
WANTED_GPUS, WANTED_SHARE, WANTED_GPU_MEMORY, FIRST_MODEL = range(2, 6)
#: Where ``known`` holds what; the tension of each GPU model follows at the end.
CPU_PER_GPU, MEMORY_PER_GPU, BLOCKS, SHARE_SIZES, CPU_ONLY, TENSION = 0, 4, 6, 10, 12, 13
#: Arrivals between two looks at how scarce each model is by what is free.
PRICE_EVERY = 32
FEATURES = 24
_NONE = 1e30


@compiled
def suits(class_: int, host: int, gpu: int, width: int, asked: Ints, room: Ints) -> bool:
    """Return whether a GPU has the share, the memory and the model."""
    return bool(
        room[host, FIRST_GPU + gpu] >= asked[class_, WANTED_SHARE]
        and room[host, FIRST_GPU + gpu] >= 0
        and room[host, FIRST_GPU + width + gpu] >= asked[class_, WANTED_GPU_MEMORY]
        and asked[class_, FIRST_MODEL + room[host, FIRST_GPU + 2 * width + gpu]] > 0
    )


@compiled
def fits(class_: int, host: int, width: int, asked: Ints, room: Ints) -> bool:
    """Return whether one replica fits on a host as it is."""
    if asked[class_, CPU] > room[host, CPU] or asked[class_, MEMORY] > room[host, MEMORY]:
        return False
    wanted = asked[class_, WANTED_GPUS]
    gpu = 0
    while wanted > 0 and gpu < width:
        if suits(class_, host, gpu, width, asked, room):
            wanted -= 1
        gpu += 1
    return bool(wanted <= 0)


@compiled
def fullest(class_: int, host: int, width: int, asked: Ints, room: Ints) -> int:
    """Return the bits of the GPUs that a replica gets by best fit; the host must have them."""
    mask = 0
    for _ in range(asked[class_, WANTED_GPUS]):
        best = -1
        for gpu in range(width):
            if mask >> gpu & 1 or not suits(class_, host, gpu, width, asked, room):
                continue
            if best < 0 or room[host, FIRST_GPU + gpu] < room[host, FIRST_GPU + best]:
                best = gpu
        mask |= 1 << best
    return mask


@compiled
def move(class_: int, host: int, mask: int, sign: int, width: int, asked: Ints, room: Ints) -> None:
    """Take a replica's part of a host (``sign`` 1) or give it back (-1)."""
    room[host, CPU] -= sign * asked[class_, CPU]
    room[host, MEMORY] -= sign * asked[class_, MEMORY]
    gpu = 0
    while mask >> gpu:
        if mask >> gpu & 1:
            room[host, FIRST_GPU + gpu] -= sign * asked[class_, WANTED_SHARE]
            room[host, FIRST_GPU + width + gpu] -= sign * asked[class_, WANTED_GPU_MEMORY]
        gpu += 1


@compiled
def features(host: int, width: int, room: Ints, known: Floats, out: Floats) -> None:
    """Write a host's features, in GPUs; ``scoring.ScoreWeights`` says what each means."""
    whole = 0
    partial = 0.0
    small = 0.0
    middle = 0.0
    bent = 0.0
    broken = 0
    for gpu in range(width):
        milli = room[host, FIRST_GPU + gpu]
        if milli == WHOLE:
            whole += 1
        elif milli > 0:
            part = milli * 0.001
            partial += part
            broken += 1
            bent += part * (1.0 - part)
            if milli < known[SHARE_SIZES]:
                small += part
            if milli < known[SHARE_SIZES + 1]:
                middle += part
    free = whole + partial
    cpu = float(room[host, CPU])
    memory = float(room[host, MEMORY])
    for level in range(4):
        out[level] = max(0.0, free - cpu * known[CPU_PER_GPU + level])
    for level in range(2):
        out[4 + level] = max(0.0, free - memory * known[MEMORY_PER_GPU + level])
    for level in range(4):
        out[6 + level] = -float(whole >> level << level) * known[BLOCKS + level]
    out[10] = partial
    out[11] = small
    out[12] = middle
    out[13] = 4.0 * bent
    out[14] = broken
    gpus = room[host, GPUS]
    scale = float(max(gpus, 1))
    cpu_part = cpu / max(1.0, float(room[host, TOTAL_CPU]))
    out[15] = free * free / scale
    out[16] = cpu_part * cpu_part * scale
    out[17] = free * cpu_part
    out[18] = 0.0 if free == gpus and cpu_part == 1.0 else 1.0
    cpu_units = cpu * known[CPU_PER_GPU + 1]
    out[19] = max(0.0, cpu_units - free) * known[CPU_ONLY]
    tension = 0.0
    if gpus > 0:
        tension = known[TENSION + room[host, FIRST_GPU + 2 * width]]
    out[20] = -tension * free
    out[21] = -tension * out[1]
    out[22] = -tension * cpu_units
    out[23] = -tension * whole


@compiled
def potential(
    host: int, width: int, room: Ints, known: Floats, weights: Floats, scratch: Floats
) -> float:
    """Return the weighted sum of a host's features as it is; lower is better."""
    features(host, width, room, known, scratch)
    total = 0.0
    for index in range(FEATURES):
        total += weights[index] * scratch[index]
    return total


@compiled
def fragment(host: int, width: int, asked: Ints, room: Ints, likely: Floats) -> float:
    """Return the free GPU that the next request probably cannot use, in GPUs (FGD, ATC'23)."""
    free = 0
    for gpu in range(width):
        free += max(room[host, FIRST_GPU + gpu], 0)
    if free == 0:
        return 0.0
    lost = 0.0
    for class_ in range(len(likely)):
        if likely[class_] == 0.0:
            continue
        usable = 0
        if (
            asked[class_, WANTED_GPUS] > 0
            and room[host, CPU] >= asked[class_, CPU]
            and room[host, MEMORY] >= asked[class_, MEMORY]
        ):
            suitable = 0
            for gpu in range(width):
                if suits(class_, host, gpu, width, asked, room):
                    suitable += 1
                    usable += room[host, FIRST_GPU + gpu]
            if suitable < asked[class_, WANTED_GPUS]:
                usable = 0
        lost += likely[class_] * (free - usable)
    return lost / WHOLE


@compiled
def value(
    rule: int,
    host: int,
    width: int,
    asked: Ints,
    room: Ints,
    known: Floats,
    likely: Floats,
    weights: Floats,
    scratch: Floats,
) -> float:
    """Return what a host is worth as it is, by the score or by FGD; lower is better."""
    if rule == FGD:
        return fragment(host, width, asked, room, likely)
    return potential(host, width, room, known, weights, scratch)


@compiled
def seen(host: int, gpu: int, width: int, room: Ints) -> bool:
    """Return whether an earlier GPU of the host is in every respect as this one."""
    for other in range(gpu):
        same = True
        for part in range(3):
            at = FIRST_GPU + part * width
            same = same and room[host, at + other] == room[host, at + gpu]
        if same:
            return True
    return False


@compiled
def descend(
    rule: int,
    class_: int,
    host: int,
    width: int,
    asked: Ints,
    room: Ints,
    known: Floats,
    likely: Floats,
    weights: Floats,
    worth: Floats,
    scratch: Floats,
) -> tuple[float, int]:
    """Return the lowest change of a host's worth, and the bits of the GPUs that it is for."""
    single = asked[class_, WANTED_GPUS] == 1 and asked[class_, WANTED_SHARE] < WHOLE
    lowest = _NONE
    chosen = 0
    for gpu in range(width if single else 1):
        if not single:
            mask = fullest(class_, host, width, asked, room)
        elif suits(class_, host, gpu, width, asked, room) and not seen(host, gpu, width, room):
            mask = 1 << gpu
        else:
            continue
        move(class_, host, mask, 1, width, asked, room)
        after = value(rule, host, width, asked, room, known, likely, weights, scratch)
        move(class_, host, mask, -1, width, asked, room)
        if after - worth[host] < lowest:
            lowest = after - worth[host]
            chosen = mask
    return lowest, chosen


@compiled
def by_rule(
    rule: int, class_: int, host: int, width: int, asked: Ints, room: Ints, largest: Floats
) -> tuple[float, int]:
    """Return the score of a host with room by one of the simple rules, and the GPUs for it."""
    mask = fullest(class_, host, width, asked, room)
    free = 0
    whole = 0
    opens = 0
    for gpu in range(width):
        free += max(room[host, FIRST_GPU + gpu], 0)
        if room[host, FIRST_GPU + gpu] == WHOLE:
            whole += 1
            opens += mask >> gpu & 1
    gpus = room[host, GPUS]
    wanted = asked[class_, WANTED_GPUS] * asked[class_, WANTED_SHARE]
    score = 0.0
    if rule == BEST_FIT:
        score = (room[host, CPU] - asked[class_, CPU]) / largest[0] + (free - wanted) / largest[2]
    elif rule == LEAST_LOADED:
        score = -room[host, CPU] / max(1.0, float(room[host, TOTAL_CPU]))
        score -= free / max(1.0, float(WHOLE * gpus))
    elif rule == DOT:
        score -= asked[class_, CPU] / largest[0] * room[host, CPU] / largest[0]
        score -= asked[class_, MEMORY] / largest[1] * room[host, MEMORY] / largest[1]
        score -= wanted / largest[2] * free / largest[2]
    elif rule == PACKING:
        # A GPU in use first, then a free GPU of a host in use, an idle host last; the fuller first.
        idle = whole == gpus and room[host, CPU] == room[host, TOTAL_CPU]
        score = 100.0 * idle + 10.0 * (opens > 0) + free / WHOLE / 10.0
    return score, mask


@compiled
def look(
    rule: int,
    class_: int,
    host: int,
    width: int,
    asked: Ints,
    room: Ints,
    known: Floats,
    likely: Floats,
    weights: Floats,
    worth: Floats,
    largest: Floats,
    scratch: Floats,
) -> tuple[float, int]:
    """Return a host's score by a rule and the GPUs it is for; the score is huge without room."""
    if not fits(class_, host, width, asked, room):
        return _NONE, 0
    if rule in {SCORE, FGD}:
        return descend(
            rule, class_, host, width, asked, room, known, likely, weights, worth, scratch
        )
    return by_rule(rule, class_, host, width, asked, room, largest)


@compiled
def kind_of(class_: int, asked: Ints) -> int:
    """Return what clustering keeps together: no GPU, shares, and each count of whole GPUs."""
    if asked[class_, WANTED_GPUS] == 0:
        return 0
    if asked[class_, WANTED_SHARE] < WHOLE:
        return 1
    level = 2
    while level < 7 and 1 << level - 2 < asked[class_, WANTED_GPUS]:
        level += 1
    return level


@compiled
def tensions(counts: Ints, width: int, asked: Ints, room: Ints, by_free: bool) -> Floats:
    """Return how much each GPU model is asked for, beside the mean of all, [M].

    A request spreads over the models it accepts by their capacity, or by what of it is free.
    """
    models = asked.shape[1] - FIRST_MODEL
    capacity = np.zeros(models)
    for host in range(len(room)):
        for gpu in range(width):
            milli = room[host, FIRST_GPU + gpu]
            if milli >= 0:
                part = milli / WHOLE if by_free else 1.0
                capacity[room[host, FIRST_GPU + 2 * width + gpu]] += part
    wanted = np.zeros(models)
    for class_ in range(len(counts)):
        if counts[class_] == 0 or asked[class_, WANTED_GPUS] == 0:
            continue
        among = 0.0
        for model in range(models):
            if asked[class_, FIRST_MODEL + model]:
                among += capacity[model]
        if among > 0.0:
            units = counts[class_] * asked[class_, WANTED_GPUS] * asked[class_, WANTED_SHARE]
            for model in range(models):
                if asked[class_, FIRST_MODEL + model]:
                    wanted[model] += units / WHOLE / among
    mean = (wanted * capacity).sum() / max(capacity.sum(), 1e-9)
    for model in range(models):
        wanted[model] = min(8.0, wanted[model] / mean - 1.0) if mean > 0.0 else 0.0
    return wanted


@compiled
def arrive(
    rule: int,
    arrivals: Ints,
    counts: Ints,
    kind_of_host: Ints,
    admits: Flags,
    last_change: Ints,
    width: int,
    asked: Ints,
    room: Ints,
    known: Floats,
    likely: Floats,
    weights: Floats,
    price: Floats,
    state: Ints,
    host_of: Ints,
    mask_of: Ints,
) -> None:
    """Place requests of the given classes one after the other; what does not fit is dropped.

    Args:
        arrivals: Class of each request in the order of arrival, [N].
        counts: How many of each class have arrived before; goes on, [C].
        kind_of_host: Hosts of one kind are equal before the first arrival, [H].
        admits: Whether a class may be on a kind of host at all, [C, K].
        last_change: -1 for hosts that are as their kind is; goes on, [H].
        width: The most GPUs of one host.
        likely: For FGD, the chance that the next request is of a class, [C].
        weights: One for each feature, and last that of scarcity by what is free.
        price: How scarce the model of each host is by what is free; goes on, [H].
        state: Of chance, one integer.
        host_of: Becomes the host of each request, -1 for none, [N].
        mask_of: Becomes the bits of its GPUs, [N].
    """
    hosts = len(room)
    scores = np.full((len(asked), hosts), _NONE)
    masks = np.zeros((len(asked), hosts), np.int64)
    seen_to = np.full(len(asked), -1)
    changes = np.empty(len(arrivals), np.int64)
    changed = 0
    worth = np.zeros(hosts)
    kinds = np.zeros((hosts, 8), np.int64)
    scratch = np.zeros(FEATURES)
    by_worth = rule in {SCORE, FGD}
    largest = np.ones(3)
    for host in range(hosts):
        largest[0] = max(largest[0], float(room[host, TOTAL_CPU]))
        largest[1] = max(largest[1], float(room[host, TOTAL_MEMORY]))
        largest[2] = max(largest[2], float(WHOLE * room[host, GPUS]))
    alike = np.empty(kind_of_host.max() + 1, np.int64)
    # The hosts whose worth must be taken anew: all at first, then the one that changed.
    from_host, to_host = 0, hosts
    for number in range(len(arrivals)):
        class_ = arrivals[number]
        counts[class_] += 1
        if number % PRICE_EVERY == PRICE_EVERY - 1 and weights[FEATURES] != 0.0:
            scarce = tensions(counts, width, asked, room, True)
            for host in range(hosts):
                if room[host, GPUS] > 0:
                    price[host] = scarce[room[host, FIRST_GPU + 2 * width]]
        for host in range(from_host, to_host if by_worth else from_host):
            worth[host] = value(rule, host, width, asked, room, known, likely, weights, scratch)
        first = seen_to[class_]
        everywhere = first < 0 or changed - first > hosts
        alike[:] = -1
        for index in range(0 if everywhere else first, hosts if everywhere else changed):
            host = index if everywhere else changes[index]
            kind = kind_of_host[host]
            if not admits[class_, kind] or not (everywhere or last_change[host] == index):
                continue
            # Hosts that nothing came to are as good as any other of their kind.
            if last_change[host] < 0:
                if alike[kind] >= 0:
                    scores[class_, host] = scores[class_, alike[kind]]
                    masks[class_, host] = masks[class_, alike[kind]]
                    continue
                alike[kind] = host
            scores[class_, host], masks[class_, host] = look(
                rule,
                class_,
                host,
                width,
                asked,
                room,
                known,
                likely,
                weights,
                worth,
                largest,
                scratch,
            )
        seen_to[class_] = changed
        units = weights[FEATURES] * asked[class_, WANTED_GPUS] * asked[class_, WANTED_SHARE] / WHOLE
        best = -1
        lowest = _NONE
        ties = 0
        sort = kind_of(class_, asked)
        for host in range(hosts):
            score = scores[class_, host]
            if score >= _NONE:
                continue
            if rule == FGD:
                # Its scores are whole numbers from 0 to 100, equal ones told apart by lot.
                score = -np.floor(100.0 / (1.0 + np.exp(score)))
            elif rule == SCORE:
                score += units * price[host]
            elif rule == CLUSTERING:
                score = -float(kinds[host, sort])
            if score < lowest:
                lowest = score
                best = host
                ties = 1
            elif score == lowest and rule in {RANDOM, FGD}:
                ties += 1
                if draw(state) * ties < 1.0:
                    best = host
        host_of[number] = best
        from_host, to_host = 0, 0
        if best < 0:
            continue
        mask_of[number] = masks[class_, best]
        move(class_, best, masks[class_, best], 1, width, asked, room)
        kinds[best, sort] += 1
        from_host, to_host = best, best + 1
        changes[changed] = best
        last_change[best] = changed
        changed += 1
