"""The example job, headless, on every runtime: real TensorFlow, real processes."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import require
from tests.fakes.installation import Installation, docker_has, docker_host, tensorflow_is_built


def demo(installation: Installation, *options: str) -> dict[str, Any]:
    done = installation.manage("demo", "--json", "--timeout", "400", *options)
    report = json.loads(done.stdout)
    assert len(done.stdout.strip().splitlines()) == 1
    return report  # type: ignore[no-any-return]


def check(report: dict[str, Any]) -> None:
    assert report["status"] == "succeeded"
    assert report["accuracy"] >= 0.95
    assert report["submit_to_running_s"] > 0
    assert report["duration_s"] > 0
    assert report["log_lines"] > 25
    assert report["metric_points"] > 100
    assert report["samples"] > 0
    names = {artifact["name"] for artifact in report["artifacts"]}
    assert {"confusion.csv", "metrics.json", "model.keras"} <= names


@pytest.mark.tensorflow
@pytest.mark.xdist_group("training")
def test_the_example_trains_as_a_process(tmp_path: Path) -> None:
    require(tensorflow_is_built(), "the TensorFlow environment")
    with closing(Installation(state=tmp_path)) as installation:
        installation.set_up("--no-example")

        report = demo(installation, "--runtime", "process")

    check(report)
    assert report["runtime"] == "process"


@pytest.mark.docker
@pytest.mark.tensorflow
@pytest.mark.xdist_group("training")
def test_the_example_trains_in_a_container(tmp_path: Path) -> None:
    require(docker_has("starling/tensorflow:latest"), "a Docker engine with TensorFlow's image")
    variables = {"DOCKER_HOST": docker_host()}
    with closing(Installation(state=tmp_path, variables=variables)) as installation:
        report = demo(installation, "--runtime", "docker")

    check(report)
    assert report["runtime"] == "docker"
