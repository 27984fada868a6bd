"""Every known oddity of the driver's library, through the library and the real probe.

Each test says what the driver does and what must come of it; all of them were met in the field.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from cluster.adapters.probe_follower import reading_of
from cluster.core.policy.gpu_state import HealthMemory, Observation, classify
from cluster.probe.simulated import uuid_of
from tests.fakes.nvml import FakeDriver, FakeGpu, machine
from tests.integration.probe.conftest import Probe, Report, healthy

Start = Callable[..., Probe]
Asleep = Callable[[dict[str, str]], int]
FIRST, SECOND = uuid_of("2xT4", 0), uuid_of("2xT4", 1)


def judged(*reports: Report, times: int = 1) -> list[tuple[str, set[str]]]:
    """Return the health of each GPU of the last report, and what was found, after all of them."""
    memories: dict[str, HealthMemory] = {}
    found: list[tuple[str, set[str]]] = []
    for report in reports:
        reading = reading_of(json.dumps(report))
        assert reading is not None
        for _ in range(times):
            found = []
            for gpu in reading.gpus:
                observation = Observation(
                    at=reading.observed_at,
                    reading=gpu,
                    trouble=reading.gpu_trouble,
                    trouble_text=reading.gpu_error,
                    boot=reading.boot,
                    containers=frozenset({"starling-a"}),
                )
                health = classify(memories.get(gpu.uuid, HealthMemory()), observation)
                memories[gpu.uuid] = health.memory
                faults = {finding.fault.value for finding in health.findings}
                found.append((health.health.value, faults))
    return found


def uses(pid: int, library: Path) -> bool:
    return str(library) in Path(f"/proc/{pid}/maps").read_text()


def test_1_a_number_the_card_never_says_is_missing_alone(probe: Start, driver: FakeDriver) -> None:
    """On notebooks power, its limit and the fan are never said; the enforced limit may be."""
    driver.change(0, power_w=None, utilization_pct=None, temperature_c=None)

    first, second = probe().gpus()

    unsaid = {"power_w", "utilization_pct", "memory_utilization_pct", "temperature_c", "fan_pct"}
    assert first["why"] == dict.fromkeys(unsaid, "unsupported")
    assert not unsaid & first.keys()
    assert first["power_limit_w"] == 70
    assert second["why"] == {"fan_pct": "unsupported"}


def test_2_a_gpu_without_an_index_keeps_no_other_from_being_read(
    probe: Start, driver: FakeDriver
) -> None:
    driver.gpus += [
        replace(gpu, uuid=f"GPU-{number}") for number, gpu in enumerate(machine("2xT4"))
    ]
    driver.change(0, lost=True)
    driver.change(2, lost=True)

    report = probe().until(lambda report: report["gpus"])

    assert [gpu["index"] for gpu in report["gpus"]] == [1, 3]
    assert "GPU 0 cannot be reached" in report["gpu_error"]
    assert "GPU 2 cannot be reached" in report["gpu_error"]

    driver.change(0, lost=False)
    driver.change(2, lost=False)


def test_3_a_gpu_that_vanishes_without_a_word_is_missed(
    probe: Start, driver: FakeDriver, tmp_path: Path
) -> None:
    for place in range(2):
        device = tmp_path / "pci" / f"0000:0{place + 1}:00.0"
        device.mkdir(parents=True)
        (device / "vendor").write_text("0x10de\n")
        (device / "class").write_text("0x030200\n")
    running = probe("--pci", str(tmp_path / "pci"))
    report = running.until(healthy)

    del driver.gpus[0]
    driver.write()
    later = running.until(lambda report: any(gpu.get("lost") for gpu in report["gpus"]))

    assert report["pci_gpus"] == 2
    gone = next(gpu for gpu in later["gpus"] if gpu.get("lost"))
    assert gone["uuid"] == FIRST
    assert "no longer lists it" in gone["lost_how"]
    # The other has moved to its index and is still itself.
    other = next(gpu for gpu in later["gpus"] if not gpu.get("lost"))
    assert (other["uuid"], other["index"]) == (SECOND, 0)


def test_4_a_call_that_never_returns_stops_no_line(probe: Start, driver: FakeDriver) -> None:
    running = probe()
    before = running.until(healthy)

    driver.change(1, hang=True)
    report = running.until(lambda report: report.get("trouble") == "hang")
    later = running.until(lambda later: later["at"] > report["at"])

    assert "does not answer about GPU 1" in report["gpu_error"]
    assert {gpu["uuid"] for gpu in later["gpus"]} == {FIRST, SECOND}
    assert all("utilization_pct" not in gpu for gpu in later["gpus"])
    assert judged(before, report) == [("stale", {"silent"})] * 2


def test_5_a_driver_updated_beneath_its_jobs_is_told_and_no_gpu_is_lost(
    probe: Start, driver: FakeDriver
) -> None:
    running = probe()
    running.until(healthy)

    driver.change(init_error=18)
    report = running.until(lambda report: report.get("trouble") == "mismatch")

    assert "restart it" in report["gpu_error"]
    assert [gpu.get("lost") for gpu in report["gpus"]] == [None, None]
    assert all("stale" in gpu["why"].values() for gpu in report["gpus"])
    assert judged(report) == [("draining", {"mismatch"})] * 2


def test_6_a_probe_that_lost_its_devices_says_so_and_recovers(
    probe: Start, driver: FakeDriver
) -> None:
    """As after a reload of the host's service manager: every call fails, for unknown reasons."""
    running = probe()
    running.until(healthy)

    driver.change(call_error=999)
    report = running.until(lambda report: report.get("trouble") == "driver")
    assert "Unknown Error" in report["gpu_error"]

    driver.change(call_error=0)
    running.until(healthy)


