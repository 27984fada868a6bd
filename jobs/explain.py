"""Why a job waits: one reason, the numbers behind it, and its place in the queue; pure."""

from typing import Any, Final

from cluster.core.resources import Constraint, Deferral

#: Reasons that no placer gives, beside :class:`cluster.core.resources.Constraint`.
NOT_EVALUATED_YET: Final = "not_evaluated_yet"
UNSATISFIABLE: Final = "unsatisfiable"
BACK_OFF: Final = "back_off"
LOST_RACE: Final = "lost_race"


def waiting(deferral: Deferral, *, position: int) -> dict[str, Any]:
    """Return the columns of a job that tell its owner why it waits.

    A request that no host registered now could hold says so, whatever binds at the moment.
    """
    text, code = deferral.text, deferral.constraint.value
    if not deferral.ever and deferral.constraint is not Constraint.NO_HOST:
        code = UNSATISFIABLE
        text += " No host that is registered now could ever hold it; ask for less, or ask an admin."
    return {
        "pending_code": code,
        "pending_text": text,
        "pending_evidence": dict(deferral.evidence),
        "pending_position": position,
    }


def overtaken(*, position: int) -> dict[str, Any]:
    """Return the columns of a job whose place was taken while it was being given."""
    return {
        "pending_code": LOST_RACE,
        "pending_text": "Its place was taken in the same moment; it is looked at again at once.",
        "pending_evidence": {},
        "pending_position": position,
    }
