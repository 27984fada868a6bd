"""The engine's words in our own."""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from cluster.ports import ContainerState, ContainerStatus


def status_of(found: Mapping[str, Any]) -> ContainerStatus:
    """Return what an inspected container's record says."""
    state = found["State"]
    word = str(state.get("Status", ""))
    if word == "created":
        kind = ContainerState.CREATED
    elif word in {"running", "paused", "restarting", "removing"}:
        kind = ContainerState.RUNNING
    else:
        kind = ContainerState.EXITED
    ended = kind is ContainerState.EXITED
    return ContainerStatus(
        name=str(found["Name"]).lstrip("/"),
        container_id=str(found["Id"]),
        state=kind,
        labels=dict(found["Config"].get("Labels") or {}),
        exit_code=int(state["ExitCode"]) if ended else None,
        oom_killed=bool(state.get("OOMKilled")) if ended else False,
        started_at=moment(str(state.get("StartedAt", ""))),
        finished_at=moment(str(state.get("FinishedAt", ""))) if ended else None,
        error=str(state.get("Error", "")),
    )


def moment(text: str) -> datetime | None:
    """Return the engine's time; its nanoseconds are cut, and year 1 is "never"."""
    found = re.match(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(\.\d+)?(Z|[+-]\d\d:\d\d)$", text)
    if found is None or text.startswith("0001"):
        return None
    fraction = (found[2] or ".0")[:7]
    return datetime.fromisoformat(f"{found[1]}{fraction.ljust(7, '0')}{found[3]}").astimezone(UTC)


def clock_offset(system_time: str) -> float | None:
    """Return by how many seconds the host's clock is ahead of ours."""
    there = moment(system_time)
    return None if there is None else (there - datetime.now(tz=UTC)).total_seconds()


def takes_gpus(found: Mapping[str, Any]) -> bool:
    """Return whether the engine says that it can give GPUs; some can and do not say it."""
    return "nvidia" in (found.get("Runtimes") or {}) or cdi_gpus(found)


def cdi_gpus(found: Mapping[str, Any]) -> bool:
    """Return whether the engine found GPUs by the Container Device Interface."""
    return "nvidia.com/gpu" in str(found.get("DiscoveredDevices") or "")
