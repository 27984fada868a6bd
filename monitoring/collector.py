"""Follows the probes of all hosts and the output of all replicas, records and publishes.

One process, a thread for each thing followed, so that a host that hangs holds up nothing else.
It may be killed at any moment: what is stored says where to go on.
"""

import json
import logging
import os
import time
from collections.abc import Callable
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from threading import Event, Thread
from typing import Final

from django.db import DatabaseError, InterfaceError, close_old_connections
from django.utils import timezone

from cluster.adapters import registry
from cluster.core.resources import (
    HostReading,
)
from cluster.errors import ClusterError
from cluster.models import Host, HostConnection
from cluster.ports import ContainerRuntime, HostEndpoint, HostProbe, LogLine
from jobs import selectors as job_selectors
from jobs import services as job_services
from jobs.models import Replica
from monitoring import events, services
from monitoring.broadcast import publish
from monitoring.errors import StaleCursorError
from monitoring.ingest import Ingest

logger = logging.getLogger(__name__)

_LOOK_S: Final = 0.5
_BATCH_LINES: Final = 500
_BATCH_S: Final = 0.25
_TICK_S: Final = 1.0
_MAX_PAUSE_S: Final = 30.0


class Collector:
    """Keeps one follower per host that answers and per replica whose output is not complete."""

    def __init__(
        self,
        *,
        heartbeat: Path | None = None,
        runtime_for: Callable[[HostEndpoint], ContainerRuntime] = registry.runtime_for,
        probe_for: Callable[[HostEndpoint], HostProbe] = registry.probe_for,
    ) -> None:
        self._heartbeat = heartbeat
        self._runtime_for = runtime_for
        self._probe_for = probe_for
        self._followers: dict[str, Thread] = {}
        self._ingest = Ingest()
        self._up: dict[int, str] = {}
        self._stop = Event()

    def run(self) -> None:
        """Follow until :meth:`stop`; trouble with the database only delays."""
        storing = Thread(target=_in_thread, args=(self._store,), name="ingest", daemon=True)
        storing.start()
        pause = _LOOK_S
        while not self._stop.wait(pause):
            try:
                self.look()
                pause = _LOOK_S
            except (DatabaseError, InterfaceError):
                logger.exception("collector cannot read the database")
                pause = min(_MAX_PAUSE_S, pause * 2)
            finally:
                close_old_connections()
        for thread in [*self._followers.values(), storing]:
            thread.join(timeout=5)

    def stop(self) -> None:
        """Ask every follower to end after what it has in hand."""
        self._stop.set()

    def look(self) -> None:
        """Start a follower for everything that has none, and forget those that have ended."""
        self._followers = {
            key: thread for key, thread in self._followers.items() if thread.is_alive()
        }
        self._look_at_hosts()
        for replica in job_selectors.following():
            follower = LogFollower(replica, self._runtime_for, self._stop)
            self._follow(f"replica:{replica.pk}", follower.run)
        self._beat()

    def _look_at_hosts(self) -> None:
        up = dict(Host.objects.filter(connection=HostConnection.UP).values_list("pk", "name"))
        for pk in self._up.keys() - up.keys():
            self._ingest.forget(self._up[pk])
        self._up = up
        new = [pk for pk in up if f"host:{pk}" not in self._followers]
        for host in Host.objects.filter(pk__in=new) if new else ():
            self._ingest.begin(host.name, now=timezone.now())
            follower = HostFollower(
                host,
                self._probe_for,
                take=self._ingest.take,
                is_wanted=partial(self._is_up, host.pk),
                stop=self._stop,
            )
            self._follow(f"host:{host.pk}", follower.run)

    def _is_up(self, pk: int) -> bool:
        return pk in self._up

    def _store(self) -> None:
        """Store what followers hand over, every second; trouble with the database only delays."""
        pause = _TICK_S
        while not self._stop.wait(pause):
            try:
                self._ingest.tick(timezone.now())
                pause = _TICK_S
            except (DatabaseError, InterfaceError):
                logger.exception("readings are not stored")
                pause = min(_MAX_PAUSE_S, pause * 2)
            finally:
                close_old_connections()

    def _follow(self, key: str, run: Callable[[], None]) -> None:
        if key in self._followers:
            return
        thread = Thread(target=_in_thread, args=(run,), name=key, daemon=True)
        self._followers[key] = thread
        thread.start()

    def _beat(self) -> None:
        if self._heartbeat is None:
            return
        self._heartbeat.parent.mkdir(parents=True, exist_ok=True)
        draft = self._heartbeat.with_suffix(f".{os.getpid()}")
        draft.write_text(json.dumps({"at": time.time(), "following": sorted(self._followers)}))
        draft.rename(self._heartbeat)


