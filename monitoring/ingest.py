"""Between the probes' followers and the database: readings in, samples, reports and messages out.

Followers only hand over; one thread stores for all of them, in few statements whatever the number
of hosts. What cannot be stored waits, up to a bound; then the oldest goes.
"""

import logging
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from operator import attrgetter
from threading import Lock
from typing import Any, Final
from uuid import UUID

from cluster import health
from cluster.core.resources import (
    CONTAINER_FIELDS,
    GPU_FIELDS,
    HOST_FIELDS,
    ContainerReading,
    GpuReading,
    HostReading,
    Reading,
)
from monitoring import events, selectors, services
from monitoring.broadcast import publish, watched

logger = logging.getLogger(__name__)

#: Readings of one host that may wait for the next tick, and samples of all that may wait for the
#: database: a day's worth of neither would help anybody.
_WAITING_READINGS: Final = 120
_WAITING_SAMPLES: Final = 400_000
_CONTAINERS_EVERY: Final = timedelta(seconds=2)
_SILENT_AFTER: Final = timedelta(seconds=5)
#: However calm a GPU is, so often it is judged with its row: an admin may have changed that.
_JUDGE_EVERY: Final = timedelta(seconds=30)
_REPORT_HOSTS: Final = 50
_BATCH_MESSAGES: Final = 200
_MANY: Final = 200

