"""Scenarios of the elementary model from JSON text; times that the file may carry are ignored."""

import json
from collections.abc import Mapping
from typing import Any

from cluster.core.errors import FileProblem
from cluster.core.simulation.cloudsim import Cloudlet, Scenario, Sharing, SimHost, SimVm
from cluster.core.simulation.tables import MAX_ROWS, MOST

_SHARING = " or ".join(repr(sharing.value) for sharing in Sharing)


def scenarios_from_json(text: str, file: str) -> tuple[Scenario, ...]:
    """Return the scenarios of a file.

    Raises:
        FileProblem: If the text is no JSON, or something is missing, negative or named twice.
    """
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FileProblem(file, f"this is no JSON: {error}") from error
    if not isinstance(content, list) or not content:
        raise FileProblem(file, "expected a list of scenarios, at least one")
    return tuple(_scenario(_Place(file, f"[{index}]", one)) for index, one in enumerate(content))


class _Place:
    """One object of the file and its address in it, for the sentence about what is wrong."""

    def __init__(self, file: str, path: str, content: Any) -> None:
        self.file, self.path = file, path
        if not isinstance(content, dict):
            raise FileProblem(file, "expected an object", column=path)
        self.content: Mapping[str, Any] = content

    def problem(self, key: str, sentence: str) -> FileProblem:
        return FileProblem(self.file, sentence, column=f"{self.path}.{key}")

    def number(self, key: str, *, least: float = 1) -> float:
        value = self.content.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.problem(key, f"expected a number, got {_shown(value)}")
        if not least <= value <= MOST:
            raise self.problem(key, f"expected {least} to {MOST:g}, got {_shown(value)}")
        return float(value)

    def whole(self, key: str, *, least: int = 1) -> int:
        value = self.number(key, least=least)
        if value != int(value):
            raise self.problem(key, f"expected a whole number, got {value!r}")
        return int(value)

    def sharing(self, key: str) -> Sharing:
        value = self.content.get(key)
        if value not in list(Sharing):
            raise self.problem(key, f"expected {_SHARING}, got {_shown(value)}")
        return Sharing(value)

    def places(self, key: str) -> list["_Place"]:
        values = self.content.get(key)
        if not isinstance(values, list):
            raise self.problem(key, "expected a list")
        if len(values) > MAX_ROWS:
            raise self.problem(key, f"more than {MAX_ROWS:,}; split the scenario")
        found = [
            _Place(self.file, f"{self.path}.{key}[{index}]", one)
            for index, one in enumerate(values)
        ]
        seen: set[int] = set()
        for place in found:
            number = place.whole("id", least=0)
            if number in seen:
                raise place.problem("id", f"{number} comes twice")
            seen.add(number)
        return found


def _shown(value: Any) -> str:
    return repr(value)[:60]


def _scenario(place: _Place) -> Scenario:
    vms = tuple(
        SimVm(
            id=one.whole("id", least=0),
            pes=one.whole("pes"),
            mips=one.number("mips"),
            ram_mib=one.whole("ram_mib", least=0),
        )
        for one in place.places("vms")
    )
    hosts = tuple(
        SimHost(
            id=one.whole("id", least=0),
            pes=one.whole("pes"),
            mips=one.number("mips"),
            ram_mib=one.whole("ram_mib", least=0),
        )
        for one in place.places("hosts")
    )
    known = {vm.id for vm in vms}
    return Scenario(
        name=str(place.content.get("name", place.path)),
        host_scheduler=place.sharing("host_scheduler"),
        vm_scheduler=place.sharing("vm_scheduler"),
        hosts=hosts,
        vms=vms,
        cloudlets=tuple(_cloudlet(one, known) for one in place.places("cloudlets")),
    )


def _cloudlet(place: _Place, machines: set[int]) -> Cloudlet:
    # CloudSim's own word for "bound to none" is -1.
    vm = None if place.content.get("vm") in (None, -1) else place.whole("vm", least=0)
    if vm is not None and vm not in machines:
        raise place.problem("vm", f"there is no virtual machine {vm}")
    return Cloudlet(
        id=place.whole("id", least=0),
        length_mi=place.whole("length_mi"),
        pes=place.whole("pes"),
        vm=vm,
    )
