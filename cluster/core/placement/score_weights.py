"""The weights of the online score, by feature; a file of defaults comes with the product."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from cluster.core.errors import BadProblemError

Floats = NDArray[np.float64]

#: The weights that come with the product, made by ``manage.py place tune``.
DEFAULT_FILE: Final = Path(__file__).with_name("default_weights.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreWeights:
    """How much each feature of a host counts; lower scores win, so a weight above 0 is a cost.

    Features are counted in GPUs: ``f`` is the free GPU of a host, shares included, ``w`` its GPUs
    that are wholly free, ``n`` all its GPUs, ``p`` what is free of each GPU that is begun.

    Attributes:
        cpu_short_25, cpu_short_50, cpu_short_75, cpu_short_90: Free GPU for which the CPU would
            not last, ``max(0, f - cpu / q)``: ``q`` is the CPU a GPU below which so many percent
            of the demand that has arrived lies.
        memory_short_50, memory_short_85: The same by memory.
        blocks_1, blocks_2, blocks_4, blocks_8: Whole free GPUs in blocks of so many, negated, by
            the root of the share of demand that asks for such blocks.
        partial: Sum of ``p``.
        partial_small, partial_middle: Sum of those ``p`` that are smaller than a third, or two
            thirds, of the shares asked for.
        partial_even: Sum of ``4 p (1 - p)``: half-full GPUs.
        broken: GPUs that are begun and not full.
        free_square: ``f² / n``; below 0 it prefers full and empty hosts to half-full ones.
        cpu_square: ``c² n``, with ``c`` the free part of the CPU.
        balance: ``f c``.
        in_use: 1 for a host that holds anything.
        cpu_spare: CPU beyond what the free GPUs need, by the part of demand that is CPU alone.
        scarce_free, scarce_short, scarce_cpu, scarce_whole: ``f``, ``cpu_short_50``, the CPU and
            ``w`` of hosts whose GPU model is asked for more than others, by how much more,
            negated.
        scarce_now: The request's GPUs times how much more the model is asked for than others by
            what of it is free now.
    """

    cpu_short_25: float = 0.0
    cpu_short_50: float = 0.0
    cpu_short_75: float = 0.0
    cpu_short_90: float = 0.0
    memory_short_50: float = 0.0
    memory_short_85: float = 0.0
    blocks_1: float = 0.0
    blocks_2: float = 0.0
    blocks_4: float = 0.0
    blocks_8: float = 0.0
    partial: float = 0.0
    partial_small: float = 0.0
    partial_middle: float = 0.0
    partial_even: float = 0.0
    broken: float = 0.0
    free_square: float = 0.0
    cpu_square: float = 0.0
    balance: float = 0.0
    in_use: float = 0.0
    cpu_spare: float = 0.0
    scarce_free: float = 0.0
    scarce_short: float = 0.0
    scarce_cpu: float = 0.0
    scarce_whole: float = 0.0
    scarce_now: float = 0.0

    def vector(self) -> Floats:
        """Return the weights in the order of the fields, [25]."""
        return np.array([getattr(self, name) for name in FEATURES], np.float64)

    def as_dict(self) -> dict[str, float]:
        """Return the weights by feature."""
        return {name: float(getattr(self, name)) for name in FEATURES}

    @classmethod
    def of_vector(cls, vector: Sequence[float] | Floats) -> "ScoreWeights":
        """Return the weights of a vector in the order of the fields.

        Raises:
            BadProblemError: If there are more or fewer numbers, or one is not finite.
        """
        numbers = [float(number) for number in vector]
        if len(numbers) != len(FEATURES) or not np.isfinite(numbers).all():
            raise BadProblemError(f"weights are {len(FEATURES)} finite numbers")
        return cls(**dict(zip(FEATURES, numbers, strict=True)))

    @classmethod
    def of_dict(cls, values: Mapping[str, Any]) -> "ScoreWeights":
        """Return the weights of a mapping from features; those it does not name are 0.

        Raises:
            BadProblemError: If it names a feature that does not exist, or a weight is no finite
                number.
        """
        unknown = sorted(set(values) - set(FEATURES))
        if unknown:
            raise BadProblemError(f"there is no feature {unknown[0]!r}")
        for name, value in values.items():
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise BadProblemError(f"the weight of {name} is no number: {value!r}")
        return cls.of_vector([values.get(name, 0.0) for name in FEATURES])


#: The features in the order of the vector.
FEATURES: Final = tuple(field.name for field in fields(ScoreWeights))


@cache
def default_weights() -> ScoreWeights:
    """Return the weights that come with the product."""
    return ScoreWeights.of_dict(json.loads(DEFAULT_FILE.read_text(encoding="utf-8"))["weights"])
