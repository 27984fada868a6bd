"""Whether samples of a large cluster can be kept: ingest, means, charts and a month's size.

A day of 1,000 hosts with 8 GPUs at one line a second, compressed: some minutes of it go through the
real path (probe lines, readings, samples, health) as fast as it can; an hour of all hosts is laid
into the table, over which means are made and charts are asked for while ingest goes on at one line
a second; a month of means is made for some hosts and multiplied.

    DATABASE_URL=postgresql://… python -m benchmarks.ingest [--hosts 1000] [--seconds 120] [--json]

The database must be an empty one of its own; what the benchmark stores in it stays there.
"""

import argparse
import json
import os
import random
import resource
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import django

GPUS = 8
MAX_MONTH_GIB = 8.0
MAX_CHART_S = 1.0
MAX_RSS_MIB = 700
_SECOND = timedelta(seconds=1)
_MONTH_HOSTS = 4
_ROLL_UP_S = 600


def main() -> None:
    """Run all parts and print what they took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", type=int, default=1000)
    parser.add_argument("--seconds", type=int, default=120, help="of ingest, as fast as it can")
    parser.add_argument("--charts", type=int, default=200, help="charts to ask for")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "portal.settings.test")
    django.setup()
    found = run(hosts=arguments.hosts, seconds=arguments.seconds, charts=arguments.charts)
    if arguments.json:
        print(json.dumps(found))
        return
    width = max(map(len, found))
    for name, value in found.items():
        print(f"{name:<{width}}  {value}")


def run(*, hosts: int, seconds: int, charts: int) -> dict[str, Any]:
    """Return what each part took; ``passed`` says whether all of it is within the limits."""
    from django.db import connection

    cluster = Cluster(hosts, seed=1)
    cluster.register()
    found: dict[str, Any] = {"hosts": hosts, "gpus": hosts * GPUS, "database": connection.vendor}
    found |= ingest(cluster, seconds=seconds)
    if connection.vendor == "postgresql":
        found |= lay_out_an_hour(cluster)
        found |= roll_up(cluster)
        found |= ask_for_charts(cluster, charts)
        found |= month(cluster)
    found["rss_mib"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    found["passed"] = (
        found["times_real_time"] > 1
        and found["rss_mib"] <= MAX_RSS_MIB
        and found.get("chart_p95_s", 0) <= MAX_CHART_S
        and found.get("month_gib", 0) <= MAX_MONTH_GIB
    )
    return found


class Cluster:
    """Hosts whose probes' lines are made up, a second at a time."""

    def __init__(self, hosts: int, *, seed: int) -> None:
        self.names = [f"bench-{number}" for number in range(hosts)]
        self.chance = random.Random(seed)  # noqa: S311 - no secret: the same load each time
        self.now = datetime.now(tz=UTC).replace(microsecond=0)
        # Making lines is no part of what is measured: a few are made, and only marked anew.
        self._lines = [self._line() for _ in range(50)]

    def register(self) -> None:
        """Make the rows of the hosts, as an admin would have."""
        from cluster.models import Host

        Host.objects.bulk_create(
            [Host(name=name, url=f"tcp://{name}:2376", connection="up") for name in self.names],
            ignore_conflicts=True,
        )

    def second(self) -> Iterator[tuple[str, str]]:
        """Yield each host's name and line of the next second."""
        self.now += _SECOND
        stamp = f"{self.now.timestamp():.3f}"
        for name in self.names:
            line = self.chance.choice(self._lines)
            yield name, line.replace("@HOST", name).replace('"@AT"', stamp)

    def _line(self) -> str:
        from cluster.adapters.probe_follower import VERSION

        host = {
            "cpu_pct": round(self.chance.uniform(5, 95), 1),
            "cpu_count": 64,
            "memory_total_mib": 515_000,
            "memory_used_mib": self.chance.randrange(40_000, 400_000),
            "disk_total_mib": 7_000_000,
            "disk_used_mib": 3_100_000 + self.chance.randrange(1000),
            "read_bytes_s": self.chance.uniform(0, 3e8),
            "write_bytes_s": self.chance.uniform(0, 1e8),
            "receive_bytes_s": self.chance.uniform(0, 1e8),
            "transmit_bytes_s": self.chance.uniform(0, 1e8),
            "load_1m": round(self.chance.uniform(1, 60), 2),
            "cpu_pressure_pct": round(self.chance.uniform(0, 20), 2),
            "memory_pressure_pct": 0.0,
            "io_pressure_pct": round(self.chance.uniform(0, 5), 2),
        }
        gpus = [self._gpu(index) for index in range(GPUS)]
        line = {"v": VERSION, "at": "@AT", "boot": "b", "host": host, "containers": {}}
        return json.dumps(line | {"gpus": gpus, "gpu_error": "", "driver": "550", "pci_gpus": GPUS})

    def _gpu(self, index: int) -> dict[str, Any]:
        busy = min(100.0, max(0.0, self.chance.gauss(75, 15)))
        return {
            "uuid": f"GPU-@HOST-{index}",
            "index": index,
            "model": "NVIDIA A100-SXM4-40GB",
            "memory_total_mib": 40_960,
            "memory_used_mib": 31_000 + self.chance.randrange(64),
            "memory_reserved_mib": 640,
            "utilization_pct": round(busy, 1),
            "memory_utilization_pct": round(busy * 0.4, 1),
            "power_w": round(60 + busy * 3, 1),
            "power_limit_w": 400.0,
            "temperature_c": round(35 + busy * 0.4),
            "slowdown_c": 92,
            "clock_mhz": 1410,
            "clock_max_mhz": 1410,
            "throttle_mask": 0,
            "ecc_corrected": 0,
            "ecc_uncorrected": 0,
            "remapped_rows": 0,
            "remap_pending": 0,
            "remap_failed": 0,
            "why": {"fan_pct": "unsupported"},
            "processes": {},
        }


