"""What is measured while a simulation runs: integrals over time, and series of bounded length."""

from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from cluster.core.resources import GpuState, HostState, ResourceRequest
from cluster.core.simulation.models import PowerModel
from cluster.core.simulation.report import MAX_POINTS, Series

Floats = NDArray[np.float64]
#: How many shapes of request stand for the workload where fragmentation is measured.
_TYPICAL: Final = 32
#: Columns of the sums over hosts.
_UP_CPU, _CPU, _UP_MEMORY, _MEMORY, _UP_GPU, _GPU, _BUSY, _POWER, _ACTIVE_POWER, _ACTIVE = range(10)


class Recorder:
    """Follows hosts; told of every change, asked once at the end.

    Args:
        requests: All of the workload's, from whose most frequent shapes fragmentation follows.
        horizon_s: About how long the simulation will take; it sets the first step of the series.
    """

    def __init__(
        self,
        hosts: Sequence[HostState],
        requests: Iterable[ResourceRequest],
        power: PowerModel,
        horizon_s: float,
    ) -> None:
        self._power = power
        self._board_w = [[power.board_w(gpu.model) for gpu in host.gpus] for host in hosts]
        self._values: Floats = np.zeros((len(hosts), 10))
        self._fragments = Fragmentation(hosts, requests)
        self._sums: Floats = np.zeros(10)
        self._integral: Floats = np.zeros(10)
        self._last_s: float | None = None
        self._fragment_integral = 0.0
        self._series = _Points(step_s=horizon_s / MAX_POINTS)
        self._changed = True
        for row, host in enumerate(hosts):
            self.changed(row, host, [0.0] * len(host.gpus))

    def changed(self, row: int, host: HostState, busy: Sequence[float]) -> None:
        """Take over one host's state.

        Args:
            busy: For each of its GPUs how much of it is used, 0 to 1.
        """
        self._fragments.changed(row, host)
        self._changed = True
        if not host.schedulable:
            self._values[row] = 0.0
            return
        cards = len(host.gpus)
        power_w = self._power.host_idle_w + self._power.core_w * host.cpu_claimed_millis / 1000
        for board_w, used in zip(self._board_w[row], busy, strict=True):
            power_w += self._power.gpu_w(board_w, used)
        active = bool(host.cpu_claimed_millis or host.memory_claimed_mib or any(busy))
        self._values[row] = (
            host.cpu_millis,
            host.cpu_claimed_millis,
            host.memory_mib,
            host.memory_claimed_mib,
            cards,
            sum(map(claimed_part, host.gpus)),
            sum(busy),
            power_w,
            power_w if active else 0.0,
            active,
        )

    def advance(self, now_s: float) -> None:
        """Count what was until ``now_s``; to be called before anything changes then."""
        if self._changed:
            self._sums = self._values.sum(axis=0)
            self._changed = False
        if self._last_s is not None:
            self._integral += self._sums * (now_s - self._last_s)
        self._last_s = now_s

    def sample(self, now_s: float, *, running: int, waiting: int, last: bool = False) -> None:
        """Keep a point of the series, if it is time for one or the ``last`` is to be there."""
        if not self._series.due(now_s, at_once=last):
            return
        sums = self._values.sum(axis=0)
        self._series.add(
            (
                now_s,
                running,
                waiting,
                int(sums[_ACTIVE]),
                _pct(sums[_GPU], sums[_UP_GPU]),
                _pct(sums[_BUSY], sums[_UP_GPU]),
                _pct(sums[_CPU], sums[_UP_CPU]),
                _pct(sums[_MEMORY], sums[_UP_MEMORY]),
                self._fragments.pct(),
                float(sums[_POWER]),
            )
        )

    def means(self) -> dict[str, Any]:
        """Return what the report says of the whole time."""
        kwh = 1 / 3.6e6
        total = self._integral
        return {
            "gpu_pct": _pct(total[_GPU], total[_UP_GPU]),
            "gpu_busy_pct": _pct(total[_BUSY], total[_UP_GPU]),
            "cpu_pct": _pct(total[_CPU], total[_UP_CPU]),
            "memory_pct": _pct(total[_MEMORY], total[_UP_MEMORY]),
            "fragmentation_pct": self._series.mean(8, until_s=self._last_s or 0.0),
            "energy_kwh": float(total[_POWER]) * kwh,
            "energy_active_kwh": float(total[_ACTIVE_POWER]) * kwh,
        }

    def series(self) -> Series:
        """Return the series, thinned to its bound."""
        columns: list[tuple[Any, ...]] = self._series.columns()
        names = (
            "time_s",
            "running",
            "waiting",
            "hosts_active",
            "gpu_pct",
            "gpu_busy_pct",
            "cpu_pct",
            "memory_pct",
            "fragmentation_pct",
            "power_w",
        )
        return Series(**dict(zip(names, columns, strict=True)))


