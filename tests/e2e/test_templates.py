"""Every TensorFlow template, and the kit's checkpoint, in the real environment."""

from __future__ import annotations

import csv
import json
import os
import random
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from monitoring.lines import metrics_in
from tests.conftest import require
from tests.fakes.installation import ENVIRONMENTS, ROOT, tensorflow_is_built

pytestmark = [pytest.mark.tensorflow, pytest.mark.xdist_group("training")]
LIBRARY = ROOT / "jobs" / "library"
PYTHON = ENVIRONMENTS / "tensorflow" / "bin" / "python"


@pytest.fixture(autouse=True)
def built() -> None:
    require(tensorflow_is_built(), "the TensorFlow environment")


def start(tmp_path: Path, *command: str) -> subprocess.Popen[str]:
    work = tmp_path / "work"
    work.mkdir(exist_ok=True)
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "PYTHONPATH": str(ROOT / "jobs" / "runtime_kit"),
        "PYTHONUNBUFFERED": "1",
        "STARLING_JOB": "some-job",
        "STARLING_DATA_DIR": str(tmp_path / "data"),
        "STARLING_OUTPUT_DIR": str(work),
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "CUDA_VISIBLE_DEVICES": "",
    }
    return subprocess.Popen(
        [str(PYTHON), *command],
        cwd=work,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def train(tmp_path: Path, template: str, *options: str) -> tuple[dict[str, Any], set[str]]:
    """Run a template; return what it wrote about itself, and the names of its metrics."""
    program = start(tmp_path, str(LIBRARY / template), *options)
    printed, _ = program.communicate(timeout=240)
    assert program.returncode == 0, printed
    names = {metric.name for line in printed.split("\n") for metric in metrics_in(line)}
    return json.loads((tmp_path / "work" / "metrics.json").read_text()), names


def test_the_digits_with_a_loop_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "digits").symlink_to(LIBRARY / "datasets" / "digits")

    result, names = train(tmp_path, "digits_custom_loop.py")

    assert result["test_accuracy"] >= 0.95
    assert {"loss", "accuracy", "test_accuracy"} <= names


def test_pictures_in_folders(tmp_path: Path) -> None:
    chance = random.Random(3)
    for colour, channel in (("red", 0), ("blue", 2)):
        folder = tmp_path / "data" / "mine" / "pictures" / colour
        folder.mkdir(parents=True)
        for number in range(30):
            base = [chance.randrange(60) for _ in range(3)]
            base[channel] += 180
            ending = "png" if number % 2 else "jpg"
            Image.new("RGB", (24, 20), tuple(base)).save(folder / f"{number}.{ending}")  # type: ignore[arg-type]

    result, names = train(
        tmp_path, "image_folder.py", "--epochs=12", "--image_size=16", "--learning_rate=0.01"
    )

    assert result["test_accuracy"] >= 0.9
    assert {"loss", "val_accuracy", "test_accuracy"} <= names
    assert json.loads((tmp_path / "work" / "classes.json").read_text()) == ["blue", "red"]


def test_texts_in_a_table(tmp_path: Path) -> None:
    chance = random.Random(3)
    words = {"good": ["lovely", "great", "fine"], "bad": ["awful", "poor", "sad"]}
    folder = tmp_path / "data" / "reviews"
    folder.mkdir(parents=True)
    with (folder / "reviews.csv").open("w", newline="") as stream:
        table = csv.writer(stream)
        table.writerow(["text", "label"])
        for number in range(200):
            label = "good" if number % 2 else "bad"
            table.writerow([f"a {chance.choice(words[label])}, {number} film", label])

    result, names = train(tmp_path, "text_classifier.py", "--epochs=6", "--words=300")

    assert result["test_accuracy"] >= 0.95
    assert "test_accuracy" in names


def test_a_dataset_of_the_wrong_kind_is_refused_in_words(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    program = start(tmp_path, str(LIBRARY / "image_folder.py"))

    printed, _ = program.communicate(timeout=120)

    assert program.returncode != 0
    assert "one per class" in printed


ENDLESS = """
import keras, numpy as np
model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
model.compile(loss="mse")
print("begins", flush=True)
model.fit(np.ones((64, 4)), np.ones((64, 1)), epochs=100000, verbose=0)
"""


def test_a_keras_program_that_is_asked_to_end_saves_what_it_learned(tmp_path: Path) -> None:
    program = start(tmp_path, "-c", ENDLESS)
    assert program.stdout is not None
    for line in program.stdout:
        if line.startswith("\x1e"):
            break

    program.send_signal(signal.SIGTERM)
    printed, _ = program.communicate(timeout=60)

    assert program.returncode == 128 + signal.SIGTERM
    assert "saved checkpoints/last.keras" in printed
    names = sorted(path.name for path in (tmp_path / "work" / "checkpoints").iterdir())
    assert names == ["last.keras"]
    load = "import keras; keras.saving.load_model('checkpoints/last.keras')"
    again = start(tmp_path, "-c", load)
    printed, _ = again.communicate(timeout=120)
    assert again.returncode == 0, printed


def test_every_template_of_the_index_is_a_program_that_compiles() -> None:
    for path in LIBRARY.glob("*.py"):
        compile(path.read_text(), str(path), "exec")
