"""Starts tasks by name after the commit; a lost nudge only delays, beat repeats each."""

import logging
from functools import partial
from typing import Any
from uuid import UUID

from celery import current_app
from django.db import transaction
from kombu.exceptions import OperationalError

logger = logging.getLogger(__name__)


def request_scheduling() -> None:
    """Ask for a scheduling pass once the current transaction is committed."""
    _after_commit("jobs.schedule_pending")


def request_launch(replica_id: UUID) -> None:
    """Ask for a placed replica's container to be started."""
    _after_commit("jobs.replica_launch", str(replica_id))


def request_reconcile(host_name: str) -> None:
    """Ask for a host's containers to be compared with the rows."""
    _after_commit("jobs.reconcile_host", host_name)


def request_unpacking(version_id: UUID) -> None:
    """Ask for a received dataset version to be unpacked."""
    _after_commit("jobs.dataset_unpack", str(version_id))


def request_upload_sweep() -> None:
    """Ask for received files and contents that nobody has to be removed."""
    _after_commit("jobs.sweep_uploads")


def request_runs() -> None:
    """Ask for the simulations and trials that wait to be computed."""
    _after_commit("jobs.start_runners")


def _after_commit(name: str, *args: Any) -> None:
    transaction.on_commit(partial(_send, name, *args))


def _send(name: str, *args: Any) -> None:
    try:
        current_app.send_task(name, args=args, retry=False)
    except (OperationalError, OSError):
        # The row is the truth: beat finds it.
        logger.warning("nudge not sent", extra={"task": name})
