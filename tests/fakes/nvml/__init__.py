"""GPUs that are written in a file: builds the library and writes the file."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

from cluster.probe.simulated import PROFILES, Card, uuid_of

SOURCE = Path(__file__).with_name("nvml.c")
LIBRARY = "libnvidia-ml.so.1"
#: Levels of NVML's topology by the probe's word for them.
_ANCESTORS = {"bridge": 30, "node": 40, "system": 50}


def build(folder: Path, *, old: bool = False) -> Path:
    """Compile the library into a folder and return the folder, for LD_LIBRARY_PATH."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        raise RuntimeError("there is no C compiler; on Debian: apt-get install gcc libc6-dev")
    command = [compiler, "-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    command += ["-DOLD_DRIVER"] if old else []
    command += ["-fvisibility=hidden", f"-Wl,-soname,{LIBRARY}", "-o", str(folder / LIBRARY)]
    subprocess.run([*command, str(SOURCE), "-lpthread"], check=True)
    return folder


@dataclass(frozen=True, kw_only=True)
class FakeGpu:
    """One GPU or slice; a number that is None is not supported by it.

    ``processes`` are pid, MiB or None, and perhaps kind (C, G, M) and percent of the GPU;
    ``errors`` are the driver's codes by number's name; ``xids`` are told once each, in order.
    """

    uuid: str
    name: str | bytes
    memory_total_mib: int | None
    memory_used_mib: int | None = 3
    memory_reserved_mib: int | None = None
    utilization_pct: int | None = 0
    memory_utilization_pct: int | None = None
    power_w: float | None = 20
    power_limit_w: float | None = None
    temperature_c: int | None = 35
    slowdown_c: int | None = None
    clock_mhz: int | None = 300
    clock_max_mhz: int | None = None
    fan_pct: int | None = None
    throttle: int | None = None
    ecc_corrected: int | None = None
    ecc_uncorrected: int | None = None
    remap_corrected: int | None = None
    remap_uncorrected: int | None = None
    remap_pending: int | None = None
    remap_failed: int | None = None
    lost: bool = False
    hang: bool = False
    crash: bool = False
    swapped: bool = False
    mig: bool = False
    mig_slots: int | None = None
    mig_holes: bool = False
    processes: tuple[tuple[object, ...], ...] = ()
    errors: dict[str, int] = field(default_factory=dict)
    samples: tuple[int, ...] = ()
    xids: tuple[int, ...] = ()
    nvlinks: dict[int, int] = field(default_factory=dict)
    ancestors: dict[int, int] = field(default_factory=dict)
    slices: tuple[FakeGpu, ...] = ()

    def lines(self, head: str = "[gpu]") -> list[bytes]:
        found = [head.encode()]
        for entry in fields(self):
            found += _lines(entry.name, getattr(self, entry.name))
        for one in self.slices:
            found += one.lines("[slice]")
        return found


def _lines(name: str, value: object) -> list[bytes]:
    match value:
        case None:
            found: list[str | bytes] = []
        case bool():
            found = [f"{name}={value:d}"]
        case bytes():
            found = [name.encode() + b"=" + value]
        case dict():
            word = {"errors": "error", "nvlinks": "nvlink", "ancestors": "ancestor"}[name]
            found = [f"{word}={key}:{one}" for key, one in value.items()]
        case tuple():
            found = [*_rows(name, value)]
        case _:
            found = [f"{name}={value}"]
    return [line if isinstance(line, bytes) else line.encode() for line in found]


def _rows(name: str, values: tuple[object, ...]) -> list[str]:
    if name == "processes":
        rows = [row for row in values if isinstance(row, tuple)]
        words = [":".join("?" if part is None else str(part) for part in row) for row in rows]
        return [f"process={word}" for word in words]
    if name == "xids":
        return [f"xid={number}:{code}" for number, code in enumerate(values, 1)]
    # Slices have sections of their own.
    return [f"{name}={','.join(map(str, values))}"] if values and name == "samples" else []


@dataclass
class FakeDriver:
    """The file that the library reads; every change is there at once and whole."""

    path: Path
    gpus: list[FakeGpu] = field(default_factory=list)
    init_error: int = 0
    call_error: int = 0
    hang: bool = False
    generation: int = 0
    memory_v2: bool = True
    no_events: bool = False
    empty_is_success: bool = False
    changes: int = 0

    def change(self, index: int | None = None, **values: object) -> None:
        """Change one GPU, or the library as a whole."""
        if index is None:
            for name, value in values.items():
                setattr(self, name, value)
        else:
            self.gpus[index] = replace(self.gpus[index], **values)  # type: ignore[arg-type]
        self.write()

    def write(self) -> None:
        # Two writes in one tick of the file system's clock must differ in size too.
        self.changes += 1
        lines = [f"# {'.' * (self.changes % 200)}".encode()]
        lines += [
            line
            for entry in fields(self)
            if entry.name not in {"path", "gpus", "changes"}
            for line in _lines(entry.name, getattr(self, entry.name))
        ]
        lines += [line for gpu in self.gpus for line in gpu.lines()]
        draft = self.path.with_suffix(".draft")
        draft.write_bytes(b"\n".join(lines) + b"\n")
        draft.rename(self.path)

    def environment(self, folder: Path) -> dict[str, str]:
        """Return the environment of a program that is to see these GPUs."""
        return os.environ | {"LD_LIBRARY_PATH": str(folder), "STARLING_FAKE_NVML": str(self.path)}


def machine(name: str) -> list[FakeGpu]:
    """Return the idle GPUs of one of the known machines, as scripts/run simulates them too."""
    found = PROFILES[name]
    count = len(found.cards)
    return [
        _gpu(
            name,
            index,
            card,
            nvlinks={
                other: found.links for other in range(count) if found.links and other != index
            },
            ancestors={
                other: _ANCESTORS.get(found.link, 40) for other in range(count) if other != index
            },
        )
        for index, card in enumerate(found.cards)
    ]


def _gpu(
    name: str, index: int, card: Card, *, nvlinks: dict[int, int], ancestors: dict[int, int]
) -> FakeGpu:
    ecc = 0 if card.ecc else None
    slices = tuple(
        FakeGpu(
            uuid=uuid_of(name, index, slot),
            name=f"{card.model} MIG {kind}",
            memory_total_mib=mib,
            memory_used_mib=2,
            utilization_pct=None,
            power_w=None,
            temperature_c=None,
            clock_mhz=None,
        )
        for slot, (kind, mib) in enumerate(card.mig)
    )
    return FakeGpu(
        uuid=uuid_of(name, index),
        name=card.model,
        memory_total_mib=card.memory_mib,
        memory_reserved_mib=card.memory_mib // 64,
        memory_utilization_pct=0,
        power_w=card.idle_w,
        power_limit_w=card.limit_w,
        temperature_c=38,
        slowdown_c=card.slowdown_c,
        clock_mhz=card.clock_idle_mhz,
        clock_max_mhz=card.clock_mhz,
        fan_pct=30 if card.fan else None,
        throttle=1,
        ecc_corrected=ecc,
        ecc_uncorrected=ecc,
        remap_corrected=ecc,
        remap_uncorrected=ecc,
        remap_pending=ecc,
        remap_failed=ecc,
        mig=bool(slices),
        mig_slots=7 if slices else None,
        nvlinks=nvlinks,
        ancestors=ancestors,
        slices=slices,
    )
