"""Validation losses under PiKE, balanced PiKE and two plain mixtures, with equal budgets.

Run `python -m benchmarks pike --folder runs/pike --parallel 2`. The demo's byte-level Llama of 1.3 million
parameters reads the demo's three domains (Python, C++, English; 6,000, 3,000 and 1,500 blocks of 128 bytes), 240 steps
of 32 samples each, under the demo's AdamW and cosine. All policies have the same seeds of weights and order and the
same budget; the PiKEs begin with equal weights, and have their defaults but for the interval, 10 steps instead of 20,
so that they decide 24 times in a run of this length. Nothing was tuned.

Every run is a process's work with one thread; its result is kept as a file, so that a benchmark that was interrupted
goes on. Runs of a seed are neighbours in time, and in rotated order. The time of training is without that of loading
the data sets and evaluating. Losses are those of the end, on blocks of files that are not trained on.

Streams are c-conflicted if -c (||g_j||² + ||g_k||²) <= <g_j, g_k>, and c̄-aligned if <g_j, g_k> <= c̄ ||g_j|| ||g_k||.
Shown are the least such c and c̄ for the products and norms averaged over a run.
"""

import argparse
import multiprocessing
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import rotated, show, write_json
from benchmarks.quality.pike_runs import (
    PLACES,
    PROPORTIONAL,
    QUICK,
    UNIFORM,
    Scale,
    policies,
    read_result,
    result_path,
    run_once,
)

Results = Mapping[str, Sequence[Mapping[str, Any]]]
_DIFFERENCES = {
    f"{kind}_over_{baseline}": f"{kind} - {baseline[:4].lower()}."
    for kind in ("average", "worst")
    for baseline in (UNIFORM, PROPORTIONAL)
}
_CONSTANTS = ("conflict", "alignment", "least_cosine", "mean_cosine", "largest_cosine", "share_negative")


def run_all(scale: Scale, num_seeds: int, folder: Path, parallel: int) -> dict[str, list[dict[str, Any]]]:
    """Runs every policy on every seed, but for what was run before.

    Args:
        scale: How much is trained.
        num_seeds: Number of seeds, from 1 on.
        folder: Where results are kept.
        parallel: Number of processes.

    Returns:
        The results of each policy, one a seed.
    """
    names = list(policies(scale.interval))
    seeds = range(1, num_seeds + 1)
    with _pool(parallel) as pool:
        runs = {
            pool.submit(run_once, name, scale, seed, folder): f"seed {seed}, {name}"
            for seed in seeds
            for name in rotated(names, seed - 1)
            if read_result(result_path(folder, name, seed), scale) is None
        }
        for number, run in enumerate(as_completed(runs), start=1):
            run.result()
            print(f"{number} of {len(runs)}: {runs[run]}", flush=True)
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for name in names:
        for seed in seeds:
            result = read_result(result_path(folder, name, seed), scale)
            assert result is not None
            results[name].append(result)
    return results


def _pool(parallel: int) -> Executor:
    if parallel == 1:
        return ThreadPoolExecutor(1)
    return ProcessPoolExecutor(parallel, multiprocessing.get_context("spawn"))


def summarise(results: Results) -> dict[str, Any]:
    """Compares the policies, seed by seed.

    Args:
        results: The results of each policy, one a seed.

    Returns:
        For each policy by seed: `average` and `worst` loss over the streams, both less those of the baselines
        (`average_over_Uniform`, ...), `seconds_ratio` over the uniform mixture, `probe_share` of the seconds; and
        means over the seeds: `weights` of each stream at the places, `losses`, `gradients`.
    """
    figures = {name: _losses_and_times(own, results[UNIFORM]) for name, own in results.items()}
    for baseline in (UNIFORM, PROPORTIONAL):
        for own in figures.values():
            for kind in ("average", "worst"):
                pairs = zip(own[kind], figures[baseline][kind], strict=True)
                own[f"{kind}_over_{baseline}"] = [value - base for value, base in pairs]
    for name, runs in results.items():
        streams = list(runs[0]["losses"])
        figures[name]["weights"] = {stream: _mean([run["weights"][stream] for run in runs]) for stream in streams}
        figures[name]["losses"] = {stream: _mean([run["losses"][stream] for run in runs]) for stream in streams}
        seen = [run["gradients"] for run in runs if run["gradients"] is not None]
        figures[name]["gradients"] = {kind: _mean([one[kind] for one in seen]) for kind in _CONSTANTS} if seen else None
    return figures


