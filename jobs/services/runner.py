"""Computes what waits, one after the other; called by a program beside the workers."""

import logging
import time
from collections.abc import Callable
from contextlib import suppress

from django.conf import settings

from cluster.core.errors import CoreError
from jobs import storage
from jobs.errors import InvalidInputError
from jobs.models import PlacementRun, SimulationRun
from jobs.services.placement_answers import placement_execute
from jobs.services.runs import (
    PLACES,
    ROWS,
    Clock,
    Kind,
    Ledger,
    RunStoppedError,
    RunTooLongError,
    begin,
    place_lock,
    settle,
)
from jobs.services.simulation_answers import simulation_execute

logger = logging.getLogger(__name__)

Rest = Callable[[int], bool]


def _no_rest(_: int) -> bool:
    """End as soon as nothing waits."""
    return False


def run_pending(*, kind: Kind, clock: Clock, rest: Rest = _no_rest) -> int:
    """Compute every run of a kind that waits; return how many. Where enough others do, none.

    Args:
        clock: Returns the present moment; a runner may be at work for a long time.
        rest: Called when nothing waits, with how often in a row; waits a moment and returns
            whether to look once more.
    """
    for number in range(PLACES[kind]):
        with suppress(storage.Busy), storage.locked(place_lock(kind, number), wait=False):
            return _drain(kind, clock, rest)
    return 0


def _drain(kind: Kind, clock: Clock, rest: Rest) -> int:
    tried: set[int] = set()
    rests = 0
    while True:
        run = ROWS[kind].objects.unfinished().exclude(pk__in=tried).first()
        if run is None:
            if not rest(rests):
                return len(tried)
            rests += 1
            continue
        rests = 0
        tried.add(run.pk)
        lock = storage.run_lock(str(run.public_id))
        with suppress(storage.Busy), storage.locked(lock, wait=False):
            if begin(run, now=clock()):
                _execute(run, clock)
            lock.unlink(missing_ok=True)


def _execute(run: SimulationRun | PlacementRun, clock: Clock) -> None:
    run.refresh_from_db()
    limit_s = float(settings.STARLING["SIMULATION_MAX_S"])
    ledger = Ledger(run, limit_s=limit_s, seconds=time.monotonic)
    try:
        if isinstance(run, SimulationRun):
            simulation_execute(run, ledger, clock)
        else:
            placement_execute(run, ledger, clock)
    except RunStoppedError:
        logger.info("run stopped", extra={"run": run.public_id})
    except RunTooLongError:
        run.refresh_from_db(fields=["progress_text"])
        settle(
            run,
            now=clock(),
            error=f"It was stopped after {limit_s:g} s ({run.progress_text or 'at the start'}); "
            "ask with fewer jobs, hosts or policies.",
        )
    except (CoreError, InvalidInputError) as problem:
        settle(run, now=clock(), error=str(problem))
    except Exception:
        logger.exception("run failed", extra={"run": run.public_id})
        settle(run, now=clock(), error="It failed for a fault of ours, which was noted.")
