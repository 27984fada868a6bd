"""Readers of workloads and hosts: our own CSV and JSON, and the public traces as published.

What a format is follows from its header or keys. What a file does not say is small (one core and
one GiB a worker), so that only what it does say decides.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from cluster.core.errors import FileProblem
from cluster.core.placement.files import EPOCH, gpu_name
from cluster.core.placement.files import hosts_from_text as nodes_from_text
from cluster.core.placement.packing import MAX_GPUS
from cluster.core.resources import (
    WHOLE_GPU_MILLI,
    ClusterSnapshot,
    GpuState,
    HostName,
    HostState,
    ResourceRequest,
)
from cluster.core.simulation.models import PairTable
from cluster.core.simulation.tables import Row, csv_rows, header_of, json_rows, tab_rows
from cluster.core.simulation.workload import HostChange, HostEvent, Workload, WorkloadJob

#: What a worker of a trace takes that states neither.
_CPU_MILLIS, _MEMORY_MIB = 1000, 1024
#: More workers or GPUs than one job may ask for.
_MAX_WORKERS: Final = 10_000
#: GPU hours of the applications of Pollux (Qiao et al., OSDI'21): the middle of the class that
#: the paper gives each (small up to 1, medium up to 10, large up to 100, extra large up to 1000).
_POLLUX_GPU_HOURS: Final[Mapping[str, float]] = {
    "cifar10": 0.3,
    "ncf": 0.3,
    "bert": 3.0,
    "deepspeech2": 3.0,
    "yolov3": 30.0,
    "imagenet": 300.0,
}
#: Steps a second of Gavel's job types, by type and number of GPUs.
Throughputs = Mapping[tuple[str, int], float]


def workload_from_text(text: str, file: str, throughputs: Throughputs | None = None) -> Workload:
    """Return the workload of a file, whichever of the known formats it has.

    Args:
        throughputs: Needed for Gavel's traces, which state steps; see
            :func:`throughputs_from_json`.

    Raises:
        FileProblem: If the format is not known or something in it is wrong.
    """
    if text.lstrip()[:1] in {"{", "["}:
        return _from_json(text, file)
    if "\t" in text.split("\n", 1)[0]:
        return _ordered(file, _gavel(text, file, throughputs))
    header = set(header_of(text))
    for columns, read in _FORMATS:
        if columns <= header:
            return _ordered(file, read(text, file))
    if not text.strip():
        raise FileProblem(file, "the file is empty")
    raise FileProblem(
        file,
        "no known workload has these columns; ours needs id, submitted_s and duration_s",
        row=0,
    )


def hosts_from_text(text: str, file: str) -> ClusterSnapshot:
    """Return the hosts of a file: openb's node list, Tiresias' cluster spec, or our own.

    Raises:
        FileProblem: If the format is not known or something in it is wrong.
    """
    if "num_node_p_switch" in header_of(text):
        return ClusterSnapshot(taken_at=EPOCH, hosts=tuple(_tiresias_hosts(text, file)))
    return nodes_from_text(text, file)


def hosts_to_json(snapshot: ClusterSnapshot) -> str:
    """Return hosts as our JSON; of GPUs of several models on one host the first counts for all.

    What is claimed is left out: a file of hosts is of empty ones.
    """
    nodes = [
        {
            "id": host.name,
            "cpu_milli": host.cpu_millis,
            "memory_mib": host.memory_mib,
            "gpu": len(host.gpus),
            "gpu_model": host.gpus[0].model if host.gpus else "",
            "gpu_memory_mib": host.gpus[0].memory_total_mib if host.gpus else 0,
        }
        for host in snapshot.hosts
    ]
    return json.dumps({"nodes": nodes}, indent=1)


def throughputs_from_json(text: str, file: str, gpu_model: str) -> Throughputs:
    """Return the speeds alone of Gavel's job types on one kind of GPU.

    Raises:
        FileProblem: If the file is no such table, or does not know the kind.
    """
    content = _json(text, file)
    kinds = sorted(content) if isinstance(content, dict) else []
    if gpu_model not in kinds:
        raise FileProblem(file, f"there is no GPU {gpu_model!r}; there are: {', '.join(kinds)}")
    found: dict[tuple[str, int], float] = {}
    for name, speeds in content[gpu_model].items():
        kind, _, scale = name.strip("()").rpartition(", ")
        alone = speeds.get("null")
        if isinstance(alone, int | float) and alone > 0 and scale.isdigit():
            found[kind.strip("'"), int(scale)] = float(alone)
    return found


# Ours


def _from_json(text: str, file: str) -> Workload:
    content = _json(text, file)
    if isinstance(content, list):
        content = {"jobs": content}
    if not isinstance(content, dict):
        raise FileProblem(file, "expected an object or a list of jobs")
    jobs = [_job(row) for row in json_rows(content.get("jobs"), file, "jobs")]
    events = content.get("host_events") or []
    rows = json_rows(events, file, "host_events") if events else ()
    name = str(content.get("name") or file)
    return _ordered(name, jobs, tuple(map(_host_event, rows)), file=file)


def _own_csv(text: str, file: str) -> Iterable[WorkloadJob]:
    return map(_job, csv_rows(text, file, columns=("id", "submitted_s", "duration_s")))


def _job(row: Row) -> WorkloadJob:
    replicas = row.whole("replicas", 1, least=1, most=_MAX_WORKERS)
    most = row.whole("replicas_max", 0, most=_MAX_WORKERS)
    if most and most < replicas:
        raise row.problem(
            "replicas_max", f"expected at least the {replicas} of replicas, got {most}"
        )
    utilization = row.maybe_number("gpu_utilization_pct", most=100)
    return WorkloadJob(
        request=ResourceRequest(
            key=row.text("id"),
            cpu_millis=row.whole("cpu_milli", _CPU_MILLIS),
            memory_mib=row.whole("memory_mib", _MEMORY_MIB),
            replicas=replicas,
            **_gpus(row),
        ),
        submitted_s=row.number_of("submitted_s"),
        duration_s=row.number_of("duration_s"),
        walltime_s=row.maybe_number("walltime_s"),
        replicas_max=most,
        scaling_loss=row.number_of("scaling_loss", 0.05),
        kind=row.text("kind", ""),
        gpu_utilization_pct=utilization,
        checkpoint_s=row.number_of("checkpoint_s", 0.0),
        fails_after_s=row.maybe_number("fails_after_s"),
        retries=row.whole("retries", 0),
        priority=int(row.number_of("priority", 0, least=-1e9)),
        owner=row.text("owner", ""),
    )


def _gpus(row: Row) -> dict[str, Any]:
    """Return what a request asks for of GPUs; ``gpu_milli`` 1000 is a whole one, 0 not stated."""
    gpus = row.whole("num_gpu", 0, most=_MAX_WORKERS)
    if not gpus:
        return {}
    share = row.whole("gpu_milli", WHOLE_GPU_MILLI, most=WHOLE_GPU_MILLI)
    memory = row.whole("gpu_memory_mib", 0)
    if not share and not memory:
        raise row.problem("gpu_milli", "0 says that only memory counts; state gpu_memory_mib")
    models = row.text("gpu_spec", "")
    return {
        "gpus": gpus,
        "gpu_share_milli": share or None,
        "gpu_memory_mib": memory or None,
        "gpu_models": frozenset(filter(None, (one.strip() for one in models.split("|")))),
    }


def _host_event(row: Row) -> HostEvent:
    change = row.text("change")
    if change not in list(HostChange):
        raise row.problem("change", f"expected 'lost' or 'back', got {change!r}")
    return HostEvent(
        at_s=row.number_of("at_s"), host=HostName(row.text("host")), change=HostChange(change)
    )


# Public traces


def _openb(text: str, file: str) -> Iterable[WorkloadJob]:
    """Alibaba's GPU cluster 2023: a pod lives from its scheduling to its deletion."""
    columns = ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli", "deletion_time")
    for row in csv_rows(text, file, columns=columns):
        created = row.number_of("creation_time")
        began = row.number_of("scheduled_time", created)
        ended = row.number_of("deletion_time")
        if ended < began:
            raise row.problem("deletion_time", f"lies before the pod's start at {began:g}")
        yield WorkloadJob(
            request=ResourceRequest(
                key=row.text("name"),
                cpu_millis=row.whole("cpu_milli"),
                memory_mib=row.whole("memory_mib"),
                **_gpus(row),
            ),
            submitted_s=created,
            duration_s=ended - began,
        )


