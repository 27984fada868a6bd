"""Compiles the inner loops with Numba where it is installed; otherwise they are plain Python."""

from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

try:
    import numba
except ImportError:  # pragma: no cover - the fall-back is tested in a process of its own
    numba = None

#: Whether the loops are compiled; without Numba placement works, some 200 times slower.
COMPILED = numba is not None


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a function of arrays and numbers; the machine code is kept beside the module.

    ``NUMBA_CACHE_DIR`` moves the cache, for instance where the code is read-only.
    """
    if numba is None:
        return function
    decorated: Callable[P, R] = numba.njit(cache=True, nogil=True)(function)
    return decorated
