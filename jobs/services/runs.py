"""The common life of simulations and trials: waiting, running beside the workers, an end."""

import logging
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from django.conf import settings
from django.db.models import QuerySet

from jobs import dispatch, storage
from jobs.errors import NotFoundError, NotPossibleNowError, QuotaExceededError
from jobs.models import PlacementRun, Run, RunState, SimulationRun
from jobs.models.ownership import administers

logger = logging.getLogger(__name__)

Clock = Callable[[], datetime]
Seconds = Callable[[], float]


class Kind(StrEnum):
    """What a runner works on; a long simulation never keeps a student's trial waiting."""

    SIMULATION = "simulation"
    PLACEMENT = "placement"


ROWS: Final[dict[Kind, type[SimulationRun] | type[PlacementRun]]] = {
    Kind.SIMULATION: SimulationRun,
    Kind.PLACEMENT: PlacementRun,
}
#: How many runners of a kind work at once on one machine.
PLACES: Final = {Kind.SIMULATION: 1, Kind.PLACEMENT: 2}
#: How often a run is begun before it is held to be too large for its program.
_STARTS: Final = 2
#: Unfinished runs that one person may have.
MAX_UNFINISHED: Final = 5
#: Trials of placement are kept so long.
TRIAL_AGE: Final = timedelta(days=30)
#: Progress is written no more often than that.
_TELL_EVERY_S: Final = 0.5

_runners: dict[Kind, list[subprocess.Popen[bytes]]] = {kind: [] for kind in Kind}


class RunStoppedError(Exception):
    """The run was cancelled or removed while it was computed."""


class RunTooLongError(Exception):
    """The run has had all the time that one may have."""


class Ledger:
    """Writes how far a run is, and stops it where nobody waits for it any more.

    Args:
        run: Whose row is written.
        limit_s: How long it may take from now on.
        seconds: A clock that only goes forward.
    """

    def __init__(self, run: Run, *, limit_s: float, seconds: Seconds) -> None:
        self._rows = _row_of(run)
        self._seconds = seconds
        self._ends_s = seconds() + limit_s
        self._told_s = -_TELL_EVERY_S

    def tell(self, progress_pct: float, text: str) -> None:
        """Say how far it is; most calls return at once.

        Raises:
            RunStoppedError: If the run was cancelled.
            RunTooLongError: If its time is over.
        """
        now_s = self._seconds()
        if now_s >= self._ends_s:
            raise RunTooLongError
        if now_s - self._told_s < _TELL_EVERY_S:
            return
        self._told_s = now_s
        self._write(progress_pct=min(100.0, progress_pct), progress_text=text[:200])

    def keep(self, result: dict[str, Any]) -> None:
        """Store what is known so far.

        Raises:
            RunStoppedError: If the run was cancelled.
        """
        self._write(result=result)

    def _write(self, **values: Any) -> None:
        if not self._rows.filter(state=RunState.RUNNING).update(**values):
            raise RunStoppedError


def settle(
    run: Run, *, now: datetime, result: dict[str, Any] | None = None, error: str = ""
) -> bool:
    """End a run; return ``False`` where it was cancelled meanwhile."""
    values: dict[str, Any] = {
        "state": RunState.FAILED if error else RunState.DONE,
        "error": error,
        "finished_at": now,
        "progress_text": "",
    }
    if not error:
        values |= {"progress_pct": 100}
    if result is not None:
        values["result"] = result
    ended = bool(_row_of(run).filter(state=RunState.RUNNING).update(**values))
    logger.info("run over", extra={"run": run.public_id, "error": error, "kept": ended})
    return ended


def run_cancel(*, run: Run, actor: Any, now: datetime) -> None:
    """End a run that waits or is computed; its program notices within a moment.

    Raises:
        NotFoundError: If it is another's, and the actor no admin.
        NotPossibleNowError: If it is over already.
    """
    _refuse_stranger(run, actor)
    open_rows = _row_of(run).filter(state__in=[RunState.WAITING, RunState.RUNNING])
    if not open_rows.update(state=RunState.CANCELLED, finished_at=now, progress_text=""):
        raise NotPossibleNowError("it is over already")


def run_delete(*, run: Run, actor: Any) -> None:
    """Forget a run, its answer and its address; a program that computes it stops.

    Raises:
        NotFoundError: If it is another's, and the actor no admin.
    """
    _refuse_stranger(run, actor)
    run.delete()


def refuse_too_many(own: QuerySet[Any]) -> None:
    """Refuse one more where too many of somebody's runs wait already.

    Raises:
        QuotaExceededError: Then.
    """
    waiting = own.filter(state__in=[RunState.WAITING, RunState.RUNNING]).count()
    if waiting >= MAX_UNFINISHED:
        raise QuotaExceededError(
            f"{waiting} of yours are not over yet; wait for one to end, or cancel it",
            limit=MAX_UNFINISHED,
            used=waiting,
            asked=1,
        )


def runners_start() -> None:
    """Start a program for each kind of run that waits, in a session of its own."""
    for kind, rows in ROWS.items():
        running = [process for process in _runners[kind] if process.poll() is None]
        _runners[kind] = running
        waiting = rows.objects.unfinished().count()
        if waiting and len(running) < min(PLACES[kind], waiting) and has_free_place(kind):
            running.append(
                subprocess.Popen(  # noqa: S603 - our own program, no argument from outside
                    [sys.executable, str(Path(settings.BASE_DIR, "manage.py")),
                     "run_simulations", kind.value],
                    stdin=subprocess.DEVNULL,
                    start_new_session=True,
                )
            )  # fmt: skip


def runs_sweep(*, now: datetime) -> None:
    """Nudge what waits, and let old trials go."""
    if any(rows.objects.unfinished().exists() for rows in ROWS.values()):
        dispatch.request_runs()
    PlacementRun.objects.filter(created_at__lt=now - TRIAL_AGE).delete()


def has_free_place(kind: Kind) -> bool:
    """Return whether fewer runners of the kind are at work than may be."""
    for number in range(PLACES[kind]):
        with suppress(storage.Busy), storage.locked(place_lock(kind, number), wait=False):
            return True
    return False


def place_lock(kind: Kind, number: int) -> Path:
    """Return the lock file of one place to run in."""
    return storage.run_lock(f"{kind.value}-{number}")


def begin(run: Run, *, now: datetime) -> bool:
    """Count one more start of a run; return whether it is to be computed now.

    Only for who holds the run's lock: then a run that is said to run has lost its program.
    """
    open_rows = _row_of(run).filter(state__in=[RunState.WAITING, RunState.RUNNING])
    if run.starts >= _STARTS:
        open_rows.update(
            state=RunState.FAILED,
            finished_at=now,
            error="It ended its program several times, most likely for want of memory; "
            "ask with fewer jobs or hosts.",
        )
        return False
    return bool(
        open_rows.update(state=RunState.RUNNING, started_at=now, starts=run.starts + 1, error="")
    )


def _row_of(run: Run) -> QuerySet[Any]:
    rows = SimulationRun if isinstance(run, SimulationRun) else PlacementRun
    return rows.objects.filter(pk=run.pk)


def _refuse_stranger(run: Run, actor: Any) -> None:
    if run.owner_id != actor.pk and not administers(actor):
        raise NotFoundError("run", run.public_id)
