"""Why a job runs where it runs, from what placement has noted, in words for its owner."""

from collections.abc import Mapping
from typing import Any, Final

from jobs.models import Attempt
from portal.simulation_forms import OBJECTIVES

#: The parts of a score, by what placement calls them.
_PARTS: Final = {
    "gpu_wasted": "GPU wasted",
    "imbalance": "imbalance",
    "opens_host": "was idle",
    "fetch": "to fetch",
    "left": "room left",
}


def decision_of(attempt: Attempt | None) -> dict[str, Any] | None:
    """Return what the page shows of a decision; ``None`` where nothing was noted."""
    if attempt is None or not attempt.decision:
        return None
    record: Mapping[str, Any] = attempt.decision
    chosen = list(dict.fromkeys(replica.host_name for replica in attempt.replicas.all()))
    candidates = record.get("candidates") or []
    names = list(dict.fromkeys(name for one in candidates for name in one.get("parts", {})))
    most = max((abs(one["score"]) for one in candidates), default=0) or 1
    seconds = record.get("seconds")
    return {
        "chosen": chosen,
        "sentence": _sentence(record, attempt),
        "placer": record.get("placer", ""),
        "objective": _words(str(record.get("objective", ""))),
        "proven": bool(record.get("proven")),
        "seconds": seconds,
        "milliseconds": None if seconds is None else round(1000 * seconds, 1),
        "parts": [_PARTS.get(name, name.replace("_", " ")) for name in names],
        "candidates": [
            {
                "name": one["host"],
                "score": one["score"],
                "share_pct": round(100 * abs(one["score"]) / most),
                "parts": [one.get("parts", {}).get(name, 0) for name in names],
                "is_chosen": one["host"] in chosen,
            }
            for one in candidates
        ],
    }


def _sentence(record: Mapping[str, Any], attempt: Attempt) -> str:
    text = str(record.get("reason") or attempt.placement_text or "nothing was noted")
    return f"{text[0].upper()}{text[1:].rstrip('.')}."


def _words(objective: str) -> str:
    known = {one.value: words for one, words in OBJECTIVES.items()}
    return known.get(objective, objective)
