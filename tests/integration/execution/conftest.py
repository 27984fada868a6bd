"""One host whose engine is in memory, and a clock that a test moves."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

import pytest

from cluster.adapters import registry
from cluster.core.placement.first_fit import FirstFit
from cluster.models import Gpu, Host
from jobs import execution, scheduling
from jobs.lifecycle import JobStatus, ReplicaStatus
from jobs.models import Job, Replica
from jobs.selectors import following
from jobs.services import replica_log_completed
from tests.factories.cluster import NOW, HostFactory
from tests.fakes.runtime import FakeRuntime


@dataclass
class Platform:
    """What workers, beat and collector do, one step at a time, without any message."""

    runtime: FakeRuntime
    host: Host
    now: datetime = NOW
    follows_logs: bool = True

    def schedule(self) -> int:
        return scheduling.schedule_pending(placer=FirstFit(), holder="test", now=self.now)

    def reconcile(self) -> None:
        execution.reconcile_host(name=self.host.name, holder="test", now=self.now)

    def collect(self) -> None:
        """Report the GPUs, and store the log of everything that has ended to its end."""
        if self.runtime.silent:
            return
        Gpu.objects.update(reported_at=self.now)
        for replica in following():
            runs = replica.container_name in self.runtime.running
            if ReplicaStatus(replica.status).has_ended and not runs:
                replica_log_completed(replica_id=replica.public_id, now=self.now)

    def tick(self, seconds: float = 3) -> None:
        """Let some time pass, and let everybody have a turn."""
        self.now += timedelta(seconds=seconds)
        if self.follows_logs:
            self.collect()
        self.schedule()
        self.reconcile()
        execution.finish_overdue(now=self.now)

    def until(self, job: Job, status: JobStatus, *, ticks: int = 40) -> None:
        for _ in range(ticks):
            job.refresh_from_db()
            if job.status == status:
                return
            self.tick()
        raise AssertionError(f"{job.status} after {ticks} ticks, not {status}")


@pytest.fixture
def platform(db: None) -> Iterator[Platform]:
    runtime = FakeRuntime()
    registry.override(lambda _: runtime)
    yield Platform(runtime=runtime, host=HostFactory(name="local"))
    registry.override(None)


def replica_of(job: Job) -> Replica:
    return Replica.objects.filter(attempt__job=job).latest("id")
