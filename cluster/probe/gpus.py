"""Asks NVML about every GPU, and prints what it says; a process of its own.

The driver can hang for ever, and has been seen to take its reader down with it. Whatever happens
here, :mod:`cluster.probe.watch` in the other process sees it and says so. A line that begins with
``@`` names the GPU that is asked about next; every other line is one round as JSON.
"""

import contextlib
import ctypes
import gc
import json
import os
import signal
import sys
import time
from typing import Any

from cluster.probe.fields import (
    GROUPS,
    LOST,
    NOTHING_HERE,
    OFTEN,
    RETRY_PERIODS,
    SLOW,
    UNSUPPORTED,
    code_of,
    emptied,
    plain,
    text_from,
    word_for,
)

#: How many of a GPU's last XID errors are told again with each line, in case one was missed.
XIDS_KEPT = 8

_MIB = 1024 * 1024
_NO_LIBRARY = 12
_TROUBLES = {
    4: ("permission", "the probe may not open the NVIDIA devices"),
    9: (
        "driver",
        (
            "the NVIDIA driver is not loaded: run 'modprobe nvidia', or install it again for the "
            "kernel that runs now"
        ),
    ),
    18: (
        "mismatch",
        "the NVIDIA driver was updated and the host not restarted since: restart it",
    ),
}
_DEVICES = ("/dev/nvidiactl", "/proc/driver/nvidia/version")
_XID_EVENT, _DOUBLE_BIT_EVENT = 0x8, 0x2
_MAX_LINKS = 18
_PR_SET_PDEATHSIG = 1
_ANCESTORS = {0: "board", 10: "switch", 20: "switches", 30: "bridge", 40: "node", 50: "system"}


class Trouble(Exception):  # noqa: N818 - a word of this program, not a library's error
    """The driver as a whole cannot be used, for ``code``; the text says why."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


class Device:
    """What was learned of one GPU or MIG slice so far, and when each group is due again."""

    def __init__(self, uuid: str) -> None:
        self.uuid = uuid
        self.known: dict[str, Any] = {"uuid": uuid}
        self.why: dict[str, str] = {}
        self.bus_id: str | None = None
        self.last: dict[str, Any] = {}
        self.xids: list[tuple[float, int]] = []
        self.pids: list[tuple[int, int | None, str]] = []
        self._due: dict[int, float] = {}
        self._memory: dict[int, dict[str, Any]] = {}
        self._pids_due = 0.0
        self._pids_since: int | None = None
        self.sm: list[tuple[int, int]] = []

    def read(self, nvml: Any, handle: Any, now: float, period_s: float) -> dict[str, Any]:
        """Ask what is due and return everything known; all questions lost is a lost GPU."""
        answered = 0
        words: set[str] = set()
        for number, group in enumerate(GROUPS):
            if now < self._due.get(number, 0.0):
                continue
            wait = group.periods
            try:
                found = group.read(nvml, handle, self._memory.setdefault(number, {}))
            except Exception as error:  # noqa: BLE001 - the binding raises more than its own errors
                found, word = {}, word_for(error)
                words.add(word)
                # What the device can never say need not be asked every second.
                wait = SLOW if word == UNSUPPORTED else min(wait, OFTEN)
            else:
                answered, word = answered + 1, UNSUPPORTED
            self._take(group.names, found, word)
            self._due[number] = now + (wait - 0.5) * period_s
        lost = not answered and words == {LOST}
        if now >= self._pids_due and not lost:
            self._pids_due = now + (OFTEN - 0.5) * period_s
            self._read_processes(nvml, handle)
        self.last = self._report() | ({"lost": True} if lost else {})
        return self.last

    def _take(self, names: tuple[str, ...], found: dict[str, Any], word: str) -> None:
        for name in names:
            if name in found:
                self.known[name] = found[name]
                self.why.pop(name, None)
            else:
                self.why[name] = word
                if name not in {"model", "memory_total_mib"}:
                    self.known.pop(name, None)

    def _report(self) -> dict[str, Any]:
        report = dict(self.known) | {"why": dict(self.why), "pids": self.pids, "sm": self.sm}
        if self.xids:
            report["xids"] = self.xids
        return report

    def _read_processes(self, nvml: Any, handle: Any) -> None:
        total = self.known.get("memory_total_mib")
        found: dict[int, tuple[int, int | None, str]] = {}
        supported = False
        for kind, name in (("G", "Graphics"), ("M", "MPSCompute"), ("C", "Compute")):
            # Some drivers cannot list one kind or another.
            with contextlib.suppress(Exception):
                for process in getattr(nvml, f"nvmlDeviceGet{name}RunningProcesses")(handle):
                    mib = process.usedGpuMemory
                    mib = None if mib is None else mib // _MIB
                    # More than there is: an entry that another driver version packed.
                    if mib is not None and total is not None and mib > total:
                        mib = None
                    if process.pid:
                        found[process.pid] = (process.pid, mib, kind)
                supported = True
        self.pids = list(found.values())
        self._take(("processes",), {"processes": len(found)} if supported else {}, UNSUPPORTED)
        self.known.pop("processes", None)
        self._read_shares(nvml, handle)

    def _read_shares(self, nvml: Any, handle: Any) -> None:
        """Read each process's own utilisation since the last time."""
        since = self._pids_since
        try:
            samples = nvml.nvmlDeviceGetProcessUtilization(handle, since or 0)
        except Exception as error:  # noqa: BLE001 - as above
            # Nothing since then; a success that the binding raises as an error is the same.
            empty = code_of(error) in {0, 6}
            samples = []
            self._take(("sm",), {"sm": True} if empty else {}, word_for(error))
        else:
            self._take(("sm",), {"sm": True}, UNSUPPORTED)
        self.known.pop("sm", None)
        newest = max((sample.timeStamp for sample in samples), default=since or 0)
        # The first answer is over a past of unknown length.
        fresh = [] if since is None else [one for one in samples if one.timeStamp > since]
        self._pids_since = max(newest, since or 0)
        self.sm = [(one.pid, min(100, one.smUtil)) for one in fresh if one.pid]


