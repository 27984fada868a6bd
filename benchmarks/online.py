"""Requests that arrive one at a time: our score beside the common rules and published FGD.

The protocol is that of FGD (Weng et al., ATC'23): the 1,213 hosts with GPUs of the openb trace, a
pod list in shuffled order, drawn again until it asks for 130 % of all GPUs; a request that fits
nowhere is dropped. ``python -m benchmarks.online --data DIR`` replays ten orders of five lists
under every rule; ``--sequence FILE`` replays one given order.
"""

import argparse
import csv
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from html import escape
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.lines import Line, Panel, picture
from cluster.core.errors import BadProblemError, CoreError, FileProblem
from cluster.core.placement.files import decoded, hosts_from_text, requests_from_text
from cluster.core.placement.packing import Packing, pack
from cluster.core.placement.score_weights import ScoreWeights, default_weights
from cluster.core.placement.scoring import RULES, Arrivals, in_batches, resampled
from cluster.core.resources import ClusterSnapshot

MIXES: Final = ("default", "gpuspec33", "cpu250", "multigpu50", "gpushare100")
NODES: Final = "openb_node_list_gpu_node.csv"
#: Orders that the weights have never seen: tuning drew others, on a part of the hosts.
FIRST_SEED: Final = 42
BATCH: Final = 64
#: Names in the published results.
_PUBLISHED: Final = {
    "random": "01-Random",
    "dot-product": "02-DotProd",
    "gpu-clustering": "03-GpuClustering",
    "gpu-packing": "04-GpuPacking",
    "best-fit": "05-BestFit",
    "fgd": "06-FGD",
}
_CURVE_AT: Final = tuple(range(60, 131, 2))


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One policy on one list, mean over the orders; percent of all GPUs.

    Attributes:
        published_pct_at_100: What FGD's authors published for the policy; ``None`` for none.
        beside_published_fgd: How much more than published FGD at 100 % arrived.
        seconds: CPU time of one replay.
    """

    mix: str
    policy: str
    allocated_pct_at_100: float
    allocated_pct_at_130: float
    allocated_pct_at_90: float
    allocated_pct_at_95: float
    sd_at_100: float
    published_pct_at_100: float | None = None
    beside_published_fgd: float | None = None
    runs: int = 1
    arrivals: int = 0
    seconds: float = 0.0
    curve: tuple[float, ...] = ()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; return the exit code."""
    options = _options(arguments)
    try:
        rows = list(_sequence(options) if options.sequence else _protocol(options))
        if options.picture:
            _draw(rows, Path(options.picture))
    except CoreError as error:
        print(f"benchmarks.online: {error}", file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps(_as_json(rows, options), indent=1))
    else:
        print(_table(rows))
    return 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.online", description=__doc__)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="public traces")
    parser.add_argument("--seeds", type=int, default=10, help="orders of each list (default 10)")
    parser.add_argument("--mix", action="append", choices=MIXES, help="only this list, or these")
    parser.add_argument("--policy", action="append", choices=tuple(RULES), help="only these")
    parser.add_argument("--batch", type=int, default=BATCH, help="size of a batch (default 64)")
    parser.add_argument("--weights", type=Path, help="JSON of weights instead of the product's")
    parser.add_argument("--sequence", type=Path, help="replay this order instead")
    parser.add_argument("--picture", metavar="FILE", help="draw the curves: .svg or .html")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args(arguments)


def _protocol(options: argparse.Namespace) -> Iterator[Row]:
    folder = options.data / "openb"
    hosts = hosts_from_text(_text(folder / NODES), NODES)
    published = _published(options.data / "fgd" / "allocation_at_100_percent_arrival.csv")
    weights = _weights(options)
    for mix in options.mix or MIXES:
        name = f"openb_pod_list_{mix}.csv"
        packing = pack(requests_from_text(_text(folder / name), name), hosts)
        seeds = range(FIRST_SEED, FIRST_SEED + options.seeds)
        orders = [resampled(packing, seed=seed) for seed in seeds]
        Arrivals(packing, orders[0].order[:2]).run("first-fit")  # compiles, outside of the clock
        for policy in _policies(options):
            row = _measured(mix, policy, orders, weights, options.batch)
            yield _beside(row, published, name.removesuffix(".csv"))
            print(f"{mix} {policy}", file=sys.stderr, flush=True)