def test_7_a_process_is_known_by_the_container_it_is_in(
    probe: Start, driver: FakeDriver, asleep: Asleep
) -> None:
    first, second = (asleep({"STARLING_CONTAINER": "starling-a"}) for _ in range(2))
    stranger = asleep({})
    desktop = asleep({})
    driver.change(
        0, processes=((first, 500), (second, 20), (stranger, 7), (desktop, 60, "G")), lost=False
    )

    gpu = probe().gpus()[0]

    assert gpu["processes"] == {"starling-a": 520, "": 7}
    name = Path(f"/proc/{stranger}/comm").read_text().strip()
    assert gpu["strangers"] == [f"{name} (pid {stranger})"]


def test_8_processes_that_are_gone_are_not_there(
    probe: Start, driver: FakeDriver, asleep: Asleep
) -> None:
    pid = asleep({"STARLING_CONTAINER": "starling-a"})
    driver.change(0, processes=((0, 5), (2**22 - 1, 900), (pid, 20, "C", 160)), utilization_pct=250)

    report = probe().until(lambda report: report["gpus"] and "shares" in report["gpus"][0])

    gpu = report["gpus"][0]
    assert gpu["processes"] == {"starling-a": 20}
    assert gpu["shares"] == {"starling-a": 100}
    assert gpu["utilization_pct"] == 100


def test_9_memory_of_a_process_may_be_unknown(
    probe: Start, driver: FakeDriver, asleep: Asleep
) -> None:
    pid = asleep({"STARLING_CONTAINER": "starling-a"})
    driver.change(0, processes=((pid, None),))

    assert probe().gpus()[0]["processes"] == {"starling-a": None}


def test_10_entries_packed_by_another_version_are_not_believed(
    probe: Start, driver: FakeDriver, asleep: Asleep
) -> None:
    pid = asleep({"STARLING_CONTAINER": "starling-a"})
    driver.change(0, processes=((pid, 2**22),), swapped=True)

    gpu = probe().gpus()[0]

    assert gpu["processes"] == {}
    assert "strangers" not in gpu


@pytest.mark.parametrize("empty_is_success", [False, True])
def test_11_shares_of_processes_begin_with_the_second_look(
    probe: Start, driver: FakeDriver, asleep: Asleep, empty_is_success: bool
) -> None:
    """The first answer claims the whole past; none is an error, or a success raised as one."""
    pid = asleep({"STARLING_CONTAINER": "starling-a"})
    driver.change(empty_is_success=empty_is_success)
    driver.change(0, processes=((pid, 20, "C", 35),))

    report = probe().until(lambda report: report["gpus"] and "shares" in report["gpus"][0])

    first, second = report["gpus"]
    assert first["shares"] == {"starling-a": 35}
    assert "shares" not in second
    assert "sm" not in second["why"]