class GpuReader:
    """Reads all GPUs, round by round; what it knows outlives the driver's failures."""

    def __init__(
        self, nvml: Any, *, period_s: float = 1.0, skipped: frozenset[int] = frozenset()
    ) -> None:
        self._nvml = nvml
        self._period_s = period_s
        self._skipped = skipped
        self._devices: dict[str, Device] = {}
        self._events: Any = None
        self._registered: set[str] = set()
        self._driver = ""
        self._topology_due = 0.0

    def open(self) -> None:
        """Begin with the driver.

        Raises:
            Trouble: If it cannot be used now.
        """
        try:
            self._nvml.nvmlInit()
            self._driver = text_from(self._nvml.nvmlSystemGetDriverVersion)
        except Exception as error:
            raise _trouble(error) from error
        self._registered.clear()
        self._topology_due = 0.0
        try:
            self._events = self._nvml.nvmlEventSetCreate()
        except Exception:  # noqa: BLE001 - then ECC counts alone tell
            self._events = None

    def close(self) -> None:
        """Let the driver go; it may be lost already."""
        with contextlib.suppress(Exception):
            self._nvml.nvmlShutdown()

    def round(self) -> dict[str, Any]:
        """Read every GPU once; one that cannot be reached is lost, the others go on.

        Raises:
            Trouble: If the driver as a whole fails.
        """
        now = time.monotonic()
        mark(None)
        try:
            count = self._nvml.nvmlDeviceGetCount()
        except Exception as error:
            raise _trouble(error) from error
        handles: dict[str, Any] = {}
        gpus: list[dict[str, Any]] = []
        unreachable: dict[int, str] = {}
        for index in range(count):
            mark(index)
            handle = self._handle(index, unreachable)
            if handle is not None:
                try:
                    gpus += self._read(handle, index, handles, now)
                except Exception as error:  # noqa: BLE001 - lost in this moment
                    unreachable[index] = f"GPU {index} cannot be reached: {error}"
        gpus += self._missing(handles, unreachable, now)
        self._read_events(handles)
        report: dict[str, Any] = {
            "gpus": gpus,
            "error": "; ".join(unreachable.values()),
            "driver": self._driver,
            "simulated": "simulated" in self._driver,
        }
        if now >= self._topology_due:
            self._topology_due = now + SLOW * self._period_s
            report["topology"] = topology(self._nvml, handles)
        return report

    def _handle(self, index: int, unreachable: dict[int, str]) -> Any:
        if index in self._skipped:
            unreachable[index] = (
                f"GPU {index} cannot be reached: reading it ended the driver's library"
            )
            return None
        try:
            # Never kept: a handle from before a reset can end the process that uses it.
            return self._nvml.nvmlDeviceGetHandleByIndex(index)
        except Exception as error:  # noqa: BLE001 - as above
            unreachable[index] = f"GPU {index} cannot be reached: {error}"
            return None

    def _read(
        self, handle: Any, index: int, handles: dict[str, Any], now: float
    ) -> list[dict[str, Any]]:
        """Read a GPU and, where it is divided, its slices."""
        uuid = text_from(self._nvml.nvmlDeviceGetUUID, handle)
        handles[uuid] = handle
        device = self._device(uuid)
        device.known["index"] = index
        if device.bus_id is None:
            with contextlib.suppress(Exception):
                device.bus_id = plain(self._nvml.nvmlDeviceGetPciInfo(handle).busId)
        self._register(uuid, handle, device)
        slices = self._slices(handle)
        found = [device.read(self._nvml, handle, now, self._period_s)]
        if slices is not None:
            found[0]["divided"] = True
            found += [self._read_slice(one, uuid, index, now) for one in slices]
        else:
            found[0].pop("divided", None)
        return found

    def _read_slice(self, handle: Any, parent: str, index: int, now: float) -> dict[str, Any]:
        uuid = text_from(self._nvml.nvmlDeviceGetUUID, handle)
        device = self._device(uuid)
        device.known |= {"index": index, "parent": parent}
        return device.read(self._nvml, handle, now, self._period_s)

    def _slices(self, handle: Any) -> list[Any] | None:
        """Return the handles of a GPU's MIG slices; ``None`` where it is not divided."""
        nvml = self._nvml
        try:
            if nvml.nvmlDeviceGetMigMode(handle)[0] != 1:
                return None
            places = nvml.nvmlDeviceGetMaxMigDeviceCount(handle)
        except Exception:  # noqa: BLE001 - most GPUs cannot be divided, old drivers do not know
            return None
        found = []
        for place in range(places):
            # Places without a slice are normal.
            with contextlib.suppress(Exception):
                found.append(nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, place))
        return found

    def _device(self, uuid: str) -> Device:
        return self._devices.setdefault(uuid, Device(uuid))

    def _missing(
        self, handles: dict[str, Any], unreachable: dict[int, str], now: float
    ) -> list[dict[str, Any]]:
        """Return the GPUs that were there and cannot be read any more.

        One that has no index left may still be reached by its place on the bus.
        """
        found = []
        for uuid, device in list(self._devices.items()):
            if uuid in handles or "parent" in device.known or not device.last:
                continue
            again = self._by_bus(device)
            if again is not None:
                handles[uuid] = again
                found.append(device.read(self._nvml, again, now, self._period_s))
                continue
            if unreachable:
                # It is told by its name and not once more by its number.
                index = device.known.get("index", -1)
                unreachable.pop(index if index in unreachable else min(unreachable))
                how = "the driver cannot reach it"
            else:
                how = "the driver no longer lists it"
            found.append(emptied(device.last, LOST) | {"lost": True, "lost_how": how})
        self._forget_slices(handles)
        return found

    def _by_bus(self, device: Device) -> Any:
        if device.bus_id is None or device.known.get("index") in self._skipped:
            return None
        try:
            handle = self._nvml.nvmlDeviceGetHandleByPciBusId(device.bus_id.encode())
            same = text_from(self._nvml.nvmlDeviceGetUUID, handle) == device.uuid
        except Exception:  # noqa: BLE001 - as above
            return None
        return handle if same else None

    def _forget_slices(self, handles: dict[str, Any]) -> None:
        """Forget slices whose GPU was read in this round without them: they were removed."""
        for uuid, device in list(self._devices.items()):
            parent = device.known.get("parent")
            if parent in handles and not self._devices[parent].last.get("divided"):
                del self._devices[uuid]

    def _register(self, uuid: str, handle: Any, device: Device) -> None:
        if self._events is None or uuid in self._registered:
            return
        self._registered.add(uuid)
        try:
            self._nvml.nvmlDeviceRegisterEvents(
                handle, _XID_EVENT | _DOUBLE_BIT_EVENT, self._events
            )
        except Exception as error:  # noqa: BLE001 - needs rights that it may not have
            device.why["xids"] = word_for(error)
        else:
            device.why.pop("xids", None)

    def _read_events(self, handles: dict[str, Any]) -> None:
        """Take the errors that came since the last round, without waiting for one."""
        for _ in range(64 if self._events is not None else 0):
            try:
                event = self._nvml.nvmlEventSetWait(self._events, 0)
            except Exception:  # noqa: BLE001 - none came, or the driver cannot tell now
                return
            with contextlib.suppress(Exception):
                uuid = text_from(self._nvml.nvmlDeviceGetUUID, event.device)
                if event.eventType == _XID_EVENT and uuid in handles:
                    device = self._device(uuid)
                    device.xids = [*device.xids, (time.time(), event.eventData)][-XIDS_KEPT:]

    def forget_nothing(self) -> list[dict[str, Any]]:
        """Return all GPUs that were read so far, as they were."""
        return [device.last for device in self._devices.values() if device.last]