def _sequence(options: argparse.Namespace) -> Iterator[Row]:
    file = options.sequence
    try:
        content = json.loads(_text(file))
    except ValueError as error:
        raise FileProblem(str(file), f"is no JSON: {error}") from error
    if not isinstance(content, dict):
        raise FileProblem(str(file), "expected an object with nodes_file, pods_file, arrival_order")
    nodes, pods = (_named(content, key, options) for key in ("nodes_file", "pods_file"))
    hosts: ClusterSnapshot = hosts_from_text(_text(nodes), nodes.name)
    packing = pack(requests_from_text(_text(pods), pods.name), hosts)
    arrivals = Arrivals(packing, _order(content, packing, str(file)))
    for policy in _policies(options):
        yield _measured(file.stem, policy, [arrivals], _weights(options), options.batch)


def _named(content: dict[str, Any], key: str, options: argparse.Namespace) -> Path:
    """Return the path of a file that a sequence names, beside it or among the traces."""
    name = content.get(key)
    if not isinstance(name, str) or not name:
        raise FileProblem(str(options.sequence), "expected the name of a file", column=key)
    for folder in (options.sequence.parent, options.data / "openb", options.data, Path()):
        if (folder / name).is_file():
            return Path(folder / name)
    raise FileProblem(str(options.sequence), f"there is no file {name!r}", column=key)


def _order(content: dict[str, Any], packing: Packing, file: str) -> np.ndarray[Any, Any]:
    """Return the rows in the order of arrival, the first row of values being 0.

    Where 0 does not come and the number of rows does, they are counted from 1.
    """
    rows = content.get("arrival_order")
    if not isinstance(rows, list) or not rows:
        raise FileProblem(file, "expected a list of rows", column="arrival_order")
    count = len(packing.requests)
    if count in rows and 0 not in rows:
        rows = [row - 1 if type(row) is int else row for row in rows]
    for place, row in enumerate(rows, 1):
        if type(row) is not int or not 0 <= row < count:
            raise FileProblem(
                file,
                f"expected a row from 0 to {count - 1}, got {row!r:.40}",
                row=place,
                column="arrival_order",
            )
    return np.array(rows, np.int64)


def _policies(options: argparse.Namespace) -> tuple[str, ...]:
    chosen = tuple(options.policy or RULES)
    batched = (f"swarm-tuned in batches of {options.batch}",) if options.batch > 1 else ()
    return chosen + (batched if "swarm-tuned" in chosen else ())


def _measured(
    mix: str, policy: str, orders: Sequence[Arrivals], weights: ScoreWeights, batch: int
) -> Row:
    rule, _, batched = policy.partition(" in batches")
    at = (90.0, 95.0, 100.0, 130.0, *_CURVE_AT)
    values, used = [], 0.0
    for seed, given in enumerate(orders, FIRST_SEED):
        arrivals = in_batches(given, batch) if batched else given
        began = time.process_time()
        outcome = arrivals.run(rule, weights, seed=seed)
        used += time.process_time() - began
        values.append(arrivals.allocated_pct(outcome, at))
    mean = np.mean(values, axis=0)
    return Row(
        mix=mix,
        policy=policy,
        allocated_pct_at_90=round(float(mean[0]), 3),
        allocated_pct_at_95=round(float(mean[1]), 3),
        allocated_pct_at_100=round(float(mean[2]), 3),
        allocated_pct_at_130=round(float(mean[3]), 3),
        sd_at_100=round(float(np.std(np.array(values)[:, 2])), 3),
        runs=len(orders),
        arrivals=round(float(np.mean([len(order.order) for order in orders]))),
        seconds=round(used / len(orders), 3),
        curve=tuple(np.round(mean[4:], 3).tolist()),
    )


