"""What is made of a line of output before it is stored: readable, masked, and its metrics found."""

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

#: Lines of the runtime kit begin with this byte and are never shown.
KIT_MARK: Final = "\x1e"
MASK: Final = "••••"
MAX_LINE: Final = 16_384

_METRIC_LINE: Final = re.compile(r"^\s*\[metric\]\s+(?P<pairs>.+)$")
_PAIR: Final = re.compile(r"([A-Za-z_][\w./-]{0,79})=(\S+)")
# Moves of the cursor and clearings of the line; colours (ending in "m") are kept.
_CURSOR_NOISE: Final = re.compile(
    r"\x1b\[[0-9;?]*[A-HJKSTfhlnsu]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)"
)
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f]")
_SECRETS: Final = (
    re.compile(r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"),
    re.compile(r"(?i)(?<=bearer )[A-Za-z0-9._~+/-]{12,}=*"),
    re.compile(r"\b(?:ghp|gho|ghs|glpat|hf|sk|xox[abp])[-_][A-Za-z0-9_-]{16,}\b"),
    re.compile(r"(?i)(?<=\btoken )[0-9a-f]{32,}\b"),
    re.compile(r"\bstarling_[A-Za-z0-9]{16,}\b"),
    re.compile(
        r"(?i)(?:\b|_)(?:password|passwd|secret|api[_-]?key|access[_-]?key|auth[_-]?token)"
        r"[\"']?\s*[=:]\s*[\"']?(?P<secret>[^\s\"',;]{4,})"
    ),
    re.compile(r"(?<=://)[^/\s:@]+:(?P<secret>[^/\s@]+)(?=@)"),
    re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*"),
)
_SECRET_NAME: Final = re.compile(r"(?i)pass|secret|token|key|credential")


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricValue:
    """One reported value; ``step`` is ``None`` where the program gave none."""

    name: str
    step: int | None
    value: float | None


def shown(text: str) -> str:
    """Return a line as a terminal would leave it: progress bars collapsed, noise gone."""
    if "\r" in text:
        parts = [part for part in text.split("\r") if part.strip()]
        text = parts[-1] if parts else ""
    if "\x08" in text:
        text = _backspaced(text)
    text = _CONTROL.sub("", _CURSOR_NOISE.sub("", text))
    if len(text) > MAX_LINE:
        text = f"{text[:MAX_LINE]}… [{len(text) - MAX_LINE} more characters]"
    return text


def _backspaced(text: str) -> str:
    kept: list[str] = []
    for character in text:
        if character == "\x08":
            if kept:
                kept.pop()
        else:
            kept.append(character)
    return "".join(kept)


def secrets_of(parameters: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the values whose names say that they are secrets, the longest first."""
    found = [
        str(value)
        for name, value in parameters.items()
        if _SECRET_NAME.search(name) and len(str(value)) >= 4
    ]
    return tuple(sorted(found, key=len, reverse=True))


def masked(text: str, known: Iterable[str] = ()) -> str:
    """Return a line with everything that looks like a secret, and every known one, hidden."""
    for secret in known:
        text = text.replace(secret, MASK)
    for pattern in _SECRETS:
        text = pattern.sub(_hide, text)
    return text


def _hide(found: re.Match[str]) -> str:
    if "secret" not in found.re.groupindex:
        return MASK
    start, end = found.span("secret")
    whole = found[0]
    return whole[: start - found.start()] + MASK + whole[end - found.start() :]


def metrics_in(text: str) -> tuple[MetricValue, ...]:
    """Return the metrics that a line reports, in the documented format or the kit's own.

    ``[metric] step=12 loss=0.31 accuracy=0.92``; a value that is no number is left out.
    """
    if text.startswith(KIT_MARK):
        return _kit_metrics(text)
    if "[metric]" not in text:
        return ()
    found = _METRIC_LINE.match(text)
    if found is None:
        return ()
    pairs = dict(_PAIR.findall(found["pairs"]))
    step = _whole(pairs.pop("step", None))
    return tuple(
        MetricValue(name=name, step=step, value=_finite(value))
        for name, value in pairs.items()
        if _is_number(value)
    )


def _kit_metrics(text: str) -> tuple[MetricValue, ...]:
    _, _, body = text.partition("starling ")
    try:
        found = json.loads(body)
        metrics = found["metrics"].items()
    except (ValueError, KeyError, TypeError, AttributeError):
        return ()
    step = _whole(found.get("step"))
    return tuple(
        MetricValue(name=str(name)[:80], step=step, value=_finite(value))
        for name, value in metrics
        if value is None or _is_number(value)
    )


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True


def _finite(value: Any) -> float | None:
    if value is None:
        return None
    number = float(value)
    return number if math.isfinite(number) else None


def _whole(value: Any) -> int | None:
    try:
        step = int(float(value))
    except (TypeError, ValueError, OverflowError):
        return None
    return step if abs(step) < 2**62 else None