def topology(nvml: Any, handles: dict[str, Any]) -> list[list[Any]]:
    """Return how each two GPUs are joined: ``[uuid, uuid, kind, NVLink count]``."""
    links = {uuid: _links(nvml, handle) for uuid, handle in handles.items()}
    buses = {}
    for uuid, handle in handles.items():
        with contextlib.suppress(Exception):
            buses[uuid] = plain(nvml.nvmlDeviceGetPciInfo(handle).busId).lower()
    found = []
    names = list(handles)
    for place, first in enumerate(names):
        for second in names[place + 1 :]:
            joined = links[first].get(buses.get(second, ""), 0)
            kind = "nvlink" if joined else _ancestor(nvml, handles[first], handles[second])
            if kind:
                found.append([first, second, kind, joined])
    return found


def _links(nvml: Any, handle: Any) -> dict[str, int]:
    """Return the number of active NVLinks by the bus id of what is at the other end."""
    found: dict[str, int] = {}
    for link in range(_MAX_LINKS):
        try:
            if nvml.nvmlDeviceGetNvLinkState(handle, link):
                peer = plain(nvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, link).busId).lower()
                found[peer] = found.get(peer, 0) + 1
        except Exception as error:  # noqa: BLE001 - as above
            if word_for(error) == UNSUPPORTED:
                break
    return found