def _training_list(text: str, file: str) -> Iterable[WorkloadJob]:
    """Tiresias' and PAI's simulators: one row a training, ``num_gpu`` workers with a GPU each."""
    for row in csv_rows(text, file, columns=("job_id", "submit_time", "duration")):
        gpus = row.number_of("num_gpu", 1.0, most=_MAX_WORKERS)
        workers = row.whole("num_inst", 1, least=1, most=_MAX_WORKERS)
        share: int | None = None
        if gpus == int(gpus):
            workers *= max(1, int(gpus))
        else:
            share = max(1, round(WHOLE_GPU_MILLI * min(gpus, 1.0)))
        yield WorkloadJob(
            request=_workers(row.text("job_id"), workers, share=share, gpus=int(gpus > 0)),
            submitted_s=row.number_of("submit_time"),
            duration_s=row.number_of("duration"),
            kind=row.text("model_name", ""),
            owner=row.text("user", ""),
        )


def _adaptdl(text: str, file: str) -> Iterable[WorkloadJob]:
    """Pollux' workloads: elastic trainings, whose lengths follow from their application."""
    columns = ("name", "time", "application", "num_replicas")
    for row in csv_rows(text, file, columns=columns):
        kind = row.text("application")
        if kind not in _POLLUX_GPU_HOURS:
            known = ", ".join(_POLLUX_GPU_HOURS)
            raise row.problem("application", f"expected one of {known}, got {kind!r}")
        workers = row.whole("num_replicas", least=1, most=_MAX_WORKERS)
        yield WorkloadJob(
            request=_workers(row.text("name"), workers),
            submitted_s=row.number_of("time"),
            duration_s=3600.0 * _POLLUX_GPU_HOURS[kind] / workers,
            replicas_max=2 * workers,
            kind=kind,
        )


