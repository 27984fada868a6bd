"""Prints one JSON line a second about the host it runs on.

Run as ``python -m cluster.probe``; of the project it needs this package alone, and besides the
standard library nvidia-ml-py where there are GPUs. SIGUSR1 lets the driver go, so that a GPU can be
reset or divided; SIGUSR2 takes it again.
"""

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cluster.probe import containers, host, simulated, watch

#: Version of the lines: whoever reads them understands one.
VERSION = 2
PERIOD_S = 1.0
#: How seldom the bus is looked at.
BUS_PERIODS = 60
_BOOT = "/proc/sys/kernel/random/boot_id"
_NVIDIA = "0x10de"
#: The classes of devices that are GPUs: with a display, and without.
_GPU_CLASSES = ("0x0300", "0x0302")


def main() -> None:
    """Read and print until the reader goes away."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--docker", action="store_true", help="find Docker containers by cgroup")
    parser.add_argument("--processes", type=Path, help="folder of the process runtime")
    parser.add_argument("--disk", default="/", help="folder whose disk is reported")
    parser.add_argument("--period", type=float, default=PERIOD_S, help="seconds between lines")
    parser.add_argument("--once", action="store_true", help="print two lines and end")
    parser.add_argument(
        "--simulate", default="", help="GPUs that are not there, by a machine's name"
    )
    parser.add_argument(
        "--pci", type=Path, default=Path("/sys/bus/pci/devices"), help="PCI devices"
    )
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    meter = host.HostMeter(disk=arguments.disk)
    container_meter = containers.ContainerMeter(
        docker=arguments.docker, processes=arguments.processes
    )
    gpus = gpu_source(arguments)
    boot = host.text_of(_BOOT).strip()
    lines = on_bus = 0
    while not (arguments.once and lines >= 2):
        began = time.monotonic()
        uses = container_meter.read()
        report = {
            "v": VERSION,
            "at": time.time(),
            "boot": boot,
            "host": meter.read(),
            "containers": uses,
            **gpus(uses),
        }
        if lines % BUS_PERIODS == 0:
            on_bus = gpus_on_the_bus(arguments.pci)
        say(report | {"pci_gpus": on_bus})
        lines += 1
        time.sleep(max(0.01, arguments.period - (time.monotonic() - began)))
    # A driver call that hangs must not keep the program.
    os._exit(0)


def gpu_source(arguments: argparse.Namespace) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Return what tells the GPUs, given what each container uses."""
    if arguments.simulate:
        folder = arguments.processes or Path("processes")
        driver = simulated.SimulatedDriver(arguments.simulate, processes=folder)
        return lambda uses: driver.latest(uses, period_s=arguments.period)
    watched = watch.DriverWatch(period_s=arguments.period)
    watch.on_signals(watched)
    return lambda _uses: watched.latest()


def gpus_on_the_bus(folder: Path) -> int:
    """Return how many NVIDIA GPUs the host's bus has, whatever the driver says."""
    found = 0
    for vendor in folder.glob("*/vendor"):
        if host.text_of(str(vendor)).strip() == _NVIDIA:
            found += host.text_of(str(vendor.with_name("class")))[:6] in _GPU_CLASSES
    return found


def say(report: dict[str, Any]) -> None:
    """Print a line; without a reader there is nothing left to do."""
    try:
        sys.stdout.write(json.dumps(report, allow_nan=False, separators=(",", ":")) + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        os._exit(0)


if __name__ == "__main__":
    main()