def _beside(row: Row, published: Mapping[tuple[str, str], float], workload: str) -> Row:
    """Return a row with what FGD's authors published beside it."""
    fgd = published.get((workload, _PUBLISHED["fgd"]))
    return replace(
        row,
        published_pct_at_100=published.get((workload, _PUBLISHED.get(row.policy, ""))),
        beside_published_fgd=None if fgd is None else round(row.allocated_pct_at_100 - fgd, 3),
    )


def _weights(options: argparse.Namespace) -> ScoreWeights:
    if options.weights is None:
        return default_weights()
    try:
        content = json.loads(_text(options.weights))
        return ScoreWeights.of_dict(content["weights"])
    except (ValueError, KeyError, TypeError) as error:
        raise FileProblem(str(options.weights), "is no JSON with weights by feature") from error


def _published(file: Path) -> dict[tuple[str, str], float]:
    """Return the GPU allocated at 100 % arrived by workload and policy; empty without the file."""
    if not file.is_file():
        return {}
    rows = csv.DictReader(_text(file).splitlines())
    return {(row["workload"], row["policy"]): float(row["mean_gpu_allocated_pct"]) for row in rows}


def _text(file: Path) -> str:
    try:
        return decoded(file.read_bytes(), file.name)
    except OSError as error:
        raise FileProblem(str(file), f"cannot be read: {error.strerror}") from error


def _as_json(rows: Sequence[Row], options: argparse.Namespace) -> dict[str, Any]:
    shown = [asdict(row) for row in rows]
    for row in shown:
        row.pop("curve")
    return {
        "protocol": "given sequence" if options.sequence else "fgd",
        "seeds": None if options.sequence else [FIRST_SEED, FIRST_SEED + options.seeds - 1],
        "weights": _weights(options).as_dict(),
        "rows": shown,
        "curve_at_pct": list(_CURVE_AT),
        "curves": [{"mix": row.mix, "policy": row.policy, "pct": row.curve} for row in rows],
    }


def _table(rows: Sequence[Row]) -> str:
    head = f"{'mix':<12} {'policy':<28} {'at 90':>6} {'at 95':>6} {'at 100':>7} {'at 130':>7}"
    lines = [head + f" {'published':>10} {'- FGD publ.':>12} {'s':>6}"]
    for row in rows:
        theirs = "" if row.published_pct_at_100 is None else f"{row.published_pct_at_100:.2f}"
        beside = "" if row.beside_published_fgd is None else f"{row.beside_published_fgd:+.2f}"
        lines.append(
            f"{row.mix:<12} {row.policy:<28} {row.allocated_pct_at_90:6.2f} "
            f"{row.allocated_pct_at_95:6.2f} {row.allocated_pct_at_100:7.2f} "
            f"{row.allocated_pct_at_130:7.2f} {theirs:>10} {beside:>12} {row.seconds:6.2f}"
        )
    return "\n".join(lines)


def _draw(rows: Sequence[Row], file: Path) -> None:
    """Write the curves, a panel for each list."""
    if file.suffix not in {".svg", ".html"}:
        raise BadProblemError(f"{file}: pictures are .svg or .html")
    panels = [
        Panel(
            title=mix,
            lines=tuple(
                Line(row.policy, tuple(zip(_CURVE_AT, row.curve, strict=True)))
                for row in rows
                if row.mix == mix
            ),
        )
        for mix in dict.fromkeys(row.mix for row in rows)
    ]
    drawn = picture(panels, x="GPU arrived, % of all", y="GPU allocated, % of all")
    title = "GPU allocated while requests arrive"
    page = f"<!doctype html><meta charset=utf-8><title>{escape(title)}</title>{drawn}"
    try:
        file.write_text(page if file.suffix == ".html" else drawn, encoding="utf-8")
    except OSError as error:
        raise FileProblem(str(file), f"cannot be written: {error.strerror}") from error


if __name__ == "__main__":
    sys.exit(main())
