"""Does adaptive mixing pay? Every policy against plain and fixed mixtures, on four mixtures, with equal budgets.

`python -m benchmarks quality --data-dir DIR --parallel 2 [--mixture NAME ...] [--policy NAME ...]` runs what
was not run before, each as a process's work with one thread, and prints Markdown. `--list` says how each policy is set,
`--report` prints what there is. `--mixture demo` compares PiKE in its forms on the run of `recipes/demo.yaml`.

What the mixtures are is said in `benchmarks.quality.mixtures`, the rule for the policies' settings in
`benchmarks.quality.policies`. All have the same steps of the same number of samples, drawn with exact counts, the same
seeds of weights and order, and the same optimizer. Losses are those of the end on the test part; the grid of fixed
mixtures is run on the first seed, its best three by validation losses on all, and so is the mixture that `mixer fit`
makes of the grid; the weights that the proxy run of DoReMi had on average are trained on as well.

Time is processor time, so that other work on the machine matters less, with the evaluations that a policy follows, and
with the runs that it takes before: that of a reference model, which is uniform mixing's with the same seed, that of a
proxy, or the whole grid.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.common import show, write_json
from benchmarks.quality.cache import PROTOCOL
from benchmarks.quality.details import show_details
from benchmarks.quality.followers import followers
from benchmarks.quality.listing import describe, names_among, why_not
from benchmarks.quality.mixtures import MIXTURES, Mixture
from benchmarks.quality.optimum import Optimum, best_changing, best_fixed
from benchmarks.quality.plan import ALL_OF_GRID, collect, planned, run_all
from benchmarks.quality.policies import PIKES, UNIFORM, competitors
from benchmarks.quality.report import spread_over_noise, summarise
from benchmarks.quality.synthetic import STREAMS, new_problem
from benchmarks.quality.tables import markdown, optimum_in_words, summary

_BY_DEFAULT = [name for name in MIXTURES if Mixture(name).entries is None]


def optima(mixture: Mixture, folder: Path) -> tuple[Optimum, Optimum]:
    """Computes the best fixed and the best changing weights of the synthetic mixture, once.

    Args:
        mixture: The mixture.
        folder: Where they are kept.

    Returns:
        Both.
    """
    path = folder / "synthetic-optimum.json"
    key = json.loads(json.dumps({"protocol": PROTOCOL, **mixture.content}))
    kept = json.loads(path.read_text()) if path.is_file() else {}
    if kept.get("key") != key:
        steps = (new_problem(), mixture.num_steps, mixture.batch, mixture.content["training"]["learning_rate"])
        fixed = best_fixed(*steps)
        kept = {"key": key, "fixed": asdict(fixed), "changing": asdict(best_changing(*steps, fixed))}
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(kept, indent=2) + "\n")
    return Optimum(**kept["fixed"]), Optimum(**kept["changing"])


def report(mixture: Mixture, folder: Path, with_details: bool = False) -> dict[str, Any]:
    """Prints a mixture's table of the results that there are.

    Args:
        mixture: The mixture.
        folder: Where results are kept.
        with_details: Whether with weights over the run and how gradients conflict.

    Returns:
        All figures; empty without results of uniform mixing.
    """
    results = collect(mixture, folder)
    if UNIFORM not in results:
        print(f"### {mixture.name}\n\nThere are no results of {UNIFORM} yet.\n")
        return {}
    figures, spread = summarise(results), spread_over_noise(results)
    print(markdown(mixture.name, figures, spread))
    if with_details:
        show_details(results)
    found = {"recipe": mixture.content, "policies": figures, "spread": spread, "runs": results}
    if mixture.name == "synthetic":
        fixed, changing = optima(mixture, folder)
        print(optimum_in_words(fixed, changing, STREAMS))
        found |= {"best_fixed": asdict(fixed), "best_changing": asdict(changing)}
    print()
    return found


def _left_out(mixture: Mixture, names: Sequence[str]) -> dict[str, str]:
    entries = mixture.competitors()
    reasons = {name: why_not(entry, mixture.num_steps) for name, entry in entries.items() if name in names}
    return {name: reason for name, reason in reasons.items() if reason is not None}


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, help="folder of the data, for classification and texts")
    parser.add_argument("--folder", type=Path, default=Path("runs/mixing_quality"), help="where results are kept")
    parser.add_argument(
        "--mixture", nargs="+", default=[], metavar="NAME", help=f"of {', '.join(MIXTURES)}; default: all but demo"
    )
    parser.add_argument(
        "--policy", nargs="+", default=[], metavar="NAME", help="competitors, or grid; default: all; see --list"
    )
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds, from 1 on")
    parser.add_argument("--parallel", type=int, default=2, help="processes, of one thread each")
    parser.add_argument("--quick", action="store_true", help="tiny models and few steps, for a test")
    parser.add_argument("--list", action="store_true", help="say how each policy is set, and which are not there")
    parser.add_argument("--report", action="store_true", help="print what was run, and run nothing")
    parser.add_argument("--details", action="store_true", help="print weights over the run, and how gradients conflict")
    parser.add_argument("--json", metavar="FILE", help="where all figures are written")
    args = parser.parse_args(argv)
    if args.seeds < 1 or args.parallel < 1:
        parser.error(f"--seeds and --parallel must be 1 or more, got {args.seeds} and {args.parallel}.")
    try:
        args.mixture = names_among(args.mixture, [*MIXTURES]) if args.mixture else _BY_DEFAULT
        args.policy = names_among(args.policy, [*competitors(), *PIKES, ALL_OF_GRID])
    except ValueError as error:
        parser.error(str(error))
    needy = [name for name in args.mixture if Mixture(name).reads_folder]
    if needy and args.data_dir is None and not (args.list or args.report):
        parser.error(f"{needy} are made of files: give their folder by --data-dir, or others by --mixture.")
    return args


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the benchmark, prints the tables and writes the figures.

    Args:
        argv: Command line; `None` takes the process's own.

    Raises:
        SystemExit: If a run failed; the others are reported all the same.
    """
    args = _arguments(argv)
    mixtures = [Mixture(name, args.quick) for name in args.mixture]
    if args.list:
        for own in mixtures:
            columns = ["policy", "class", "settings", "to be known"]
            show(f"{own.name}, {own.num_steps} steps", columns, describe(own.num_steps, own.entries))
        return
    failed: list[str] = []
    if not args.report:
        seeds = range(1, args.seeds + 1)
        for own in mixtures:
            reasons = _left_out(own, args.policy)
            failed += [f"{own.name}, {policy}: {reason}" for policy, reason in reasons.items()]
            wanted = [policy for policy in args.policy if policy not in reasons]
            runs = planned(own, wanted, seeds, args.data_dir)
            failed += run_all(runs, args.folder, args.data_dir, args.parallel)
            failed += run_all(followers(runs, seeds, args.folder), args.folder, args.data_dir, args.parallel)
    found = {own.name: report(own, args.folder, args.details) for own in mixtures}
    if len(found) > 1 and all(found.values()):
        print(summary({name: figures["policies"] for name, figures in found.items()}, UNIFORM))
    arguments = {name: str(value) if isinstance(value, Path) else value for name, value in vars(args).items()}
    write_json(args.json, {"arguments": arguments, "failed": failed, "mixtures": found})
    if failed:
        raise SystemExit("\n".join(["These runs failed:", *failed]))