def test_12_slices_are_devices_of_their_own(
    probe: Start, driver: FakeDriver, asleep: Asleep
) -> None:
    pid = asleep({"STARLING_CONTAINER": "starling-a"})
    [parent] = machine("A100-MIG")
    slices = [replace(parent.slices[0], processes=((pid, 4_000),)), *parent.slices[1:]]
    driver.gpus = [replace(parent, slices=tuple(slices), mig_slots=8, mig_holes=True)]

    found = probe().gpus()

    assert found[0]["divided"] is True
    assert found[0]["why"]["utilization_pct"] == "unsupported"
    assert found[0]["power_w"] == 55
    assert [gpu["uuid"] for gpu in found[1:]] == [one.uuid for one in slices]
    assert {gpu["parent"] for gpu in found[1:]} == {parent.uuid}
    assert found[1]["memory_total_mib"] == 19_968
    assert found[1]["processes"] == {"starling-a": 4_000}
    assert found[2]["processes"] == {}


def test_12_a_gpu_that_is_no_longer_divided_takes_its_slices_with_it(
    probe: Start, driver: FakeDriver
) -> None:
    driver.gpus = machine("A100-MIG")
    running = probe()
    assert len(running.gpus()) == 5

    driver.change(0, mig=False)
    report = running.until(lambda report: len(report["gpus"]) == 1)

    assert "divided" not in report["gpus"][0]
    assert report["gpu_error"] == ""


@pytest.mark.parametrize(("memory_v2", "used"), [(True, 10), (False, 250)])
def test_13_what_the_driver_keeps_is_told_apart_where_it_can_be(
    probe: Start, driver: FakeDriver, memory_v2: bool, used: int
) -> None:
    driver.change(memory_v2=memory_v2)
    driver.change(0, memory_used_mib=10)

    gpu = probe().gpus()[0]

    assert gpu["memory_used_mib"] == used
    assert gpu.get("memory_reserved_mib") == (240 if memory_v2 else None)
    assert ("memory_reserved_mib" in gpu["why"]) is not memory_v2


def test_14_a_name_that_is_no_text_is_still_a_name(probe: Start, driver: FakeDriver) -> None:
    driver.change(0, name=b"Tesla \xff T4")

    assert [gpu["model"] for gpu in probe().gpus()] == ["Tesla \ufffd T4", "Tesla T4"]


def test_15_the_driver_is_opened_by_a_process_that_was_not_forked_from_one_that_did(
    probe: Start, library: Path
) -> None:
    running = probe()
    running.until(healthy)

    [reader] = running.readers()

    assert uses(reader, library)
    assert not uses(running.process.pid, library)


def test_16_handles_from_before_a_reset_are_not_used_again(
    probe: Start, driver: FakeDriver
) -> None:
    running = probe()
    before = running.until(healthy)

    driver.change(generation=1)
    driver.change(0, utilization_pct=77)
    after = running.until(lambda report: report["gpus"][0].get("utilization_pct") == 77)

    assert healthy(after)
    assert [gpu["uuid"] for gpu in after["gpus"]] == [gpu["uuid"] for gpu in before["gpus"]]


def test_16_the_driver_is_let_go_for_a_reset_and_taken_again(
    probe: Start, library: Path, driver: FakeDriver
) -> None:
    running = probe()
    running.until(healthy)

    running.process.send_signal(signal.SIGUSR1)
    report = running.until(lambda report: report.get("trouble") == "released")
    assert running.readers() == []
    assert all("stale" in gpu["why"].values() for gpu in report["gpus"])

    running.process.send_signal(signal.SIGUSR2)
    running.until(healthy)
    assert any(uses(pid, library) for pid in running.readers())


def test_17_what_costs_the_driver_more_is_asked_less_often(
    probe: Start, driver: FakeDriver
) -> None:
    running = probe()
    running.until(healthy)

    driver.change(0, utilization_pct=50, power_limit_w=60)
    fast = running.until(lambda report: report["gpus"][0]["utilization_pct"] == 50)
    slow = running.until(lambda report: report["gpus"][0]["power_limit_w"] == 60)

    assert fast["gpus"][0]["power_limit_w"] == 70
    assert slow["at"] > fast["at"]


