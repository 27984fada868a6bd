"""Every number of the sharing and queueing policy, in one object."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySettings:
    """What the policy goes by; the defaults rest on measured pairs and on simulations of them.

    Attributes:
        sharing: Whether jobs may share GPUs at all in this cluster.
        jobs_per_gpu: How many jobs may be on one GPU at most.
        memory_margin: A job may have so many times the highest peak that was measured.
        memory_extra_mib: And so much on top, for the driver's own state of a program.
        reserve_mib, reserve_part: What is never given away of a GPU's memory: so much, or so
            large a part of it if that is more. Pairs need up to 1.6 GiB more than their parts.
        speed_base, speed_slope: Alone jobs use ``u1`` and ``u2`` of a GPU; together each runs at
            ``base - slope · max(0, u1 + u2 - 1)`` of its speed, as far as nothing else is known.
        speed_least: No pair is shared of which a job is expected to be slower than that.
        speed_undo: A pair of which a job proves to be slower than that is parted.
        measure_after_s: How long two jobs share a GPU before their speeds count.
        barred_s: How long two kinds of job that were parted are kept apart.
        profile_s: How long a job of a new kind runs alone, warm-up included, before it may share.
        profile_requeue: Whether such a job is put back into the queue then, if others wait that
            must be profiled too. It starts anew, and is never put back a second time.
        profile_worth: Only a job with so many times the profiling time left is put back.
        shrink_runs: A key's own mean counts as much as its parents' after so many runs.
        shrink_pairs: A pair's own mean counts as much as its kinds' effects after so many.
        duration_sigma: Spread of the logarithm of durations where too few runs are known.
        longest_first: Whether, within priority and fair share, long jobs come first, so that a
            series ends early; otherwise the order is that of submission.
        quick_part: The quickest jobs that together make up so large a part of the waiting work
            come before the long ones.
        shortest_first: Whether short jobs come first, aged by their wait, so that the mean
            turnaround is short.
        age_s: A wait of so many seconds halves the key of a short job's order.
        price_pairs: Whether partners are chosen by what each kind's work is worth; otherwise by the
            sum of the two speeds.
        length_weight: What the longest waiting job is worth over the shortest when a partner is
            chosen, in GPUs.
        usage_half_life_s: Of the use that counts against a user.
        due_s, due_durations: A job that has waited so long, and so many of its own median
            durations, is due: it goes before all that are not, and what it needs is kept for it.
        degraded, hot, near_power_limit, leftover, image, data: What state costs or is worth, in
            GPUs, when one of several GPUs is chosen.
    """

    sharing: bool = True
    jobs_per_gpu: int = 2
    memory_margin: float = 1.25
    memory_extra_mib: int = 512
    reserve_mib: int = 1536
    reserve_part: float = 0.05
    speed_base: float = 0.985
    speed_slope: float = 0.371
    speed_least: float = 0.72
    speed_undo: float = 0.68
    measure_after_s: float = 60.0
    barred_s: float = 86_400.0
    profile_s: float = 180.0
    profile_requeue: bool = True
    profile_worth: float = 1.0
    shrink_runs: float = 3.0
    shrink_pairs: float = 1.5
    duration_sigma: float = 0.8
    longest_first: bool = True
    quick_part: float = 0.001
    shortest_first: bool = False
    age_s: float = 600.0
    price_pairs: bool = True
    length_weight: float = 0.5
    usage_half_life_s: float = 86_400.0
    due_s: float = 43_200.0
    due_durations: float = 4.0
    degraded: float = 0.10
    hot: float = 0.05
    near_power_limit: float = 0.10
    leftover: float = 0.05
    image: float = 0.05
    data: float = 0.05


DEFAULTS = PolicySettings()
