"""The contests: whose turn it is, with what options, and what rows of the table come of it."""

import argparse
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common import rotated
from benchmarks.peers.contestants import CONTINUAL, GRAMIAN, MIXING, Contestant, run_apart
from benchmarks.peers.tables import (
    OURS,
    Row,
    compared,
    continual_result,
    gramian_result,
    lacks_of,
    mixing_result,
)

Runs = dict[str, list[dict[str, Any]] | None]  # by contestant, round by round; None if it is not installed
Figures = dict[str, Any]

_ROWS = (4_000, 2_400, 1_600)  # of each domain: as its share, so that none runs out
_VALIDATION_ROWS, _LENGTH = 200, 64
_TIED = "llama, tied"
_CASES = ("mlp", "llama", _TIED)
# Not tried here; said by a maintainer.
_AVALANCHE_LACKS = "accelerate, DeepSpeed, fp16, gradient accumulation (not tried: ContinualAI/avalanche#1477)"


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
            own.append(run_apart(present[name], present[name].work, dict(options(number))))
            print(f"  {name}, round {number + 1}: {own[-1].get('seconds', own[-1].get('error'))}", flush=True)
    return runs


def titles(contestants: Sequence[Contestant]) -> dict[str, str]:
    """Names the contestants with their versions.

    Args:
        contestants: Who.

    Returns:
        By name.
    """
    return {
        own.name: own.name if own.package is None else f"{own.name} ({own.package} {own.version or '?'})"
        for own in contestants
    }


def mixing(args: argparse.Namespace) -> Figures:
    """Trains on a mixture with each, and tries what each can do.

    Args:
        args: The command line.

    Returns:
        `runs` and `trials`.
    """
    from benchmarks.peers.work import write_rows

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.npz"
        write_rows(path, [count // args.divisor for count in _ROWS], _VALIDATION_ROWS // args.divisor, _LENGTH)
        shape = {"hidden": 64, "layers": 2, "length": _LENGTH, "batch_size": 16, "steps": args.steps}
        common = {"data": str(path), **shape, "threads": args.threads}
        runs = take_part(MIXING, args.rounds, lambda number: {**common, "seed": number}, args.only)
        trials: dict[str, Any] = {}
        for own in MIXING if not args.without_trials else ():
            if own.name in runs:
                is_active = runs[own.name] is not None
                trials[own.name] = run_apart(own, str(own.trials), common) if is_active else None
                print(f"  {own.name}: trials done", flush=True)
    return {"runs": runs, "trials": trials}


def mixing_rows(figures: Figures) -> list[Row]:
    """Gives the rows of the main table.

    Args:
        figures: What `mixing` gave.

    Returns:
        The cells.
    """
    runs, named = figures["runs"], titles(MIXING)
    work = "train on a mixture"
    return [
        compared(
            work,
            named[name],
            runs[OURS],
            own,
            (mixing_result(runs[OURS]), mixing_result(own)),
            lacks_of(figures["trials"].get(name)),
        )
        for name, own in runs.items()
        if name != OURS
    ]


def continual(args: argparse.Namespace) -> Figures:
    """Learns tasks one after the other with each.

    Args:
        args: The command line.

    Returns:
        `runs` by protocol; or `missing`, what is missing for it.
    """
    if args.data_dir is None or not (args.data_dir / "mnist.npz").is_file():
        return {"missing": "not run: it needs --data-dir with mnist.npz"}
    found = {}
    for protocol in args.protocols:
        options = {"protocol": protocol, "data_dir": str(args.data_dir.resolve()), "threads": args.threads}
        sizes = {"tasks": args.tasks, "samples_per_task": args.samples_per_task}
        found[protocol] = take_part(
            CONTINUAL, args.seeds, lambda number, own={**options, **sizes}: {**own, "seed": number + 1}, args.only
        )
    return {"runs": found}


def continual_rows(figures: Figures) -> list[Row]:
    """Gives the rows of the main table.

    Args:
        figures: What `continual` gave.

    Returns:
        The cells.
    """
    named = titles(CONTINUAL)
    if "missing" in figures:
        return [["replay on MNIST", title, figures["missing"], *[""] * 6] for title in list(named.values())[1:]]
    return [
        compared(
            f"replay, {protocol} MNIST",
            named[name],
            runs[OURS],
            own,
            (continual_result(runs[OURS]), continual_result(own)),
            _AVALANCHE_LACKS,
        )
        for protocol, runs in figures["runs"].items()
        for name, own in runs.items()
        if name != OURS
    ]


def gramian(args: argparse.Namespace) -> Figures:
    """Measures gradient Gramians with each.

    Args:
        args: The command line.

    Returns:
        `runs` by case.
    """
    found = {}
    for case in _CASES:
        options = {"case": case, "steps": args.gramian_steps, "threads": args.threads}
        found[case] = take_part(GRAMIAN, args.seeds, lambda number, own=options: {**own, "seed": number}, args.only)
    return {"runs": found}


def gramian_rows(figures: Figures) -> list[Row]:
    """Gives the rows of the main table.

    Args:
        figures: What `gramian` gave.

    Returns:
        The cells.
    """
    named = titles(GRAMIAN)
    return [
        compared(
            f"Gramian of streams, {case}",
            named[name],
            runs[OURS],
            own,
            (gramian_result(runs[OURS]), gramian_result(own)),
            "weights that modules share: their cross terms are left out" if case == _TIED else "",
        )
        for case, runs in figures["runs"].items()
        for name, own in runs.items()
        if name != OURS
    ]
