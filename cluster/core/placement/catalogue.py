"""Placers by name, as the command line, the pages and the simulator know them.

A placer of one's own is a class in a file, named ``path/to/file.py:ClassName``; it needs a
``name`` and ``place(requests, snapshot)``, see :class:`cluster.core.placement.problem.Placer`.
"""

from collections.abc import Callable
from dataclasses import replace
from difflib import get_close_matches
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, Final

from cluster.core.errors import BadProblemError
from cluster.core.placement.baselines import HEURISTICS
from cluster.core.placement.online import OnlinePlacer
from cluster.core.placement.options import PlacerOptions
from cluster.core.placement.problem import Placer
from cluster.core.placement.scoring import OURS
from cluster.core.placement.swarm import SwarmPlacer
from cluster.core.placement.textbook import TextbookSwarm


def placer_names() -> tuple[str, ...]:
    """Return the names of the placers that come with the product, ours first."""
    return tuple(_MAKERS)


def placer_named(name: str, options: PlacerOptions | None = None) -> Placer:
    """Return the placer of this name.

    Raises:
        BadProblemError: If there is none, with the nearest names; or if the file or class that
            the name says cannot be loaded.
    """
    chosen = options or PlacerOptions()
    if ".py:" in name:
        return _from_file(name)
    if name not in _MAKERS:
        near = get_close_matches(name, _MAKERS, n=1, cutoff=0.5)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise BadProblemError(
            f"there is no placer {name!r}.{hint} There are: {', '.join(_MAKERS)}; "
            "or give path/to/file.py:ClassName"
        )
    return _MAKERS[name](chosen)


def _heuristic(name: str) -> Callable[[PlacerOptions], Placer]:
    return lambda options: replace(HEURISTICS[name], seed=options.seed)


def _online(name: str) -> Callable[[PlacerOptions], Placer]:
    return lambda options: OnlinePlacer(options, name=name)


_MAKERS: Final[dict[str, Callable[[PlacerOptions], Placer]]] = {
    "swarm": SwarmPlacer,
    **{name: _heuristic(name) for name in HEURISTICS},
    "textbook-pso": TextbookSwarm,
    **{name: _online(name) for name in (OURS, "fgd", "gpu-packing", "gpu-clustering")},
}


def _from_file(name: str) -> Placer:
    path, _, class_name = name.rpartition(":")
    file = Path(path)
    if not file.is_file():
        raise BadProblemError(f"there is no file {path}")
    spec = spec_from_file_location(file.stem, file)
    if spec is None or spec.loader is None:
        raise BadProblemError(f"{path} is not a Python file")
    module = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        found: Any = getattr(module, class_name)()
    except Exception as error:  # somebody's own program may fail in any way
        raise BadProblemError(
            f"{class_name} of {path} cannot be made: {type(error).__name__}: "
            + " ".join(str(error).split())
        ) from error
    if not callable(getattr(found, "place", None)):
        raise BadProblemError(f"{class_name} of {path} has no place(requests, snapshot)")
    placer: Placer = found
    return placer
