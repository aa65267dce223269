"""Do fits hold on tables of real models, and do designed runs find the best mixture sooner?

`python -m benchmarks swarms [--data-dir DIR]` prints two tables, and the processor time. Without a folder of data there
are known laws alone.

Fits: each regression is fitted to some runs drawn at random, and predicts mixtures that it has not seen: Spearman's
rank correlation of predicted and true objective, and regret, how far the mixture that it takes for the best one is
above the best one there. Coverage is the share of true values of runs within our interval of 90 %.

Search: eight mixtures far from each other, then four at a time as `mixer search` chooses them, out of the swarm's runs.
Found is how far the best run so far is above the best run of all; regret is that of a fit to the runs so far, on the
mixtures to judge by.

`--part end_to_end`: `mixer search` on three scenarios of `benchmarks quality`, against the best of sixteen fixed
mixtures and `"auto"`. Cost is in lengths of a run, with the run that is judged.
"""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import new_parser, write_json
from benchmarks.presenting import present
from benchmarks.swarms.contestants import CONTESTANTS, ours
from benchmarks.swarms.end_to_end import SCENARIOS, end_to_end
from benchmarks.swarms.swarms import LARGER, Swarm, known_law, regmix
from mixer.tools.analysis.fit.prediction import Prediction
from mixer.tools.analysis.fit.surrogate import rank_correlation
from mixer.tools.analysis.search.design import improving, spread
from mixer.utils.arrays import FloatArray

_SURE = 1.645
_FIRST, _AT_ONCE = 8, 4
_SEARCHED = (16, 32, 48)


def _regret(predicted: FloatArray, true: FloatArray) -> float:
    """Gives how far what is predicted best is above the best, in per cent."""
    return float(100.0 * (true[predicted.argmin()] / true.min() - 1.0))


def fits(swarm: Swarm, counts: Sequence[int], num_draws: int) -> list[dict[str, Any]]:
    """Judges each regression at each number of runs; see the module."""
    rows = []
    for count in counts:
        found: dict[tuple[str, str], list[tuple[float, ...]]] = {}
        for draw in range(num_draws):
            chosen = np.random.default_rng(draw).permutation(len(swarm.mixtures))[:count]
            for name, fit in CONTESTANTS.items():
                predict = fit(swarm, chosen)
                for judge, (points, true) in swarm.judged.items():
                    own, covered = predict(points), np.nan
                    choice = predict.careful(points) if isinstance(predict, Prediction) else own
                    if isinstance(predict, Prediction) and judge != LARGER:  # which has losses of another scale
                        covered = _coverage(predict, points, true)
                    found.setdefault((name, judge), []).append(
                        (rank_correlation(own, true), _regret(choice, true), covered)
                    )
        for (name, judge), values in found.items():
            rank, regret, coverage = (float(value) for value in np.mean(values, axis=0))
            figures = {"rank": rank, "regret": regret, "coverage": coverage}
            rows.append({"swarm": swarm.name, "judge": judge, "runs": count, "fit": name, **figures})
    return rows


def _coverage(predict: Prediction, points: FloatArray, true: FloatArray) -> float:
    means, deviations = predict.moments(points, of_runs=True)
    return float(100.0 * np.mean(np.abs(means - true) <= _SURE * deviations))


def search(swarm: Swarm, counts: Sequence[int], num_seeds: int, is_designed: bool) -> list[dict[str, Any]]:
    """Judges a search, or runs at random, at each number of runs; see the module."""
    found: dict[int, list[tuple[float, ...]]] = {count: [] for count in counts}
    for seed in range(num_seeds):
        random = np.random.default_rng(seed)
        order = random.permutation(len(swarm.mixtures))
        runs = [int(order[0]), *_spread(swarm, order[:1])] if is_designed else order[:_FIRST].tolist()
        while True:
            predict = ours(swarm, np.array(runs))
            if len(runs) in found:
                best = 100.0 * (swarm.values[runs].min() / swarm.values.min() - 1.0)
                regrets = [_regret(predict.careful(points), true) for points, true in swarm.judged.values()]
                found[len(runs)].append((float(best), *regrets))
            if len(runs) >= max(counts):
                break
            rest = np.setdiff1d(np.arange(len(swarm.mixtures)), runs)
            chosen, _ = improving(predict, swarm.mixtures[rest], _AT_ONCE, random)
            runs += rest[chosen].tolist() if is_designed else order[len(runs) : len(runs) + _AT_ONCE].tolist()
    kind = "designed" if is_designed else "random"
    return [
        {"swarm": swarm.name, "runs": count, "kind": kind}
        | dict(zip(("found", *swarm.judged), np.mean(values, axis=0).tolist(), strict=True))
        for count, values in found.items()
    ]


def _spread(swarm: Swarm, runs: FloatArray) -> list[int]:
    return spread(swarm.mixtures, swarm.mixtures[runs], _FIRST - 1)


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = new_parser(__doc__)
    parser.add_argument("--data-dir", type=Path, help="folder of the data, with swarms/regmix")
    parser.add_argument(
        "--runs", type=int, nargs="+", default=[32, 48, 64, 128, 256, 512], help="numbers of runs to fit"
    )
    parser.add_argument("--draws", type=int, default=4, help="draws of these runs")
    parser.add_argument("--seeds", type=int, default=20, help="seeds of a search")
    parser.add_argument("--part", nargs="+", choices=["fits", "search", "end_to_end"], default=["fits", "search"])
    parser.add_argument("--folder", type=Path, default=Path("runs/mixing_quality"), help="of the runs of end_to_end")
    parser.add_argument("--judged", type=int, default=2, help="seeds that end_to_end judges by")
    parser.add_argument("--share", type=float, default=0.1, help="length of the runs of a search of end_to_end")
    parser.add_argument("--markdown", action="store_true", help="print Markdown")
    args = parser.parse_args(argv)
    if args.quick:
        args.runs, args.draws, args.seeds = [32], 1, 1
    return args


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the benchmark, prints the tables and writes the figures.

    Args:
        argv: Command line; `None` takes the process's own.
    """
    args, began = _arguments(argv), time.process_time()
    swarms = [] if args.data_dir is None else regmix(args.data_dir)
    swarms += [known_law(24, 20, seed=24), known_law(64, 20, seed=64)]
    figures: dict[str, list[dict[str, Any]]] = {"fits": [], "search": [], "end_to_end": []}
    for swarm in swarms:
        if "fits" in args.part:
            figures["fits"] += fits(swarm, args.runs, args.draws)
        if "search" in args.part and swarm in swarms[:2]:
            counts = _SEARCHED[:1] if args.quick else _SEARCHED
            figures["search"] += [row for kind in (False, True) for row in search(swarm, counts, args.seeds, kind)]
    for name in SCENARIOS if "end_to_end" in args.part else ():
        figures["end_to_end"] += end_to_end(name, args.judged, args.folder, args.share)
    for title, rows in figures.items():
        if rows:
            columns = list(dict.fromkeys(name for row in rows for name in row))
            cells = [[_cell(row.get(name, np.nan)) for name in columns] for row in rows]
            present(title.capitalize().replace("_", " "), columns, cells, args.markdown)
    print(f"Processor time: {time.process_time() - began:.0f} s.")
    write_json(args.json, figures)


def _cell(value: Any) -> str:
    if not isinstance(value, float):
        return str(value)
    return "" if np.isnan(value) else f"{value:.3f}"
