"""Nudges: each a single call, idempotent, over within half a minute."""

import os
import socket
import time
from collections.abc import Callable
from typing import Final
from uuid import UUID, uuid4

from celery import shared_task
from django.conf import settings
from django.utils import timezone

from cluster import selectors as cluster_selectors
from cluster.core.placement.options import PlacerOptions
from cluster.core.placement.planner import QueuePlanner
from cluster.core.placement.problem import Objective
from jobs import dispatch, execution, scheduling, services


def _holder() -> str:
    """Return a name for a lease that no other task has, not even one in this process."""
    return f"{socket.gethostname()}:{os.getpid()}:{uuid4().hex[:8]}"


def _spent(seconds: float) -> Callable[[], bool]:
    """Return a question: are that many seconds over since now?"""
    until = time.monotonic() + seconds
    return lambda: time.monotonic() > until


#: How long one pass may search; small queues are planned in milliseconds.
_SEARCH_S: Final = 0.5


@shared_task(name="jobs.schedule_pending")
def schedule_pending() -> None:
    """Place what waits."""
    planner = QueuePlanner(
        PlacerOptions(
            objective=Objective(settings.STARLING["PLACEMENT_OBJECTIVE"]),
            seconds=_SEARCH_S,
            clock=time.perf_counter,
        )
    )
    scheduling.schedule_pending(placer=planner, holder=_holder(), now=timezone.now())


@shared_task(name="jobs.replica_launch")
def replica_launch(replica_id: str) -> None:
    """Start the container of a placed replica."""
    execution.replica_launch(replica_id=UUID(replica_id), now=timezone.now())


@shared_task(name="jobs.reconcile_host")
def reconcile_host(name: str) -> None:
    """Compare one host's containers with the rows."""
    execution.reconcile_host(name=name, holder=_holder(), now=timezone.now(), over=_spent(20))


@shared_task(name="jobs.reconcile_hosts")
def reconcile_hosts() -> None:
    """Ask for a pass over every host, each in a task of its own; end what no pass will end."""
    for name in cluster_selectors.hosts_to_visit(now=timezone.now()):
        dispatch.request_reconcile(name)
    execution.finish_overdue(now=timezone.now(), over=_spent(20))


@shared_task(name="jobs.dataset_unpack")
def dataset_unpack(version_id: str) -> None:
    """Unpack a received version, or have a program of its own do what takes longer."""
    if not services.dataset_unpack(version_id=UUID(version_id), now=timezone.now(), brief=True):
        services.unpacker_start()


@shared_task(name="jobs.sweep_uploads")
def sweep_uploads() -> None:
    """Give up uploads that were left alone; remove files that nobody has."""
    services.sweep_uploads(now=timezone.now())


@shared_task(name="jobs.start_runners")
def start_runners() -> None:
    """Have programs of their own compute the simulations and trials that wait."""
    services.runners_start()


@shared_task(name="jobs.sweep_runs")
def sweep_runs() -> None:
    """Nudge simulations that wait; let old trials go."""
    services.runs_sweep(now=timezone.now())
