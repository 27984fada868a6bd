"""What a program may use of the platform; ``import starling_kit`` works in every job.

Nothing here is needed: a program that knows nothing of the platform runs just as well. Outside
a job every function does something harmless, so a script can be tried at home first.
"""

import json
import math
import os
import sys

_MARK = "\x1e"


def report(step=None, **metrics):
    """Report metrics of one step, for instance ``report(step=epoch, loss=0.3)``.

    They are drawn live on the job's page. Without ``step`` each name counts up from 1.
    """
    emit(metrics, step=step)


def emit(metrics, step=None):
    """Write one line that the platform reads and does not show."""
    values = {}
    for name, value in metrics.items():
        number = _number(value)
        if number is not _NOTHING:
            values[str(name)] = number
    if not values or "STARLING_JOB" not in os.environ:
        return
    body = {"metrics": values}
    if step is not None:
        body["step"] = int(step)
    stream = sys.__stdout__ or sys.stdout
    try:
        # What the program has printed but not flushed must not end up inside our line.
        sys.stdout.flush()
        stream.write("{}starling {}\n".format(_MARK, json.dumps(body)))
        stream.flush()
    except (OSError, ValueError):
        pass


_NOTHING = object()


def _number(value):
    try:
        number = float(value)
    except (TypeError, ValueError):
        return _NOTHING
    return number if math.isfinite(number) else None


def parameters():
    """Return the job's hyper-parameters as a dictionary."""
    try:
        return json.loads(os.environ.get("STARLING_PARAMETERS", "{}"))
    except ValueError:
        return {}


def data_dir(name=None):
    """Return the folder of a dataset by its name in the job; of the only one without a name."""
    root = os.environ.get("STARLING_DATA_DIR", "data")
    if name is not None:
        return os.path.join(root, name)
    try:
        names = sorted(entry for entry in os.listdir(root) if not entry.startswith("."))
    except OSError:
        names = []
    if not names:
        raise FileNotFoundError("The job has no dataset. Choose one when you submit it.")
    return os.path.join(root, names[0])


def output_dir():
    """Return the folder whose new files can be downloaded from the job's page."""
    return os.environ.get("STARLING_OUTPUT_DIR", ".")


def checkpoint_dir():
    """Return the folder for checkpoints, made if needed."""
    folder = os.path.join(output_dir(), "checkpoints")
    os.makedirs(folder, exist_ok=True)
    return folder
