"""One model for six tasks, against six models: accuracies of sentence classification.

`python -m benchmarks multi_task --data-dir DIR` trains, on each seed, a `MultiTaskModel` a task, and
one for all tasks under several ways of mixing, and compares them seed by seed. All are trained by `MixingTrainer`; the
encoder, the rule for its vocabulary and the samples trained on are the same. `--search` prints validation accuracies of
the settings that were tried. Results of runs are kept, so that a benchmark that was interrupted goes on.

`--cut` cuts the training parts to sizes of 100 : 1 and asks which mixture is best for tasks of so different sizes.
"""

import argparse
import multiprocessing
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.common import show, write_json
from benchmarks.quality.multi_task.data import TASKS, Texts, read_texts
from benchmarks.quality.multi_task.runs import GRID, JOINT, NUM_SAMPLES, QUICK, SEPARATE, Run, Setting, result_of
from benchmarks.quality.multi_task.tables import PUBLISHED, SEPARATELY, accuracies, show_all

MIXTURES: Mapping[str, tuple[str | None, Mapping[str, Any]]] = {
    "proportional": (None, {}),
    "Uniform": ("Uniform", {}),
    "GroupDRO": ("GroupDRO", {}),
}
# For tasks of 100 : 1. Proportional mixing to the power 0.5 is Temperature(2).
CUT_MIXTURES: Mapping[str, tuple[str | None, Mapping[str, Any]]] = {
    "proportional": (None, {}),
    "Uniform": ("Uniform", {}),
    "Temperature(2)": ("Temperature", {"temperature": 2.0}),
    "UniMax, 15 passes": ("UniMax", {"budget": NUM_SAMPLES, "max_epochs": 15}),
    "LossChange": ("LossChange", {}),
    "GroupDRO": ("GroupDRO", {}),
    "OverfitGuard(Uniform)": ("OverfitGuard", {"policy": ["Uniform", {}]}),
    "OverfitGuard(Temperature(2))": ("OverfitGuard", {"policy": ["Temperature", {"temperature": 2.0}]}),
}
BEST = ", best weights of each"
_WITH_BEST = ("Temperature(2)", "OverfitGuard(Temperature(2))")  # of the cut tasks
_SEARCH_SEED = 101

Reader = Callable[[int], Texts]


@lru_cache(maxsize=8)
def _read_once(folder: Path, keeps_overlap: bool, seed: int) -> Texts:
    return read_texts(folder, seed, keeps_overlap)


def runs_of(name: str, setting: Setting, seed: int, is_cut: bool = False) -> list[Run]:
    """Lists what a row of the table takes on one seed.

    Args:
        name: Of the row: `SEPARATELY`, or a way of mixing.
        setting: How models are trained.
        seed: The seed.
        is_cut: Whether the tasks have sizes of 100 : 1.

    Returns:
        One run a task, or one for all.
    """
    if name == SEPARATELY:
        return [Run((task,), None, {}, setting, seed, is_cut) for task in TASKS]
    mixture, keeps_best = name.removesuffix(BEST), name.endswith(BEST)
    return [Run(TASKS, *(CUT_MIXTURES if is_cut else MIXTURES)[mixture], setting, seed, is_cut, keeps_best)]


def run_all(runs: Sequence[Run], read: Reader, folder: Path, parallel: int) -> list[dict[str, Any]]:
    """Runs what was not run before.

    Args:
        runs: The runs.
        read: Gives the data, in the parts of a seed.
        folder: Where results are kept.
        parallel: Number of processes, of one thread each.

    Returns:
        Their results.
    """
    missing = [run for run in runs if not run.path(folder, read(run.seed)).is_file()]
    do = partial(result_of, read=read, folder=folder)
    if parallel > 1:
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(parallel, context, torch.set_num_threads, (1,)) as pool:
            for number, done in enumerate(as_completed([pool.submit(do, run) for run in missing]), start=1):
                done.result()
                print(f"{number} of {len(missing)} runs", flush=True)
    return [do(run) for run in runs]


