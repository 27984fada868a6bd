"""Hosts, GPUs and jobs as Prometheus scrapes them, under the names of NVIDIA's DCGM exporter.

What is not known now is left out: a series that ends is a gap, and 0 would be a lie.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Final

from django.utils import timezone
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema
from rest_framework.permissions import IsAdminUser
from rest_framework.renderers import BaseRenderer, JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from monitoring import selectors

#: Our name of a reading, DCGM's, its type and what it means.
GPU_METRICS: Final = (
    ("utilization_pct", "DCGM_FI_DEV_GPU_UTIL", "gauge", "GPU utilization (in %)."),
    ("memory_utilization_pct", "DCGM_FI_DEV_MEM_COPY_UTIL", "gauge", "Memory utilization (in %)."),
    ("memory_used_mib", "DCGM_FI_DEV_FB_USED", "gauge", "Framebuffer memory used (in MiB)."),
    ("memory_free_mib", "DCGM_FI_DEV_FB_FREE", "gauge", "Framebuffer memory free (in MiB)."),
    ("memory_reserved_mib", "DCGM_FI_DEV_FB_RESERVED", "gauge", "Kept by the driver (in MiB)."),
    ("power_w", "DCGM_FI_DEV_POWER_USAGE", "gauge", "Power draw (in W)."),
    ("power_limit_w", "DCGM_FI_DEV_POWER_MGMT_LIMIT", "gauge", "Enforced power limit (in W)."),
    ("temperature_c", "DCGM_FI_DEV_GPU_TEMP", "gauge", "GPU temperature (in C)."),
    ("clock_mhz", "DCGM_FI_DEV_SM_CLOCK", "gauge", "SM clock frequency (in MHz)."),
    ("fan_pct", "DCGM_FI_DEV_FAN_SPEED", "gauge", "Fan speed (in %)."),
    ("ecc_corrected", "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", "counter", "Corrected memory errors."),
    ("ecc_uncorrected", "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "counter", "Uncorrected memory errors."),
    ("remap_pending", "DCGM_FI_DEV_ROW_REMAP_PENDING", "gauge", "Rows wait for a reset."),
    ("remap_failed", "DCGM_FI_DEV_ROW_REMAP_FAILURE", "gauge", "Rows cannot be replaced."),
)
HOST_METRICS: Final = (
    ("cpu_pct", "starling_host_cpu_percent", "gauge", "CPU that is busy."),
    ("memory_used_mib", "starling_host_memory_used_mib", "gauge", "Memory used."),
    ("memory_total_mib", "starling_host_memory_total_mib", "gauge", "Memory there is."),
    ("disk_used_mib", "starling_host_disk_used_mib", "gauge", "Disk used."),
    ("read_bytes_s", "starling_host_disk_read_bytes_per_second", "gauge", "Read from disks."),
    ("write_bytes_s", "starling_host_disk_write_bytes_per_second", "gauge", "Written to disks."),
    ("receive_bytes_s", "starling_host_receive_bytes_per_second", "gauge", "Received."),
    ("transmit_bytes_s", "starling_host_transmit_bytes_per_second", "gauge", "Sent."),
    ("load_1m", "starling_host_load1", "gauge", "Load average over a minute."),
    ("cpu_pressure_pct", "starling_host_cpu_pressure_percent", "gauge", "Time waited for CPU."),
    ("io_pressure_pct", "starling_host_io_pressure_percent", "gauge", "Time waited for disks."),
)

_Labelled = tuple[dict[str, str], dict[str, Any]]


class ExpositionRenderer(BaseRenderer):
    """Text of Prometheus's exposition format."""

    media_type = "text/plain"
    format = "prometheus"
    charset = "utf-8"

    def render(self, data: Any, *_: Any, **__: Any) -> str:
        """Return the text that was made already."""
        return str(data)


class PrometheusView(APIView):
    """Everything that is known now; for admins, with a token."""

    permission_classes = [IsAdminUser]
    renderer_classes = [ExpositionRenderer]

    def handle_exception(self, exc: Exception) -> Response:
        """Return an error in the shape that all errors have, as JSON."""
        response = super().handle_exception(exc)
        self.request.accepted_renderer = JSONRenderer()
        self.request.accepted_media_type = JSONRenderer.media_type
        return response

    @extend_schema(
        tags=["cluster"],
        summary="Scrape metrics",
        responses={(200, "text/plain"): OpenApiTypes.STR},
    )
    def get(self, request: Request) -> Response:  # noqa: ARG002 - DRF's signature
        """Return hosts, GPUs and jobs for Prometheus (`authorization: {credentials: stl_…}`)."""
        now = timezone.now()
        lines = exposition(selectors.cluster_live(now=now), selectors.job_counts())
        return Response("\n".join(lines) + "\n")


def exposition(hosts: list[dict[str, Any]], jobs: dict[str, int]) -> Iterator[str]:
    """Yield the lines for these hosts, with their GPUs, and numbers of jobs by status."""
    of_hosts: list[_Labelled] = [({"Hostname": host["name"]}, host["values"]) for host in hosts]
    of_gpus = [(_gpu_labels(host, gpu), _gpu_values(gpu)) for host in hosts for gpu in host["gpus"]]
    for field, name, kind, words in HOST_METRICS:
        yield from _family(name, kind, words, _known(of_hosts, field))
    for field, name, kind, words in GPU_METRICS:
        yield from _family(name, kind, words, _known(of_gpus, field))
    health = [
        ({**_gpu_labels(host, gpu), "health": gpu["health"]}, 1)
        for host in hosts
        for gpu in host["gpus"]
    ]
    yield from _family("starling_gpu_health", "gauge", "What a GPU may be used for.", health)
    up = [({"Hostname": host["name"]}, int(host["schedulable"])) for host in hosts]
    yield from _family("starling_host_takes_work", "gauge", "Whether a host takes work.", up)
    by_status = [({"status": status}, count) for status, count in sorted(jobs.items())]
    yield from _family("starling_jobs", "gauge", "Jobs by status.", by_status)


def _gpu_labels(host: dict[str, Any], gpu: dict[str, Any]) -> dict[str, str]:
    labels = {
        "gpu": str(gpu["index"]),
        "UUID": gpu["uuid"],
        "device": f"nvidia{gpu['index']}",
        "modelName": gpu["model"],
        "Hostname": host["name"],
    }
    return labels | ({"simulated": "true"} if gpu["is_simulated"] else {})


def _gpu_values(gpu: dict[str, Any]) -> dict[str, Any]:
    values = dict(gpu["values"])
    used = values.get("memory_used_mib")
    if used is not None:
        kept = values.get("memory_reserved_mib", 0)
        values["memory_free_mib"] = max(0, gpu["memory_total_mib"] - used - kept)
    return values


def _known(rows: Iterable[_Labelled], field: str) -> list[tuple[dict[str, str], float]]:
    return [(labels, values[field]) for labels, values in rows if values.get(field) is not None]


def _family(
    name: str, kind: str, words: str, rows: Iterable[tuple[dict[str, str], float]]
) -> Iterator[str]:
    yield f"# HELP {name} {words}"
    yield f"# TYPE {name} {kind}"
    for labels, value in rows:
        inside = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
        yield f"{name}{{{inside}}} {value}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
