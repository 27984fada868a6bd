"""The start of a placed replica's container."""

import logging
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from django.db import transaction

from cluster.adapters import registry
from cluster.errors import (
    ClusterError,
    GpuUnavailableError,
    HostRefusedError,
    HostUnreachableError,
    ImageMissingError,
)
from cluster.models import HostConnection
from cluster.ports import ContainerState, ContainerStatus
from jobs import workspace
from jobs.errors import NotFoundError, StaleTransitionError
from jobs.execution import endings
from jobs.lifecycle import JobStatus, Reason, ReplicaStatus
from jobs.models import Attempt, Replica
from jobs.services import attempts as writes

logger = logging.getLogger(__name__)

_MAX_TRIES: Final = 3
#: While one task starts a container no other does, and nobody declares it not started; longer
#: than a task may live.
TURN: Final = timedelta(seconds=45)
_FINAL: Final = (ImageMissingError, GpuUnavailableError, NotFoundError, HostRefusedError)


def replica_launch(*, replica_id: UUID, now: datetime) -> None:
    """Start a placed replica's container; done twice, the second finds the first's.

    A host that does not answer is left to the next pass. What can never work ends the attempt.
    """
    replica = _launchable(replica_id)
    if replica is None or replica.host is None or replica.host.connection != HostConnection.UP:
        return
    if not writes.launch_begin(replica_id=replica_id, until=now + TURN, now=now):
        return
    try:
        runtime = registry.runtime_for(replica.host.endpoint)
        status = runtime.start(workspace.prepare(replica))
    except HostUnreachableError as error:
        endings.host_silent(replica.host, str(error), now=now)
        writes.launch_over(replica_id=replica_id)
    except (NotFoundError, OSError, ClusterError) as error:
        if replica.launch_tries + 1 >= _MAX_TRIES or isinstance(error, _FINAL):
            give_up(replica, _reason_of(error), str(error), now=now)
        else:
            writes.job_note(job=replica.attempt.job, code="launch_tried", text=str(error), now=now)
            writes.launch_over(replica_id=replica_id)
    else:
        seen(replica, status, now=now)


def _launchable(replica_id: UUID) -> Replica | None:
    return (
        Replica.objects.filter(
            public_id=replica_id,
            status=ReplicaStatus.PLACED,
            attempt__finished_at=None,
            # Running already: another of its gang was first.
            attempt__job__status__in=[JobStatus.PLACED, JobStatus.RUNNING],
        )
        .select_related("attempt__job__environment", "attempt__job__code", "host")
        .first()
    )


def _reason_of(error: Exception) -> Reason:
    if isinstance(error, ImageMissingError):
        return Reason.IMAGE_MISSING
    if isinstance(error, GpuUnavailableError):
        return Reason.GPU_UNAVAILABLE
    if isinstance(error, NotFoundError):
        return Reason.DATASET_MISSING
    if isinstance(error, OSError) and error.errno in workspace.DISK_FULL:
        return Reason.DISK_FULL
    return Reason.LAUNCH_FAILED


def give_up(replica: Replica, reason: Reason, text: str, *, now: datetime) -> None:
    """End a replica that did not start, once nothing of it is on its host.

    A host that will not say so keeps the replica placed: the next pass asks again.
    """
    if replica.host is not None:
        try:
            registry.runtime_for(replica.host.endpoint).remove(replica.container_name)
        except ClusterError as error:
            logger.warning(
                "container not proven gone",
                extra={"replica": str(replica.public_id), "why": str(error)},
            )
            return
    endings.replica_never_ran(replica, reason, text, now=now)


def seen(replica: Replica, status: ContainerStatus, *, now: datetime) -> None:
    """Take what the engine says of a container that was started into the rows."""
    if status.state is ContainerState.CREATED:
        return
    with transaction.atomic():
        if writes.replica_moved(
            replica_id=replica.public_id,
            source=ReplicaStatus.PLACED,
            status=ReplicaStatus.RUNNING,
            container_id=status.container_id,
            started_at=now,
            missing_since=None,
        ):
            _attempt_started(replica, now=now)
    if replica.missing_since is not None:
        Replica.objects.filter(pk=replica.pk).update(missing_since=None)
    if status.state is ContainerState.EXITED and replica.status != ReplicaStatus.EXITED:
        endings.replica_exited(replica, status, now=now)


def _attempt_started(replica: Replica, *, now: datetime) -> None:
    Attempt.objects.filter(pk=replica.attempt_id, started_at=None).update(started_at=now)
    # The job is running already (another of the gang), or on its way to an end.
    with suppress(StaleTransitionError):
        writes.job_transition(
            job_id=replica.attempt.job.public_id,
            source=JobStatus.PLACED,
            target=JobStatus.RUNNING,
            now=now,
            text=f"on {replica.host_name}",
        )
