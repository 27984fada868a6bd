"""Drivers that hang, lie and lose GPUs at random moments, while jobs come and go.

What must hold whatever happens: nothing that runs is ended for want of data, no GPU is given twice
or given while it is known to be at fault, and the page tells the truth within ten seconds.

A few storms here; ``STARLING_STORMS=200`` makes as many.
"""

from __future__ import annotations

import os
import random
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum
from uuid import UUID, uuid4

import pytest

from cluster import selectors, services
from cluster.core.resources import GpuReading, GpuUuid, HostReading
from cluster.errors import NoRoomError
from cluster.models import Allocation, AllocationState, GpuClaim, Host
from jobs.models import Job
from monitoring import selectors as live
from monitoring.ingest import Ingest
from tests.factories.cluster import HostFactory
from tests.factories.jobs import running_job

pytestmark = pytest.mark.django_db
STORMS = int(os.environ.get("STARLING_STORMS", "2"))
SECONDS = 60
GPUS = 4
#: What the page may take to tell the truth.
TRUTH_S = 10


class Fault(Enum):
    """What is wrong with the whole driver or probe, or with one GPU."""

    HANG = "hang"
    CRASH = "crash"
    MISMATCH = "mismatch"
    SILENT = "silent"
    LOST = "lost"
    MISSING = "missing"
    UNSAID = "unsaid"
    STRANGER = "stranger"
    XID = "xid"


OF_DRIVER = (Fault.HANG, Fault.CRASH, Fault.MISMATCH, Fault.SILENT)
OF_GPU = (Fault.LOST, Fault.MISSING, Fault.UNSAID, Fault.STRANGER, Fault.XID)
#: What a GPU must be shown as while such a fault lasts.
SHOWN = {
    Fault.HANG: {"stale", "quarantined"},
    Fault.CRASH: {"stale", "quarantined"},
    Fault.SILENT: {"stale", "quarantined"},
    Fault.MISMATCH: {"draining", "quarantined"},
    Fault.LOST: {"quarantined"},
    Fault.MISSING: {"quarantined"},
    Fault.XID: {"quarantined"},
    Fault.STRANGER: {"draining", "quarantined"},
    Fault.UNSAID: {"ok", "quarantined"},
    None: {"ok", "quarantined"},
}


