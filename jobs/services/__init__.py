"""Every write of datasets and jobs."""

from jobs.services.attempts import (
    announce_change,
    job_note,
    job_transition,
    launch_begin,
    launch_over,
    outputs_store,
    placement_apply,
    replica_log_completed,
    replica_moved,
)
from jobs.services.code import check_syntax, code_create, notebook_script
from jobs.services.datasets import (
    dataset_create_from_path,
    dataset_delete,
    dataset_update,
    upload_abandon,
    upload_append,
    upload_create,
    upload_finish,
)
from jobs.services.jobs import (
    changeable,
    job_cancel,
    job_delete,
    job_resubmit,
    job_stop,
    job_submit,
)
from jobs.services.placements import placement_create
from jobs.services.runs import run_cancel, run_delete, runners_start, runs_sweep
from jobs.services.simulations import simulation_create
from jobs.services.unpacking import (
    content_collect,
    dataset_unpack,
    sweep_uploads,
    unpack_pending,
    unpacker_start,
)

__all__ = [
    "announce_change",
    "changeable",
    "check_syntax",
    "code_create",
    "content_collect",
    "dataset_create_from_path",
    "dataset_delete",
    "dataset_unpack",
    "dataset_update",
    "job_cancel",
    "job_delete",
    "job_note",
    "job_resubmit",
    "job_stop",
    "job_submit",
    "job_transition",
    "launch_begin",
    "launch_over",
    "notebook_script",
    "outputs_store",
    "placement_apply",
    "placement_create",
    "replica_log_completed",
    "replica_moved",
    "run_cancel",
    "run_delete",
    "runners_start",
    "runs_sweep",
    "simulation_create",
    "sweep_uploads",
    "unpack_pending",
    "unpacker_start",
    "upload_abandon",
    "upload_append",
    "upload_create",
    "upload_finish",
]
