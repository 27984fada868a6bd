"""A laptop's GPUs: the very probe, and what it makes of a job that holds one."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from cluster.adapters.probe_follower import LocalProbe
from cluster.ports import HostEndpoint


def test_a_host_may_be_a_machine_that_is_not_there(tmp_path: Path) -> None:
    endpoint = HostEndpoint(name="desk", url="process://local")
    probe = LocalProbe(endpoint, state_dir=tmp_path, simulate="8xA100")

    with closing(probe.readings()) as readings:
        reading = next(one for one in readings if one is not None)

    assert reading.simulated
    assert len(reading.gpus) == 8
    assert reading.topology is not None
    assert {link.kind for link in reading.topology} == {"nvlink"}
    assert reading.memory_total_mib
