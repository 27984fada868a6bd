"""What a live page is told about a job's state."""

from datetime import datetime
from typing import Any

from jobs.lifecycle import VERDICTS, JobStatus, Reason
from jobs.models import Job
from monitoring.events import milliseconds


def status_message(job: Job) -> dict[str, Any]:
    """Return a job's state in words, why it waits or ended, and what to do next."""
    status = JobStatus(job.status)
    verdict = VERDICTS[Reason(job.reason)] if job.reason else None
    return {
        "type": "status",
        "job": str(job.public_id),
        "status": status.value,
        "words": status.words,
        "is_terminal": status.is_terminal,
        "reason": job.reason,
        "reason_text": f"{verdict.words} {job.reason_text}".strip() if verdict else "",
        "advice": verdict.advice if verdict else "",
        "stop_reason": job.stop_reason,
        "attempt": job.attempts.count(),
        "started_at_ms": milliseconds(job.started_at) if job.started_at else None,
        "finished_at_ms": milliseconds(job.finished_at) if job.finished_at else None,
        "pending": pending(job),
    }


def _iso(at: datetime | None) -> str | None:
    return at.isoformat() if at else None


def pending(job: Job) -> dict[str, Any] | None:
    """Return why a job waits: one reason with its numbers; ``None`` when it does not wait."""
    if job.status != JobStatus.PENDING:
        return None
    text = job.pending_text
    if job.pending_code == "not_evaluated_yet":
        text = "It was not looked at yet."
    return {
        "code": job.pending_code,
        "text": text,
        "evidence": job.pending_evidence,
        "position": job.pending_position,
        "start_earliest": _iso(job.pending_start_earliest),
        "start_p50": _iso(job.pending_start_p50),
        "start_p90": _iso(job.pending_start_p90),
        "alternatives": job.pending_alternatives,
    }
