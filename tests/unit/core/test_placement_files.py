"""Lists of hosts and requests: what is read from them, and the one sentence for what is wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.core.errors import FileProblem
from cluster.core.placement.files import (
    MAX_ROWS,
    decoded,
    hosts_from_text,
    problem_from_texts,
    requests_from_text,
)

PODS = "id,cpu_milli,memory_mib,num_gpu,gpu_milli"
NODES = "sn,cpu_milli,memory_mib,gpu,model"


def node(**values: Any) -> dict[str, Any]:
    return {"id": "a", "cpu_milli": 4000, "memory_mib": 8192, "gpu": 1} | values


def pod(**values: Any) -> dict[str, Any]:
    return {"id": "p", "cpu_milli": 1000, "memory_mib": 64, "num_gpu": 1, "gpu_milli": 500} | values


def test_the_lists_of_openb_are_read_as_they_are_published() -> None:
    nodes = f"{NODES}\nopenb-node-0000,64000,262144,2,P100\nopenb-node-0001,32000,262144,0,\n"
    long = (
        "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time\n"
        "openb-pod-0000,12000,16384,1,1000,,LS,Running,0\n"
        "openb-pod-0001,6000,12288,1,460,V100M16|T4,BE,Failed,17\n"
    )
    short = "name,cpu_milli,memory_mib,num_gpu,gpu_milli\r\nopenb-pod-0000,100,1,0,0\r\n"

    snapshot, (first, second) = problem_from_texts(
        hosts=nodes, hosts_file="n", requests=long, requests_file="p"
    )
    (only,) = requests_from_text(short, "p")

    assert [len(host.gpus) for host in snapshot.hosts] == [2, 0]
    assert snapshot.hosts[0].gpus[1].model == "P100"
    assert first.whole_gpus
    assert first.gpu_models == frozenset()
    assert second.share_milli == 460
    assert second.gpu_models == frozenset({"V100M16", "T4"})
    assert (only.key, only.gpus, only.cpu_millis) == ("openb-pod-0000", 0, 100)


def test_one_json_may_hold_both() -> None:
    text = json.dumps(
        {
            "nodes": [node(gpu_model="T4", gpu_memory_mib=16384)],
            "pods": [pod(gpu_memory_mib=0), pod(id=7, gpu_milli=0, gpu_memory_mib=4096)],
        }
    )

    snapshot, (share, memory) = problem_from_texts(
        hosts=text, hosts_file="f", requests=text, requests_file="f"
    )

    assert snapshot.hosts[0].gpus[0].memory_total_mib == 16384
    assert (share.gpu_share_milli, share.gpu_memory_mib) == (500, None)
    assert (memory.key, memory.gpu_share_milli, memory.gpu_memory_mib) == ("7", None, 4096)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "f: the file is empty"),
        (" \n\n", "f: the file is empty"),
        (PODS, "f, row 0: there are no rows below the header"),
        ("id,cpu_milli\nx,1", "f, row 0, column memory_mib: this column is missing"),
        ("cpu_milli\n1", "f, row 0, column id: this column is missing (or name)"),
        (f"{PODS},id\nx,1,1,0,0,x", "f, row 0, column id: this column is there twice"),
        (f"{PODS}\nx,1,1,0", "f, row 1: expected 5 values, got 4"),
        (f"{PODS}\nx,1,1,0,0\ny,-1,1,0,0", "f, row 2, column cpu_milli: expected a number from"),
        (f"{PODS}\nx,many,1,0,0", "f, row 1, column cpu_milli: expected a whole number"),
        (f"{PODS}\nx,nan,1,0,0", "f, row 1, column cpu_milli: expected a whole number"),
        (f"{PODS}\nx,inf,1,0,0", "f, row 1, column cpu_milli: expected a whole number"),
        (f"{PODS}\nx,1_0,1,0,0", "f, row 1, column cpu_milli: expected a whole number"),
        (f"{PODS}\nx,1e30,1,0,0", "f, row 1, column cpu_milli: expected a number from 0"),
        (f"{PODS}\nx,1,,0,0", "f, row 1, column memory_mib: a value is missing"),
        (f"{PODS}\nx,1,1,1,1001", "f, row 1, column gpu_milli: expected a number from 0 to 1000"),
        (f"{PODS}\nx,1,1,0,500", "f, row 1, column num_gpu: asks for 500 thousandths of no GPU"),
        (f"{PODS}\nx,1,1,1,0", "f, row 1, column gpu_milli: says nothing of the GPU"),
        (f"{PODS}\nx,1,1,0,0\nx,1,1,0,0", "f, row 2, column id: 'x' comes twice"),
        (f"{PODS}\n,1,1,0,0", "f, row 1, column id: expected a name, got ''"),
        (f'{PODS}\n"x,1,1,0,0', "f, row 1: is no CSV"),
        ("{", "f: is no JSON"),
        ("[1]", 'f: expected an object with the list "pods"'),
        ('{"nodes": []}', "f, column pods: this list is missing"),
        ('{"pods": {}}', "f, column pods: expected a list, got {}"),
        ('{"pods": []}', "f, column pods: the list is empty"),
        ('{"pods": [1]}', "f, row 1, column pods: expected an object, got 1"),
        (json.dumps({"pods": [pod(cpu_milli=True)]}), "f, row 1, column cpu_milli: expected a wh"),
        (json.dumps({"pods": [pod(cpu_milli=[1])]}), "f, row 1, column cpu_milli: expected a wh"),
        (json.dumps({"pods": [pod(), pod()]}), "f, row 2, column id: 'p' comes twice"),
        (json.dumps({"pods": [pod(gpu_spec=3)]}), "f, row 1, column gpu_spec: expected text"),
        ('{"pods":' + "[" * 100_000, "f: is nested too deeply"),
    ],
)
def test_a_bad_list_of_requests_is_one_sentence(text: str, sentence: str) -> None:
    with pytest.raises(FileProblem) as caught:
        requests_from_text(text, "f")

    assert str(caught.value).startswith(sentence)
    assert "\n" not in str(caught.value)


def test_a_host_of_too_many_gpus_is_refused() -> None:
    with pytest.raises(FileProblem, match="row 1, column gpu: expected a number from 0 to 62"):
        hosts_from_text(f"{NODES}\na,1,1,63,T4", "f")


def test_a_million_rows_are_refused() -> None:
    text = PODS + "\nx,1,1,0,0" * 1_000_000

    with pytest.raises(FileProblem, match=f"row {MAX_ROWS + 1}: more than 200,000 rows"):
        requests_from_text(text, "f")


def test_text_that_is_not_utf_8_is_refused() -> None:
    with pytest.raises(FileProblem, match="f, row 1: is not UTF-8"):
        decoded(b"id\n\xff", "f")


def sentence_for(read: Callable[[str, str], object], text: str) -> str:
    try:
        read(text, "f")
    except FileProblem as problem:
        return str(problem)
    return ""


@given(st.text(max_size=60) | st.from_regex(r'[\[{][\[\]{}"a-z0-9:,]{0,40}', fullmatch=True))
def test_any_text_is_read_or_refused_in_one_line(text: str) -> None:
    for read in (requests_from_text, hosts_from_text):
        assert "\n" not in sentence_for(read, text)