@dataclass
class Storm:
    """A host whose driver has faults that come and go, and what was done to it."""

    host: Host
    chance: random.Random
    now: datetime
    driver: Fault | None = None
    gpus: list[Fault | None] = field(default_factory=lambda: [None] * GPUS)
    since: datetime | None = None
    changed: list[datetime] = field(default_factory=list)
    xids: list[tuple[tuple[float, int], ...]] = field(default_factory=lambda: [()] * GPUS)
    starts: int = 1
    holders: dict[UUID, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.changed = [self.now] * GPUS
        self.since = self.now

    def uuid(self, index: int) -> str:
        return f"GPU-{self.host.name}-{index}"

    def blow(self) -> None:
        """Let faults begin and end."""
        if self.chance.random() < 0.03:
            self._restart()
        if self.chance.random() < 0.06:
            self.driver = None if self.driver else self.chance.choice(OF_DRIVER)
            self.since = self.now
        for index in range(GPUS):
            if self.chance.random() < 0.03:
                fault = None if self.gpus[index] else self.chance.choice(OF_GPU)
                self.gpus[index] = fault
                self.changed[index] = self.now
                if fault is Fault.XID:
                    self.xids[index] = ((self.now.timestamp(), 79),)

    def _restart(self) -> None:
        """Start the machine anew: an error of before was before."""
        self.starts += 1
        for index in range(GPUS):
            self.xids[index] = ()
            if self.gpus[index] is Fault.XID:
                self.gpus[index], self.changed[index] = None, self.now

    def reading(self) -> HostReading | None:
        """Return what the probe would say."""
        if self.driver is Fault.SILENT:
            return None
        boot = f"boot {self.starts}"
        if self.driver is not None:
            stale = {"utilization_pct": "stale", "memory_used_mib": "stale"}
            gpus = [self._gpu(index, why=stale) for index in range(GPUS)]
            listed = () if self.chance.random() < 0.3 else tuple(gpus)
            trouble = self.driver.value
            return HostReading(
                observed_at=self.now,
                gpus=listed,
                gpu_trouble=trouble,
                gpu_error="trouble",
                boot=boot,
            )
        seen = [self._seen(index) for index in range(GPUS)]
        return HostReading(observed_at=self.now, gpus=tuple(gpu for gpu in seen if gpu), boot=boot)

    def _gpu(self, index: int, **values: object) -> GpuReading:
        base: dict[str, object] = {"memory_total_mib": 10_000} | values
        return GpuReading(
            uuid=GpuUuid(self.uuid(index)),
            model="T4",
            index=index,
            **base,  # type: ignore[arg-type]
        )

    def _seen(self, index: int) -> GpuReading | None:
        match self.gpus[index]:
            case Fault.MISSING:
                return None
            case Fault.LOST:
                return self._gpu(index, lost=True)
            case Fault.UNSAID:
                why = {"utilization_pct": "unsupported", "power_w": "unsupported"}
                return self._gpu(index, memory_used_mib=5, why=why, xids=self.xids[index])
            case Fault.STRANGER:
                return self._gpu(index, memory_used_mib=900, processes={"": 900})
        return self._gpu(index, memory_used_mib=5, utilization_pct=0.0, xids=self.xids[index])

    def work(self) -> None:
        """Let a job end, and another begin where the snapshot says it may."""
        for holder in list(self.holders):
            if self.holders[holder] and self.chance.random() < 0.1:
                services.allocation_release(holder=holder, now=self.now)
                del self.holders[holder]
        [state] = selectors.cluster_snapshot(now=self.now).hosts
        for gpu in state.gpus:
            if not gpu.free:
                continue
            holder = uuid4()
            try:
                services.allocation_create(
                    holder=holder,
                    host_name=self.host.name,
                    cpu_millis=1,
                    memory_mib=1,
                    gpus=[(gpu.uuid, None)],
                    now=self.now,
                )
            except NoRoomError:
                continue
            self._check_given(gpu.uuid)
            self.holders[holder] = gpu.uuid

    def _check_given(self, uuid: str) -> None:
        fault = self._fault(int(uuid.rpartition("-")[2]))
        lasts = self._lasts(int(uuid.rpartition("-")[2]))
        assert fault in {None, Fault.UNSAID} or lasts <= TRUTH_S, (
            f"{fault} for {lasts} s, and given"
        )

    def _fault(self, index: int) -> Fault | None:
        return self.driver or self.gpus[index]

    def _lasts(self, index: int) -> float:
        assert self.since is not None
        since = self.since if self.driver else max(self.since, self.changed[index])
        return (self.now - since).total_seconds()

    def check(self) -> None:
        """Look at the database and the page."""
        held = set(
            Allocation.objects.filter(state=AllocationState.HELD).values_list("holder", flat=True)
        )
        assert held == set(self.holders), "a claim ended that nobody ended"
        active = list(GpuClaim.objects.filter(active=True).values_list("gpu__uuid", flat=True))
        assert len(active) == len(set(active)), "a GPU was given twice"
        [shown] = live.cluster_live(now=self.now)
        for gpu in shown["gpus"]:
            index = int(gpu["uuid"].rpartition("-")[2])
            fault, lasts = self._fault(index), self._lasts(index)
            if lasts <= TRUTH_S:
                continue
            assert gpu["health"] in SHOWN[fault], f"{fault} for {lasts} s shown as {gpu['health']}"
            if fault is not None and fault in {*OF_DRIVER, Fault.LOST, Fault.MISSING}:
                assert "utilization_pct" not in gpu["values"]


@pytest.mark.parametrize("seed", range(STORMS))
def test_a_storm_of_faults(seed: int, now: datetime) -> None:
    host = HostFactory(name=f"storm{seed}")
    replica = running_job(host=host)
    storm = Storm(host, random.Random(seed), now, holders={replica.public_id: ""})
    ingest = Ingest(tell=lambda *_: None)
    ingest.begin(host.name, now=now)

    for second in range(SECONDS):
        storm.now = now + timedelta(seconds=second)
        if second > 3:
            storm.blow()
        reading = storm.reading()
        if reading is not None:
            ingest.take(host.name, reading)
        ingest.tick(storm.now)
        if second % 3 == 0:
            storm.work()
        storm.check()

    assert Job.objects.get().status == "running"