def _in_thread(run: Callable[[], None]) -> None:
    """Run a follower; whatever ends it is logged, and it is started again at the next look."""
    try:
        run()
    except Exception:
        logger.exception("a follower ended")
        time.sleep(_LOOK_S)
    finally:
        close_old_connections()


class LogFollower:
    """Follows one replica's output to its end."""

    def __init__(
        self,
        replica: Replica,
        runtime_for: Callable[[HostEndpoint], ContainerRuntime],
        stop: Event,
    ) -> None:
        self._replica = replica
        self._runtime_for = runtime_for
        self._stop = stop
        self._job_group = events.job_group(replica.attempt.job.public_id)

    def run(self) -> None:
        """Store everything there is and comes; on trouble, go on from what is stored."""
        pause = _LOOK_S
        while not self._stop.is_set():
            try:
                if self._follow():
                    self._complete()
            except StaleCursorError:
                pause = _LOOK_S
            except (ClusterError, DatabaseError, InterfaceError) as error:
                logger.warning(
                    "output not followed",
                    extra={"replica": self._replica.public_id, "why": str(error)},
                )
                pause = min(_MAX_PAUSE_S, pause * 2)
            else:
                return
            close_old_connections()
            self._stop.wait(pause)

    def _follow(self) -> bool:
        """Store lines until the output ends; return whether it did."""
        host = self._replica.host
        if host is None:
            return True
        cursor = services.log_stream(self._replica).cursor
        batch: list[LogLine] = []
        since = time.monotonic()
        lines = self._runtime_for(host.endpoint).logs(self._replica.container_name, after=cursor)
        with closing(lines):
            for line in lines:
                if line is not None:
                    batch.append(line)
                full = len(batch) >= _BATCH_LINES or time.monotonic() - since >= _BATCH_S
                if batch and (line is None or full):
                    cursor = self._store(batch, after=cursor)
                    batch = []
                if not batch:
                    since = time.monotonic()
                if self._stop.is_set():
                    return False
        if batch:
            self._store(batch, after=cursor)
        return True

    def _store(self, batch: list[LogLine], *, after: str) -> str:
        stored = services.log_append(replica=self._replica, after=after, lines=batch)
        replica, rank = self._replica.public_id, self._replica.rank
        if stored.lines:
            publish(
                self._job_group,
                events.log_message(
                    replica=replica, rank=rank, first=stored.first, lines=stored.lines
                ),
            )
        if stored.points:
            publish(self._job_group, events.metrics_message(rank=rank, points=stored.points))
        return batch[-1].cursor

    def _complete(self) -> None:
        services.log_complete(replica=self._replica)
        job_services.replica_log_completed(replica_id=self._replica.public_id, now=timezone.now())


class HostFollower:
    """Follows one host's probe while the host answers."""

    def __init__(
        self,
        host: Host,
        probe_for: Callable[[HostEndpoint], HostProbe],
        *,
        take: Callable[[str, HostReading], None],
        is_wanted: Callable[[], bool],
        stop: Event,
    ) -> None:
        self._host = host
        self._probe_for = probe_for
        self._take = take
        self._is_wanted = is_wanted
        self._stop = stop

    def run(self) -> None:
        """Hand readings over until the probe breaks; it is started again at the next look."""
        try:
            with closing(self._probe_for(self._host.endpoint).readings()) as readings:
                for reading in readings:
                    if self._stop.is_set() or not self._is_wanted():
                        return
                    if reading is not None:
                        self._take(self._host.name, reading)
        except ClusterError as error:
            self._say(str(error))
            self._stop.wait(5)

    def _say(self, text: str) -> None:
        with suppress(DatabaseError):
            Host.objects.filter(pk=self._host.pk).update(probe_text=text[:500])
