"""Answers to what-if questions, computed beside the workers."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, Final

from cluster.core.resources import ClusterSnapshot, GpuState, GpuUuid, HostName, HostState
from cluster.core.simulation.figures import ROWS, figures_of, table_of
from cluster.core.simulation.policies import policy_named
from cluster.core.simulation.report import Report, WaitChange, wait_changes
from cluster.core.simulation.run import simulate
from cluster.core.simulation.workload_files import workload_from_text
from jobs.models import SimulationRun
from jobs.services.runs import Clock, Ledger, settle

#: How many jobs and people are named that wait longest more.
_NAMED: Final = 50
_EPOCH: Final = datetime(2000, 1, 1, tzinfo=UTC)


def simulation_execute(run: SimulationRun, ledger: Ledger, clock: Clock) -> None:
    """Simulate under every policy in turn; each answer is kept as soon as it is there."""
    hosts = snapshot_of(run.hosts)
    workload = workload_from_text(run.workload, run.source.get("file", "workload"))
    reports: list[Report] = []
    for number, name in enumerate(run.policies):

        def told(share: float, number: int = number, name: str = name) -> None:
            whole = 100 * (number + share) / len(run.policies)
            ledger.tell(whole, f"{name}: {100 * share:.0f} % of the jobs have ended")

        ledger.tell(100 * number / len(run.policies), f"{name}: begins")
        policy = policy_named(name, run.seed)
        reports.append(simulate(hosts, workload, policy, run.seed, progress=told))
        ledger.keep(result_of(reports))
    settle(run, result=result_of(reports), now=clock())


def result_of(reports: Sequence[Report]) -> dict[str, Any]:
    """Return what pages and REST show of some reports, however many jobs they have."""
    return {
        "rows": [
            {"name": name, "title": title, "unit": unit, "values": [t[name] for t in tables]}
            for tables in [[table_of(report) for report in reports]]
            for name, title, unit in ROWS
        ],
        "policies": [report.policy for report in reports],
        "outcomes": [dict(report.outcomes) for report in reports],
        "jobs": len(reports[0].jobs),
        "hosts": reports[0].hosts,
        "gpus": reports[0].gpus,
        "figures": [asdict(figure) for figure in figures_of(reports)],
        "changes": [_changes(reports[0], report) for report in reports[1:]],
    }


def snapshot_of(hosts: Sequence[Mapping[str, Any]]) -> ClusterSnapshot:
    """Return stored hosts as the simulator takes them, with nothing on them."""
    return ClusterSnapshot(
        taken_at=_EPOCH,
        hosts=tuple(
            HostState(
                name=HostName(host["name"]),
                cpu_millis=host["cpu_millis"],
                memory_mib=host["memory_mib"],
                zone=host["zone"],
                gpus=tuple(
                    GpuState(
                        uuid=GpuUuid(f"{host['name']}/{index}"),
                        model=gpu["model"],
                        memory_total_mib=gpu["memory_mib"],
                    )
                    for index, gpu in enumerate(host["gpus"])
                ),
            )
            for host in hosts
        ),
    )


def _changes(base: Report, report: Report) -> dict[str, Any]:
    changes = wait_changes(base, report)
    longer = [change for change in changes if _direction(change) > 0]
    return {
        "base": base.policy,
        "policy": report.policy,
        "longer": len(longer),
        "shorter": sum(_direction(change) < 0 for change in changes),
        "same": sum(_direction(change) == 0 for change in changes),
        "jobs": [asdict(change) for change in longer[:_NAMED]],
        "owners": _by_owner(changes),
    }


def _direction(change: WaitChange) -> int:
    """Return 1 for who waits longer, -1 for who waits less, 0 for equal to a second."""
    if change.change_s is None:
        return (change.after_s is None) - (change.before_s is None)
    return (change.change_s > 1) - (change.change_s < -1)


def _by_owner(changes: Sequence[WaitChange]) -> list[dict[str, Any]]:
    """Return each person's mean change of wait, who waits longest more first."""
    found: dict[str, list[float]] = defaultdict(list)
    for change in changes:
        if change.change_s is not None:
            found[change.owner].append(change.change_s)
    means = {owner: sum(waits) / len(waits) for owner, waits in found.items()}
    order = sorted(means, key=lambda owner: (-means[owner], owner))[:_NAMED]
    return [{"owner": owner, "jobs": len(found[owner]), "mean_s": means[owner]} for owner in order]
