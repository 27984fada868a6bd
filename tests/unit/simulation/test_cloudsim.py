"""The elementary model: finish times as CloudSim prints them, and what never runs."""

import json
from pathlib import Path
from typing import Any

import pytest

from cluster.core.errors import FileProblem
from cluster.core.simulation.cloudsim import (
    Cloudlet,
    CloudletTimes,
    Scenario,
    Sharing,
    SimHost,
    SimVm,
    machines_of,
    run_scenario,
)
from cluster.core.simulation.cloudsim_files import scenarios_from_json

ROOT = Path(__file__).parents[3]
SHARED = ROOT.parent / "shared/data/cloudsim/scenarios.json"


def scenario(
    *cloudlets: Cloudlet,
    vms: tuple[SimVm, ...] = (SimVm(id=0, pes=2, mips=1000, ram_mib=512),),
    sharing: Sharing = Sharing.SPACE,
    host_sharing: Sharing = Sharing.SPACE,
) -> Scenario:
    return Scenario(
        name="test",
        host_scheduler=host_sharing,
        vm_scheduler=sharing,
        hosts=(SimHost(id=7, pes=4, mips=1000, ram_mib=4096),),
        vms=vms,
        cloudlets=cloudlets,
    )


def cloudlet(number: int, seconds: int, *, pes: int = 1, vm: int | None = 0) -> Cloudlet:
    return Cloudlet(id=number, length_mi=1000 * seconds, pes=pes, vm=vm)


def finishes(times: tuple[CloudletTimes, ...]) -> list[float | None]:
    return [None if one.finish_s is None else round(one.finish_s, 1) for one in times]


def test_every_published_finish_time_is_met() -> None:
    if not SHARED.exists():
        pytest.skip(f"needs CloudSim's finish times in {SHARED}")
    text = SHARED.read_text()

    for given, expected in zip(
        scenarios_from_json(text, SHARED.name), json.loads(text), strict=True
    ):
        found = run_scenario(given)

        for ours, theirs in zip(found, expected["cloudlets"], strict=True):
            assert ours.start_s == pytest.approx(theirs["start_s"], rel=1e-5)
            assert ours.finish_s == pytest.approx(theirs["finish_s"], rel=1e-5)


def test_the_example_runs_by_space_one_after_the_other_and_by_time_together() -> None:
    path = ROOT / "docs/examples/cloudlets.json"

    by_space, by_time = map(run_scenario, scenarios_from_json(path.read_text(), path.name))

    assert finishes(by_space) == [400, 500, 700]
    assert finishes(by_time) == [700, 300, 500]


def test_a_cloudlet_that_fits_overtakes_one_that_waits_for_more_elements() -> None:
    found = run_scenario(
        scenario(cloudlet(0, 100), cloudlet(1, 50, pes=2), cloudlet(2, 10), cloudlet(3, 10))
    )

    assert finishes(found) == [100, 150, 10, 20]


def test_a_cloudlet_with_two_elements_does_its_length_on_each() -> None:
    found = run_scenario(scenario(cloudlet(0, 100, pes=2), sharing=Sharing.TIME))

    assert finishes(found) == [100]


def test_of_two_that_end_at_once_only_one_successor_starts_until_the_next_look() -> None:
    found = run_scenario(scenario(*(cloudlet(number, 100) for number in range(4))))

    assert found[2].start_s == pytest.approx(100.001)
    assert found[3].start_s is not None
    assert found[3].start_s > found[2].start_s


def test_a_cloudlet_that_needs_more_elements_than_its_machine_has_never_starts() -> None:
    found = run_scenario(scenario(cloudlet(0, 10), cloudlet(1, 10, pes=3)))

    assert (found[1].start_s, found[1].finish_s) == (None, None)
    assert finishes(found)[0] == 10


def test_a_machine_that_no_host_takes_runs_nothing() -> None:
    vms = (
        SimVm(id=0, pes=3, mips=500, ram_mib=512),
        SimVm(id=1, pes=2, mips=500, ram_mib=512),  # MIPS enough, but no two elements are free
        SimVm(id=2, pes=1, mips=2000, ram_mib=512),  # faster than an element
        SimVm(id=3, pes=1, mips=500, ram_mib=9999),
    )
    given = scenario(cloudlet(0, 10, vm=1), cloudlet(1, 10, vm=None), vms=vms)

    assert machines_of(given) == {0: 7, 1: None, 2: None, 3: None}
    assert finishes(run_scenario(given)) == [None, None]


def test_elements_shared_by_time_are_counted_in_mips() -> None:
    vms = tuple(SimVm(id=number, pes=3, mips=500, ram_mib=512) for number in range(3))

    hosted = machines_of(scenario(vms=vms, host_sharing=Sharing.TIME))

    assert hosted == {0: 7, 1: 7, 2: None}


GOOD: dict[str, Any] = {
    "name": "one",
    "host_scheduler": "space-shared",
    "vm_scheduler": "time-shared",
    "hosts": [{"id": 0, "pes": 2, "mips": 1000, "ram_mib": 4096}],
    "vms": [{"id": 0, "pes": 1, "mips": 1000, "ram_mib": 512}],
    "cloudlets": [{"id": 0, "length_mi": 1000, "pes": 1, "vm": 0, "finish_s": "ignored"}],
}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "s.json: this is no JSON"),
        ("[]", "s.json: expected a list of scenarios"),
        ("[3]", "column [0]: expected an object"),
        (json.dumps([GOOD | {"vm_scheduler": "fair"}]), "column [0].vm_scheduler: expected 'space"),
        (json.dumps([GOOD | {"hosts": None}]), "column [0].hosts: expected a list"),
        (
            json.dumps([GOOD | {"vms": [{"id": 0, "pes": 0, "mips": 1, "ram_mib": 1}]}]),
            "column [0].vms[0].pes: expected 1 to 1e+12, got 0",
        ),
        (
            json.dumps([GOOD | {"vms": [{"id": 0, "pes": 1, "mips": float("inf"), "ram_mib": 1}]}]),
            "column [0].vms[0].mips: expected 1 to 1e+12, got inf",
        ),
        (
            json.dumps([GOOD | {"vms": [{"id": 0, "pes": "two", "mips": 1, "ram_mib": 1}]}]),
            "column [0].vms[0].pes: expected a number, got 'two'",
        ),
        (
            json.dumps([GOOD | {"cloudlets": [{"id": 0, "length_mi": 1.5, "pes": 1}]}]),
            "column [0].cloudlets[0].length_mi: expected a whole number, got 1.5",
        ),
        (
            json.dumps([GOOD | {"cloudlets": [{"id": 0, "length_mi": 1, "pes": 1, "vm": 4}]}]),
            "column [0].cloudlets[0].vm: there is no virtual machine 4",
        ),
        (
            json.dumps([GOOD | {"hosts": GOOD["hosts"] * 2}]),
            "column [0].hosts[1].id: 0 comes twice",
        ),
    ],
)
def test_a_bad_file_is_refused_in_one_line_that_says_where(text: str, words: str) -> None:
    with pytest.raises(FileProblem) as caught:
        scenarios_from_json(text, "s.json")

    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_may_carry_times_that_are_ignored() -> None:
    (given,) = scenarios_from_json(json.dumps([GOOD]), "s.json")

    assert finishes(run_scenario(given)) == [1.0]
