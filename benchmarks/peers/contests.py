"""The contests: whose turn it is, with what options, and what rows of the table come of it."""

import argparse
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common import rotated
from benchmarks.peers.contestants import GRAMIAN, MIXING, Contestant, run_apart
from benchmarks.peers.tables import OURS, Row, compared, gramian_result, mixing_result

Runs = dict[str, list[dict[str, Any]] | None]  # by contestant, round by round; None if it is not installed

_ROWS = (4_000, 2_400, 1_600)  # of each domain: as its share, so that none runs out
_VALIDATION_ROWS, _LENGTH = 200, 64
_CASES = ("mlp", "llama", "llama, tied")


def take_part(
    contestants: Sequence[Contestant], rounds: int, options: Callable[[int], Mapping[str, Any]], only: str | None
) -> Runs:
    """Has all contestants do their work, in fresh processes and in turns.

    Args:
        contestants: Who.
        rounds: How often.
        options: Gives the options of a round.
        only: Name of the only one beside ours that takes part; `None` for all.

    Returns:
        The figures of each.
    """
    chosen = {own.name: own for own in contestants if only in (None, own.name) or own.name == OURS}
    present = {name: own for name, own in chosen.items() if own.version is not None}
    runs: Runs = {name: [] if name in present else None for name in chosen}
    for number in range(rounds):
        for name in rotated(list(present), number):
            own = runs[name]
            assert own is not None
            own.append(run_apart(present[name], dict(options(number))))
            print(f"  {name}, round {number + 1}: {own[-1].get('seconds', own[-1].get('error'))}", flush=True)
    return runs


def _rows(work: str, contestants: Sequence[Contestant], runs: Runs, result: Callable[[Any], str]) -> list[Row]:
    """Gives the rows of the main table: a peer each."""
    versions = {own.name: f" ({own.package} {own.version or '?'})" for own in contestants}
    ours, rest = runs[OURS], {name: own for name, own in runs.items() if name != OURS}
    assert ours is not None, "this toolkit is always there"
    return [compared(work, name + versions[name], ours, own, (result(ours), result(own))) for name, own in rest.items()]


def mixing(args: argparse.Namespace) -> tuple[Any, list[Row]]:
    """Trains on a mixture with each.

    Args:
        args: The command line.

    Returns:
        The figures, and rows of the main table.
    """
    from benchmarks.peers.work import write_rows

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.npz"
        write_rows(path, [count // args.divisor for count in _ROWS], _VALIDATION_ROWS // args.divisor, _LENGTH)
        shape = {"hidden": 64, "layers": 2, "length": _LENGTH, "batch_size": 16, "steps": args.steps}
        common = {"data": str(path), **shape, "threads": args.threads}
        runs = take_part(MIXING, args.rounds, lambda number: {**common, "seed": number}, args.only)
    return runs, _rows("train on a mixture", MIXING, runs, mixing_result)


def gramian(args: argparse.Namespace) -> tuple[Any, list[Row]]:
    """Measures gradient Gramians with each.

    Args:
        args: The command line.

    Returns:
        The figures by case, and rows of the main table.
    """
    found: dict[str, Runs] = {}
    for case in _CASES:
        options = {"case": case, "steps": args.gramian_steps, "threads": args.threads}
        of_seed = lambda number, own=options: {**own, "seed": number}  # noqa: E731
        found[case] = take_part(GRAMIAN, args.seeds, of_seed, args.only)
    return found, [
        row
        for case, runs in found.items()
        for row in _rows(f"Gramian of streams, {case}", GRAMIAN, runs, gramian_result)
    ]
