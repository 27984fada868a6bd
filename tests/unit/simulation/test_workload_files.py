"""Readers: what each format means, and one clear line for whatever is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.core.errors import FileProblem
from cluster.core.simulation.models import utilization
from cluster.core.simulation.tables import MAX_ROWS
from cluster.core.simulation.workload import HostChange, Workload
from cluster.core.simulation.workload_files import (
    hosts_from_text,
    pairs_from_text,
    throughputs_from_json,
    utilizations_from_text,
    with_utilizations,
    workload_from_text,
)

ROOT = Path(__file__).parents[3]
SHARED = ROOT.parent / "shared/data"
EXAMPLES = ROOT / "docs/examples"
THROUGHPUTS = {("LM", 1): 10.0, ("LM", 4): 30.0}


def read(text: str) -> Workload:
    return workload_from_text(text, "w.csv")


def test_our_csv_says_as_much_or_as_little_as_one_knows() -> None:
    text = (
        "id,submitted_s,duration_s,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,replicas,owner\n"
        "late,30,5,,,,,,,\n"
        "x,0,60.5,4000,2048,2,1000,T4|V100,3,ada\n"
    )

    first, late = read(text).jobs

    assert (first.key, first.submitted_s, first.duration_s, first.owner) == ("x", 0, 60.5, "ada")
    assert first.request.replicas == 3
    assert first.request.gpus == 2
    assert first.request.whole_gpus
    assert first.request.gpu_models == {"T4", "V100"}
    assert (late.request.cpu_millis, late.request.memory_mib, late.request.gpus) == (1000, 1024, 0)


def test_our_json_has_events_of_hosts_too() -> None:
    text = json.dumps(
        {
            "name": "course",
            "jobs": [
                {"id": "x", "submitted_s": 0, "duration_s": 9, "num_gpu": 1, "gpu_milli": 250}
            ],
            "host_events": [{"at_s": 5, "host": "a", "change": "lost"}],
        }
    )

    found = workload_from_text(text, "w.json")

    assert found.name == "course"
    assert utilization(found.jobs[0]) == 0.25
    assert [(event.at_s, event.change) for event in found.host_events] == [(5, HostChange.LOST)]


def test_openb_pods_live_from_their_scheduling_to_their_deletion() -> None:
    text = (
        "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,"
        "creation_time,deletion_time,scheduled_time\n"
        "a,6000,12288,1,460,,LS,Running,100,500,120\n"
        "b,6000,12288,8,1000,V100M16|V100M32,BE,Pending,100,300,\n"
        "c,6000,12288,0,0,,BE,Running,50,60,50\n"
    )

    cpu_only, shared, whole = read(text).jobs

    assert (shared.submitted_s, shared.duration_s) == (100, 380)
    assert (shared.request.gpus, shared.request.gpu_share_milli) == (1, 460)
    assert (whole.duration_s, whole.request.gpus) == (200, 8)
    assert cpu_only.request.gpus == 0


def test_a_training_list_has_one_worker_for_each_gpu() -> None:
    tiresias = read(
        "job_id,num_gpu,submit_time,iterations,model_name,duration,interval\n0,8,30,1,vgg,147,2\n"
    )
    pai = read("job_id,num_gpu,submit_time,num_inst,duration\nx,0.5,0,2,10\n")

    assert (tiresias.jobs[0].request.replicas, tiresias.jobs[0].request.gpus) == (8, 1)
    assert tiresias.jobs[0].kind == "vgg"
    assert (pai.jobs[0].request.replicas, pai.jobs[0].request.gpu_share_milli) == (2, 500)


def test_gavel_steps_become_seconds_by_the_throughputs() -> None:
    text = "LM\tpython\t--steps\t1\t900\t7.0\t4\nLM\tpython\tdir\t--steps\t1\t900\t8\t1\t-1.0\t0\n"

    physical, simulated = workload_from_text(text, "g.trace", THROUGHPUTS).jobs

    assert (simulated.submitted_s, simulated.duration_s) == (7, 30)
    # Eight were not measured: twice as fast as four.
    assert (physical.submitted_s, physical.duration_s) == (0, 15)


def test_pollux_jobs_are_elastic_and_as_long_as_their_class_says() -> None:
    (one,) = read("name,time,application,num_replicas,batch_size\nbert-1,5,bert,3,96\n").jobs

    assert (one.request.replicas, one.replicas_max, one.duration_s) == (3, 6, 3600)


@pytest.mark.parametrize("column", ["runtime", "duration"])
def test_bare_durations_are_a_queue_of_single_gpus(column: str) -> None:
    jobs = read(f"{column}\n3.0\n0.0\n").jobs

    assert [(one.submitted_s, one.duration_s, one.request.gpus) for one in jobs] == [
        (0, 3, 1),
        (0, 0, 1),
    ]


def test_hosts_are_read_from_node_lists_cluster_specs_and_json() -> None:
    openb = hosts_from_text("sn,cpu_milli,memory_mib,gpu,model\nn0,64000,262144,2,P100\n", "n.csv")
    spec = hosts_from_text(
        "num_switch,num_node_p_switch,num_gpu_p_node,num_cpu_p_node,mem_p_node\n2,3,4,128,256\n",
        "spec.csv",
    )
    node = {"id": "a", "cpu_milli": 1000, "memory_mib": 99, "gpu": 1, "gpu_memory_mib": 8}
    ours = hosts_from_text(json.dumps({"nodes": [node | {"gpu_model": "T4"}]}), "n.json")

    assert [gpu.model for gpu in openb.hosts[0].gpus] == ["P100", "P100"]
    assert len(spec.hosts) == 6
    assert {host.zone for host in spec.hosts} == {"switch0", "switch1"}
    assert spec.hosts[0].memory_mib == 256 * 1024
    assert ours.hosts[0].gpus[0].memory_total_mib == 8


def test_kinds_get_their_utilization_and_pairs_their_speeds() -> None:
    lucid_pairs = (
        ",model1,dataset1,gpu_num1,batchsize1,amp1,speed1,"
        "model2,dataset2,gpu_num2,batchsize2,amp2,speed2\n0,A,X,1,32,0,0.9,B,Y,1,64,1,0.8\n"
    )
    lucid_alone = "model,dataset,batchsize,amp,speed,gpu_util\nA,X,32,0,84.8,60\n"

    pairs = pairs_from_text(lucid_pairs, "p.csv")
    alone = utilizations_from_text(lucid_alone, "u.csv")
    found = with_utilizations(
        read("id,submitted_s,duration_s,kind\nx,0,1,A/X/32/0\ny,0,1,other\n"), alone
    )

    assert pairs.speeds == {("A/X/32/0", "B/Y/64/1"): 0.9, ("B/Y/64/1", "A/X/32/0"): 0.8}
    assert pairs_from_text("kind,other,speed\na,b,0.5\n", "p.csv").speeds == {("a", "b"): 0.5}
    assert [one.gpu_utilization_pct for one in found.jobs] == [60, None]


JOB = {"id": "x", "submitted_s": 0, "duration_s": 1}
FORMATS = (
    "id,submitted_s,duration_s,replicas,num_gpu,gpu_milli",
    "name,cpu_milli,memory_mib,num_gpu,gpu_milli,creation_time,deletion_time",
    "job_id,submit_time,duration,num_gpu",
    "name,time,application,num_replicas",
    "runtime",
    "num_switch,num_node_p_switch,num_gpu_p_node,num_cpu_p_node,mem_p_node",
    "kind,other,speed",
)
ODD = st.sampled_from(
    ["1", "-1", "null", "true", '""', '"x"', "[]", "{}", "1e999", "1" * 400, "NaN"]
)
HEADER = "id,submitted_s,duration_s,num_gpu,gpu_milli\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "w.csv: the file is empty"),
        ("a,b\n1,2\n", "w.csv, row 0: no known workload has these columns"),
        (HEADER, "w.csv: there are no rows below the header"),
        (
            "id,submitted_s\nx,0\n",
            "w.csv, row 0, column duration_s: this column is missing",
        ),
        ("id,id,submitted_s,duration_s\nx,y,0,0\n", "row 0, column id: this column is there twice"),
        (HEADER + "x,0,1\n", "w.csv, row 1: expected 5 values, got 3"),
        (
            HEADER + "x,0,1,1,1000\ny,soon,1,1,1000\n",
            "row 2, column submitted_s: expected a number",
        ),
        (HEADER + "x,0,-1,1,1000\n", "row 1, column duration_s: expected at least 0, got -1"),
        (HEADER + "x,0,nan,1,1000\n", "row 1, column duration_s: expected a number, got 'nan'"),
        (HEADER + "x,0,1e300,1,1000\n", "row 1, column duration_s: expected at most 1e+12"),
        (HEADER + "x,0,1,1.5,1000\n", "row 1, column num_gpu: expected a whole number"),
        (HEADER + "x,0,1,1,2000\n", "row 1, column gpu_milli: expected at most 1000"),
        (HEADER + "x,0,1,1,0\n", "row 1, column gpu_milli: 0 says that only memory counts"),
        (HEADER + ",0,1,1,1000\n", "row 1, column id: a value is missing"),
        (HEADER + "x,0,1,0,0\nx,1,1,0,0\n", "row 2, column id: job x comes twice"),
        (
            "name,creation_time,deletion_time,cpu_milli,memory_mib,num_gpu,gpu_milli\np,9,3,1,1,0,0\n",
            "row 1, column deletion_time: lies before",
        ),
        (
            "name,time,application,num_replicas\nx,0,chess,1\n",
            "column application: expected one of",
        ),
        ("LM\tx\n", "w.csv: a Gavel trace states steps"),
        ("{", "w.csv: this is no JSON"),
        ('{"jobs": []}', "w.csv, column jobs: expected a list with at least one object"),
        ('{"jobs": [3]}', "w.csv, row 1, column jobs: expected an object"),
        (
            '{"jobs": [{"id": "x", "submitted_s": 0, "duration_s": [1]}]}',
            "row 1, column duration_s: expected one value",
        ),
        (
            json.dumps([JOB | {"replicas": 4, "replicas_max": 2}]),
            "row 1, column replicas_max: expected at least the 4 of replicas",
        ),
        (
            json.dumps(
                {"jobs": [JOB], "host_events": [{"at_s": 1, "host": "a", "change": "gone"}]}
            ),
            "row 1, column change: expected 'lost' or 'back'",
        ),
    ],
)
def test_a_bad_workload_is_refused_in_one_line_that_says_where(text: str, words: str) -> None:
    with pytest.raises(FileProblem) as caught:
        read(text)

    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "the file is empty"),
        ("x\n1\n", "row 0, column id: this column is missing"),
        ("sn,cpu_milli,memory_mib,gpu,model\na,-1,1,0,\n", "row 1, column cpu_milli: expected a"),
        (
            "num_switch,num_node_p_switch,num_gpu_p_node,num_cpu_p_node,mem_p_node\n0,3,4,128,256\n",
            "row 1, column num_switch: expected at least 1",
        ),
    ],
)
def test_a_bad_list_of_hosts_is_refused_in_one_line_that_says_where(text: str, words: str) -> None:
    with pytest.raises(FileProblem) as caught:
        hosts_from_text(text, "h.csv")

    assert words in str(caught.value)


@settings(max_examples=150, deadline=None)
@given(
    text=st.one_of(
        st.text(max_size=60),
        st.text(alphabet='{}[]",:abnrx01.-e\n\t\r ', max_size=60),
        st.builds(
            "{}\n{}\n".format,
            st.sampled_from([*FORMATS]),
            st.lists(st.text(max_size=6), max_size=11).map(",".join),
        ),
        st.builds('[{{"id": {}, "submitted_s": {}, "duration_s": {}}}]'.format, *[ODD] * 3),
    )
)
def test_no_text_is_met_by_anything_but_a_workload_or_a_clear_line(text: str) -> None:
    lines: list[str] = []

    for reader in (workload_from_text, hosts_from_text, pairs_from_text, utilizations_from_text):
        try:
            reader(text, "f")
        except FileProblem as problem:
            lines.append(str(problem))

    assert not any("\n" in line for line in lines)


def test_a_file_of_too_many_rows_is_refused() -> None:
    with pytest.raises(FileProblem, match="more than 200,000 rows"):
        read("runtime\n" + "1\n" * (MAX_ROWS + 1))


def test_a_throughput_table_without_the_gpu_names_those_it_has() -> None:
    with pytest.raises(FileProblem, match="there are: k80, v100"):
        throughputs_from_json('{"v100": {}, "k80": {}}', "t.json", "t4")


@pytest.mark.parametrize(
    ("name", "jobs"),
    [
        ("openb/openb_pod_list_default.csv", 8152),
        ("openb/openb_pod_list_gpuspec33.csv", 8152),
        ("tiresias/60_job.csv", 60),
        ("tiresias/yarn-gput1000.csv", 1001),
        ("adaptdl/workloads/workload-1.csv", 160),
        ("gavel/msr_seed0_2869ce.trace", 533),
        ("gavel/physical_max_min_fairness.trace", 96),
    ],
)
def test_the_public_traces_are_read_as_published(name: str, jobs: int) -> None:
    path = SHARED / name
    if not path.exists():
        pytest.skip(f"needs the public trace {path}")
    throughputs = None
    if name.startswith("gavel"):
        table = SHARED / "gavel/simulation_throughputs.json"
        throughputs = throughputs_from_json(table.read_text(), table.name, "v100")

    found = workload_from_text(path.read_text(), path.name, throughputs)

    assert len(found.jobs) == jobs
    assert all(one.duration_s >= 0 for one in found.jobs)


def test_the_examples_are_read() -> None:
    hosts = hosts_from_text((EXAMPLES / "hosts.json").read_text(), "hosts.json")
    course = workload_from_text((EXAMPLES / "course.csv").read_text(), "course.csv")
    losses = workload_from_text((EXAMPLES / "losses.json").read_text(), "losses.json")

    assert len(hosts.hosts) == 4
    assert len(course.jobs) >= 20
    assert losses.host_events
