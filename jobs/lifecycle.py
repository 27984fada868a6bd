"""Statuses, the moves between them, and why things end; tables without database or clock."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class JobStatus(StrEnum):
    """Where a job is."""

    PENDING = "pending"
    PLACED = "placed"
    RUNNING = "running"
    STOPPING = "stopping"
    FINISHING = "finishing"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_terminal(self) -> bool:
        """Return whether nothing can happen to the job any more."""
        return not SUCCESSORS[self]

    @property
    def words(self) -> str:
        """Return the sentence that people are shown."""
        return STATUS_WORDS[self]


SUCCESSORS: Final[dict[JobStatus, frozenset[JobStatus]]] = {
    JobStatus.PENDING: frozenset({JobStatus.PLACED, JobStatus.CANCELLED, JobStatus.FAILED}),
    # A placed job goes back to the queue when its launch was the platform's fault.
    JobStatus.PLACED: frozenset(
        {JobStatus.RUNNING, JobStatus.PENDING, JobStatus.STOPPING, JobStatus.FINISHING}
    ),
    JobStatus.RUNNING: frozenset({JobStatus.STOPPING, JobStatus.FINISHING}),
    JobStatus.STOPPING: frozenset({JobStatus.FINISHING}),
    # Everything of the attempt has ended; its log and files are being completed.
    JobStatus.FINISHING: frozenset(
        {JobStatus.SUCCEEDED, JobStatus.FAILED, JobStatus.CANCELLED, JobStatus.PENDING}
    ),
    JobStatus.SUCCEEDED: frozenset(),
    JobStatus.FAILED: frozenset(),
    JobStatus.CANCELLED: frozenset(),
}

STATUS_WORDS: Final[dict[JobStatus, str]] = {
    JobStatus.PENDING: "waits in the queue",
    JobStatus.PLACED: "has a place and is being started",
    JobStatus.RUNNING: "runs",
    JobStatus.STOPPING: "is being stopped; it may save a last checkpoint",
    JobStatus.FINISHING: "has ended; its log and files are being completed",
    JobStatus.SUCCEEDED: "succeeded",
    JobStatus.FAILED: "failed",
    JobStatus.CANCELLED: "was cancelled",
}

TERMINAL: Final = frozenset(s for s, after in SUCCESSORS.items() if not after)
ACTIVE: Final = frozenset(JobStatus) - TERMINAL
#: Statuses in which an attempt holds resources or may still have a container.
OCCUPYING: Final = frozenset(
    {JobStatus.PLACED, JobStatus.RUNNING, JobStatus.STOPPING, JobStatus.FINISHING}
)


def sources_of(target: JobStatus) -> frozenset[JobStatus]:
    """Return the statuses from which a job may move to ``target``."""
    return frozenset(source for source, after in SUCCESSORS.items() if target in after)


class RetryClass(StrEnum):
    """Whose budget another attempt is charged to."""

    NEVER = "never"
    OWNER = "owner"  # as often as the owner asked for
    PLATFORM = "platform"  # PLATFORM_RETRIES times, never counted against the owner


PLATFORM_RETRIES: Final = 3


class Reason(StrEnum):
    """Why an attempt ended."""

    COMPLETED = "completed"
    PROGRAM_ERROR = "program_error"
    OUT_OF_MEMORY = "out_of_memory"
    KILLED = "killed"
    WALLTIME = "walltime"
    CANCELLED = "cancelled"
    FORCE_ENDED = "force_ended"
    HOST_SHUTDOWN = "host_shutdown"
    HOST_LOST = "host_lost"
    CONTAINER_LOST = "container_lost"
    IMAGE_MISSING = "image_missing"
    GPU_UNAVAILABLE = "gpu_unavailable"
    LAUNCH_FAILED = "launch_failed"
    DATASET_MISSING = "dataset_missing"
    DISK_FULL = "disk_full"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a reason means.

    Attributes:
        status: How the job ends when no attempt is left.
        retry: Whether, and on whose account, it is tried again.
        words: One sentence for the owner: what happened.
        advice: What to do next; empty where there is nothing to do.
    """

    status: JobStatus
    retry: RetryClass
    words: str
    advice: str = ""


