"""What each GPU does, from NVML; every field on its own, and never waited for.

The driver can hang for ever. Only one thread ever talks to it; the reader looks at what that
thread said last, and how long ago.
"""

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any

PERIOD_S = 1.0
PROCESSES_S = 5.0
HANGS_AFTER_S = 5.0
RETRY_S = 15.0
MIB = 1024 * 1024

UNSUPPORTED, STALE, LOST = "unsupported", "stale", "lost"
_INIT_WORDS = {
    9: "the NVIDIA driver is not loaded",
    12: "",  # no driver library: a host without NVIDIA GPUs, nothing to complain about
    18: "the NVIDIA driver was updated and the host not restarted since: restart it",
    4: "the probe may not open the NVIDIA devices",
}


class GpuReader:
    """Keeps the latest reading of all GPUs."""

    def __init__(self, container_of: Callable[[int], str]) -> None:
        self._container_of = container_of
        self._lock = threading.Lock()
        self._gpus: list[dict[str, Any]] = []
        self._error = ""
        self._told_at = time.monotonic()
        self._has_gpus = False
        self._processes: dict[str, dict[str, int | None]] = {}
        self._processes_at = -PROCESSES_S

    def start(self) -> None:
        """Start the thread that talks to the driver."""
        threading.Thread(target=self._run, daemon=True, name="nvml").start()

    def latest(self) -> dict[str, Any]:
        """Return the GPUs and what is wrong; readings that are too old have lost their values."""
        with self._lock:
            age = time.monotonic() - self._told_at
            if self._has_gpus and age > HANGS_AFTER_S:
                return {
                    "gpus": [_stale(gpu) for gpu in self._gpus],
                    "gpu_error": f"the NVIDIA driver has not answered for {age:.0f} s",
                }
            return {"gpus": list(self._gpus), "gpu_error": self._error}

    def _tell(self, gpus: list[dict[str, Any]], error: str) -> None:
        with self._lock:
            self._gpus, self._error = gpus, error
            self._told_at = time.monotonic()
            self._has_gpus = self._has_gpus or bool(gpus)

    def _run(self) -> None:
        try:
            import pynvml
        except ImportError:
            self._tell([], "")
            return
        while True:
            error = self._session(pynvml)
            with self._lock:
                known = list(self._gpus)
            self._tell([_lost(gpu) for gpu in known], error)
            time.sleep(RETRY_S)

    def _session(self, nvml: Any) -> str:
        """Read until the driver as a whole fails; return why."""
        try:
            nvml.nvmlInit()
        except Exception as error:  # noqa: BLE001 - the binding raises more than its own errors
            code = getattr(error, "value", None)
            return _INIT_WORDS.get(code, f"the NVIDIA driver says: {error}") if code else str(error)
        try:
            while True:
                began = time.monotonic()
                gpus = [self._gpu(nvml, index) for index in range(nvml.nvmlDeviceGetCount())]
                self._tell([gpu for gpu in gpus if gpu is not None], "")
                time.sleep(max(0.05, PERIOD_S - (time.monotonic() - began)))
        except Exception as error:  # noqa: BLE001 - the session is begun anew whatever ended it
            return f"the NVIDIA driver says: {error}"
        finally:
            # It may be lost already.
            with contextlib.suppress(Exception):
                nvml.nvmlShutdown()

    def _gpu(self, nvml: Any, index: int) -> dict[str, Any] | None:
        """Return one GPU's reading; one that cannot be reached is lost, the others go on."""
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            uuid = _text(nvml.nvmlDeviceGetUUID(handle))
        except Exception:  # noqa: BLE001 - as above
            with self._lock:
                known = next((gpu for gpu in self._gpus if gpu["index"] == index), None)
            return None if known is None else _lost(known)
        gpu: dict[str, Any] = {"uuid": uuid, "index": index, "why": {}}
        for name, read in _FIELDS.items():
            try:
                value = read(nvml, handle)
            except Exception as error:  # noqa: BLE001 - as above
                gpu["why"][name] = _why(nvml, error)
                continue
            if value is None:
                gpu["why"][name] = UNSUPPORTED
            else:
                gpu[name] = value
        if gpu["why"] and all(word == LOST for word in gpu["why"].values()):
            gpu["lost"] = True
        gpu["processes"] = self._processes_of(nvml, handle, uuid)
        return gpu

    def _processes_of(self, nvml: Any, handle: Any, uuid: str) -> dict[str, int | None]:
        now = time.monotonic()
        if now - self._processes_at >= PROCESSES_S:
            self._processes, self._processes_at = {}, now
        if uuid not in self._processes:
            self._processes[uuid] = self._read_processes(nvml, handle)
        return self._processes[uuid]

    def _read_processes(self, nvml: Any, handle: Any) -> dict[str, int | None]:
        found: dict[str, int | None] = {}
        try:
            processes = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
        except Exception:  # noqa: BLE001 - some drivers cannot list them
            return found
        for process in processes:
            container = self._container_of(process.pid)
            used = process.usedGpuMemory
            mib = None if used is None else used // MIB
            before = found.get(container)
            found[container] = mib if before is None else before + (mib or 0)
        return found


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _memory(nvml: Any, handle: Any) -> Any:
    try:
        return nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
    except Exception:  # noqa: BLE001 - old drivers know only the first version
        return nvml.nvmlDeviceGetMemoryInfo(handle)


_FIELDS: dict[str, Callable[[Any, Any], Any]] = {
    "model": lambda nvml, handle: _text(nvml.nvmlDeviceGetName(handle)),
    "memory_total_mib": lambda nvml, handle: _memory(nvml, handle).total // MIB,
    "memory_used_mib": lambda nvml, handle: _memory(nvml, handle).used // MIB,
    "utilization_pct": lambda nvml, handle: min(
        100, nvml.nvmlDeviceGetUtilizationRates(handle).gpu
    ),
    "power_w": lambda nvml, handle: nvml.nvmlDeviceGetPowerUsage(handle) / 1000,
    "power_limit_w": lambda nvml, handle: nvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000,
    "temperature_c": lambda nvml, handle: nvml.nvmlDeviceGetTemperature(
        handle, nvml.NVML_TEMPERATURE_GPU
    ),
    "clock_mhz": lambda nvml, handle: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
}


def _why(nvml: Any, error: Exception) -> str:
    lost = {nvml.NVML_ERROR_GPU_IS_LOST, nvml.NVML_ERROR_UNKNOWN}
    return LOST if getattr(error, "value", None) in lost else UNSUPPORTED


def _stale(gpu: dict[str, Any]) -> dict[str, Any]:
    return _emptied(gpu, STALE)


def _lost(gpu: dict[str, Any]) -> dict[str, Any]:
    return _emptied(gpu, LOST) | {"lost": True}


def _emptied(gpu: dict[str, Any], word: str) -> dict[str, Any]:
    kept = {
        name: gpu[name] for name in ("uuid", "index", "model", "memory_total_mib") if name in gpu
    }
    return kept | {"why": {name: word for name in _FIELDS if name not in kept}, "processes": {}}
