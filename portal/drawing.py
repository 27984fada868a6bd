"""Pictures of packings as numbers: hosts as bars of 100, and on them who takes how much."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

#: As many hosts are drawn; the rest are counted.
MAX_DRAWN: Final = 120
#: Colours that blocks take turns with.
COLOURS: Final = 6
_BAR_HEIGHT: Final = 9
_PITCH: Final = 11
_WHOLE: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """What one request takes of one bar; ``x`` and ``width`` are percent of it."""

    x: float
    y: int
    width: float
    colour: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnHost:
    """A host as it is drawn; ``text`` says the same to those who do not see."""

    name: str
    text: str
    height: int
    bars: tuple[tuple[int, str], ...]
    blocks: tuple[Block, ...]
    is_used: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """The hosts that are drawn, those in use first; bars are ``bar_height`` high."""

    hosts: tuple[DrawnHost, ...]
    used: int
    more: int
    bar_height: int = _BAR_HEIGHT


def drawing_of(picture: Mapping[str, Any]) -> Drawing:
    """Return a packing (:func:`jobs.services.placement_answers.picture_of`) as it is drawn."""
    hosts: Sequence[Mapping[str, Any]] = picture["hosts"]
    names = [request["id"] for host in hosts for request in host["requests"]]
    colours = {name: number % COLOURS + 1 for number, name in enumerate(dict.fromkeys(names))}
    used = [host for host in hosts if host["requests"]]
    idle = [host for host in hosts if not host["requests"]]
    drawn = [*used, *idle][:MAX_DRAWN]
    return Drawing(
        hosts=tuple(_host(host, colours) for host in drawn),
        used=len(used),
        more=len(hosts) - len(drawn),
    )


def _host(host: Mapping[str, Any], colours: Mapping[str, int]) -> DrawnHost:
    bars = [*(f"GPU {n}" for n in range(len(host["gpus"]))), "CPU", "memory"]
    blocks = [
        *(block for n in range(len(host["gpus"])) for block in _gpu(host, n, colours)),
        *_bar(host, "cpu_millis", len(host["gpus"]), colours),
        *_bar(host, "memory_mib", len(host["gpus"]) + 1, colours),
    ]
    who = ", ".join(request["id"] for request in host["requests"])
    return DrawnHost(
        name=host["name"],
        text=f"{host['name']}, {_size(host)}: {who or 'nothing'}",
        height=_PITCH * len(bars) - (_PITCH - _BAR_HEIGHT),
        bars=tuple((_PITCH * n, name) for n, name in enumerate(bars)),
        blocks=tuple(blocks),
        is_used=bool(host["requests"]),
    )


def _gpu(host: Mapping[str, Any], number: int, colours: Mapping[str, int]) -> list[Block]:
    """Return who lies on a GPU; what states memory alone still shows as a sliver."""
    blocks: list[Block] = []
    x = 0.0
    for request in host["requests"]:
        if number in request["gpus"]:
            width = max(100 * request["share_milli"] / _WHOLE, 1.0)
            blocks.append(_block(request, x, number, width, colours))
            x += width
    return blocks


def _bar(
    host: Mapping[str, Any], resource: str, number: int, colours: Mapping[str, int]
) -> list[Block]:
    blocks: list[Block] = []
    x = 0.0
    for request in host["requests"]:
        width = 100 * request[resource] / host[resource] if host[resource] else 0.0
        if width:
            blocks.append(_block(request, x, number, width, colours))
            x += width
    return blocks


def _block(
    request: Mapping[str, Any], x: float, bar: int, width: float, colours: Mapping[str, int]
) -> Block:
    return Block(
        x=round(x, 2),
        y=_PITCH * bar,
        width=round(width, 2),
        colour=colours[request["id"]],
        text=f"{request['id']}: {wants(request)}",
    )


def wants(request: Mapping[str, Any]) -> str:
    """Return what a request takes, in words."""
    words = [
        f"{request['cpu_millis'] / 1000:g} cores",
        f"{request['memory_mib'] / 1024:.3g} GiB",
    ]
    if request["gpus"]:
        count, share = len(request["gpus"]), request["share_milli"]
        each = "whole" if share >= _WHOLE else f"{share / 10:g} % of"
        words.insert(0, f"{each} GPU {', '.join(map(str, request['gpus']))}")
        if request["gpu_memory_mib"] and count:
            words.append(f"{request['gpu_memory_mib'] / 1024:.3g} GiB on each GPU")
    return ", ".join(words)


def _size(host: Mapping[str, Any]) -> str:
    gpus = len(host["gpus"])
    models = " and ".join(dict.fromkeys(model for model in host["gpus"] if model))
    cards = f"{gpus} GPU{'s' if gpus != 1 else ''}{' ' + models if models else ''}, "
    return f"{cards if gpus else ''}{host['cpu_millis'] / 1000:g} cores"
