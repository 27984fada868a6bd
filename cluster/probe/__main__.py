"""Prints one JSON line a second about the host it runs on.

Run as ``python -m cluster.probe``; of the project it needs this package alone, and besides the
standard library nvidia-ml-py where there are GPUs.
"""

import argparse
import json
import os
import signal
import sys
import time
from pathlib import Path

from cluster.probe import containers, gpus, host

VERSION = 1
PERIOD_S = 1.0


def main() -> None:
    """Read and print until the reader goes away."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--docker", action="store_true", help="find Docker containers by cgroup")
    parser.add_argument("--processes", type=Path, help="folder of the process runtime")
    parser.add_argument("--disk", default="/", help="folder whose disk is reported")
    parser.add_argument("--period", type=float, default=PERIOD_S, help="seconds between lines")
    parser.add_argument("--once", action="store_true", help="print two lines and end")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    host_meter = host.HostMeter(disk=arguments.disk)
    container_meter = containers.ContainerMeter(
        docker=arguments.docker, processes=arguments.processes
    )
    gpu_reader = gpus.GpuReader(containers.container_of, period_s=arguments.period)
    gpu_reader.start()
    lines = 0
    while not (arguments.once and lines >= 2):
        began = time.monotonic()
        report = {
            "v": VERSION,
            "at": time.time(),
            "host": host_meter.read(),
            "containers": container_meter.read(),
            **gpu_reader.latest(),
        }
        try:
            sys.stdout.write(json.dumps(report, allow_nan=False) + "\n")
            sys.stdout.flush()
        except BrokenPipeError:
            os._exit(0)
        lines += 1
        time.sleep(max(0.01, arguments.period - (time.monotonic() - began)))
    # A driver call that hangs must not keep the program.
    os._exit(0)


if __name__ == "__main__":
    main()
