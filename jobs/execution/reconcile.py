"""One pass over one host: what its engine lists against what the rows say."""

import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from django.conf import settings

from cluster import leases
from cluster import services as cluster_services
from cluster.adapters import registry
from cluster.errors import ClusterError, HostRefusedError, HostUnreachableError
from cluster.models import Host, HostConnection
from cluster.ports import (
    LABEL_INSTANCE,
    LABEL_REPLICA,
    ContainerRuntime,
    ContainerState,
    ContainerStatus,
)
from jobs import dispatch
from jobs.errors import StaleTransitionError
from jobs.execution import endings, launch
from jobs.lifecycle import JobStatus, Reason, ReplicaStatus
from jobs.models import Job, Replica
from jobs.selectors.jobs import unfinished_on
from jobs.services import attempts as writes
from jobs.services.jobs import job_stop

logger = logging.getLogger(__name__)

#: How long a started container may be absent from its host's list before it counts as lost.
MISSING_GRACE: Final = timedelta(seconds=10)
#: After this a container is removed although its log never became complete.
REMOVAL_PATIENCE: Final = timedelta(days=1)
#: The lease only spares work: what two passes at once do is still done once.
_LEASE: Final = timedelta(seconds=20)


def reconcile_host(
    *, name: str, holder: str, now: datetime, over: Callable[[], bool] = lambda: False
) -> None:
    """Compare what runs on a host with the rows and repair whatever differs.

    Of two passes over the same host at the same moment one does nothing. A host that does not
    answer costs this pass its timeout, no other host anything, and is then left alone for a
    while.

    Args:
        holder: Name of whoever makes this pass, for its lease.
        over: Asked between two replicas; what is left then is left to a pass asked for at once.
    """
    host = Host.objects.filter(name=name).first()
    if host is None or (host.quiet_until is not None and host.quiet_until > now):
        return
    with leases.held(name=f"host:{name}", holder=holder, ttl=_LEASE, now=now) as fence:
        if fence is None:
            return
        try:
            runtime = registry.runtime_for(host.endpoint)
            if host.connection != HostConnection.UP:
                cluster_services.host_test(host_id=host.pk, now=now)
            seen = runtime.containers({LABEL_INSTANCE: settings.STARLING["INSTANCE"]})
            cluster_services.host_answered(host_id=host.pk)
            _converge(host, runtime, seen, now=now, over=over)
        except HostUnreachableError as error:
            endings.host_silent(host, str(error), now=now)
        except HostRefusedError as error:
            cluster_services.host_connection(
                host_id=host.pk, connection=HostConnection.REFUSED, text=str(error), now=now
            )


def _converge(
    host: Host,
    runtime: ContainerRuntime,
    seen: Iterable[ContainerStatus],
    *,
    now: datetime,
    over: Callable[[], bool],
) -> None:
    by_name = {status.name: status for status in seen}
    for replica in unfinished_on(host.name):
        status = by_name.pop(replica.container_name, None)
        if _steady(replica, status, now=now):
            continue
        if over():
            dispatch.request_reconcile(host.name)
            return
        try:
            _step(replica, status, runtime, now=now)
        except StaleTransitionError:
            continue
        except HostUnreachableError:
            raise
        except (ClusterError, OSError):
            logger.exception("replica not reconciled", extra={"replica": str(replica.public_id)})
    for status in by_name.values():
        _remove_orphan(host, runtime, status)


def _steady(replica: Replica, status: ContainerStatus | None, *, now: datetime) -> bool:
    """Return whether there is nothing to do: most replicas in most passes."""
    return (
        status is not None
        and status.state is ContainerState.RUNNING
        and replica.status == ReplicaStatus.RUNNING
        and replica.missing_since is None
        and replica.attempt.finished_at is None
        and replica.attempt.job.status == JobStatus.RUNNING
        and not _past_walltime(replica, replica.attempt.job, now=now)
    )


def _past_walltime(replica: Replica, job: Job, *, now: datetime) -> bool:
    started_at = replica.attempt.started_at or replica.started_at or now
    return now - started_at > timedelta(seconds=job.walltime_s)


