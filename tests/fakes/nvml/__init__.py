"""GPUs that are written in a file: builds the library and writes the file."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

SOURCE = Path(__file__).with_name("nvml.c")
LIBRARY = "libnvidia-ml.so.1"


def build(folder: Path) -> Path:
    """Compile the library into a folder and return the folder, for LD_LIBRARY_PATH."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        raise RuntimeError("there is no C compiler; on Debian: apt-get install gcc libc6-dev")
    command = [compiler, "-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    command += ["-fvisibility=hidden", f"-Wl,-soname,{LIBRARY}", "-o", str(folder / LIBRARY)]
    subprocess.run([*command, str(SOURCE), "-lpthread"], check=True)
    return folder


@dataclass(frozen=True, kw_only=True)
class FakeGpu:
    """One GPU; a field that is None is not supported by it."""

    uuid: str
    name: str
    memory_total_mib: int | None
    memory_used_mib: int | None = 3
    utilization_pct: int | None = 0
    power_w: float | None = 20
    power_limit_w: float | None = None
    temperature_c: int | None = 35
    clock_mhz: int | None = 300
    fan_pct: int | None = None
    lost: bool = False
    hang: bool = False
    processes: tuple[tuple[int, int | None], ...] = ()

    def lines(self) -> list[str]:
        found = ["[gpu]"]
        for entry in fields(self):
            value = getattr(self, entry.name)
            if entry.name == "processes":
                found += [f"process={pid}:{'?' if mib is None else mib}" for pid, mib in value]
            elif isinstance(value, bool):
                found += [f"{entry.name}={int(value)}"]
            elif value is not None:
                found += [f"{entry.name}={value}"]
        return found


@dataclass
class FakeDriver:
    """The file that the library reads; every change is there at once and whole."""

    path: Path
    gpus: list[FakeGpu] = field(default_factory=list)
    init_error: int = 0
    hang: bool = False
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
        lines = [f"# {'.' * self.changes}", f"init_error={self.init_error}", f"hang={self.hang:d}"]
        lines += [line for gpu in self.gpus for line in gpu.lines()]
        draft = self.path.with_suffix(".draft")
        draft.write_text("\n".join(lines) + "\n")
        draft.rename(self.path)

    def environment(self, folder: Path) -> dict[str, str]:
        """Return the environment of a program that is to see these GPUs."""
        return os.environ | {"LD_LIBRARY_PATH": str(folder), "STARLING_FAKE_NVML": str(self.path)}


def two_t4() -> list[FakeGpu]:
    return [
        FakeGpu(
            uuid=f"GPU-7e570000-0000-4000-8000-00000000000{index}",
            name="Tesla T4",
            memory_total_mib=15_360,
            power_w=27,
            power_limit_w=70,
            temperature_c=41,
            clock_mhz=585,
        )
        for index in range(2)
    ]


def four_rtx_3090() -> list[FakeGpu]:
    return [
        FakeGpu(
            uuid=f"GPU-30900000-0000-4000-8000-00000000000{index}",
            name="NVIDIA GeForce RTX 3090",
            memory_total_mib=24_576,
            power_w=31,
            power_limit_w=350,
            temperature_c=38,
            clock_mhz=210,
            fan_pct=30,
        )
        for index in range(4)
    ]
