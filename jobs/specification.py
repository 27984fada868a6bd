"""What a person asks for when submitting a job; the one shape that forms and REST both fill."""

from dataclasses import dataclass, field
from typing import Any
from uuid import UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetChoice:
    """A dataset version, and the name under which the program finds it.

    The files are at ``$STARLING_DATA_DIR/<name>``, in a container ``/job/data/<name>``.
    """

    version: UUID
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpecification:
    """Everything that makes a job; :func:`jobs.services.job_submit` checks it.

    Attributes:
        environment: Slug of an environment that is enabled and allowed for the owner.
        code: Public id of a code bundle that the owner has made.
        entrypoint: File in the bundle that is run; empty for the bundle's own.
        arguments: Passed to the program as they are.
        parameters: Hyper-parameters; each becomes ``--name=value`` after the arguments, and all
            are in ``$STARLING_PARAMETERS`` as JSON.
        cpu_millis: Thousandths of a core.
        gpu_memory_mib: Enough memory on each GPU, so that it may be shared; ``None`` for whole
            GPUs.
        shm_mib: Size of /dev/shm; ``None`` for half of the memory, at most 8 GiB.
        max_retries: How often the owner wants it tried again after an error of the program.
    """

    name: str
    environment: str
    code: UUID
    entrypoint: str = ""
    arguments: tuple[str, ...] = ()
    parameters: dict[str, Any] = field(default_factory=dict)
    datasets: tuple[DatasetChoice, ...] = ()
    cpu_millis: int = 1000
    memory_mib: int = 2048
    gpus: int = 0
    gpu_memory_mib: int | None = None
    gpu_model: str = ""
    shm_mib: int | None = None
    walltime_s: int = 3600
    max_retries: int = 0
    template: str = ""
    cloned_from: UUID | None = None