def _durations(column: str) -> Callable[[str, str], Iterable[WorkloadJob]]:
    """Philly's runtimes and the like: one whole GPU each, all there at time 0."""

    def read(text: str, file: str) -> Iterable[WorkloadJob]:
        for row in csv_rows(text, file, columns=(column,)):
            yield WorkloadJob(
                request=_workers(f"job-{row.number}", 1),
                submitted_s=0.0,
                duration_s=row.number_of(column),
            )

    return read


def _gavel(text: str, file: str, throughputs: Throughputs | None) -> Iterable[WorkloadJob]:
    """Gavel's traces: steps to do, in seven columns or, of the physical cluster, in ten."""
    if throughputs is None:
        raise FileProblem(file, "a Gavel trace states steps: give its throughputs, too")
    for number, cells in tab_rows(text, file):
        places = {7: (4, 6, 5), 10: (5, 6, 9)}.get(len(cells))
        if places is None:
            raise FileProblem(
                file, f"expected 7 or 10 values between tabs, got {len(cells)}", row=number
            )
        named = zip(("total_steps", "scale_factor", "arrival_time"), places, strict=True)
        row = Row(file, number, {"job_type": cells[0]} | {key: cells[at] for key, at in named})
        kind, workers = row.text("job_type"), row.whole("scale_factor", least=1, most=_MAX_WORKERS)
        steps_s = _steps_a_second(throughputs, kind, workers)
        if steps_s is None:
            raise row.problem("job_type", f"the throughputs do not know {kind!r}")
        yield WorkloadJob(
            request=_workers(f"job-{number}", workers),
            submitted_s=row.number_of("arrival_time"),
            duration_s=row.number_of("total_steps") / steps_s,
            kind=kind,
        )


def _steps_a_second(throughputs: Throughputs, kind: str, workers: int) -> float | None:
    """Return the measured speed; of sizes that were not measured in proportion to the next less."""
    measured = [scale for name, scale in throughputs if name == kind and scale <= workers]
    if not measured:
        return None
    return throughputs[kind, max(measured)] * workers / max(measured)


def _workers(key: str, workers: int, *, share: int | None = None, gpus: int = 1) -> ResourceRequest:
    return ResourceRequest(
        key=key,
        cpu_millis=_CPU_MILLIS,
        memory_mib=_MEMORY_MIB,
        replicas=workers,
        gpus=gpus,
        gpu_share_milli=share,
    )


# Hosts


def _cards(host: str, count: int) -> tuple[GpuState, ...]:
    """Return GPUs of which only the number is known."""
    return tuple(
        GpuState(uuid=gpu_name(host, index), model="", memory_total_mib=0) for index in range(count)
    )