def test_18_a_second_is_told_whole_and_not_by_its_last_sixth(
    probe: Start, driver: FakeDriver
) -> None:
    driver.change(0, utilization_pct=0, samples=(90, 60, 0, 90, 60, 0))

    first, second = probe("--period", "1").gpus()

    assert first["utilization_pct"] == 50
    assert second["utilization_pct"] == 0


def test_19_a_guest_that_may_know_little_is_told_with_what_it_knows(
    probe: Start, driver: FakeDriver
) -> None:
    driver.gpus = [
        FakeGpu(
            uuid="GPU-grid",
            name="GRID T4-2Q",
            memory_total_mib=2_048,
            memory_used_mib=100,
            utilization_pct=None,
            power_w=None,
            temperature_c=None,
            clock_mhz=None,
        )
    ]

    [gpu] = probe().gpus()

    assert gpu["memory_used_mib"] == 100
    assert set(gpu["why"].values()) == {"unsupported"}
    assert not gpu.get("lost")


def test_20_errors_are_told_by_number_and_again_in_case_they_were_missed(
    probe: Start, driver: FakeDriver
) -> None:
    driver.change(0, xids=(31,))
    running = probe()
    before = running.until(healthy)

    driver.change(0, xids=(31, 13))
    program = running.until(lambda report: len(report["gpus"][0].get("xids", ())) == 1)
    driver.change(0, xids=(31, 13, 79))
    report = running.until(lambda report: len(report["gpus"][0].get("xids", ())) == 2)
    later = running.until(lambda later: later["at"] > report["at"])

    # The first was there before anybody listened.
    assert [code for _, code in report["gpus"][0]["xids"]] == [13, 79]
    assert later["gpus"][0]["xids"] == report["gpus"][0]["xids"]
    assert "xids" not in report["gpus"][1]
    # One is a program's fault, the other the GPU's.
    assert judged(before, program)[0] == ("ok", set())
    assert judged(before, program, report)[0] == ("quarantined", {"xid"})


def test_21_rows_that_wait_for_a_reset_are_told_and_cards_without_ecc_lack_nothing(
    probe: Start, driver: FakeDriver
) -> None:
    driver.gpus = [machine("8xA100")[0], machine("4xRTX3090")[0]]
    driver.change(0, remap_pending=1, remap_uncorrected=1)

    report = probe().until(healthy)

    first, second = report["gpus"]
    assert (first["remapped_rows"], first["remap_pending"], first["remap_failed"]) == (1, 1, 0)
    assert second["why"]["ecc_uncorrected"] == "unsupported"
    assert "ecc_uncorrected" not in second
    assert judged(report) == [("draining", {"remap_pending"}), ("ok", set())]


def test_22_what_an_old_driver_lacks_costs_only_that(
    probe: Start, driver: FakeDriver, old_library: Path
) -> None:
    driver.change(0, utilization_pct=5, throttle=4)

    first, _ = probe(library=old_library).gpus()

    assert first["utilization_pct"] == 5
    assert first["throttle_mask"] == 4
    # The first version counts what the driver keeps as used.
    assert first["memory_used_mib"] == 243
    assert first["why"]["memory_reserved_mib"] == "unsupported"


def test_23_a_gpu_that_is_busy_for_nobody_is_told_as_it_is(
    probe: Start, driver: FakeDriver
) -> None:
    driver.change(0, utilization_pct=100)

    report = probe().until(healthy)

    gpu = report["gpus"][0]
    assert gpu["utilization_pct"] == 100
    assert gpu["processes"] == {}
    assert "strangers" not in gpu
    # It is idle by what it holds, and takes work.
    assert judged(report, times=10)[0] == ("ok", {"ghost"})


def test_24_where_errors_may_not_be_listened_to_their_counts_still_tell(
    probe: Start, driver: FakeDriver
) -> None:
    driver.change(no_events=True)
    running = probe()
    first = running.until(healthy)
    before = first["gpus"][0]

    driver.change(0, xids=(48,), ecc_uncorrected=2)
    after: Report = running.until(lambda report: report["gpus"][0].get("ecc_uncorrected") == 2)

    assert before["why"]["xids"] == "unsupported"
    assert "xids" not in after["gpus"][0]
    assert judged(first, after)[0] == ("quarantined", {"ecc"})
