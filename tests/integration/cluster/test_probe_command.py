"""The command that shows what a probe sees."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from io import StringIO

import pytest
from django.core.management import CommandError, call_command

from cluster.core.resources import GpuReading, GpuUuid, HostReading
from cluster.management.commands.probe import as_text
from tests.factories.cluster import HostFactory


@pytest.mark.django_db
def test_readings_are_printed_one_a_line() -> None:
    HostFactory(name="desk", url="process://local")
    out = StringIO()

    call_command("probe", "desk", "--count", "2", "--json", stdout=out)

    first, second = [json.loads(line) for line in out.getvalue().splitlines()]
    assert first["cpu_pct"] is None
    assert second["memory_used_mib"] > 0


@pytest.mark.django_db
def test_an_unknown_host_is_told_with_those_there_are() -> None:
    HostFactory(name="desk")

    with pytest.raises(CommandError, match=r"no host 'dask'; there are: desk"):
        call_command("probe", "dask")


@pytest.mark.django_db
def test_a_host_that_is_not_served_is_told() -> None:
    HostFactory(name="far", url="ssh://user@far")

    with pytest.raises(CommandError, match="not served yet"):
        call_command("probe", "far")


def test_a_line_for_people_says_what_is_unknown() -> None:
    reading = HostReading(
        observed_at=datetime(2026, 3, 2, 9, 0, tzinfo=UTC),
        cpu_pct=12.4,
        memory_total_mib=16_000,
        gpus=(
            GpuReading(uuid=GpuUuid("a"), model="T4", index=0, memory_total_mib=15_360),
            GpuReading(uuid=GpuUuid("b"), model="T4", index=1, lost=True),
        ),
        gpu_error="the NVIDIA driver does not answer",
        simulated=True,
    )

    assert as_text(reading) == (
        "09:00:00  cpu 12%  memory ?/16000 MiB  containers 0  gpu0 ?% ?/15360 MiB  gpu1 LOST  "
        "(simulated)  the NVIDIA driver does not answer"
    )
