"""Measured speeds of pairs of training jobs on one GPU: Lucid's and Gavel's public tables.

The tables are data of others and no part of this project; see docs/gpu-sharing.md.
"""

import csv
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog
from scipy.sparse import coo_matrix

_RTX_3090_MIB: Final = 24_576
_V100_MIB: Final = 16_160
#: Gavel's table says nothing of memory; all its pairs ran, so that each fits into a half.
_HALF_MIB: Final = 5_000


@dataclass(frozen=True, slots=True, kw_only=True)
class PairData:
    """What was measured of kinds of job, alone and in pairs.

    Attributes:
        speeds: Speed of the first kind beside the second, relative to alone, 1 at most. Pairs
            that are absent were not measured and never share.
        utilization_pct: Of the GPU, alone; empty where it was not measured.
        labels: Lucid's classes: 0 tiny, 1 medium, 2 jumbo.
    """

    name: str
    kinds: tuple[str, ...]
    speeds: Mapping[tuple[str, str], float]
    gpu_memory_mib: int
    memory_mib: Mapping[str, int]
    utilization_pct: Mapping[str, float] = field(default_factory=dict)
    labels: Mapping[str, int] = field(default_factory=dict)

    def measured(self, one: str, other: str) -> bool:
        """Return whether the pair was measured, both ways."""
        return (one, other) in self.speeds and (other, one) in self.speeds

    def least_gpu_s(self, work: Mapping[str, float]) -> float:
        """Return the least GPU seconds for so many seconds of each kind, alone or in pairs.

        A fluid bound: it cuts jobs at will and starts and ends all at once, so that no schedule
        of whole jobs is shorter.
        """
        kinds = [kind for kind in self.kinds if work.get(kind, 0.0) > 0]
        rows, columns, values = list(range(len(kinds))), list(range(len(kinds))), [1.0] * len(kinds)
        column = len(kinds)
        for row, kind in enumerate(kinds):
            for other_row in range(row, len(kinds)):
                other = kinds[other_row]
                if self.measured(kind, other):
                    rows += [row, other_row]
                    columns += [column, column]
                    values += [self.speeds[kind, other], self.speeds[other, kind]]
                    column += 1
        done = coo_matrix((values, (rows, columns)), shape=(len(kinds), column)).tocsr()
        amounts: NDArray[np.float64] = np.array([work[kind] for kind in kinds])
        found = linprog(np.ones(column), A_ub=-done, b_ub=-amounts, method="highs")
        return float(found.fun)


def read_pairs(folder: Path, gpu: str = "v100") -> PairData:
    """Return Lucid's or Gavel's table, by the files that are in the folder.

    Raises:
        FileNotFoundError: If the folder holds neither.
    """
    if (folder / "colocate_info.csv").is_file() and (folder / "single_data.csv").is_file():
        return _lucid(folder)
    if (folder / "simulation_throughputs.json").is_file():
        return _gavel(folder / "simulation_throughputs.json", gpu)
    raise FileNotFoundError(
        f"{folder} holds no pair table: expected Lucid's single_data.csv and colocate_info.csv, "
        "or Gavel's simulation_throughputs.json"
    )


def _lucid(folder: Path) -> PairData:
    alone = _rows(folder / "single_data.csv")
    speeds: dict[tuple[str, str], list[float]] = {}
    for row in _rows(folder / "colocate_info.csv"):
        if row["gpu_num1"] == row["gpu_num2"] == "1":
            first, second = _lucid_kind(row, "1"), _lucid_kind(row, "2")
            speeds.setdefault((first, second), []).append(float(row["speed1"]))
            speeds.setdefault((second, first), []).append(float(row["speed2"]))
    return PairData(
        name="lucid",
        kinds=tuple(_lucid_kind(row) for row in alone),
        speeds={pair: min(1.0, sum(seen) / len(seen)) for pair, seen in speeds.items()},
        gpu_memory_mib=_RTX_3090_MIB,
        memory_mib={_lucid_kind(row): int(float(row["gmem"])) for row in alone},
        utilization_pct={_lucid_kind(row): float(row["gpu_util"]) for row in alone},
        labels={_lucid_kind(row): int(row["label"]) for row in alone},
    )


def _lucid_kind(row: Mapping[str, str], number: str = "") -> str:
    return "/".join(row[name + number] for name in ("model", "dataset", "batchsize", "amp"))


def _gavel(file: Path, gpu: str) -> PairData:
    """Return the jobs of one GPU of Gavel's table; their types go without the number of GPUs."""
    tables = json.loads(file.read_text())
    if gpu not in tables:
        raise FileNotFoundError(f"{file} has no table for {gpu!r}; it has {', '.join(tables)}")
    table = tables[gpu]
    kinds = tuple(name for name in table if name.endswith(", 1)"))
    speeds = {
        (_gavel_kind(one), _gavel_kind(other)): min(1.0, both[0] / table[one]["null"])
        for one in kinds
        for other, both in table[one].items()
        if other in kinds and both[0] > 0
    }
    names = tuple(_gavel_kind(one) for one in kinds)
    return PairData(
        name=f"gavel-{gpu}",
        kinds=names,
        speeds=speeds,
        gpu_memory_mib=_V100_MIB,
        memory_mib=dict.fromkeys(names, _HALF_MIB),
    )


def _gavel_kind(name: str) -> str:
    """Return ``ResNet-18 (batch size 16)`` for ``('ResNet-18 (batch size 16)', 1)``."""
    return name[2 : name.rindex("',")] if name.startswith("('") else name


def kind_named(data: PairData, name: str) -> str:
    """Return the kind of this name, however Gavel's number of GPUs is written with it.

    Raises:
        KeyError: If the table has no such kind.
    """
    kind = _gavel_kind(name)
    if kind not in data.memory_mib:
        raise KeyError(
            f"{data.name} has no job type {name!r}; it has for instance {data.kinds[0]!r}"
        )
    return kind


def _rows(file: Path) -> list[dict[str, str]]:
    with file.open(newline="") as lines:
        return list(csv.DictReader(lines))
