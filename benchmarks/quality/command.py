"""Does adaptive mixing pay? Every policy against uniform mixing and the best of a grid of fixed mixtures.

`python -m benchmarks quality --data-dir DIR [--scenario NAME ...] [--policy NAME ...]` runs what was not run before, in
two processes of one thread, and prints Markdown. `--report` prints what there is. Results that were put into the
repository, by `--keep`, are not run again.

Scenarios are recipes (`benchmarks.quality.scenarios`); without a folder of data only those of built-in text are run.
One rule sets the policies (`benchmarks.quality.policies`). Runs of a scenario have as many samples, the same optimizer
and the same seeds. They are judged by the declared objective on test data, which nothing else reads.

The grid is run on two seeds of its own; its best three by validation data are run on the seeds of the policies, and the
best of these by validation data is the best fixed mixture. Share of headroom captured = (uniform - policy) / (uniform -
best fixed mixture), by seed. Samples to uniform's result: after what share of its samples a run is where uniform mixing
ends. Time is processor time over that of uniform mixing in the same session, with the evaluations that a policy follows
and the run of a reference model.

The larger model, a Llama of a million parameters, has few competitors, three seeds, and the four scenarios with most
headroom on the small one. `--model gpu` trains one of seven million on a GPU, on all scenarios of blocks. `smollm2` and
`minilm` have real weights and scenarios of their own.
"""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

from benchmarks.common import write_json
from benchmarks.quality.cache import keep
from benchmarks.quality.family import DRAWN, Purpose, kind_of, names as drawn_names
from benchmarks.quality.plan import ALL_OF_GRID, FIRST_SEED, clocks, collect, followers, planned, run_all
from benchmarks.quality.policies import UNIFORM, competitors
from benchmarks.quality.report import summarise
from benchmarks.quality.scenarios import HEADROOM, NONE, SCENARIOS, WITH_OWN, Scenario, Size, names_of
from benchmarks.quality.short_runs import ask_all, beside_grid, keep_verdicts, verdicts
from benchmarks.quality.tables import by_kind, headroom, report

_NUM_LARGE, _SEEDS_OF_LARGE = 4, 3
_TITLES: dict[Size, str] = {
    "small": "Small models",
    "llama": "A Llama of a million parameters",
    "gpu": "A Llama of seven million parameters, on a GPU",
    "smollm2": "SmolLM2 of 135 million parameters",
    "minilm": "MiniLM of 23 million parameters",
}
_QUICK = ("small_target", "bound")
_PURPOSES = get_args(Purpose)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, help="folder of the data, for scenarios that read files")
    parser.add_argument(
        "--folder", type=Path, default=Path("runs/mixing_quality"), help="working folder of new results"
    )
    known = f"of {', '.join(SCENARIOS)}; default: the first 13, and all of a model's own"
    parser.add_argument("--scenario", nargs="+", metavar="NAME", help=known)
    parser.add_argument(
        "--drawn", choices=_PURPOSES, help="scenarios of the family instead; see benchmarks.quality.family"
    )
    parser.add_argument("--policy", nargs="+", metavar="NAME", help="competitors, or grid; default: all")
    parser.add_argument("--model", nargs="+", choices=[*_TITLES], help="default: small and llama; small with --quick")
    parser.add_argument("--seeds", type=int, default=5, help="number of seeds, of the llama three at most")
    parser.add_argument("--parallel", type=int, default=2, help="processes, of one thread each")
    parser.add_argument("--quick", action="store_true", help="few steps of few mixtures, for a test")
    parser.add_argument("--headroom", action="store_true", help="run `mixer headroom` on the scenarios, no competitors")
    parser.add_argument("--report", action="store_true", help="print what was run, and run nothing")
    parser.add_argument("--keep", action="store_true", help="put the results that count into the repository")
    parser.add_argument("--json", metavar="FILE", help="where all figures are written")
    return parser


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = _parser()
    args = parser.parse_args(argv)
    if args.seeds < 1 or args.parallel < 1:
        parser.error(f"--seeds and --parallel must be 1 or more, got {args.seeds} and {args.parallel}.")
    if args.keep and args.quick:
        parser.error("--keep is for whole runs, --quick makes short ones: give one of them.")
    args.model = args.model or (["small"] if args.quick else ["small", "llama"])
    if args.headroom and {*args.model} & {*WITH_OWN}:
        parser.error(f"--headroom is for models without scenarios of their own: leave {', '.join(WITH_OWN)} out.")
    drawn = [name for purpose in _PURPOSES for name in drawn_names(purpose)]
    scenarios = dict.fromkeys(name for size in args.model for name in [*names_of(size), *drawn])
    policies = dict.fromkeys(name for size in args.model for name in [*competitors(size), ALL_OF_GRID])
    there = {"scenario": [*scenarios], "policy": [*policies]}
    for option, known in there.items():
        unknown = [name for name in getattr(args, option) or () if name not in known]
        if unknown:
            parser.error(f"--{option}: there are no {unknown} among {known}.")
    args.policy = args.policy or there["policy"]
    needy = [name for size in args.model for name in _names(size, args) if Scenario(name, size).reads_folder]
    if needy and args.data_dir is None and not args.report:
        parser.error(f"{needy} are made of files: give their folder by --data-dir.")
    return args


