"""Placement problems that come with the product."""

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final

from jobs.question import TextFile

_FOLDER: Final = Path(__file__).parent.parent / "library" / "placement"
#: The order in which they are offered: the easy ones first.
_ORDER: Final = ("course", "triplets", "mixed", "overload")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementExample:
    """One problem, what it is about, and how large it is."""

    slug: str
    title: str
    text: str
    host_count: int
    request_count: int
    file: TextFile


@lru_cache(maxsize=1)
def placement_examples() -> tuple[PlacementExample, ...]:
    """Return the examples; read once per process."""
    return tuple(_example(slug) for slug in _ORDER)


def _example(slug: str) -> PlacementExample:
    path = _FOLDER / f"{slug}.json"
    text = path.read_text(encoding="utf-8")
    content = json.loads(text)
    return PlacementExample(
        slug=slug,
        title=content["title"],
        text=content["text"],
        host_count=len(content["nodes"]),
        request_count=len(content["pods"]),
        file=TextFile(name=path.name, text=text),
    )
