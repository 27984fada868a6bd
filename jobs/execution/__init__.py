"""Starts replicas, compares what runs on a host with the rows, and brings attempts to their end.

Everything here may be killed between any two lines and done again: names are deterministic, moves
are compare-and-set, and what a host's own engine lists is what counts. It knows the ports of the
cluster and the rows of the jobs; it does not know Celery, and the time is passed in.
"""

from jobs.execution.endings import attempt_finish, finish_overdue
from jobs.execution.launch import replica_launch
from jobs.execution.reconcile import reconcile_host

__all__ = ["attempt_finish", "finish_overdue", "reconcile_host", "replica_launch"]