def _seeds(count: int) -> range:
    return range(FIRST_SEED, FIRST_SEED + count)


def _names(size: Size, args: argparse.Namespace) -> list[str]:
    """The scenarios of a model that were asked for, the Llama's before their number is cut."""
    if size in WITH_OWN:
        there = names_of(size)
        by_default = there[:1] if args.quick else there
        return [name for name in args.scenario if name in there] if args.scenario else by_default
    names = drawn_names(args.drawn) if args.drawn else args.scenario or _by_default(args)
    return [name for name in names if name in SCENARIOS or name.startswith(DRAWN)]


def _by_default(args: argparse.Namespace) -> list[str]:
    names = _QUICK if args.quick else [name for name, purpose in SCENARIOS.items() if purpose in (HEADROOM, NONE)]
    has_files = args.data_dir is not None or args.report
    return [name for name in names if has_files or not Scenario(name).reads_folder]


def _run(scenarios: Sequence[Scenario], args: argparse.Namespace, num_seeds: int) -> list[str]:
    """Runs what is missing; says what failed."""
    session, seeds = time.strftime("%Y-%m-%d %H:%M:%S"), _seeds(num_seeds)
    runs = [run for own in scenarios for run in planned(own, args.policy, seeds, args.data_dir)]
    options = (args.folder, args.data_dir, args.parallel, session)
    failed = run_all([*clocks(runs, args.folder, session), *runs], *options)
    if ALL_OF_GRID in args.policy:
        failed += run_all([run for own in scenarios for run in followers(own, seeds, args.folder)], *options)
    return failed


def _of_size(size: Size, small: dict[str, Any], args: argparse.Namespace) -> list[Scenario]:
    """The scenarios of a model; of the Llama those with most headroom on the small one, if there are many."""
    names = _names(size, args)
    if size in ("llama", "gpu"):
        names = [name for name in names if Scenario(name).can_be_larger]
    if size == "llama" and len(names) > _NUM_LARGE:
        known = [name for name in names if name in small and headroom(small[name]) > 0.0]
        names = sorted(known, key=lambda name: -headroom(small[name]))[:_NUM_LARGE]
    return [Scenario(name, size, args.quick) for name in names]


def _summaries(scenarios: Sequence[Scenario], folder: Path, num_seeds: int) -> dict[str, Any]:
    results = {own.name: (own, collect(own, folder)) for own in scenarios}
    return {
        name: summarise(found, own.objective, _seeds(num_seeds))
        for name, (own, found) in results.items()
        if set(_seeds(num_seeds)) & found.get(UNIFORM, {}).keys()
    }


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the benchmark, prints the tables and writes the figures.

    Args:
        argv: Command line; `None` takes the process's own.

    Raises:
        SystemExit: If a run failed; the others are reported all the same.
    """
    args = _arguments(argv)
    failed, chosen, found = list[str](), list[Scenario](), dict[str, Any]()
    # The small models' headroom chooses scenarios of the Llama.
    sizes: list[Size] = args.model if {*args.model} <= {*WITH_OWN} else ["small", *args.model]
    for size in dict.fromkeys(sizes):
        scenarios = _of_size(size, found.get("small", {}), args)
        num_seeds = args.seeds if size == "small" else min(args.seeds, _SEEDS_OF_LARGE)
        runs_any = size in args.model and not args.report and not args.headroom
        failed += _run(scenarios, args, num_seeds) if runs_any else []
        found[size] = _summaries(scenarios, args.folder, num_seeds)
        chosen += scenarios
    if args.headroom and not args.report:
        failed += ask_all(chosen, args.folder, args.data_dir, args.parallel)
    if args.keep:
        keep_verdicts(args.folder)
    for own in chosen if args.keep else ():
        if there := [run for runs in collect(own, args.folder).values() for run in runs.values()]:
            keep(own, there)
    for size in args.model:
        if found[size]:
            print(report(_TITLES[size], found[size]))
            kinds = {name: kind_of(Scenario(name).content) for name in found[size] if name.startswith(DRAWN)}
            print(by_kind(found[size], kinds))
    print(beside_grid(verdicts(args.folder), found.get("small", {})))
    arguments = {name: str(value) if isinstance(value, Path) else value for name, value in vars(args).items()}
    write_json(args.json, {"arguments": arguments, "failed": failed, "sizes": found})
    if failed:
        raise SystemExit("\n".join(["These runs failed:", *failed]))