_DRAWN: Final = frozenset(GPU_FIELDS)
_of_host = attrgetter(*HOST_FIELDS)
_of_gpu = attrgetter(*GPU_FIELDS)
_of_container = attrgetter(*CONTAINER_FIELDS)
_Sample = tuple[str, datetime, Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reported:
    """When a host was reported last, when its GPUs were judged, and whether nothing was wrong."""

    at: datetime
    judged_at: datetime
    key: Any
    calm: bool = False

    def repeats(self, report: health.HostReport, key: Any, *, now: datetime) -> bool:
        """Return whether a report only says once more that nothing is wrong."""
        recent = now - self.judged_at < _JUDGE_EVERY
        return self.calm and recent and key == self.key and health.is_calm(report)


class Ingest:
    """Takes readings from any thread; :meth:`tick`, from one, does the rest."""

    def __init__(self, *, tell: Callable[[str, dict[str, Any]], None] = publish) -> None:
        self._tell = tell
        self._lock = Lock()
        self._waiting: dict[str, deque[HostReading]] = {}
        self._heard: dict[str, datetime] = {}
        self._unstored: list[_Sample] = []
        self._stored_at: datetime | None = None
        self._reported: dict[str, _Reported] = {}
        self._silent: set[str] = set()
        self._containers: dict[str, dict[str, tuple[UUID, UUID]]] = {}
        self._containers_at: datetime | None = None
        self.dropped = 0

    def begin(self, host_name: str, *, now: datetime) -> None:
        """Expect readings of a host from now on."""
        with self._lock:
            self._heard.setdefault(host_name, now)

    def forget(self, host_name: str) -> None:
        """Expect no more readings of a host."""
        with self._lock:
            for known in (self._waiting, self._heard, self._reported):
                known.pop(host_name, None)
            self._silent.discard(host_name)

    def take(self, host_name: str, reading: HostReading) -> None:
        """Take one reading; of a host whose readings wait for too long the oldest goes."""
        with self._lock:
            waiting = self._waiting.setdefault(host_name, deque(maxlen=_WAITING_READINGS))
            if len(waiting) == _WAITING_READINGS:
                self.dropped += 1
            waiting.append(reading)

    def tick(self, now: datetime) -> None:
        """Tell who watches, store what is due, and judge GPUs by what came or did not come."""
        with self._lock:
            taken, self._waiting = self._waiting, {}
            self._heard.update(dict.fromkeys(taken, now))
            hosts = len(self._heard)
        self._refresh_containers(now)
        shared: list[_Sample] = []
        own: list[tuple[UUID, _Sample]] = []
        for host_name, readings in taken.items():
            for reading in readings:
                shared += _shared(host_name, reading)
                own += self._own(host_name, reading)
        self._unstored += shared
        self._unstored += [sample for _, sample in own]
        self._bound()
        self._publish(shared, own)
        if self._stored_at is None or now - self._stored_at >= storing_period(hosts):
            self._store(now)
        latest = {host_name: readings[-1] for host_name, readings in taken.items()}
        self._report(latest, hosts, now=now)
        self._notice_silence(now)

    def _refresh_containers(self, now: datetime) -> None:
        if self._containers_at is None or now - self._containers_at >= _CONTAINERS_EVERY:
            self._containers = selectors.running_containers()
            self._containers_at = now

    def _own(self, host_name: str, reading: HostReading) -> list[tuple[UUID, _Sample]]:
        """Return the samples of the containers that run jobs, each with its job."""
        known = self._containers.get(host_name, {})
        found: list[tuple[UUID, _Sample]] = []
        for container in reading.containers:
            if container.container_id in known:
                replica, job = known[container.container_id]
                values = container_values(container, reading.gpus)
                found.append((job, (f"replica:{replica}", reading.observed_at, values)))
        return found

    def _bound(self) -> None:
        excess = len(self._unstored) - _WAITING_SAMPLES
        if excess > 0:
            del self._unstored[:excess]
            self.dropped += excess
            logger.warning("samples dropped: the database does not keep up", extra={"n": excess})

    def _store(self, now: datetime) -> None:
        if self._unstored:
            services.samples_record(self._unstored)
            self._unstored = []
        self._stored_at = now

    def _report(self, latest: Mapping[str, HostReading], hosts: int, *, now: datetime) -> None:
        """Have GPUs judged: every few seconds, and at once where something changed."""
        period = timedelta(seconds=3 if hosts <= _MANY else 5)
        due: list[health.HostReport] = []
        calm: list[health.HostReport] = []
        for host_name, reading in latest.items():
            before = self._reported.get(host_name)
            key = _key(reading)
            if before is not None and key == before.key and now - before.at < period:
                continue
            report = self._report_of(host_name, reading)
            self._silent.discard(host_name)
            if before is None or not before.repeats(report, key, now=now):
                due.append(report)
                self._reported[host_name] = _Reported(at=now, judged_at=now, key=key)
            else:
                calm.append(report)
                self._reported[host_name] = replace(before, at=now)
        for part in _parts(due, _REPORT_HOSTS):
            for host_name in health.probe_reports(part, now=now):
                self._reported[host_name] = replace(self._reported[host_name], calm=True)
        for part in _parts(calm, 4 * _REPORT_HOSTS):
            health.readings_refresh(part, now=now)

    def _report_of(self, host_name: str, reading: HostReading) -> health.HostReport:
        return health.HostReport(
            host_name=host_name,
            reading=reading,
            containers=frozenset(self._containers.get(host_name, ())),
        )

    def _notice_silence(self, now: datetime) -> None:
        """Say of a host whose probe says nothing any more that nothing is known of it."""
        with self._lock:
            silent = {
                name: now - heard
                for name, heard in self._heard.items()
                if now - heard > _SILENT_AFTER and name not in self._silent
            }
        for part in _parts(sorted(silent), _REPORT_HOSTS):
            health.probes_silent(
                {name: f"its probe has said nothing for {silent[name].seconds} s" for name in part},
                now=now,
            )
            self._silent.update(part)
            for name in part:
                self._reported.pop(name, None)

    def _publish(self, shared: Sequence[_Sample], own: Sequence[tuple[UUID, _Sample]]) -> None:
        by_group: dict[str, list[_Sample]] = defaultdict(list)
        by_group[events.CLUSTER_GROUP] = list(shared)
        for job, sample in own:
            by_group[events.job_group(job)].append(sample)
        groups: Iterable[str] = by_group
        if len(shared) + len(own) > _MANY:
            # With many hosts it is worth asking whether anybody watches.
            groups = watched(list(by_group))
        for group in groups:
            for part in _parts(by_group[group], _BATCH_MESSAGES):
                messages = [_message(sample) for sample in part]
                one = messages[0] if len(part) == 1 else events.batch_message(messages)
                self._tell(group, one)


def storing_period(hosts: int) -> timedelta:
    """Return how long samples wait to be stored: the more hosts, the more at once."""
    return timedelta(seconds=min(10.0, max(0.9, hosts / 50)))


def _key(reading: HostReading) -> tuple[Any, ...]:
    """Return what must be told at once when it changes."""
    return (
        reading.gpu_trouble,
        reading.boot,
        reading.simulated,
        reading.topology is None,
        tuple(
            (gpu.uuid, gpu.index, gpu.model, gpu.lost, gpu.xids[-1:], "" in gpu.processes)
            for gpu in reading.gpus
        ),
    )


def _parts(items: Sequence[Any], size: int) -> Iterable[list[Any]]:
    for start in range(0, len(items), size):
        yield list(items[start : start + size])


def _message(sample: _Sample) -> dict[str, Any]:
    subject, at, values = sample
    rounded = {
        name: round(value, 2) if isinstance(value, float) else value
        for name, value in values.items()
    }
    return events.samples_message(subject=subject, at=at, values=rounded)


def _shared(host_name: str, reading: HostReading) -> list[_Sample]:
    at = reading.observed_at
    found: list[_Sample] = [(f"host:{host_name}", at, host_values(reading))]
    found += [(f"gpu:{gpu.uuid}", at, gpu_values(gpu)) for gpu in reading.gpus]
    return found


def host_values(reading: HostReading) -> dict[str, Any]:
    """Return a host's sample; what could not be read is absent."""
    return _known(HOST_FIELDS, _of_host(reading))


def gpu_values(reading: GpuReading) -> dict[str, Any]:
    """Return a GPU's sample, with the word why for what the driver did not say."""
    values = _known(GPU_FIELDS, _of_gpu(reading))
    why = {name: word for name, word in reading.why.items() if name in _DRAWN}
    if reading.divided or reading.parent:
        why = {name: "mig" if word == Reading.UNSUPPORTED else word for name, word in why.items()}
    return values | ({"why": why} if why else {})


def container_values(reading: ContainerReading, gpus: Iterable[GpuReading] = ()) -> dict[str, Any]:
    """Return a container's sample, with its own part of the GPUs it is seen on."""
    values = _known(CONTAINER_FIELDS, _of_container(reading))
    name = reading.container_id
    memory = [gpu.processes[name] for gpu in gpus if name in gpu.processes]
    shares = [gpu.shares[name] for gpu in gpus if name in gpu.shares]
    if memory and None not in memory:
        values["gpu_memory_mib"] = sum(mib for mib in memory if mib is not None)
    if shares:
        values["gpu_pct"] = round(sum(shares), 1)
    return values


def _known(names: tuple[str, ...], values: tuple[Any, ...]) -> dict[str, Any]:
    return {name: value for name, value in zip(names, values, strict=True) if value is not None}
