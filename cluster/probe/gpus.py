"""What each GPU does, from NVML; every field on its own, and never waited for.

The driver can hang for ever. Only one thread ever talks to it; the reader looks at what that
thread said last, and how long ago it asked the driver.
"""

import contextlib
import os
import threading
import time
from collections.abc import Callable
from typing import Any

#: In periods, of one second each: how often costly things are asked, and when patience ends.
SLOW_PERIODS = 60
PROCESSES_PERIODS = 5
PATIENCE_PERIODS = 5
RETRY_PERIODS = 15
MIB = 1024 * 1024

UNSUPPORTED, STALE, LOST = "unsupported", "stale", "lost"
_NO_LIBRARY = 12
_INIT_WORDS = {
    4: "the probe may not open the NVIDIA devices",
    9: "the NVIDIA driver is not loaded: run 'modprobe nvidia', or install it again for the "
    "kernel that runs now",
    18: "the NVIDIA driver was updated and the host not restarted since: restart it",
}
#: GPU is lost, GPU requires reset, unknown error.
_LOST_CODES = {15, 16, 999}
_DEVICES = ("/dev/nvidiactl", "/proc/driver/nvidia/version")


class GpuReader:
    """Keeps the latest reading of all GPUs."""

    def __init__(self, container_of: Callable[[int], str], *, period_s: float = 1.0) -> None:
        self._container_of = container_of
        self._period_s = period_s
        self._lock = threading.Lock()
        self._gpus: list[dict[str, Any]] = []
        self._error = ""
        self._simulated = False
        self._asked_at: float | None = None
        self._slow: dict[str, tuple[float, dict[str, Any]]] = {}
        self._processes: dict[str, tuple[float, dict[str, int | None]]] = {}

    def start(self) -> None:
        """Start the thread that talks to the driver."""
        threading.Thread(target=self._run, daemon=True, name="nvml").start()

    def latest(self) -> dict[str, Any]:
        """Return the GPUs and what is wrong; while the driver hangs, values are stale."""
        with self._lock:
            found: dict[str, Any] = {"simulated": True} if self._simulated else {}
            waited = 0.0 if self._asked_at is None else time.monotonic() - self._asked_at
            if waited > PATIENCE_PERIODS * self._period_s:
                return found | {
                    "gpus": [_stale(gpu) for gpu in self._gpus],
                    "gpu_error": f"the NVIDIA driver does not answer, for {waited:.0f} s now",
                }
            return found | {"gpus": list(self._gpus), "gpu_error": self._error}

    def _ask(self) -> float:
        """Note that the driver is asked from now on."""
        now = time.monotonic()
        with self._lock:
            self._asked_at = now
        return now

    def _tell(self, gpus: list[dict[str, Any]], error: str) -> None:
        with self._lock:
            self._gpus, self._error, self._asked_at = gpus, error, None

    def _run(self) -> None:
        try:
            import pynvml
        except ImportError:
            self._tell([], _without("nvidia-ml-py is not in the probe's Python"))
            return
        while True:
            error = self._session(pynvml)
            with self._lock:
                known = [_stale(gpu) for gpu in self._gpus]
            self._tell(known, error)
            time.sleep(RETRY_PERIODS * self._period_s)

    def _session(self, nvml: Any) -> str:
        """Read until the driver as a whole fails; return why."""
        self._ask()
        try:
            nvml.nvmlInit()
            # The library of our tests says so itself: its GPUs can never pass for real ones.
            driver = _text(nvml.nvmlSystemGetDriverVersion())
        except Exception as error:  # noqa: BLE001 - the binding raises more than its own errors
            return _init_error(error)
        with self._lock:
            self._simulated = "simulated" in driver
        try:
            while True:
                began = self._ask()
                self._round(nvml)
                time.sleep(max(0.01, self._period_s - (time.monotonic() - began)))
        except Exception as error:  # noqa: BLE001 - the session is begun anew whatever ended it
            return f"the NVIDIA driver says: {error}"
        finally:
            # It may be lost already.
            with contextlib.suppress(Exception):
                nvml.nvmlShutdown()

    def _round(self, nvml: Any) -> None:
        """Read every GPU once; one that cannot be reached is lost, the others go on."""
        gpus, missing = [], []
        for index in range(nvml.nvmlDeviceGetCount()):
            try:
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                uuid = _text(nvml.nvmlDeviceGetUUID(handle))
            except Exception as error:  # noqa: BLE001 - as above
                with self._lock:
                    known = [gpu for gpu in self._gpus if gpu["index"] == index]
                gpus += [_lost(gpu) for gpu in known]
                missing += [] if known else [f"GPU {index} cannot be reached: {error}"]
            else:
                gpus.append(self._gpu(nvml, handle, uuid, index))
        self._tell(gpus, "; ".join(missing))

    def _gpu(self, nvml: Any, handle: Any, uuid: str, index: int) -> dict[str, Any]:
        now = time.monotonic()
        read = _read(nvml, handle, _FIELDS)
        if read["why"] and len(read["why"]) == len(_FIELDS) and set(read["why"].values()) == {LOST}:
            read["lost"] = True
        read_at, slow = self._slow.get(uuid, (0.0, {}))
        if not slow or now - read_at > SLOW_PERIODS * self._period_s:
            read_at, slow = now, _read(nvml, handle, _SLOW_FIELDS)
            if slow["why"]:
                # What could not be read is asked again soon, and then seldom.
                read_at = now - (SLOW_PERIODS - PROCESSES_PERIODS) * self._period_s
            self._slow[uuid] = (read_at, slow)
        return {
            **slow,
            **read,
            "why": {**slow["why"], **read["why"]},
            "uuid": uuid,
            "index": index,
            "processes": self._processes_of(nvml, handle, uuid),
        }

    def _processes_of(self, nvml: Any, handle: Any, uuid: str) -> dict[str, int | None]:
        now = time.monotonic()
        read_at, found = self._processes.get(uuid, (None, {}))
        if read_at is None or now - read_at >= PROCESSES_PERIODS * self._period_s:
            found = self._read_processes(nvml, handle)
            self._processes[uuid] = (now, found)
        return found

    def _read_processes(self, nvml: Any, handle: Any) -> dict[str, int | None]:
        """Return the memory in MiB by container; ``None`` if that of one process is unknown."""
        used: dict[int, int | None] = {}
        for name in ("Compute", "Graphics"):
            # Some drivers cannot list them.
            with contextlib.suppress(Exception):
                for process in getattr(nvml, f"nvmlDeviceGet{name}RunningProcesses")(handle):
                    used[process.pid] = process.usedGpuMemory
        found: dict[str, int | None] = {}
        for pid, memory in used.items():
            container = self._container_of(pid)
            before = found.get(container, 0)
            found[container] = None if memory is None or before is None else before + memory // MIB
        return found