def joined(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Makes one result of those of a row on one seed.

    Args:
        results: Of one model a task, or of one for all.

    Returns:
        As `result_of`, over all tasks.
    """
    by_task = ("validation", "test", "samples")
    found: dict[str, Any] = {key: {k: v for one in results for k, v in one[key].items()} for key in by_task}
    return {**found, **{key: sum(one[key] for one in results) for key in ("steps", "seconds")}}


def _search(read: Reader, args: argparse.Namespace) -> dict[str, Any]:
    rows, found = [], {}
    for name in (SEPARATELY, "proportional"):
        run_all(
            [run for setting in GRID for run in runs_of(name, setting, _SEARCH_SEED)], read, args.folder, args.parallel
        )
        for setting in GRID:
            results = run_all(runs_of(name, setting, _SEARCH_SEED), read, args.folder, 1)
            own = accuracies([joined(results)], "validation")
            label = f"{name}, {setting.learning_rate:g}, {setting.num_epochs:g}, {setting.dropout:g}"
            rows.append([label, *(f"{own[task][0]:.1f}" for task in (*TASKS, "average"))])
            found[label] = {task: float(value[0]) for task, value in own.items()}
    show("Validation accuracy: learning rate, epochs, dropout", ["", *TASKS, "average"], rows)
    return {"search": found}


def _compare(read: Reader, args: argparse.Namespace) -> dict[str, Any]:
    separate, joint = (QUICK, QUICK) if args.quick else (SEPARATE, JOINT)
    names = args.mixture or ([*CUT_MIXTURES, *(f"{name}{BEST}" for name in _WITH_BEST)] if args.cut else [*MIXTURES])
    settings = {SEPARATELY: separate, **dict.fromkeys(names, joint)}
    seeds = range(1, args.seeds + 1)
    planned = {name: [runs_of(name, setting, seed, args.cut) for seed in seeds] for name, setting in settings.items()}
    run_all([run for own in planned.values() for runs in own for run in runs], read, args.folder, args.parallel)
    results = {name: [joined(run_all(runs, read, args.folder, 1)) for runs in own] for name, own in planned.items()}
    show_all(results)
    return {"published": PUBLISHED, "results": results}


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the benchmark, prints the tables and writes the figures.

    Args:
        argv: Command line; `None` takes the process's own.
    """
    args = _arguments(argv)
    torch.set_num_threads(1)
    read = partial(_read_once, args.data_dir, args.keep_overlap)
    figures = _search(read, args) if args.search else _compare(read, args)
    arguments = {name: str(value) if isinstance(value, Path) else value for name, value in vars(args).items()}
    write_json(args.json, {"arguments": arguments, **figures})


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, required=True, help="folder of the data, with text/ in it")
    parser.add_argument("--folder", type=Path, default=Path("runs/multi_task"), help="where results of runs are kept")
    parser.add_argument("--json", metavar="FILE", help="where all figures are written")
    parser.add_argument("--seeds", type=int, default=5, help="number of seeds, from 1 on")
    parser.add_argument("--parallel", type=int, default=1, help="processes, of one thread each")
    names = list(dict.fromkeys([*MIXTURES, *CUT_MIXTURES]))
    parser.add_argument("--mixture", action="append", choices=names, help="these alone; default: all")
    parser.add_argument("--cut", action="store_true", help="tasks of 100 : 1 in size")
    parser.add_argument("--keep-overlap", action="store_true", help="MR and SST-2 keep training sentences of SUBJ")
    parser.add_argument("--search", action="store_true", help="validation accuracies of the grid, one seed")
    parser.add_argument("--quick", action="store_true", help="a tiny model and few steps, for a test")
    args = parser.parse_args(argv)
    unknown = [name for name in args.mixture or () if name not in (CUT_MIXTURES if args.cut else MIXTURES)]
    if unknown:
        parser.error(f"--mixture: {unknown} are run {'without' if args.cut else 'with'} --cut.")
    return args
