"""What jobs announce after a commit; whoever listens must not fail them."""

from django.dispatch import Signal

#: Sent with ``job_id`` (UUID), ``source``, ``target`` (JobStatus), ``at``.
job_transitioned = Signal()

#: Sent with ``job_id`` (UUID) when a fact about the job changed without a move of its status.
job_changed = Signal()

#: Sent with ``version_id`` (UUID) when a dataset version became ready or failed.
dataset_changed = Signal()