def _read(nvml: Any, handle: Any, fields: dict[str, Callable[[Any, Any], Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {"why": {}}
    for name, read in fields.items():
        try:
            value = read(nvml, handle)
        except Exception as error:  # noqa: BLE001 - the binding raises more than its own errors
            lost = getattr(error, "value", None) in _LOST_CODES
            found["why"][name] = LOST if lost else UNSUPPORTED
        else:
            found[name] = value
    return found


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _without(reason: str) -> str:
    """Return what is wrong where there are NVIDIA devices; a host without any lacks nothing."""
    if not any(os.path.exists(path) for path in _DEVICES):  # noqa: PTH110 - runs on any Python 3
        return ""
    return f"there are NVIDIA devices that cannot be read: {reason}"


def _init_error(error: Exception) -> str:
    code = getattr(error, "value", None)
    if code == _NO_LIBRARY:
        return _without(
            "the driver's library is not there; install the NVIDIA Container Toolkit and "
            "restart Docker"
        )
    return _INIT_WORDS.get(code or 0, f"the NVIDIA driver says: {error}")


def _memory(nvml: Any, handle: Any) -> Any:
    try:
        # The second version counts what the driver keeps for itself apart.
        return nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
    except Exception:  # noqa: BLE001 - old drivers know only the first version
        return nvml.nvmlDeviceGetMemoryInfo(handle)


_FIELDS: dict[str, Callable[[Any, Any], Any]] = {
    "memory_used_mib": lambda nvml, handle: _memory(nvml, handle).used // MIB,
    "utilization_pct": lambda nvml, handle: min(
        100, nvml.nvmlDeviceGetUtilizationRates(handle).gpu
    ),
    "power_w": lambda nvml, handle: nvml.nvmlDeviceGetPowerUsage(handle) / 1000,
    "temperature_c": lambda nvml, handle: nvml.nvmlDeviceGetTemperature(
        handle, nvml.NVML_TEMPERATURE_GPU
    ),
    "clock_mhz": lambda nvml, handle: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
}
_SLOW_FIELDS: dict[str, Callable[[Any, Any], Any]] = {
    "model": lambda nvml, handle: _text(nvml.nvmlDeviceGetName(handle)),
    "memory_total_mib": lambda nvml, handle: _memory(nvml, handle).total // MIB,
    "power_limit_w": lambda nvml, handle: nvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000,
}
_KEPT = ("uuid", "index", "model", "memory_total_mib", "power_limit_w")


def _stale(gpu: dict[str, Any]) -> dict[str, Any]:
    if gpu.get("lost"):
        return gpu
    return _emptied(gpu, STALE)


def _lost(gpu: dict[str, Any]) -> dict[str, Any]:
    return _emptied(gpu, LOST) | {"lost": True}


def _emptied(gpu: dict[str, Any], word: str) -> dict[str, Any]:
    kept = {name: gpu[name] for name in _KEPT if name in gpu}
    return kept | {"why": dict.fromkeys(_FIELDS, word), "processes": {}}
