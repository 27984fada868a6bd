"""Which numbers of a GPU are asked for, how often, and how; each group fails on its own."""

from collections.abc import Callable
from typing import Any, NamedTuple

MIB = 1024 * 1024
UNSUPPORTED, STALE, LOST = "unsupported", "stale", "lost"

#: In periods, of one second each: what costs the driver more is asked less often.
FAST, OFTEN, SLOW = 1, 5, 60
#: How long the reader waits before it tries a driver that failed as a whole again.
RETRY_PERIODS = 15
#: The reader's exit code on a host without NVIDIA devices.
NOTHING_HERE = 3

#: GPU is lost, GPU requires reset, unknown error.
LOST_CODES = frozenset({15, 16, 999})
#: Not supported, no permission, function not found, argument version mismatch.
_NEVER_CODES = frozenset({3, 4, 13, 25})
_UTILIZATION_SAMPLES = 1
_EVENT_NAMES = (
    "nvmlDeviceGetCurrentClocksEventReasons",
    "nvmlDeviceGetCurrentClocksThrottleReasons",
)
_SLOWDOWN = 1
_UNCORRECTED, _CORRECTED, _VOLATILE = 1, 0, 0


class Group(NamedTuple):
    """Numbers that one question answers.

    ``read`` gets the binding, the handle and the group's own memory of that GPU.
    """

    names: tuple[str, ...]
    periods: int
    read: Callable[[Any, Any, dict[str, Any]], dict[str, Any]]


def code_of(error: Exception) -> int | None:
    """Return the driver's code of an error; ``None`` for an error that is not the driver's."""
    value = getattr(error, "value", None)
    return value if isinstance(value, int) else None


def word_for(error: Exception) -> str:
    """Return why a question has no answer: for ever, just now, or because the GPU is lost."""
    code = code_of(error)
    if code in LOST_CODES:
        return LOST
    # An answer that cannot be understood, or a function that this driver lacks, stays so.
    return UNSUPPORTED if code is None or code in _NEVER_CODES else STALE


