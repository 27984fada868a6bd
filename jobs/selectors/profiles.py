"""Reads of what is learned of jobs: what each is expected to need, and for how long."""

import json
from collections.abc import Iterable, Sequence
from hashlib import sha256

from cluster.core.policy.profiles import (
    Declared,
    Estimate,
    Learned,
    ProfileKey,
    estimate,
)
from jobs.models import Job, JobProfile


def profile_key(job: Job) -> ProfileKey:
    """Return the kind of a job: who runs which program where and how."""
    how = {"arguments": list(job.arguments), "parameters": dict(job.parameters), "gpus": job.gpus}
    return ProfileKey(
        user=str(job.owner_id),
        program=job.template or f"{job.code_id}:{job.entrypoint}",
        environment=str(job.environment_id),
        arguments=json.dumps(how, sort_keys=True, default=str),
    )


def digest(key: Sequence[str]) -> str:
    """Return the fixed length that stands for a key of the chain."""
    return sha256(json.dumps(list(key)).encode()).hexdigest()


def learned_of(profile: JobProfile) -> Learned:
    """Return a row as the policy reads it."""
    return Learned(
        alone_runs=profile.alone_runs,
        utilization_pct=profile.utilization_pct,
        memory_peak_mib=profile.memory_peak_mib,
        ended_runs=profile.ended_runs,
        log_duration=profile.log_duration,
        log_squares=profile.log_squares,
    )


def estimates(jobs: Iterable[Job]) -> dict[str, Estimate]:
    """Return what each job is expected to need, by its public id."""
    chains = {job: [digest(key) for key in profile_key(job).chain] for job in jobs}
    wanted = {key for chain in chains.values() for key in chain}
    rows = JobProfile.objects.filter(key__in=wanted)
    known = {row.key: learned_of(row) for row in rows}
    return {
        str(job.public_id): estimate(
            [known.get(key) for key in chain],
            Declared(memory_mib=job.gpu_memory_mib, walltime_s=float(job.walltime_s)),
        )
        for job, chain in chains.items()
    }
