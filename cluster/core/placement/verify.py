"""Whether a plan is one: counted anew from the snapshot, by nothing that made the plan."""

from collections import Counter
from collections.abc import Sequence

from cluster.core.errors import BadProblemError
from cluster.core.resources import (
    ClusterSnapshot,
    GpuState,
    HostName,
    HostState,
    Placement,
    Plan,
    ResourceRequest,
    Spread,
)


def verify(plan: Plan, requests: Sequence[ResourceRequest], snapshot: ClusterSnapshot) -> None:
    """Check a plan against every capacity and every wish.

    Raises:
        BadProblemError: With the first thing that is wrong, in one line.
    """
    hosts = {host.name: host for host in snapshot.hosts}
    wanted = {request.key: request for request in requests}
    answered = Counter(placement.key for placement in plan.placements)
    answered.update(deferral.key for deferral in plan.deferred)
    for key, times in answered.items():
        _check(key in wanted, f"the plan answers {key!r}, which nobody asked for")
        _check(times == 1, f"request {key} is answered {times} times")
    missing = next((key for key in wanted if key not in answered), None)
    _check(missing is None, f"request {missing} is neither placed nor deferred")
    for placement in plan.placements:
        _check_shape(placement, wanted[placement.key], hosts)
    _check_labels(plan, wanted)
    _check_room(plan, wanted, hosts)


def _check(fine: bool, sentence: str) -> None:  # noqa: FBT001 - reads as "check that"
    if not fine:
        raise BadProblemError(sentence)


def _check_shape(
    placement: Placement, request: ResourceRequest, hosts: dict[HostName, HostState]
) -> None:
    key, replicas = placement.key, placement.replicas
    _check(
        len(replicas) == request.replicas,
        f"request {key} has {len(replicas)} of its {request.replicas} replicas placed",
    )
    for replica in replicas:
        name = replica.host
        _check(name in hosts, f"request {key} is placed on {name}, which is no host")
        allowed = request.hosts_allowed is None or name in request.hosts_allowed
        _check(
            allowed and name not in request.hosts_excluded and hosts[name].schedulable,
            f"request {key} may not go to {name}",
        )
        known = {gpu.uuid: gpu for gpu in hosts[name].gpus}
        _check(
            len(set(replica.gpus)) == len(replica.gpus) == request.gpus,
            f"request {key} asks for {request.gpus} GPU(s) a replica and has {len(replica.gpus)}",
        )
        for uuid in replica.gpus:
            _check(uuid in known, f"request {key} has GPU {uuid}, which {name} has not")
            _check_gpu(key, request, known[uuid])
    used = [replica.host for replica in replicas]
    apart = request.spread is not Spread.SPREAD or len(set(used)) == len(used)
    _check(apart, f"replicas of request {key} share a host")
    together = request.spread is not Spread.PACK or len(set(used)) == 1
    _check(together, f"replicas of request {key} are not on one host")
    zones = {hosts[name].zone for name in used}
    _check(not request.same_zone or len(zones) == 1, f"request {key} lies in several zones")


def _check_gpu(key: str, request: ResourceRequest, gpu: GpuState) -> None:
    _check(gpu.health.takes_work, f"request {key} has GPU {gpu.uuid}, which takes no work")
    _check(
        request.accepts_model(gpu.model),
        f"request {key} has GPU {gpu.uuid} of model {gpu.model}, which it does not accept",
    )


def _check_labels(plan: Plan, wanted: dict[str, ResourceRequest]) -> None:
    holder: dict[tuple[str, HostName], str] = {}
    for placement in plan.placements:
        label = wanted[placement.key].anti_affinity
        for replica in placement.replicas if label else ():
            other = holder.setdefault((label, replica.host), placement.key)
            _check(
                other == placement.key,
                f"requests {other} and {placement.key} of {label!r} share host {replica.host}",
            )


def _check_room(
    plan: Plan, wanted: dict[str, ResourceRequest], hosts: dict[HostName, HostState]
) -> None:
    cpu: Counter[str] = Counter()
    memory: Counter[str] = Counter()
    share: Counter[str] = Counter()
    gpu_memory: Counter[str] = Counter()
    for placement in plan.placements:
        request = wanted[placement.key]
        for replica in placement.replicas:
            cpu[replica.host] += request.cpu_millis
            memory[replica.host] += request.memory_mib
            for uuid in replica.gpus:
                share[uuid] += request.share_milli
                gpu_memory[uuid] += request.gpu_memory_mib or 0
    for host in hosts.values():
        _check_amount(host.name, "thousandths of a core", cpu[host.name], host.cpu_free_millis)
        _check_amount(host.name, "MiB of memory", memory[host.name], host.memory_free_mib)
        for gpu in host.gpus:
            _check_amount(
                f"GPU {gpu.uuid}", "thousandths of it", share[gpu.uuid], gpu.share_free_milli
            )
            _check_amount(
                f"GPU {gpu.uuid}", "MiB of its memory", gpu_memory[gpu.uuid], gpu.memory_free_mib
            )


def _check_amount(where: str, what: str, taken: int, free: int) -> None:
    _check(taken <= max(0, free), f"{where}: {taken} {what} are taken and {free} are free")
