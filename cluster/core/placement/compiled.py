"""Compiles the inner loops with Numba where it is installed; otherwise they are plain Python.

Numba is imported, and the loops are compiled, when the first of them is called: most processes
that import placement never place anything.
"""

from collections.abc import Callable
from functools import wraps
from importlib.util import find_spec
from typing import Any, Final, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

#: Whether the loops are compiled; without Numba placement works, some 200 times slower.
COMPILED: Final = find_spec("numba") is not None

#: The functions as written, by what stands in for them until the first call.
_waiting: dict[Callable[..., Any], Callable[..., Any]] = {}
_dispatchers: dict[Callable[..., Any], Callable[..., Any]] = {}


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a function of arrays and numbers; the machine code is kept beside the module.

    ``NUMBA_CACHE_DIR`` moves the cache, for instance where the code is read-only.
    """
    if not COMPILED:
        return function

    @wraps(function)
    def stand_in(*args: P.args, **kwargs: P.kwargs) -> R:
        if stand_in not in _dispatchers:
            _decorate()
        result: R = _dispatchers[stand_in](*args, **kwargs)
        return result

    _waiting[stand_in] = function
    return stand_in


def _decorate() -> None:
    """Hand every function to Numba, and let them see one another instead of the stand-ins."""
    import numba

    for stand_in, function in _waiting.items():
        _dispatchers[stand_in] = numba.njit(cache=True, nogil=True, error_model="numpy")(function)
    for function in _waiting.values():
        seen = function.__globals__
        for name in function.__code__.co_names:
            if callable(seen.get(name)) and seen[name] in _dispatchers:
                seen[name] = _dispatchers[seen[name]]
    _waiting.clear()