def _ancestor(nvml: Any, first: Any, second: Any) -> str:
    try:
        return _ANCESTORS.get(nvml.nvmlDeviceGetTopologyCommonAncestor(first, second), "")
    except Exception:  # noqa: BLE001 - as above
        return ""


def _trouble(error: Exception) -> Trouble:
    code = code_of(error) or 0
    if code == _NO_LIBRARY:
        return without(
            "the driver's library is not there; install the NVIDIA Container Toolkit and "
            "restart Docker"
        )
    return Trouble(*_TROUBLES.get(code, ("driver", f"the NVIDIA driver says: {error}")))


def without(reason: str) -> Trouble:
    """Return what is wrong where there are NVIDIA devices; a host without any lacks nothing."""
    if any(os.path.exists(path) for path in _DEVICES):  # noqa: PTH110 - cheap, and no pathlib here
        return Trouble("driver", f"there are NVIDIA devices that cannot be read: {reason}")
    return Trouble("none", "")


def mark(index: int | None) -> None:
    """Say which GPU is asked about next."""
    _print("@" if index is None else f"@{index}")


def _print(line: str) -> None:
    try:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        os._exit(0)


def main() -> None:
    """Read until the other process goes away."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    period_s = float(sys.argv[1])
    skipped = frozenset(int(word) for word in sys.argv[2:])
    mark(None)
    try:
        import pynvml
    except ImportError:
        _fail(without("nvidia-ml-py is not in the probe's Python"), [])
        sys.exit(NOTHING_HERE)
    # What compiling the binding took is given back.
    gc.collect()
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
    reader = GpuReader(pynvml, period_s=period_s, skipped=skipped)
    while True:
        try:
            reader.open()
            while True:
                began = time.monotonic()
                _print(json.dumps(reader.round(), allow_nan=False))
                time.sleep(max(0.01, period_s - (time.monotonic() - began)))
        except Trouble as trouble:
            _fail(trouble, reader.forget_nothing())
            if trouble.code == "none":
                sys.exit(NOTHING_HERE)
        finally:
            reader.close()
        time.sleep(RETRY_PERIODS * period_s)
        mark(None)


def _fail(trouble: Trouble, gpus: list[dict[str, Any]]) -> None:
    _print(
        json.dumps({"gpus": gpus, "error": str(trouble), "trouble": trouble.code, "stale": True})
    )


if __name__ == "__main__":
    main()
