"""Small files of workloads, hosts and requests, as people send them."""

from __future__ import annotations

import json

from jobs.question import TextFile

HOSTS = TextFile(
    name="hosts.json",
    text=json.dumps(
        {
            "nodes": [
                {
                    "id": name, "cpu_milli": 8000, "memory_mib": 32_000,
                    "gpu": 1, "gpu_model": "T4", "gpu_memory_mib": 16_000,
                }
                for name in ("alpha", "beta")
            ]
        }
    ),
)  # fmt: skip


def workload(*, gpu_jobs: int = 4, duration_s: int = 100) -> TextFile:
    """Return jobs of one whole GPU each that all come at once."""
    lines = ["id,submitted_s,duration_s,cpu_milli,memory_mib,num_gpu,owner"]
    lines += [
        f"job-{n},0,{duration_s},1000,1000,1,{'ada' if n % 2 else 'bob'}" for n in range(gpu_jobs)
    ]
    return TextFile(name="jobs.csv", text="\n".join(lines) + "\n")


def problem(*, pods: int = 6) -> TextFile:
    """Return three hosts of two GPUs, and requests of half a GPU."""
    return TextFile(
        name="problem.json",
        text=json.dumps(
            {
                "nodes": [
                    {"id": f"host-{n}", "cpu_milli": 8000, "memory_mib": 32_000, "gpu": 2,
                     "gpu_model": "T4", "gpu_memory_mib": 16_000}
                    for n in range(3)
                ],
                "pods": [
                    {"id": f"pod-{n}", "cpu_milli": 1000, "memory_mib": 2000, "num_gpu": 1,
                     "gpu_milli": 500}
                    for n in range(pods)
                ],
            }
        ),
    )  # fmt: skip
