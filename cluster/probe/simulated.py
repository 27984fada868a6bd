"""GPUs that are not there: machines known by name, whose figures follow the jobs that hold them.

The jobs are real and run on the CPU. How busy a job's share of the CPU is, is how busy its GPU is
said to be; memory, power, heat and clock follow from that. Nothing of it is ever said without the
word *simulated*.
"""

import json
import math
import zlib
from pathlib import Path
from typing import Any, NamedTuple

from cluster.probe.host import text_of

AMBIENT_C = 30.0
#: Seconds in which a card's heat follows its power, and its memory what a job asks for.
_HEAT_S = 40.0
_FILL_S = 8.0


class Card(NamedTuple):
    """What a kind of GPU is; ``mig`` names a slice and its memory in MiB."""

    model: str
    memory_mib: int
    idle_w: float
    limit_w: float
    clock_idle_mhz: int
    clock_mhz: int
    slowdown_c: int
    ecc: bool = True
    fan: bool = False
    mig: tuple[tuple[str, int], ...] = ()


class Machine(NamedTuple):
    """A host's cards, and how each two are joined: a kind of link and how many."""

    cards: tuple[Card, ...]
    link: str = "node"
    links: int = 0


T4 = Card("Tesla T4", 15_360, 27, 70, 300, 1590, 93)
RTX_3090 = Card("NVIDIA GeForce RTX 3090", 24_576, 31, 350, 210, 1695, 95, ecc=False, fan=True)
A100 = Card("NVIDIA A100-SXM4-40GB", 40_960, 55, 400, 210, 1410, 92)
_SLICES = (("3g.20gb", 19_968), ("2g.10gb", 9_856), ("1g.5gb", 4_864), ("1g.5gb", 4_864))
PROFILES: dict[str, Machine] = {
    "2xT4": Machine((T4,) * 2),
    "4xRTX3090": Machine((RTX_3090,) * 4, link="bridge"),
    "8xA100": Machine((A100,) * 8, link="nvlink", links=12),
    "A100-MIG": Machine((A100._replace(mig=_SLICES),)),
}


def uuid_of(profile: str, index: int, slot: int | None = None) -> str:
    """Return a GPU's or slice's identity, the same each time."""
    mark = f"{zlib.crc32(profile.encode()):08x}"
    if slot is None:
        return f"GPU-{mark}-0000-4000-8000-{index:012d}"
    return f"MIG-{mark}-0000-4000-8000-{index:06d}{slot:06d}"


def tidy(name: str) -> str:
    """Return the profile that is meant, whatever the case.

    Raises:
        ValueError: If there is none; the text names those there are.
    """
    for known in PROFILES:
        if known.lower() == name.lower():
            return known
    raise ValueError(f"no simulated machine {name!r}; there are: {', '.join(PROFILES)}")


class _Load(NamedTuple):
    busy_pct: float
    memory_mib: float