def _step(
    replica: Replica, status: ContainerStatus | None, runtime: ContainerRuntime, *, now: datetime
) -> None:
    """Bring one replica one step further."""
    if status is None or status.state is ContainerState.CREATED:
        _not_running(replica, now=now)
    else:
        launch.seen(replica, status, now=now)
    replica.refresh_from_db()
    job = replica.attempt.job
    job.refresh_from_db()
    if status is not None and status.state is ContainerState.RUNNING:
        _enforce(replica, job, runtime, now=now)
    if ReplicaStatus(replica.status).has_ended:
        _complete(replica, job, runtime, now=now)


def _not_running(replica: Replica, *, now: datetime) -> None:
    """The host answers, and the container is not there or was never started."""
    match ReplicaStatus(replica.status):
        case ReplicaStatus.PLACED:
            _not_started(replica, now=now)
        case ReplicaStatus.RUNNING if replica.missing_since is None:
            Replica.objects.filter(pk=replica.pk).update(missing_since=now)
        case ReplicaStatus.RUNNING:
            if now - (replica.missing_since or now) >= MISSING_GRACE:
                endings.replica_lost(replica, Reason.CONTAINER_LOST, now=now)
        case ReplicaStatus.LOST | ReplicaStatus.EXITED:
            # Proven gone, and what its log still held is gone with it.
            cluster_services.allocation_release(
                holder=replica.public_id, now=now, reason="proven gone"
            )
            if replica.log_complete_at is None:
                Replica.objects.filter(pk=replica.pk).update(log_complete_at=now)


def _not_started(replica: Replica, *, now: datetime) -> None:
    if replica.attempt.job.status in {JobStatus.PLACED, JobStatus.RUNNING}:
        launch.replica_launch(replica_id=replica.public_id, now=now)
    elif writes.launch_begin(replica_id=replica.public_id, until=now + launch.TURN, now=now):
        reason = endings.asked_reason(replica) or Reason.LAUNCH_FAILED
        launch.give_up(replica, reason, "It never started.", now=now)


def _enforce(replica: Replica, job: Job, runtime: ContainerRuntime, *, now: datetime) -> None:
    """Stop what must not run: cancelled, past its time, or of an attempt given up before."""
    if replica.status == ReplicaStatus.LOST or (
        replica.attempt.finished_at is not None and job.status != JobStatus.STOPPING
    ):
        runtime.kill(replica.container_name)
        return
    if job.status == JobStatus.RUNNING and _past_walltime(replica, job, now=now):
        job_stop(job=job, reason=Reason.WALLTIME, now=now)
        job.refresh_from_db()
    if job.status != JobStatus.STOPPING:
        return
    asked_at = replica.terminated_at or now
    grace = timedelta(seconds=settings.STARLING["STOP_GRACE_S"])
    at_once = job.stop_reason == Reason.FORCE_ENDED or now - asked_at > grace
    if replica.terminated_at is None:
        # Written first: an end that comes after the asking is never taken for the program's own.
        Replica.objects.filter(pk=replica.pk).update(terminated_at=now)
        if not at_once:
            runtime.terminate(replica.container_name)
    if at_once:
        runtime.kill(replica.container_name)


def _complete(replica: Replica, job: Job, runtime: ContainerRuntime, *, now: datetime) -> None:
    """List the files, end the job, and remove the container once its log is safe."""
    endings.outputs_list(replica, now=now)
    endings.settle(replica.attempt, now=now)
    endings.attempt_finish(job_id=job.public_id, now=now)
    if replica.status == ReplicaStatus.LOST and replica.log_complete_at is None:
        # It may still run: the next pass sees the end that this one asked for.
        return
    finished_at = replica.finished_at or now
    if replica.log_complete_at is not None or now - finished_at > REMOVAL_PATIENCE:
        runtime.remove(replica.container_name)
        # From here on nothing of the replica is on its host: whatever it still held is free.
        cluster_services.allocation_release(holder=replica.public_id, now=now, reason="removed")
        Replica.objects.filter(pk=replica.pk).update(
            removed_at=now, log_complete_at=replica.log_complete_at or now
        )


def _remove_orphan(host: Host, runtime: ContainerRuntime, status: ContainerStatus) -> None:
    """Remove a container of ours that no unfinished row speaks of.

    The rows are asked again: the list was taken first, and a row may have come since.
    """
    with suppress(ValueError):
        name = UUID(status.labels.get(LABEL_REPLICA, ""))
        if Replica.objects.filter(public_id=name, removed_at=None).exists():
            return
    logger.warning("orphan removed", extra={"host": host.name, "container": status.name})
    with suppress(ClusterError):
        runtime.remove(status.name)
