"""Amounts, times and states as people read them."""

from datetime import datetime, timedelta
from typing import Any, Final

from django.template import Library
from django.templatetags.static import static
from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from jobs.lifecycle import VERDICTS, JobStatus, Reason
from jobs.models import Job

register = Library()

_MIB_PER_GIB: Final = 1024
_UNKNOWN: Final = "\N{EN DASH}"
_STATUS_LABELS: Final = {
    JobStatus.PENDING: "waiting",
    JobStatus.PLACED: "starting",
    JobStatus.RUNNING: "running",
    JobStatus.STOPPING: "stopping",
    JobStatus.FINISHING: "finishing",
    JobStatus.SUCCEEDED: "succeeded",
    JobStatus.FAILED: "failed",
    JobStatus.CANCELLED: "cancelled",
}


@register.simple_tag
def icon(name: str) -> SafeString:
    """Return a picture from the sprite; it says nothing to a screen reader."""
    return format_html(
        '<svg class="icon" aria-hidden="true" focusable="false"><use href="{}#{}"></use></svg>',
        static("img/icons.svg"),
        name,
    )


@register.filter
def status_label(status: str) -> str:
    """Return a job's status in one word."""
    return _STATUS_LABELS[JobStatus(status)]


@register.filter
def why(job: Job) -> str:
    """Return the one sentence that a list says about a job: why it waits, or why it ended."""
    status = JobStatus(job.status)
    if status is JobStatus.PENDING:
        if job.pending_code == "not_evaluated_yet":
            return "It was not looked at yet."
        return job.pending_text
    if status in {JobStatus.FAILED, JobStatus.CANCELLED} and job.reason:
        return VERDICTS[Reason(job.reason)].words
    return ""


@register.filter
def reason_words(reason: str) -> str:
    """Return why an attempt ended, as a sentence."""
    return VERDICTS[Reason(reason)].words if reason else ""


@register.filter
def mib(value: int | float | None) -> str:
    """Return an amount of memory in MiB or GiB."""
    if value is None:
        return _UNKNOWN
    if value >= _MIB_PER_GIB:
        return f"{value / _MIB_PER_GIB:.1f}".rstrip("0").rstrip(".") + " GiB"
    return f"{value:g} MiB"


@register.filter
def cores(millis: int) -> str:
    """Return thousandths of a core as cores."""
    return f"{millis / 1000:g}"


@register.filter
def span(seconds: int | float | None) -> str:
    """Return a length of time by its two largest units."""
    if seconds is None:
        return _UNKNOWN
    left = max(0, round(seconds))
    words = []
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1)):
        count, left = divmod(left, size)
        if count:
            words.append(f"{count} {unit}")
    return " ".join(words[:2]) or "0 s"


@register.filter
def elapsed(start: datetime | None, end: datetime | None = None) -> str:
    """Return how long it was from ``start`` to ``end``, or is until now."""
    return _UNKNOWN if start is None else span(((end or timezone.now()) - start).total_seconds())


@register.filter
def starts(job: Job) -> str:
    """Return when a waiting job will start, as an interval that holds eight times in ten."""
    first, last = job.pending_start_earliest, job.pending_start_p90
    if first is None or last is None:
        return _UNKNOWN
    now = timezone.now()
    low = max(0, round((first - now).total_seconds() / 60))
    high = max(1, round((last - now).total_seconds() / 60))
    if high <= low:
        return f"in about {span(high * 60)}"
    soonest = "at once" if low == 0 else f"in {span(low * 60)}"
    return f"{soonest} to {span(high * 60)}"


@register.filter
def ago(at: datetime | None) -> SafeString | str:
    """Return a moment as a time element: how long ago, and the moment itself on hover."""
    if at is None:
        return _UNKNOWN
    local = timezone.localtime(at)
    return format_html(
        '<time datetime="{}" title="{}" data-ago>{}</time>',
        at.isoformat(),
        local.strftime("%Y-%m-%d %H:%M:%S %Z"),
        _distance(timezone.now() - at),
    )


def _distance(passed: timedelta) -> str:
    seconds = passed.total_seconds()
    if seconds < 0:
        return f"in {span(-seconds).split(' ')[0]} {span(-seconds).split(' ')[1]}"
    if seconds < 45:
        return "just now"
    count, unit = span(seconds).split(" ")[:2]
    return f"{count} {unit} ago"


@register.filter
def share(part: int | float | None, whole: int | float | None) -> int:
    """Return how many percent ``part`` is of ``whole``; 0 where nothing is known."""
    return min(100, round(100 * part / whole)) if part and whole else 0


@register.filter
def at_key(mapping: Any, key: str) -> Any:
    """Return what a mapping has under a key; nothing where it has nothing."""
    return mapping.get(key) if mapping else None


@register.simple_tag(takes_context=True)
def query(context: dict[str, Any], **changes: Any) -> str:
    """Return the page's own query string with some of it changed; empty values leave it."""
    values = context["request"].GET.copy()
    for name, value in changes.items():
        if value in {None, ""}:
            values.pop(name, None)
        else:
            values[name] = str(value)
    encoded = values.urlencode()
    return f"?{encoded}" if encoded else "?"


@register.filter
def words(code: str) -> str:
    """Return a code such as ``out_of_memory`` as words."""
    return code.replace("_", " ")


@register.filter(is_safe=True)
def with_code(text: str) -> SafeString:
    """Return a text with what stands between backticks as code; everything else is escaped."""
    parts = text.split("`")
    if len(parts) % 2 == 0:  # one without a partner is a letter like any other
        parts[-2:] = ["`".join(parts[-2:])]
    return format_html_join(
        "",
        "{}",
        (
            (format_html("<code>{}</code>", part) if place % 2 else part,)
            for place, part in enumerate(parts)
        ),
    )