def claimed_part(gpu: GpuState) -> float:
    """Return how much of a GPU is claimed, 0 to 1: its share, or its memory where only that is."""
    if gpu.exclusive:
        return 1.0
    if gpu.share_claimed_milli:
        return min(1.0, gpu.share_claimed_milli / 1000)
    if gpu.claims:
        return gpu.memory_claimed_mib / max(1, gpu.memory_total_mib)
    return 0.0


class _Points:
    """Rows at least a step apart; when there are too many, every other goes."""

    def __init__(self, step_s: float) -> None:
        self._step_s = step_s
        self._rows: list[tuple[float, ...]] = []

    def due(self, now_s: float, *, at_once: bool) -> bool:
        if at_once or not self._rows:
            return True
        last_s = self._rows[-1][0]
        return now_s == last_s or now_s >= last_s + self._step_s

    def add(self, row: tuple[float, ...]) -> None:
        """Keep a row; of one moment only what it was in the end."""
        if self._rows and self._rows[-1][0] == row[0]:
            self._rows.pop()
        self._rows.append(row)
        if len(self._rows) >= 2 * MAX_POINTS:
            self._thin()

    def mean(self, column: int, until_s: float) -> float:
        if not self._rows:
            return 0.0
        times = np.array([row[0] for row in self._rows] + [max(until_s, self._rows[-1][0])])
        span = float(times[-1] - times[0])
        values = np.array([row[column] for row in self._rows])
        return float(values @ np.diff(times)) / span if span else float(values[-1])

    def columns(self) -> list[tuple[Any, ...]]:
        while len(self._rows) > MAX_POINTS:
            self._thin()
        return list(zip(*self._rows, strict=True)) if self._rows else [()] * 10

    def _thin(self) -> None:
        last = self._rows[-1]
        self._rows = [*self._rows[:-1:2], last]
        span = last[0] - self._rows[0][0]
        self._step_s = max(2 * self._step_s, span / MAX_POINTS)


class Fragmentation:
    """How much free GPU is of no use to the workload's average request (Weng et al., ATC'23).

    On a host that cannot take a shape, all free GPU is a fragment to it; on another, what is
    left on GPUs too small for it. The mean is over the most frequent shapes by their count.
    """

    def __init__(self, hosts: Sequence[HostState], requests: Iterable[ResourceRequest]) -> None:
        width = max((len(host.gpus) for host in hosts), default=0) or 1
        self._free: Floats = np.zeros((len(hosts), width))
        self._cpu: Floats = np.zeros(len(hosts))
        self._memory: Floats = np.zeros(len(hosts))
        self._gpus = sum(len(host.gpus) for host in hosts)
        counted: dict[tuple[int, int, int, int, tuple[bool, ...]], int] = {}
        models = sorted({gpu.model for host in hosts for gpu in host.gpus})
        number = {model: index for index, model in enumerate(models)}
        accepted: dict[tuple[str, frozenset[str]], tuple[bool, ...]] = {}
        for one in requests:
            if not one.gpus:
                continue
            named = (one.gpu_model, one.gpu_models)
            if named not in accepted:
                accepted[named] = tuple(one.accepts_model(model) for model in models)
            key = (one.cpu_millis, one.memory_mib, one.gpus, one.share_milli, accepted[named])
            counted[key] = counted.get(key, 0) + 1
        # Equally frequent shapes by size, so that the choice does not hang on the order.
        typical = sorted(counted, key=lambda key: (-counted[key], key))[:_TYPICAL]
        weights = np.array([counted[key] for key in typical], np.float64)
        self._weights: Floats = weights / weights.sum() if len(weights) else weights
        self._shapes = typical
        self._model = np.zeros((len(hosts), width), np.int64)
        for row, host in enumerate(hosts):
            self._model[row, : len(host.gpus)] = [number[gpu.model] for gpu in host.gpus]

    def changed(self, row: int, host: HostState) -> None:
        """Take over one host's state."""
        up = host.schedulable
        self._cpu[row] = host.cpu_free_millis if up else -1.0
        self._memory[row] = host.memory_free_mib if up else -1.0
        for column, gpu in enumerate(host.gpus):
            works = up and gpu.health.takes_work
            self._free[row, column] = gpu.share_free_milli if works else 0

    def pct(self) -> float:
        """Return the fragments in percent of all GPU."""
        if not self._gpus or not len(self._weights):
            return 0.0
        fragments = 0.0
        for weight, (cpu, memory, gpus, share, accepts) in zip(
            self._weights.tolist(), self._shapes, strict=True
        ):
            usable = (self._free >= share) & np.array(accepts, np.bool_)[self._model]
            fits = (self._cpu >= cpu) & (self._memory >= memory) & (usable.sum(axis=1) >= gpus)
            lost = np.where(fits[:, None] & usable, 0.0, self._free)
            fragments += weight * float(lost.sum())
        return fragments / (10.0 * self._gpus)


def _pct(part: float, whole: float) -> float:
    return 100.0 * float(part) / float(whole) if whole else 0.0
