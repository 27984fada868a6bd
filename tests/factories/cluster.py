"""Hosts, GPUs and claims."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import factory
from factory.django import DjangoModelFactory

from cluster.models import Allocation, AllocationState, Gpu, Host, HostConnection, HostMode

NOW = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)


class HostFactory(DjangoModelFactory[Host]):
    """A host of 8 cores and 16 GiB for jobs that answers and takes work; traits vary that."""

    class Meta:
        model = Host
        skip_postgeneration_save = True

    class Params:
        new = factory.Trait(connection=HostConnection.NEW)
        unreachable = factory.Trait(connection=HostConnection.UNREACHABLE, connection_at=NOW)
        cordoned = factory.Trait(mode=HostMode.CORDONED)
        docker = factory.Trait(url="unix:///run/test/docker.sock")

    name = factory.Sequence(lambda n: f"host{n}")
    url = "process://local"
    connection = HostConnection.UP
    connection_at = NOW
    cpu_millis = 8000
    memory_mib = 16_384

    @factory.post_generation
    def gpus(self: Host, create: bool, count: int | None, **kwargs: Any) -> None:
        """Give the host that many GPUs, reported just now."""
        for index in range(count or 0):
            GpuFactory(host=self, index=index, **kwargs)


class GpuFactory(DjangoModelFactory[Gpu]):
    """A healthy GPU of 10,000 MiB that was reported just now."""

    class Meta:
        model = Gpu

    host = factory.SubFactory(HostFactory)
    uuid = factory.Sequence(lambda n: f"GPU-{n:04}")
    model = "NVIDIA Test 10GB"
    index = 0
    memory_total_mib = 10_000
    reported_at = NOW


class AllocationFactory(DjangoModelFactory[Allocation]):
    """A claim of one core and 1 GiB."""

    class Meta:
        model = Allocation

    class Params:
        quarantined = factory.Trait(state=AllocationState.QUARANTINED)

    holder = factory.LazyFunction(uuid4)
    host = factory.SubFactory(HostFactory)
    cpu_millis = 1000
    memory_mib = 1024
    created_at = NOW