class SimulatedDriver:
    """Says of each GPU what the jobs that hold it would make it say."""

    def __init__(self, profile: str, *, processes: Path) -> None:
        self._profile = tidy(profile)
        self._machine = PROFILES[self._profile]
        self._folder = processes
        self._holders: dict[str, tuple[list[str], float, int | None]] = {}
        self._memory: dict[tuple[str, str], float] = {}
        self._heat: dict[int, float] = {}
        self._told_topology = 0

    def latest(self, containers: dict[str, dict[str, Any]], *, period_s: float) -> dict[str, Any]:
        """Return all GPUs, given what each container uses now."""
        loads = self._loads(containers, period_s)
        gpus: list[dict[str, Any]] = []
        for index, card in enumerate(self._machine.cards):
            gpus += self._card(index, card, loads, period_s)
        report: dict[str, Any] = {
            "gpus": gpus,
            "gpu_error": "",
            "driver": "simulated",
            "simulated": True,
        }
        if self._told_topology % 60 == 0:
            report["topology"] = self._topology()
        self._told_topology += 1
        return report

    def _topology(self) -> list[list[Any]]:
        count = len(self._machine.cards)
        return [
            [
                uuid_of(self._profile, first),
                uuid_of(self._profile, second),
                self._machine.link,
                self._machine.links,
            ]
            for first in range(count)
            for second in range(first + 1, count)
        ]

    def _loads(
        self, containers: dict[str, dict[str, Any]], period_s: float
    ) -> dict[str, dict[str, _Load]]:
        """Return by GPU what each container that holds it makes of it."""
        for gone in self._holders.keys() - containers.keys():
            del self._holders[gone]
        found: dict[str, dict[str, _Load]] = {}
        for name, use in containers.items():
            gpus, cores, cap_mib = self._holder(name)
            cpu_pct = float(use.get("cpu_pct") or 0.0)
            # A program that waits for its data keeps a GPU half as busy.
            busy = min(100.0, cpu_pct / max(0.1, cores))
            for uuid in gpus:
                mib = self._filled(name, uuid, cap_mib, period_s)
                found.setdefault(uuid, {})[name] = _Load(busy, mib)
        live = {(name, uuid) for uuid, by in found.items() for name in by}
        self._memory = {key: mib for key, mib in self._memory.items() if key in live}
        return found

    def _holder(self, name: str) -> tuple[list[str], float, int | None]:
        """Return the GPUs a container was given, its cores, and its cap of GPU memory."""
        if name not in self._holders:
            try:
                specification = json.loads((self._folder / name / "spec.json").read_text())[
                    "specification"
                ]
                gpus = [str(uuid) for uuid in specification["gpus"]]
                cores = float(specification["cpu_millis"]) / 1000
            except (OSError, ValueError, KeyError, TypeError):
                return [], 1.0, None
            self._holders[name] = (gpus, cores, self._cap(name))
        return self._holders[name]

    def _cap(self, name: str) -> int | None:
        try:
            shim = json.loads((self._folder / name / "shim.json").read_text())["pid"]
        except (OSError, ValueError, KeyError, TypeError):
            return None
        children = text_of(f"/proc/{shim}/task/{shim}/children").split()
        for word in text_of(f"/proc/{children[0]}/environ").split("\0") if children else ():
            key, _, value = word.partition("=")
            if key == "STARLING_GPU_MEMORY_MIB" and value.isdigit():
                return int(value)
        return None

    def _filled(self, name: str, uuid: str, cap_mib: int | None, period_s: float) -> float:
        """Return how much memory a job has taken by now: it fills up in the first seconds."""
        total = self._total(uuid)
        # Each job its own appetite, the same each time: between 35 and 85 % of what it may have.
        appetite = 0.35 + zlib.crc32(name.encode()) % 1000 / 2000
        wanted = appetite * (cap_mib or total)
        before = self._memory.get((name, uuid), 0.0)
        now = before + (wanted - before) * (1 - math.exp(-period_s / _FILL_S))
        self._memory[name, uuid] = now
        return now

    def _total(self, uuid: str) -> int:
        for index, card in enumerate(self._machine.cards):
            if uuid == uuid_of(self._profile, index):
                return card.memory_mib
            for slot, (_, mib) in enumerate(card.mig):
                if uuid == uuid_of(self._profile, index, slot):
                    return mib
        return 0

    def _card(
        self, index: int, card: Card, loads: dict[str, dict[str, _Load]], period_s: float
    ) -> list[dict[str, Any]]:
        uuid = uuid_of(self._profile, index)
        slots = [uuid_of(self._profile, index, slot) for slot in range(len(card.mig))]
        own = loads.get(uuid, {})
        inside = [load for slot in slots for load in loads.get(slot, {}).values()]
        all_loads = [*own.values(), *inside]
        busy = min(100.0, sum(load.busy_pct for load in all_loads) / max(1, len(slots)))
        # Half of the power comes with the first tenth of the work.
        power = card.idle_w + (card.limit_w - card.idle_w) * 0.95 * (busy / 100) ** 0.6
        heat = self._heat.get(index, AMBIENT_C + 8)
        target = AMBIENT_C + 8 + 45 * (power - card.idle_w) / (card.limit_w - card.idle_w)
        heat += (target - heat) * (1 - math.exp(-period_s / _HEAT_S))
        self._heat[index] = heat
        gpu: dict[str, Any] = {
            "uuid": uuid,
            "index": index,
            "model": card.model,
            "memory_total_mib": card.memory_mib,
            "memory_used_mib": 3 + round(sum(load.memory_mib for load in all_loads)),
            "memory_reserved_mib": card.memory_mib // 64,
            "power_w": round(power, 1),
            "power_limit_w": card.limit_w,
            "temperature_c": round(heat),
            "slowdown_c": card.slowdown_c,
            "clock_mhz": card.clock_mhz if busy > 1 else card.clock_idle_mhz,
            "clock_max_mhz": card.clock_mhz,
            "throttle_mask": 0 if busy > 1 else 1,
            "why": {},
            **_held(own),
        }
        self._vary(gpu, card, busy)
        slices = [
            self._slice(index, slot, card, loads.get(uuid_of(self._profile, index, slot), {}))
            for slot in range(len(card.mig))
        ]
        return [gpu, *slices]

    @staticmethod
    def _vary(gpu: dict[str, Any], card: Card, busy: float) -> None:
        """Add what only some kinds of card say."""
        if card.mig:
            gpu["divided"] = True
            gpu["why"] |= dict.fromkeys(
                ("utilization_pct", "memory_utilization_pct"), "unsupported"
            )
        else:
            gpu["utilization_pct"] = round(busy, 1)
            gpu["memory_utilization_pct"] = round(busy * 0.4, 1)
        if card.ecc:
            gpu |= {"ecc_corrected": 0, "ecc_uncorrected": 0, "remap_pending": 0, "remap_failed": 0}
        if card.fan:
            gpu["fan_pct"] = max(30, min(100, round((gpu["temperature_c"] - 30) * 1.6)))

    def _slice(self, index: int, slot: int, card: Card, own: dict[str, _Load]) -> dict[str, Any]:
        name, mib = card.mig[slot]
        unsaid = (
            "utilization_pct",
            "memory_utilization_pct",
            "power_w",
            "temperature_c",
            "clock_mhz",
        )
        return {
            "uuid": uuid_of(self._profile, index, slot),
            "index": index,
            "parent": uuid_of(self._profile, index),
            "model": f"{card.model} MIG {name}",
            "memory_total_mib": mib,
            "memory_used_mib": 2 + round(sum(load.memory_mib for load in own.values())),
            "why": dict.fromkeys(unsaid, "unsupported"),
            "processes": {holder: round(load.memory_mib) for holder, load in own.items()},
        }


def _held(own: dict[str, _Load]) -> dict[str, Any]:
    return {
        "processes": {name: round(load.memory_mib) for name, load in own.items()},
        "shares": {name: round(load.busy_pct, 1) for name, load in own.items()},
    }