def _tiresias_hosts(text: str, file: str) -> list[HostState]:
    hosts: list[HostState] = []
    for row in csv_rows(text, file, columns=("num_switch", "num_gpu_p_node")):
        for switch in range(row.whole("num_switch", least=1, most=1000)):
            for node in range(row.whole("num_node_p_switch", least=1, most=1000)):
                name = f"switch{switch}-node{node}"
                hosts.append(
                    HostState(
                        name=HostName(name),
                        cpu_millis=1000 * row.whole("num_cpu_p_node"),
                        memory_mib=1024 * row.whole("mem_p_node"),
                        gpus=_cards(name, row.whole("num_gpu_p_node", most=MAX_GPUS)),
                        zone=f"switch{switch}",
                    )
                )
    return hosts


# Common


def _json(text: str, file: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FileProblem(file, f"this is no JSON: {error}") from error


def _ordered(
    name: str,
    jobs: Iterable[WorkloadJob],
    events: tuple[HostEvent, ...] = (),
    *,
    file: str = "",
) -> Workload:
    """Return the jobs in the order of their submission."""
    found: list[WorkloadJob] = []
    seen: set[str] = set()
    for number, job in enumerate(jobs, 1):
        if job.key in seen:
            raise FileProblem(file or name, f"job {job.key} comes twice", row=number, column="id")
        seen.add(job.key)
        found.append(job)
    found.sort(key=lambda job: job.submitted_s)
    return Workload(name=name.rpartition("/")[2], jobs=tuple(found), host_events=events)


_Reader = Callable[[str, str], Iterable[WorkloadJob]]
#: Which columns tell a format; the first that are all there count.
_FORMATS: Final[tuple[tuple[set[str], _Reader], ...]] = (
    ({"id", "submitted_s"}, _own_csv),
    ({"creation_time", "num_gpu"}, _openb),
    ({"application", "num_replicas"}, _adaptdl),
    ({"job_id", "submit_time"}, _training_list),
    ({"runtime"}, _durations("runtime")),
    ({"duration"}, _durations("duration")),
)


# What a workload's kinds are like


def pairs_from_text(text: str, file: str) -> PairTable:
    """Return the measured speeds of pairs: ours (``kind,other,speed``) or Lucid's table.

    Raises:
        FileProblem: If it is neither, or a speed is not above 0.
    """
    speeds: dict[tuple[str, str], float] = {}
    if "model1" in header_of(text):
        for row in csv_rows(text, file, columns=("model1", "model2", "speed1", "speed2")):
            first, second = _lucid_kind(row, "1"), _lucid_kind(row, "2")
            speeds[first, second] = row.number_of("speed1", least=0.001)
            speeds[second, first] = row.number_of("speed2", least=0.001)
        return PairTable(speeds=speeds)
    for row in csv_rows(text, file, columns=("kind", "other", "speed")):
        pair = row.text("kind"), row.text("other")
        if pair in speeds:
            raise row.problem("kind", f"the pair {pair[0]}, {pair[1]} comes twice")
        speeds[pair] = row.number_of("speed", least=0.001)
    return PairTable(speeds=speeds)


def utilizations_from_text(text: str, file: str) -> Mapping[str, float]:
    """Return what each kind uses of a GPU alone, in percent: ours or Lucid's table.

    Ours is ``kind,gpu_utilization_pct``.

    Raises:
        FileProblem: If it is neither.
    """
    if "gpu_util" in header_of(text):
        rows = csv_rows(text, file, columns=("model", "dataset", "batchsize", "amp"))
        return {_lucid_kind(row, ""): row.number_of("gpu_util") for row in rows}
    rows = csv_rows(text, file, columns=("kind", "gpu_utilization_pct"))
    return {row.text("kind"): row.number_of("gpu_utilization_pct") for row in rows}


def with_utilizations(workload: Workload, utilizations: Mapping[str, float]) -> Workload:
    """Return the workload with what its kinds use of a GPU, where a job does not say itself."""
    return replace(
        workload,
        jobs=tuple(
            replace(job, gpu_utilization_pct=min(100.0, utilizations[job.kind]))
            if job.gpu_utilization_pct is None and job.kind in utilizations
            else job
            for job in workload.jobs
        ),
    )


def _lucid_kind(row: Row, number: str) -> str:
    parts = ("model", "dataset", "batchsize", "amp")
    return "/".join(row.text(part + number) for part in parts)