def ingest(cluster: Cluster, *, seconds: int) -> dict[str, Any]:
    """Take so many seconds of all hosts, as fast as it goes, and make means beside it."""
    from cluster.adapters.probe_follower import reading_of
    from monitoring import retention
    from monitoring.ingest import Ingest

    into = Ingest(tell=lambda *_: None)
    began, cpu = time.perf_counter(), time.process_time()
    for second in range(seconds):
        for name, line in cluster.second():
            reading = reading_of(line)
            if reading is None:
                raise RuntimeError("a made-up line is none")
            into.take(name, reading)
        into.tick(cluster.now)
        if second % 60 == 59:
            retention.roll_up_samples(now=cluster.now, seconds=5)
    took, used = time.perf_counter() - began, time.process_time() - cpu
    return {
        "ingest_s": seconds,
        "ingest_took_s": round(took, 1),
        "times_real_time": round(seconds / took, 2),
        "own_cores": round(used / seconds, 2),
        "lines_per_s": round(seconds * len(cluster.names) / took),
        "dropped": into.dropped,
    }


def lay_out_an_hour(cluster: Cluster) -> dict[str, Any]:
    """Repeat one stored stretch of every subject until an hour of all of them is there."""
    from django.db import connection

    end = cluster.now
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT start, count(*) FROM monitoring_sampleblock WHERE resolution_s = 1 "
            "GROUP BY start ORDER BY count(*) DESC, start DESC LIMIT 1"
        )
        [(start, _)] = cursor.fetchall()
        cursor.execute(
            'INSERT INTO monitoring_sampleblock (subject, resolution_s, start, "end", packed) '
            "SELECT subject, 1, start - n * interval '10 s', \"end\" - n * interval '10 s', packed "
            "FROM monitoring_sampleblock, generate_series(1, 360) n "
            "WHERE resolution_s = 1 AND start = %s ON CONFLICT DO NOTHING",
            [start],
        )
        cursor.execute("ANALYZE monitoring_sampleblock")
        cursor.execute(
            "SELECT count(*), pg_total_relation_size('monitoring_sampleblock') "
            "FROM monitoring_sampleblock WHERE resolution_s = 1 AND start <= %s",
            [end],
        )
        [(rows, size)] = cursor.fetchall()
    return {"hour_rows": rows, "hour_gib": round(size / 2**30, 2)}


def roll_up(cluster: Cluster) -> dict[str, Any]:
    """Make the means of a stretch for all subjects, as the background does every ten minutes.

    The laid-out blocks repeat one stretch's moments: every block is unpacked and looked through as
    it would be, and the means are few.
    """
    from monitoring import retention

    now = cluster.now - timedelta(seconds=2 * _ROLL_UP_S)
    start = retention.stretch_start(now, _ROLL_UP_S)
    subjects = [f"gpu:GPU-{name}-{n}" for name in cluster.names[:100] for n in range(GPUS)]
    began = time.perf_counter()
    for first in range(0, len(subjects), 100):
        retention.subjects_roll_up(subjects[first : first + 100], 1, 10, start, _ROLL_UP_S)
    took = (time.perf_counter() - began) * len(cluster.names) * (GPUS + 1) / len(subjects)
    return {"roll_up_all_s": round(took, 1), "roll_up_cores": round(took / _ROLL_UP_S, 3)}


