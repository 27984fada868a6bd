"""Why a request waits, in words for its owner, with the numbers behind them."""

from collections.abc import Iterable, Mapping

from cluster.core.resources import (
    Constraint,
    Deferral,
    HostState,
    ResourceRequest,
    Spread,
)

Short = tuple[Constraint, str, dict[str, int | str]]


def no_host(request: ResourceRequest) -> Deferral:
    """Return the answer of a cluster without hosts."""
    return Deferral(
        key=request.key,
        constraint=Constraint.NO_HOST,
        text="No host is registered yet. An admin can add one.",
        ever=False,
    )


def not_allowed(request: ResourceRequest, hosts: int) -> Deferral:
    """Return the answer where none of the hosts may take the request."""
    return Deferral(
        key=request.key,
        constraint=Constraint.NOT_ALLOWED,
        text="No host may run this environment.",
        ever=False,
        evidence={"hosts": hosts},
    )


def hosts_down(
    request: ResourceRequest, down: Iterable[HostState], counts: Mapping[str, int], *, ever: bool
) -> Deferral:
    """Return the answer where the hosts that could hold it take no work."""
    reasons = sorted({host.reason for host in down if host.reason})
    return Deferral(
        key=request.key,
        constraint=Constraint.HOSTS_DOWN,
        text="The hosts that could hold it take no work at the moment: "
        + ("; ".join(reasons) or "nobody says why")
        + ".",
        ever=ever,
        evidence=dict(counts),
    )


def amount_short(constraint: Constraint, asked: int, free: int) -> Short:
    """Return the answer where no host has as much CPU or memory free."""
    if constraint is Constraint.CPU:
        text = f"Needs {asked / 1000:g} cores on one host; at most {free / 1000:g} are free on one."
        return constraint, text, {"asked_millis": asked, "free_millis": free}
    text = f"Needs {asked} MiB of memory on one host; at most {free} MiB are free on one."
    return constraint, text, {"asked_mib": asked, "free_mib": free}


def model_missing(request: ResourceRequest) -> Short:
    """Return the answer where no host that is up has a GPU of the kind."""
    asked = request.gpu_model or " or ".join(sorted(request.gpu_models))
    return (
        Constraint.GPU_MODEL,
        f"No host that is up has a GPU of model {asked!r}.",
        {"asked": asked},
    )


def gpus_short(request: ResourceRequest, *, free: int, healthy: int, present: int) -> Short:
    """Return the answer where no host has enough GPUs: the most of one that are free, and so on."""
    evidence: dict[str, int | str] = {"asked": request.gpus, "free_on_one_host": free}
    if present >= request.gpus > healthy:
        return (
            Constraint.GPU_HEALTH,
            f"Needs {request.gpus} GPU(s) on one host; some there take no work at the moment.",
            evidence,
        )
    if request.whole_gpus and not request.gpu_memory_mib:
        return (
            Constraint.GPU,
            f"Needs {request.gpus} free GPU(s) on one host; at most {free} are free on one.",
            evidence,
        )
    if request.gpu_share_milli is not None and not request.whole_gpus:
        share_pct = request.share_milli / 10
        return (
            Constraint.GPU_SHARE,
            f"Needs {request.gpus} GPU(s) with {share_pct:g} % free each on one host.",
            evidence | {"asked_milli": request.share_milli},
        )
    memory = request.gpu_memory_mib or 0
    return (
        Constraint.GPU_MEMORY,
        f"Needs {request.gpus} GPU(s) with {memory} MiB free each on one host.",
        evidence | {"asked_mib": memory},
    )


def shape_short(request: ResourceRequest) -> Short:
    """Return the answer where there is enough of everything, but not together."""
    needs = (
        f"{request.cpu_millis / 1000:g} cores, {request.memory_mib} MiB"
        f"{f' and {request.gpus} GPU(s)' if request.gpus else ''}"
    )
    evidence: dict[str, int | str] = {"replicas": request.replicas}
    if request.anti_affinity:
        return (
            Constraint.ANTI_AFFINITY,
            f"Every host with {needs} free holds another of {request.anti_affinity!r}.",
            evidence | {"label": request.anti_affinity},
        )
    if request.replicas > 1 and request.spread is Spread.SPREAD:
        return (
            Constraint.SPREAD,
            f"Needs {needs} free on {request.replicas} different hosts at once.",
            evidence,
        )
    if request.replicas > 1 and request.spread is Spread.PACK:
        return (
            Constraint.SPREAD,
            f"Needs {request.replicas} times {needs} free on one host.",
            evidence,
        )
    if request.replicas > 1 and request.same_zone:
        return (
            Constraint.ZONE,
            f"Needs {request.replicas} times {needs} free within one zone.",
            evidence,
        )
    return (
        Constraint.GPU if request.gpus else Constraint.CPU,
        f"No host has everything free at once for {request.replicas} replica(s): {needs}.",
        evidence,
    )
