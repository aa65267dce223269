"""Hostile input: `python -m benchmarks fuzz --cases 100000 --seed 0`.

Changes valid states, recipes, ledgers, buffers and names by a seeded generator, and lets them be read as a run folder
is: each case ends well or in an error that users are promised, a `ValueError`, `TypeError` or `OSError` in words. Walks
through planner, controller and replay buffer check what has to hold at each step. Ends with status 1 if any case does
not.
"""

import argparse
import logging
import signal
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from transformers.utils import logging as transformers_logging

from benchmarks.common import write_json
from benchmarks.presenting import present
from benchmarks.tools.fuzz import files
from benchmarks.tools.fuzz.errors import why_undocumented
from benchmarks.tools.fuzz.files import Case
from benchmarks.tools.fuzz.walk import random_walk

# Share of the cases, by target. A case of a ledger, a buffer or a walk takes a hundred times as long as one of a row.
_SHARES = {
    "controller state": 0.06,
    "progress of the loop": 0.38,
    "recipe": 0.03,
    "ledger": 0.08,
    "replay buffer": 0.08,
    "row of a buffer": 0.26,
    "checkpoint's marker": 0.03,
    "continual scores": 0.03,
    "names": 0.02,
    "planner, controller and buffer": 0.03,
}

_MOST_SECONDS = 10.0  # of a case; they take some thousandths


class EndlessError(Exception):
    """A case did not come to an end."""


def _stop(signal_number: int, frame: Any) -> None:
    raise EndlessError(f"a case took longer than {_MOST_SECONDS} s")


@dataclass
class Outcome:
    """What came of the cases of a target.

    Args:
        num_cases: How many there were.
        num_refused: How many ended in an error that users are promised.
        seconds: How long they took.
        broken: Others, by what went wrong, with the number of the first case.
        counts: How many others there were, by what went wrong.
    """

    num_cases: int = 0
    num_refused: int = 0
    seconds: float = 0.0
    broken: dict[str, int] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)

    @property
    def num_broken(self) -> int:
        """How many broke a promise."""
        return sum(self.counts.values())

    @property
    def num_accepted(self) -> int:
        """How many were read without an error: what was changed is valid too, or was not looked at."""
        return self.num_cases - self.num_refused - self.num_broken


def targets(folder: Path) -> dict[str, Case]:
    """Gives the targets.

    Args:
        folder: An empty folder for their files.

    Returns:
        By name, what takes a seeded generator and reads something.
    """
    return {
        "controller state": files.controllers(),
        "progress of the loop": files.progresses(),
        "recipe": files.recipes(folder),
        "ledger": files.ledgers(folder / "ledger"),
        "replay buffer": files.buffers(folder / "buffers"),
        "row of a buffer": files.rows(),
        "checkpoint's marker": files.markers(folder / "markers"),
        "continual scores": files.scores(folder),
        "names": files.names(),
        "planner, controller and buffer": random_walk,
    }


def run_cases(name: str, case: Case, numbers: range, seed: int) -> Outcome:
    """Runs cases of a target.

    Args:
        name: The target.
        case: The target's case.
        numbers: Numbers of the cases.
        seed: Seed of the whole.

    Returns:
        What came of them.
    """
    outcome, began = Outcome(len(numbers)), time.perf_counter()
    signal.signal(signal.SIGALRM, _stop)
    for number in numbers:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                signal.setitimer(signal.ITIMER_REAL, _MOST_SECONDS)
                case(Random(f"{seed}/{name}/{number}"))
        except Exception as error:
            reason = why_undocumented(error)
            if reason is None:
                outcome.num_refused += 1
                continue
            place = traceback.extract_tb(error.__traceback__)[-1]
            key = f"{reason[:160]} ({Path(place.filename).name}:{place.lineno})"
            outcome.broken.setdefault(key, number)
            outcome.counts[key] += 1
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
    outcome.seconds = time.perf_counter() - began
    return outcome


def run(num_cases: int, seed: int, only: str | None = None) -> dict[str, Outcome]:
    """Runs the targets.

    Args:
        num_cases: Number of cases, shared out over them.
        seed: Seed of the whole.
        only: Name of one target that gets all cases; `None` for all.

    Returns:
        What came of each.
    """
    with tempfile.TemporaryDirectory() as folder:
        made = targets(Path(folder))
        chosen = _SHARES if only is None else {only: 1.0}
        return {name: run_cases(name, made[name], range(round(num_cases * chosen[name])), seed) for name in chosen}


def rows_of(outcomes: Mapping[str, Outcome]) -> list[list[str]]:
    """Sums outcomes up.

    Args:
        outcomes: By target.

    Returns:
        Per target, and of all together: the cells of a table.
    """
    names = ("num_cases", "num_refused", "num_accepted", "num_broken")
    counts = {name: [getattr(one, number) for number in names] for name, one in outcomes.items()}
    each = {name: f"{1e3 * one.seconds / max(1, one.num_cases):.2f}" for name, one in outcomes.items()}
    counts["all"] = [sum(column) for column in zip(*counts.values(), strict=True)]
    return [[name, *(f"{count:,}" for count in own), each.get(name, "")] for name, own in counts.items()]


_COLUMNS = ["target", "cases", "refused", "accepted", "broken", "ms a case"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmark.

    Args:
        arguments: Of the command line; `None` takes those of the process.

    Returns:
        0, or 1 if an error came that is not promised.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=100_000, help="Number of cases in all.")
    parser.add_argument("--seed", type=int, default=0, help="The same seed gives the same cases.")
    parser.add_argument("--target", choices=list(_SHARES), default=None, help="One target alone.")
    parser.add_argument("--output", default=None, help="JSON file of the figures.")
    parser.add_argument("--markdown", action="store_true", help="Print the table in Markdown.")
    asked = parser.parse_args(arguments)
    transformers_logging.set_verbosity(logging.CRITICAL)
    outcomes = run(asked.cases, asked.seed, asked.target)
    seconds, broken = sum(one.seconds for one in outcomes.values()), sum(one.num_broken for one in outcomes.values())
    title = f"Changed input, seed {asked.seed}, {seconds:.0f} s"
    present(title, _COLUMNS, rows_of(outcomes), asked.markdown)
    for name, one in outcomes.items():
        for key, number in one.broken.items():
            print(f"{name}, case {number} ({one.counts[key]} times): {key}")
    figures: dict[str, Any] = {name: {**vars(one), "counts": dict(one.counts)} for name, one in outcomes.items()}
    write_json(asked.output, {"cases": asked.cases, "seed": asked.seed, "seconds": seconds, "targets": figures})
    return 1 if broken else 0