VERDICTS: Final[dict[Reason, Verdict]] = {
    Reason.COMPLETED: Verdict(
        status=JobStatus.SUCCEEDED, retry=RetryClass.NEVER, words="The program ended normally."
    ),
    Reason.PROGRAM_ERROR: Verdict(
        status=JobStatus.FAILED,
        retry=RetryClass.OWNER,
        words="The program ended with an error.",
        advice="Read the last lines of the log; they name the line of the script.",
    ),
    Reason.OUT_OF_MEMORY: Verdict(
        status=JobStatus.FAILED,
        retry=RetryClass.OWNER,
        words="The program needed more memory than the job asked for and was ended.",
        advice="Ask for more memory, or use a smaller batch size.",
    ),
    Reason.KILLED: Verdict(
        status=JobStatus.FAILED,
        retry=RetryClass.OWNER,
        words="A signal ended the program.",
        advice="If the program did not send it to itself, ask an admin about the host.",
    ),
    Reason.WALLTIME: Verdict(
        status=JobStatus.FAILED,
        retry=RetryClass.NEVER,
        words="The job reached its time limit and was stopped.",
        advice="Ask for more time, or continue from the last checkpoint in its files.",
    ),
    Reason.CANCELLED: Verdict(
        status=JobStatus.CANCELLED, retry=RetryClass.NEVER, words="The job was cancelled."
    ),
    Reason.FORCE_ENDED: Verdict(
        status=JobStatus.CANCELLED,
        retry=RetryClass.NEVER,
        words="An administrator ended the job.",
    ),
    Reason.HOST_SHUTDOWN: Verdict(
        status=JobStatus.FAILED,
        retry=RetryClass.PLATFORM,
        words="The host was taken out of service while the job ran.",
    ),
    Reason.HOST_LOST: Verdict(
        status=JobStatus.FAILED,
        retry=RetryClass.PLATFORM,
        words="The host disappeared while the job ran.",
        advice="The job is not to blame; an admin should look at the host.",
    ),
    Reason.CONTAINER_LOST: Verdict(
        status=JobStatus.FAILED,
        retry=RetryClass.PLATFORM,
        words="The container disappeared while the job ran, and nobody saw how it ended.",
        advice="The job is not to blame; an admin should look at the host.",
    ),
    Reason.IMAGE_MISSING: Verdict(
        status=JobStatus.FAILED,
        retry=RetryClass.PLATFORM,
        words="The host does not have the environment's image or interpreter.",
        advice="Choose another environment, or ask an admin to install this one.",
    ),
    Reason.GPU_UNAVAILABLE: Verdict(
        status=JobStatus.FAILED,
        retry=RetryClass.PLATFORM,
        words="The host could not give the container its GPUs.",
        advice="An admin should check the NVIDIA container toolkit on the host.",
    ),
    Reason.LAUNCH_FAILED: Verdict(
        status=JobStatus.FAILED,
        retry=RetryClass.PLATFORM,
        words="The container could not be started.",
        advice="The reason the host gave is in the history; an admin should look at it.",
    ),
    Reason.DATASET_MISSING: Verdict(
        status=JobStatus.FAILED,
        retry=RetryClass.NEVER,
        words="A dataset of the job is no longer there.",
        advice="Upload it again, and submit the job with the new version.",
    ),
    Reason.DISK_FULL: Verdict(
        status=JobStatus.FAILED,
        retry=RetryClass.PLATFORM,
        words="The disk that holds the job's files is full.",
        advice="Delete files you no longer need, or ask an admin for room.",
    ),
}


#: Ends that a person asked for; after one of these a job is never tried again.
ASKED_FOR: Final = frozenset({Reason.CANCELLED, Reason.FORCE_ENDED})


def overrides(reason: Reason, earlier: Reason | None) -> bool:
    """Return whether a job that is being stopped for ``earlier`` is now stopped for ``reason``.

    A person's wish goes before what the platform does by itself, and force goes before all.
    """
    if earlier is None:
        return True
    if reason is Reason.FORCE_ENDED:
        return earlier is not Reason.FORCE_ENDED
    return reason is Reason.CANCELLED and earlier not in ASKED_FOR | {Reason.WALLTIME}


class ReplicaStatus(StrEnum):
    """Where one replica (one container) is."""

    PLACED = "placed"
    RUNNING = "running"
    EXITED = "exited"
    LOST = "lost"

    @property
    def has_ended(self) -> bool:
        """Return whether its container is proven to have ended or given up as lost."""
        return self in {ReplicaStatus.EXITED, ReplicaStatus.LOST}


def reason_of_exit(
    *, exit_code: int | None, oom_killed: bool, stop_reason: Reason | None
) -> Reason:
    """Return why a container ended, from what the engine says and what we asked of it.

    A program that ends with 0 after it was asked to stop still ended because of the asking. What
    ended by itself before the asking arrived is told apart by the caller, who then passes no
    ``stop_reason``.
    """
    if stop_reason is not None:
        return stop_reason
    if oom_killed:
        return Reason.OUT_OF_MEMORY
    if exit_code is None:
        return Reason.CONTAINER_LOST
    if exit_code == 0:
        return Reason.COMPLETED
    return Reason.KILLED if exit_code > 128 else Reason.PROGRAM_ERROR


def may_retry(
    reason: Reason, *, owner_retries_left: int, platform_retries_left: int = PLATFORM_RETRIES
) -> bool:
    """Return whether another attempt follows an attempt that ended for ``reason``."""
    match VERDICTS[reason].retry:
        case RetryClass.NEVER:
            return False
        case RetryClass.OWNER:
            return owner_retries_left > 0
        case RetryClass.PLATFORM:
            return platform_retries_left > 0
