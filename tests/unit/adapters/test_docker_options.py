"""What an engine is told of a job's container."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cluster.adapters.docker_runtime.options import environment, job_options, program
from cluster.core.resources import GpuUuid
from cluster.ports import ContainerSpec

SPEC = ContainerSpec(
    name="a",
    image="image",
    python="",
    command=("python", "main.py", "python"),
    cpu_millis=1500,
    memory_mib=2048,
    shm_mib=256,
    pids_limit=300,
    log_limit_mib=64,
)
WITH_GPUS = replace(SPEC, gpus=(GpuUuid("GPU-b"), GpuUuid("GPU-a")))


def test_every_limit_is_told() -> None:
    found = job_options(SPEC, network="jobs", cdi=False)

    assert found["mem_limit"] == found["memswap_limit"] == 2048 * 2**20
    assert found["nano_cpus"] == 1_500_000_000
    assert found["shm_size"] == 256 * 2**20
    assert found["pids_limit"] == 300
    assert found["network_mode"] == "jobs"


def test_a_container_gets_no_power_over_its_host() -> None:
    found = job_options(SPEC, network="jobs", cdi=False)

    assert found["cap_drop"] == ["ALL"]
    assert found["security_opt"] == ["no-new-privileges"]
    assert found["read_only"] is True
    assert not {"privileged", "pid_mode", "ipc_mode", "cap_add", "devices", "binds"} & set(found)


@pytest.mark.parametrize(("limit_mib", "size"), [(64, "192m"), (1, "8m")])
def test_the_engine_keeps_more_than_is_asked_for(limit_mib: int, size: str) -> None:
    spec = replace(SPEC, log_limit_mib=limit_mib)

    assert job_options(spec, network="jobs", cdi=False)["log_config"].config == {
        "max-size": size,
        "max-file": "2",
    }


def test_gpus_are_asked_for_by_uuid() -> None:
    (request,) = job_options(WITH_GPUS, network="jobs", cdi=False)["device_requests"]

    assert request["Driver"] == "nvidia"
    assert request["DeviceIDs"] == ["GPU-b", "GPU-a"]
    assert request["Count"] == 0


def test_gpus_are_asked_for_by_their_cdi_names_where_there_are_only_those() -> None:
    (request,) = job_options(WITH_GPUS, network="jobs", cdi=True)["device_requests"]

    assert request["Driver"] == "cdi"
    assert request["DeviceIDs"] == ["nvidia.com/gpu=GPU-b", "nvidia.com/gpu=GPU-a"]


def test_gpus_are_seen_in_order_and_none_where_none_was_given() -> None:
    assert environment(WITH_GPUS)["CUDA_VISIBLE_DEVICES"] == "GPU-b,GPU-a"
    assert "NVIDIA_VISIBLE_DEVICES" not in environment(WITH_GPUS)
    assert environment(SPEC)["NVIDIA_VISIBLE_DEVICES"] == "void"
    assert job_options(SPEC, network="jobs", cdi=False)["device_requests"] is None


def test_only_a_leading_python_is_the_interpreter() -> None:
    assert program(SPEC) == ["python3", "main.py", "python"]
