"""Injects faults into runs of several ranks and reports what was lost; see `docs/measured/faults.md`.

Run `python -m benchmarks faults`. Each kind of fault has a promise, written down in `table.py`; the exit status is not
zero if any of them is broken, and each that is comes with the command that repeats it alone.
"""

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.common import show, write_json
from benchmarks.faults.bench import Bench
from benchmarks.faults.case import Outcome
from benchmarks.faults.kinds import Kind
from benchmarks.faults.table import KINDS

_MEMORY = Path("/dev/shm")  # noqa: S108  # a disk that answers at once


def rows_of(outcomes: Sequence[Outcome], kinds: Sequence[Kind]) -> list[list[str]]:
    """Sums outcomes up.

    Args:
        outcomes: The outcomes.
        kinds: The kinds, in order.

    Returns:
        Per kind and number of ranks: how many were injected, survived, ended equal, what was lost at most, steps
        that were done again at most, the longest time until the end, and how many promises were broken.
    """
    rows = []
    for kind in kinds:
        for num_ranks in sorted({one.num_ranks for one in outcomes if one.kind == kind.name}):
            own = [one for one in outcomes if (one.kind, one.num_ranks) == (kind.name, num_ranks) and one.was_injected]
            lost = sorted({one.lost for one in own})
            numbers = [len(own), sum(one.has_survived for one in own), sum(one.is_equal is True for one in own)]
            most_again = max((one.steps_again for one in own), default=0)
            most_seconds = max((one.seconds for one in own), default=0.0)
            num_broken = sum(bool(one.broken) for one in own)
            figures = [*map(str, numbers), "; ".join(lost), str(most_again), f"{most_seconds:.1f}", str(num_broken)]
            rows.append([kind.name, str(num_ranks), *figures])
    return rows


def _show(outcomes: Sequence[Outcome], kinds: Sequence[Kind], seconds: float) -> None:
    columns = ["fault", "ranks", "injected", "survived", "equal", "lost", "steps again", "s until the end", "broken"]
    injected = [one for one in outcomes if one.was_injected]
    num_broken = sum(bool(one.broken) for one in injected)
    title = f"{len(injected)} faults in {seconds:.0f} s, {num_broken} promises broken"
    if missed := len(outcomes) - len(injected):
        title += f"; {missed} could not be injected and are counted nowhere"
    show(title, columns, rows_of(outcomes, kinds))


def markdown_of(outcomes: Sequence[Outcome], kinds: Sequence[Kind]) -> str:
    """Writes outcomes down for a page.

    Args:
        outcomes: The outcomes.
        kinds: The kinds, in order.

    Returns:
        A table: what was injected, what is promised, and what became of it.
    """
    by_name = {kind.name: kind for kind in kinds}
    lines = [
        "| fault | what | promise | ranks | injected | survived | equal | lost | s | broken |",
        "|---|---|---|" + "---:|" * 7,
    ]
    for name, ranks, injected, survived, equal, lost, _, seconds, broken in rows_of(outcomes, kinds):
        kind = by_name[name]
        cells = (f"`{name}`", kind.what, kind.promise.value, ranks, injected, survived, equal, lost, seconds, broken)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _how_to_repeat(outcome: Outcome, seed: int) -> str:
    ranks = outcome.num_ranks
    return f"python -m benchmarks faults --kinds {outcome.kind} --ranks {ranks} --only {outcome.number} --seed {seed}"


def _arguments(argv: Sequence[str] | None, kinds: Sequence[Kind]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    names = [kind.name for kind in kinds]
    parser.add_argument("--json", metavar="FILE", help="where all figures are written")
    parser.add_argument("--markdown", metavar="FILE", help="where the table is written for a page")
    parser.add_argument("--quick", action="store_true", help="one fault of each kind, on two ranks")
    parser.add_argument("--kinds", nargs="+", choices=names, default=names, metavar="KIND", help=", ".join(names))
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--only", type=int, metavar="NUMBER", help="the one of its kind that is injected alone")
    parser.add_argument("--seed", type=int, default=0, help="of all that is drawn")
    parser.add_argument("--jobs", type=int, default=2, help="faults that are injected at a time")
    parser.add_argument("--folder", type=Path, help="a new folder for the runs; those that failed stay there")
    args = parser.parse_args(argv)
    if args.folder is not None and args.folder.is_dir() and any(args.folder.iterdir()):
        parser.error(f"{args.folder} is not empty: the runs in it would be taken for those of this code")
    if args.quick:
        args.ranks = [2]
    return args


def _numbers(kind: Kind, num_ranks: int, args: argparse.Namespace) -> list[int]:
    if args.only is not None:
        return [args.only]
    return list(range(1 if args.quick else kind.counts.get(num_ranks, 0)))


def inject(folder: Path, args: argparse.Namespace, kinds: Sequence[Kind]) -> list[Outcome]:
    """Injects all faults that were asked for.

    Args:
        folder: Where the runs are kept.
        args: The command line.
        kinds: The kinds.

    Returns:
        What became of them.
    """
    benches = {num_ranks: Bench(folder, num_ranks, args.seed) for num_ranks in args.ranks}
    cases = [
        (benches[num_ranks], kind, number)
        for kind in kinds
        for num_ranks in args.ranks
        for number in _numbers(kind, num_ranks, args)
    ]
    cases.sort(key=lambda case: case[2])  # one of each kind, then the second ones: what is cut short has seen all

    def one(case: tuple[Bench, Kind, int]) -> Outcome:
        bench, kind, number = case
        outcome = bench.inject(kind, number)
        state = "; ".join(outcome.broken) or ("kept" if outcome.was_injected else "not injected")
        print(f"{kind.name} {bench.num_ranks} ranks {number}: {state}", flush=True)
        if outcome.broken:
            print(f"  repeat it: {_how_to_repeat(outcome, args.seed)}", flush=True)
        return outcome

    with ThreadPoolExecutor(args.jobs) as pool:
        ended = [pool.submit(one, case) for case in cases]
        try:
            wait(ended, return_when=FIRST_EXCEPTION)  # one means that faults cannot be injected here
        except KeyboardInterrupt:
            print("interrupted: what has begun is ended, and the rest left out", flush=True)
        pool.shutdown(cancel_futures=True)
    return [future.result() for future in ended if not future.cancelled()]


def main(argv: Sequence[str] | None = None, kinds: Sequence[Kind] = KINDS) -> None:
    """Runs the benchmark, prints the table and writes the figures; fails if a promise is broken.

    Args:
        argv: Command line; `None` takes the process's own.
        kinds: The kinds of faults.
    """
    args = _arguments(argv, kinds)
    began = time.monotonic()
    folder = args.folder or Path(tempfile.mkdtemp(prefix="faults-", dir=_MEMORY if _MEMORY.is_dir() else None))
    try:
        chosen = [kind for kind in kinds if kind.name in args.kinds]
        outcomes = inject(folder, args, chosen)
    finally:
        if args.folder is None:
            shutil.rmtree(folder, ignore_errors=True)
    seconds = time.monotonic() - began
    _show(outcomes, chosen, seconds)
    broken = [one for one in outcomes if one.broken]
    for outcome in broken:
        print(f"BROKEN {outcome.kind}: {'; '.join(outcome.broken)}\n  repeat it: {_how_to_repeat(outcome, args.seed)}")
    figures: dict[str, Any] = {"seed": args.seed, "seconds": seconds, "outcomes": [asdict(one) for one in outcomes]}
    write_json(args.json, figures)
    if args.markdown is not None:
        Path(args.markdown).write_text(markdown_of(outcomes, chosen))
    if broken:
        sys.exit(1)
