"""The messages that live pages receive; plain dictionaries, one place for their shapes."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final
from uuid import UUID

CLUSTER_GROUP: Final = "cluster"


def job_group(job_id: UUID) -> str:
    """Return the group of everybody who watches a job."""
    return f"job.{job_id.hex}"


def milliseconds(at: datetime) -> int:
    """Return a moment as milliseconds since 1970, as JavaScript counts."""
    return int(at.timestamp() * 1000)


def moment(at_ms: int) -> datetime:
    """Return the moment so many milliseconds after 1970 began."""
    return datetime.fromtimestamp(at_ms / 1000, tz=UTC)


def log_message(
    *, replica: UUID, rank: int, first: int, lines: Sequence[Sequence[Any]]
) -> dict[str, Any]:
    """Return stored lines: ``[[milliseconds, "o" or "e", text], …]`` from number ``first`` on."""
    return {
        "type": "log",
        "replica": str(replica),
        "rank": rank,
        "first": first,
        "lines": [list(line) for line in lines],
    }


def metrics_message(*, rank: int, points: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return reported values, each with ``name``, ``step``, ``value`` and ``at_ms``."""
    return {"type": "metrics", "points": [{"rank": rank, **point} for point in points]}


def samples_message(*, subject: str, at: datetime, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return one sample; the last one of a subject makes all before it worthless to a chart."""
    return {
        "type": "samples",
        "subject": subject,
        "at_ms": milliseconds(at),
        "values": dict(values),
    }


def batch_message(messages: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return several messages as one; the page takes them one after another."""
    return {"type": "batch", "messages": [dict(message) for message in messages]}


def owner_group(user_id: int) -> str:
    """Return the group of the pages that list a user's jobs."""
    return f"owner.{user_id}"
