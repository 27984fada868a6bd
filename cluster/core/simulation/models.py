"""What is found, not decided: how jobs on one GPU slow down, what hosts draw, what fails."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from cluster.core.resources import WHOLE_GPU_MILLI
from cluster.core.simulation.workload import WorkloadJob


class Interference(Protocol):
    """Says how fast a job runs beside others on one GPU."""

    def speed(self, job: WorkloadJob, others: Sequence[WorkloadJob]) -> float:
        """Return the speed relative to running alone, above 0; 1 without others."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ByUtilization:
    """Slows all down alike once the sum ``U`` of what they use alone passes a whole GPU.

    ``speed = base - slope · max(0, U - 1)``, a fit over measured pairs; but never less than an
    even share of the GPU's time. For what a job uses see :func:`utilization`.
    """

    base: float = 0.985
    slope: float = 0.371

    def speed(self, job: WorkloadJob, others: Sequence[WorkloadJob]) -> float:
        """Return the fitted speed."""
        if not others:
            return 1.0
        used = utilization(job) + sum(utilization(other) for other in others)
        return max(1.0 / (1 + len(others)), self.base - self.slope * max(0.0, used - 1.0))


#: Jobs that share a GPU do not feel each other.
NO_INTERFERENCE: Final = ByUtilization(base=1.0, slope=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class PairTable:
    """Measured speeds of pairs; beside several others a job keeps the product of its speeds.

    Attributes:
        speeds: Relative speed of the first kind beside the second.
        unknown: What stands in for a pair that was not measured.
    """

    speeds: Mapping[tuple[str, str], float]
    unknown: Interference = field(default_factory=ByUtilization)

    def speed(self, job: WorkloadJob, others: Sequence[WorkloadJob]) -> float:
        """Return the measured speed, or the stand-in's where it was not measured."""
        product = 1.0
        for other in others:
            known = self.speeds.get((job.kind, other.kind))
            product *= self.unknown.speed(job, [other]) if known is None else known
        return product


def utilization(job: WorkloadJob) -> float:
    """Return what a job uses of a GPU when it is alone there, 0 to 1.

    Where that is unknown the share that it states counts, and without one the whole GPU.
    """
    if job.gpu_utilization_pct is not None:
        return job.gpu_utilization_pct / 100.0
    stated = job.request.gpu_share_milli
    return 1.0 if stated is None else stated / WHOLE_GPU_MILLI


#: Board power by a part of the model's name, watts; the first that matches counts.
_GPU_MAX_W: Final[Mapping[str, float]] = {
    "H200": 700.0,
    "H100": 700.0,
    "A100": 400.0,
    "V100": 300.0,
    "P100": 250.0,
    "A10": 150.0,
    "T4": 70.0,
    "K80": 150.0,
    "4090": 450.0,
    "3090": 350.0,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerModel:
    """Watts of a host: what it draws idle, and more for each core claimed and each GPU at work.

    Attributes:
        host_idle_w: A host without its GPUs.
        core_w: Each claimed core on top.
        gpu_idle_part: What an idle GPU draws of its board power.
        gpu_max_w: Board power by a part of the model's name.
        gpu_other_w: Board power of any other model.
    """

    host_idle_w: float = 120.0
    core_w: float = 4.0
    gpu_idle_part: float = 0.12
    gpu_max_w: Mapping[str, float] = field(default_factory=lambda: _GPU_MAX_W)
    gpu_other_w: float = 250.0

    def board_w(self, model: str) -> float:
        """Return what a GPU of this model draws at full use."""
        for part, watts in self.gpu_max_w.items():
            if part in model:
                return watts
        return self.gpu_other_w

    def gpu_w(self, board_w: float, used: float) -> float:
        """Return what a GPU draws that is used to the degree ``used``, 0 to 1."""
        return board_w * (self.gpu_idle_part + (1.0 - self.gpu_idle_part) * used)


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureModel:
    """Chance: hosts fail and are repaired at exponential times, attempts fail with a probability.

    Attributes:
        host_mtbf_s: Mean time between losses of one host; 0 for never.
        host_repair_s: Mean time until it is back.
        attempt_pct: Percent of attempts whose program fails at a random point of its work.
    """

    host_mtbf_s: float = 0.0
    host_repair_s: float = 3600.0
    attempt_pct: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ElasticityModel:
    """When elastic jobs grow and shrink.

    While nothing waits, a job grows by a worker if that makes it faster by ``gain`` at least and
    saves more than two restarts; while others wait, the least efficient gives one back.

    Attributes:
        restart_s: What every change of size costs: checkpoint, stop, start.
        pause_s: A job's size changes no more often than that.
    """

    gain: float = 1.10
    restart_s: float = 30.0
    pause_s: float = 600.0