def _losses_and_times(runs: Sequence[Mapping[str, Any]], uniform: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {
        "average": [float(np.mean(list(run["losses"].values()))) for run in runs],
        "worst": [max(run["losses"].values()) for run in runs],
        "seconds_ratio": [run["seconds"] / base["seconds"] for run, base in zip(runs, uniform, strict=True)],
        "probe_share": [run["probe_seconds"] / run["seconds"] for run in runs],
    }


def _mean(values: Sequence[Any]) -> Any:
    return np.mean(values, axis=0).tolist()


def _text(values: Sequence[float], digits: int = 3, sign: str = "") -> str:
    """Writes mean ± standard deviation over the seeds."""
    deviation = f" ± {np.std(values, ddof=1):.{digits}f}" if len(values) > 1 else ""
    return f"{np.mean(values):{sign}.{digits}f}{deviation}"


def _show(figures: Mapping[str, Mapping[str, Any]], scale: Scale) -> None:
    rows = [
        [name, _text(own["average"]), _text(own["worst"]), *(_text(own[kind], sign="+") for kind in _DIFFERENCES)]
        for name, own in figures.items()
    ]
    title = f"Validation loss after {scale.num_steps} steps of {scale.batch}; average and worst of the streams, "
    title += "and by seed less that of the baselines"
    show(title, ["policy", "average", "worst", *_DIFFERENCES.values()], rows)
    rows = [
        [name, _text(own["seconds_ratio"]), f"{100 * np.mean(own['probe_share']):.1f} %"]
        for name, own in figures.items()
    ]
    show("Time of training", ["policy", f"over {UNIFORM}", "share of the probe"], rows)
    _show_weights(figures)
    rows = [
        [name, *(f"{own['gradients'][kind]:.3f}" for kind in _CONSTANTS)]
        for name, own in figures.items()
        if own["gradients"] is not None
    ]
    columns = ["c", "c̄", "least cosine", "mean", "largest", "share below 0"]
    show("Conflict and alignment, means over the seeds", ["policy", *columns], rows)


def _show_weights(figures: Mapping[str, Mapping[str, Any]]) -> None:
    rows = []
    for name, own in figures.items():
        for stream, weights in own["weights"].items():
            rows.append([f"{name}: {stream}", *(f"{w:.3f}" for w in weights), f"{own['losses'][stream]:.3f}"])
    places = [f"at {100 * place:.0f} %" for place in PLACES]
    show("Weights over the run, and the loss at its end, means over the seeds", ["", *places, "loss"], rows)


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", metavar="FILE", help="where all figures are written")
    parser.add_argument("--quick", action="store_true", help="a tiny model, few steps, one seed, for a test")
    parser.add_argument("--folder", type=Path, default=Path("runs/pike"), help="where results of runs are kept")
    parser.add_argument("--parallel", type=int, default=2, help="processes, of one thread each")
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds, from 1 on")
    parser.add_argument("--steps", type=int, help="steps of a run; default: 240")
    parser.add_argument("--interval", type=int, help="steps between decisions of PiKE; default: 10")
    args = parser.parse_args(argv)
    if args.quick:
        args.seeds = 1
    return args


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the benchmark, prints the tables and writes the figures.

    Args:
        argv: Command line; `None` takes the process's own.
    """
    args = _arguments(argv)
    scale = QUICK if args.quick else Scale()
    scale = replace(scale, num_steps=args.steps or scale.num_steps, interval=args.interval or scale.interval)
    results = run_all(scale, args.seeds, args.folder, args.parallel)
    figures = summarise(results)
    _show(figures, scale)
    arguments = {**vars(args), "folder": str(args.folder)}
    write_json(args.json, {"arguments": arguments, "scale": asdict(scale), "policies": figures, "runs": results})
