"""What an engine is told of a container: of a job's, and of the probe's."""

import io
import tarfile
from pathlib import Path
from typing import Any, Final

from docker.types import DeviceRequest, LogConfig, Mount

from cluster.ports import ContainerSpec

PROBE_ROOT: Final = "/starling-probe"
_MIB: Final = 2**20
#: Docker keeps each line as JSON with its time: a line of 40 characters takes three times that.
_LOG_FACTOR: Final = 3
_PROBE_MEMORY_MIB: Final = 256


def program(spec: ContainerSpec) -> list[str]:
    """Return the command; images name their interpreter ``python3``."""
    first, *rest = spec.command
    return ["python3" if first == "python" else first, *rest]


def environment(spec: ContainerSpec) -> dict[str, str]:
    """Return the variables of a job's container."""
    found = {
        "HOME": "/tmp",  # noqa: S108 - inside the container
        "LANG": "C.UTF-8",
        "CUDA_VISIBLE_DEVICES": ",".join(spec.gpus),
    }
    if not spec.gpus:
        # Where the NVIDIA runtime is the engine's default, an image could ask for all GPUs.
        found["NVIDIA_VISIBLE_DEVICES"] = "void"
    return found | dict(spec.environment)


def job_options(spec: ContainerSpec, *, network: str, cdi: bool) -> dict[str, Any]:
    """Return a job's host options: its limits, its mounts, and no power over the host."""
    return {
        "mounts": [
            Mount(target=mount.target, source=mount.source, type="bind", read_only=mount.read_only)
            for mount in spec.mounts
        ],
        "network_mode": network,
        "mem_limit": spec.memory_mib * _MIB,
        # Together with swap: without this a container gets as much swap again.
        "memswap_limit": spec.memory_mib * _MIB,
        "nano_cpus": spec.cpu_millis * 10**6,
        "pids_limit": spec.pids_limit,
        "shm_size": spec.shm_mib * _MIB,
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges"],
        "read_only": True,
        "tmpfs": {"/tmp": f"rw,nosuid,nodev,size={spec.memory_mib}m,mode=1777"},  # noqa: S108
        "init": True,
        "device_requests": _gpu_request(spec, cdi=cdi),
        "log_config": LogConfig(
            type="json-file",
            # A full file is put aside and a new one begun: two keep at least the size of one.
            config={"max-size": f"{max(8, _LOG_FACTOR * spec.log_limit_mib)}m", "max-file": "2"},
        ),
    }


def _gpu_request(spec: ContainerSpec, *, cdi: bool) -> list[DeviceRequest] | None:
    if not spec.gpus:
        return None
    if cdi:
        names = [f"nvidia.com/gpu={uuid}" for uuid in spec.gpus]
        return [DeviceRequest(driver="cdi", device_ids=names)]
    capabilities = [["gpu", "compute", "utility"]]
    return [DeviceRequest(driver="nvidia", device_ids=list(spec.gpus), capabilities=capabilities)]


def probe_options(*, with_gpus: bool) -> dict[str, Any]:
    """Return the probe's host options: it sees every process and changes nothing."""
    gpus = [DeviceRequest(driver="nvidia", count=-1, capabilities=[["gpu", "utility"]])]
    return {
        "binds": {"/sys/fs/cgroup": {"bind": "/sys/fs/cgroup", "mode": "ro"}},
        "pid_mode": "host",
        # In a namespace of its own it would see other containers' groups at paths it cannot reach.
        "cgroupns": "host",
        "network_mode": "none",
        "mem_limit": _PROBE_MEMORY_MIB * _MIB,
        "cap_drop": ["ALL"],
        # Reading other users' /proc entries, and nothing else.
        "cap_add": ["SYS_PTRACE", "DAC_READ_SEARCH"],
        "security_opt": ["no-new-privileges"],
        "init": True,
        "restart_policy": {"Name": "unless-stopped"},
        "device_requests": gpus if with_gpus else None,
        "log_config": LogConfig(type="json-file", config={"max-size": "4m", "max-file": "2"}),
    }


def probe_archive(folder: Path) -> bytes:
    """Return a tar of the probe's package, importable as ``cluster.probe`` and nothing else."""
    members = {"cluster/__init__.py": b""}
    members |= {f"cluster/probe/{path.name}": path.read_bytes() for path in folder.glob("*.py")}
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content in sorted(members.items()):
            member = tarfile.TarInfo(PROBE_ROOT.lstrip("/") + "/" + name)
            member.size, member.mode = len(content), 0o644
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()