def plain(value: Any) -> str:
    """Return a driver's text, whatever bytes it is made of."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def text_from(function: Any, *arguments: Any) -> str:
    """Return a text before the binding decodes it: some drivers hand out broken ones."""
    return plain(getattr(function, "__wrapped__", function)(*arguments))


def _memory(nvml: Any, handle: Any, memory: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG001
    try:
        # The second version counts what the driver keeps for itself apart.
        found = nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
    except Exception as error:
        if word_for(error) == LOST:
            raise
        found = nvml.nvmlDeviceGetMemoryInfo(handle)
        return {"memory_total_mib": found.total // MIB, "memory_used_mib": found.used // MIB}
    return {
        "memory_total_mib": found.total // MIB,
        "memory_used_mib": found.used // MIB,
        "memory_reserved_mib": found.reserved // MIB,
    }


def _utilization(nvml: Any, handle: Any, memory: dict[str, Any]) -> dict[str, Any]:
    rates = nvml.nvmlDeviceGetUtilizationRates(handle)
    busy = _sampled(nvml, handle, memory)
    return {
        "utilization_pct": _percent(rates.gpu if busy is None else busy),
        "memory_utilization_pct": _percent(rates.memory),
    }


def _sampled(nvml: Any, handle: Any, memory: dict[str, Any]) -> float | None:
    """Return the mean of the driver's own samples since the last look; ``None`` without any.

    One look a second at a figure over a sixth of a second would miss most of the second.
    """
    if memory.get("unsampled"):
        return None
    since = memory.get("since", 0)
    try:
        _, samples = nvml.nvmlDeviceGetSamples(handle, _UTILIZATION_SAMPLES, since)
    except Exception as error:
        if word_for(error) == LOST:
            raise
        # None since then, or never any.
        memory["unsampled"] = word_for(error) == UNSUPPORTED
        return None
    # Without a beginning the driver tells its whole past; what counts is the last second of it.
    newest = max((sample.timeStamp for sample in samples), default=since)
    oldest = since or newest - 1_000_000
    fresh = [sample.sampleValue.uiVal for sample in samples if sample.timeStamp > oldest]
    memory["since"] = max(since, newest)
    return sum(fresh) / len(fresh) if fresh else None


def _percent(value: float) -> float:
    return round(min(100.0, max(0.0, value)), 1)


def _throttle(nvml: Any, handle: Any, memory: dict[str, Any]) -> dict[str, Any]:
    name = memory.get("name", _EVENT_NAMES[0])
    try:
        return {"throttle_mask": int(getattr(nvml, name)(handle))}
    except Exception as error:
        if name == _EVENT_NAMES[1] or word_for(error) == LOST:
            raise
        # As it was called before R535.
        memory["name"] = _EVENT_NAMES[1]
        return _throttle(nvml, handle, memory)


def _remapped(nvml: Any, handle: Any, memory: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG001
    corrected, uncorrected, pending, failed = nvml.nvmlDeviceGetRemappedRows(handle)
    return {
        "remapped_rows": corrected + uncorrected,
        "remap_pending": pending,
        "remap_failed": failed,
    }


def _ecc(kind: int) -> Callable[[Any, Any], int]:
    return lambda nvml, handle: int(nvml.nvmlDeviceGetTotalEccErrors(handle, kind, _VOLATILE))


def _one(name: str, periods: int, read: Callable[[Any, Any], Any]) -> Group:
    return Group((name,), periods, lambda nvml, handle, _memory: {name: read(nvml, handle)})


GROUPS: tuple[Group, ...] = (
    Group(("memory_total_mib", "memory_used_mib", "memory_reserved_mib"), FAST, _memory),
    Group(("utilization_pct", "memory_utilization_pct"), FAST, _utilization),
    _one("power_w", FAST, lambda nvml, handle: nvml.nvmlDeviceGetPowerUsage(handle) / 1000),
    _one("temperature_c", FAST, lambda nvml, handle: nvml.nvmlDeviceGetTemperature(handle, 0)),
    _one(
        "clock_mhz",
        FAST,
        lambda nvml, handle: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
    ),
    Group(("throttle_mask",), FAST, _throttle),
    _one("fan_pct", OFTEN, lambda nvml, handle: nvml.nvmlDeviceGetFanSpeed(handle)),
    _one("model", SLOW, lambda nvml, handle: text_from(nvml.nvmlDeviceGetName, handle)),
    _one(
        "power_limit_w",
        SLOW,
        lambda nvml, handle: nvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000,
    ),
    _one(
        "clock_max_mhz",
        SLOW,
        lambda nvml, handle: nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM),
    ),
    _one(
        "slowdown_c",
        SLOW,
        lambda nvml, handle: nvml.nvmlDeviceGetTemperatureThreshold(handle, _SLOWDOWN),
    ),
    _one("ecc_uncorrected", SLOW, _ecc(_UNCORRECTED)),
    _one("ecc_corrected", SLOW, _ecc(_CORRECTED)),
    Group(("remapped_rows", "remap_pending", "remap_failed"), SLOW, _remapped),
)
#: What is known of a GPU that cannot be read now.
KEPT = (
    "uuid",
    "index",
    "parent",
    "divided",
    "model",
    "memory_total_mib",
    "power_limit_w",
    "clock_max_mhz",
    "slowdown_c",
    "xids",
)
LIVE = tuple(name for group in GROUPS for name in group.names if name not in KEPT)


def emptied(gpu: dict[str, Any], word: str) -> dict[str, Any]:
    """Return what stays known of a GPU that cannot be read, with the word why."""
    kept = {name: gpu[name] for name in KEPT if name in gpu}
    return kept | {"why": dict.fromkeys(LIVE, word), "pids": [], "sm": []}
