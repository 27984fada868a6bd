"""Compiles the inner loops with Numba where it is installed; otherwise they are plain Python."""

from collections.abc import Callable
from importlib.util import find_spec
from typing import Final, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

#: Whether the loops are compiled; without Numba placement works, some 200 times slower.
COMPILED: Final = find_spec("numba") is not None


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a function of arrays and numbers; the machine code is kept beside the module.

    ``NUMBA_CACHE_DIR`` moves the cache, for instance where the code is read-only.
    """
    if not COMPILED:
        return function
    import numba

    decorated: Callable[P, R] = numba.njit(cache=True, nogil=True, error_model="numpy")(function)
    return decorated