def ask_for_charts(cluster: Cluster, count: int) -> dict[str, Any]:
    """Ask for the series behind live charts over REST while ingest goes on, a second a second."""
    from django.utils import timezone
    from rest_framework.test import APIClient

    from portal.models import User

    user, _ = User.objects.get_or_create(username="bench")
    client = APIClient()
    client.force_authenticate(user)
    cluster.now = timezone.now().replace(microsecond=0)
    stop = threading.Event()
    beside = threading.Thread(target=_beside, args=(cluster, stop), daemon=True)
    beside.start()
    chance = random.Random(3)  # noqa: S311 - no secret: equal runs ask alike
    times: list[float] = []
    for _ in range(count):
        name = chance.choice(cluster.names)
        gpu = f"gpus/GPU-{name}-{chance.randrange(GPUS)}"
        path = gpu if chance.random() < 0.8 else f"hosts/{name}"
        span_s = chance.choice([600, 3500, 3500, 6 * 3600])
        since = (timezone.now() - timedelta(seconds=span_s)).isoformat()
        began = time.perf_counter()
        answer = client.get(f"/api/v1/{path}/samples/", {"since": since})
        times.append(time.perf_counter() - began)
        if answer.status_code != 200:
            raise RuntimeError(f"a chart was refused: {answer.content[:200]!r}")
    stop.set()
    beside.join()
    times.sort()
    return {
        "charts": count,
        "chart_p50_s": round(times[len(times) // 2], 3),
        "chart_p95_s": round(times[int(len(times) * 0.95)], 3),
    }


def _beside(cluster: Cluster, stop: threading.Event) -> None:
    from django.db import connection

    from cluster.adapters.probe_follower import reading_of
    from monitoring.ingest import Ingest

    into = Ingest(tell=lambda *_: None)
    while not stop.is_set():
        began = time.perf_counter()
        for name, line in cluster.second():
            reading = reading_of(line)
            if reading is not None:
                into.take(name, reading)
        into.tick(cluster.now)
        stop.wait(max(0.0, 1 - (time.perf_counter() - began)))
    connection.close()


def month(cluster: Cluster) -> dict[str, Any]:
    """Store a month of minutes for some hosts and return what all hosts would take."""
    from django.db import connection

    from monitoring.models import SampleBlock
    from monitoring.services import block_of

    SampleBlock.objects.filter(resolution_s=60).delete()
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE month_only (LIKE monitoring_sampleblock INCLUDING ALL)")
    chance = random.Random(5)  # noqa: S311 - no secret: equal runs ask alike
    blocks = []
    for number in range(_MONTH_HOSTS):
        for subject in [f"host:{number}", *(f"gpu:GPU-{number}-{n}" for n in range(GPUS))]:
            blocks += [
                block_of(f"month-{subject}", 60, _minutes(cluster.now, window, subject, chance))
                for window in range(4 * 30)
            ]
    SampleBlock.objects.bulk_create(blocks, batch_size=500)
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO month_only SELECT * FROM monitoring_sampleblock "
            "WHERE subject LIKE 'month-%'"
        )
        cursor.execute("SELECT pg_total_relation_size('month_only')")
        [(size,)] = cursor.fetchall()
        cursor.execute("DROP TABLE month_only")
    SampleBlock.objects.filter(subject__startswith="month-").delete()
    scaled = size * len(cluster.names) / _MONTH_HOSTS
    return {"month_gib": round(scaled / 2**30, 2), "month_rows": len(blocks)}


def _minutes(
    now: datetime, window: int, subject: str, chance: random.Random
) -> list[tuple[int, dict[str, Any]]]:
    start = int((now - timedelta(days=30)).timestamp()) * 1000 + window * 6 * 3_600_000
    found: list[tuple[int, dict[str, Any]]] = []
    busy = 70.0
    for minute in range(360):
        busy = min(100.0, max(0.0, busy + chance.gauss(0, 4)))
        values: dict[str, Any] = (
            {
                "cpu_pct": busy,
                "cpu_count": 64,
                "memory_total_mib": 515_000,
                "memory_used_mib": 200_000 + chance.gauss(0, 900),
                "disk_total_mib": 7_000_000,
                "disk_used_mib": 3_100_000 + minute,
                "read_bytes_s": chance.uniform(0, 3e8),
                "write_bytes_s": chance.uniform(0, 1e8),
                "receive_bytes_s": chance.uniform(0, 1e8),
                "transmit_bytes_s": chance.uniform(0, 1e8),
                "load_1m": busy / 3,
                "cpu_pressure_pct": busy / 9,
                "memory_pressure_pct": 0.0,
                "io_pressure_pct": chance.uniform(0, 3),
            }
            if subject.startswith("host")
            else {
                "memory_total_mib": 40_960,
                "memory_used_mib": 31_000 + chance.randrange(30),
                "utilization_pct": busy,
                "memory_utilization_pct": busy * 0.4,
                "power_w": 60 + busy * 3,
                "power_limit_w": 400,
                "temperature_c": 35 + busy * 0.4,
                "clock_mhz": 1410,
                "why": {"fan_pct": "unsupported"},
            }
        )
        found.append((start + 60_000 * minute, values))
    return found


if __name__ == "__main__":
    main()
