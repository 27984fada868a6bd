"""Line charts as SVG, side by side, with nothing but text."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

_COLOURS: Final = (
    *("#0b6e4f", "#c1440e", "#1f5fa8", "#8a5a00", "#7b3fa0", "#5b6770", "#b0307a", "#3d8b8b"),
    *("#9a9a9a", "#000000"),
)
_WIDTH, _HEIGHT, _LEFT, _TOP, _BOTTOM, _COLUMNS = 380, 300, 46, 30, 40, 3


@dataclass(frozen=True, slots=True)
class Line:
    """A name and its points (x, y)."""

    name: str
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One chart; all panels of a picture name the same lines in the same order."""

    title: str
    lines: tuple[Line, ...]


def picture(panels: Sequence[Panel], *, x: str, y: str) -> str:
    """Return an SVG of all panels with one legend."""
    rows = -(-len(panels) // _COLUMNS)
    width = _WIDTH * min(_COLUMNS, max(1, len(panels)))
    names = [line.name for line in panels[0].lines] if panels else []
    legend = 22 * (-(-len(names) // 4) + 1)
    size = f'viewBox="0 0 {width} {rows * _HEIGHT + legend}" width="{width}"'
    font = 'font-family="sans-serif" font-size="11"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} {font} role="img">',
        '<rect width="100%" height="100%" fill="#ffffff"/>',
    ]
    for number, panel in enumerate(panels):
        at = (number % _COLUMNS * _WIDTH, number // _COLUMNS * _HEIGHT)
        parts.append(f'<g transform="translate({at[0]},{at[1]})">{_panel(panel, x, y)}</g>')
    for number, name in enumerate(names):
        left = 20 + number % 4 * (width - 40) / 4
        top = rows * _HEIGHT + 14 + number // 4 * 22
        colour = _COLOURS[number % len(_COLOURS)]
        parts.append(
            f'<path d="M{left:.0f} {top}h22" stroke="{colour}" stroke-width="2.5"/>'
            f'<text x="{left + 28:.0f}" y="{top + 4}">{escape(name)}</text>'
        )
    return "".join(parts) + "</svg>\n"


def _panel(panel: Panel, x: str, y: str) -> str:
    points = [point for line in panel.lines for point in line.points]
    if not points:
        return ""
    (low_x, high_x), (low_y, high_y) = (
        _range([p[0] for p in points]),
        _range([p[1] for p in points]),
    )
    inner = (_WIDTH - _LEFT - 14, _HEIGHT - _TOP - _BOTTOM)

    def place(point: tuple[float, float]) -> str:
        across = _LEFT + (point[0] - low_x) / (high_x - low_x) * inner[0]
        up = _TOP + (high_y - point[1]) / (high_y - low_y) * inner[1]
        return f"{across:.1f} {up:.1f}"

    parts = [f'<text x="{_LEFT}" y="18" font-weight="bold">{escape(panel.title)}</text>']
    for value in _ticks(low_y, high_y):
        at = place((low_x, value)).split()
        parts.append(
            f'<path d="M{at[0]} {at[1]}h{inner[0]}" stroke="#dddddd"/>'
            f'<text x="{_LEFT - 6}" y="{float(at[1]) + 4:.1f}" text-anchor="end">{value:g}</text>'
        )
    for value in _ticks(low_x, high_x):
        at = place((value, low_y)).split()
        parts.append(
            f'<text x="{at[0]}" y="{float(at[1]) + 15:.1f}" text-anchor="middle">{value:g}</text>'
        )
    for number, line in enumerate(panel.lines):
        path = "L".join(place(point) for point in line.points)
        width = 2.5 if number == 0 else 1.2
        parts.append(
            f'<path d="M{path}" fill="none" stroke="{_COLOURS[number % len(_COLOURS)]}"'
            f' stroke-width="{width}"><title>{escape(line.name)}</title></path>'
        )
    middle = _LEFT + inner[0] / 2
    parts.append(f'<text x="{middle}" y="{_HEIGHT - 10}" text-anchor="middle">{escape(x)}</text>')
    parts.append(
        f'<text transform="translate(12,{_TOP + inner[1] / 2}) rotate(-90)"'
        f' text-anchor="middle">{escape(y)}</text>'
    )
    return "".join(parts)


def _range(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    return (low, high) if high > low else (low - 1.0, high + 1.0)


def _ticks(low: float, high: float) -> list[float]:
    step = next(size for size in (1, 2, 5, 10, 20, 50, 100, 1000) if (high - low) / size <= 8)
    first = -(-low // step) * step
    return [first + step * number for number in range(int((high - first) // step) + 1)]
