import csv
import json
from pathlib import Path

import pytest

from benchmarks.gpu_sharing import main
from benchmarks.pair_tables import read_pairs

KINDS = [("Light", 20.0, 3000.0, 0), ("Medium", 55.0, 5000.0, 1), ("Heavy", 97.0, 9000.0, 2)]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A made-up pair table in the form of Lucid's files."""
    folder = tmp_path / "lucid"
    folder.mkdir()
    with (folder / "single_data.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["model", "dataset", "batchsize", "amp", "gpu_util", "gmem", "label"])
        rows.writerows([[name, "Set", 32, 0, use, mib, label] for name, use, mib, label in KINDS])
    with (folder / "colocate_info.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        names = ["model", "dataset", "gpu_num", "batchsize", "amp", "speed"]
        rows.writerow([name + number for number in "12" for name in names])
        for row, (one, use, _, _) in enumerate(KINDS):
            for other, beside, _, _ in KINDS[row:]:
                speed = round(0.985 - 0.37 * max(0.0, (use + beside) / 100 - 1), 3)
                rows.writerow([one, "Set", 1, 32, 0, speed, other, "Set", 1, 32, 0, speed])
    return folder


@pytest.fixture
def series(tmp_path: Path) -> Path:
    jobs = [
        {"type": f"{KINDS[number % 3][0]}/Set/32/0", "duration_s": 900 + 170 * (number % 7)}
        for number in range(24)
    ]
    file = tmp_path / "series.json"
    file.write_text(json.dumps({"gpus": 2, "jobs": jobs}))
    return file


def rows_of(output: str) -> dict[str, dict[str, float]]:
    return {row["policy"]: row for row in json.loads(output)["rows"]}


def test_a_given_series_ends_sooner_by_the_state_of_gpus_than_by_hand(
    table: Path, series: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(["--data", str(table), "--series", str(series), "--json"])

    rows = rows_of(capsys.readouterr().out)
    ours, static = rows["gpu-state"], rows["static round robin"]
    assert code == 0
    assert static["makespan_ratio"] == 1.0
    assert rows["fluid lower bound"]["makespan_s"] <= ours["makespan_s"] < static["makespan_s"]
    assert ours["slowdown_mean"] >= 1.0
    assert ours["out_of_memory"] == 0
    assert rows["exclusive FIFO"]["slowdown_p95"] == 1.0


def test_the_bound_counts_pairs_only_as_fast_as_they_were_measured(table: Path) -> None:
    data = read_pairs(table)

    light = data.least_gpu_s({"Light/Set/32/0": 985.0})
    heavy = data.least_gpu_s({"Heavy/Set/32/0": 1000.0})

    assert light == pytest.approx(500.0)
    assert heavy == pytest.approx(1000.0 / (2 * 0.637), rel=1e-3)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("nonsense", "is no JSON"),
        ("[]", "at least one job"),
        ('{"gpus": 0, "jobs": [{"type": "x", "duration_s": 1}]}', "gpus must be a whole number"),
        ('{"gpus": 2, "jobs": [{"type": "x", "duration_s": -1}]}', "job 1 needs a duration_s"),
        ('{"gpus": 2, "jobs": [{"duration_s": 5}]}', "job 1 has no type"),
        ('{"gpus": 2, "jobs": [{"type": "x", "duration_s": 5}]}', "no job type 'x'"),
    ],
)
def test_a_series_that_cannot_be_run_is_refused_with_the_place(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, says: str
) -> None:
    file = tmp_path / "bad.json"
    file.write_text(text)

    code = main(["--data", str(table), "--series", str(file)])

    assert code == 2
    assert says in capsys.readouterr().err


def test_a_folder_without_a_table_says_what_it_should_hold(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--data", str(tmp_path)]) == 2
    assert "holds no pair table" in capsys.readouterr().err
