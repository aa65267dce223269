"""Mutation testing: which small changes to what decides a run no test would notice.

Run `python -m benchmarks mutation`. Every module is changed by mutmut's operators, one place at a time,
and its tests are run on each. The table says how many mutants were killed; the others are listed as they are found.
"""

import argparse
import importlib
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.tools.mutation.mutants import Mutant, mutants_of

_PLANNER = ("tests/mixer/mixture/test_planner.py", "tests/mixer/mixture/test_planner_numbers.py")
_CONTROLLER = (
    "tests/mixer/mixture/test_controller.py",
    "tests/mixer/mixture/test_controller_numbers.py",
    "tests/mixer/mixture/test_damaged_states.py",
)
_PLANNING = (*_PLANNER, *_CONTROLLER)
_CLOCK = (
    "tests/mixer/mixture/test_clock.py",
    "tests/mixer/mixture/test_data_clock.py",
    "tests/mixer/mixture/test_clock_numbers.py",
)
_METRICS = ("tests/tasks/test_metrics.py", "tests/tasks/test_score_matrix.py", "tests/tasks/test_explaining.py")
# What is mutated, and the tests that have to notice.
TESTS: dict[str, tuple[str, ...]] = {
    "mixer.mixture.apportion": ("tests/mixer/mixture/test_apportion.py", *_PLANNER),
    "mixer.mixture.permutation": ("tests/mixer/mixture/test_order.py",),
    "mixer.mixture.plan": ("tests/mixer/mixture/test_plan.py", *_PLANNING),
    "mixer.mixture.planner": _PLANNING,
    "mixer.mixture.controller": _CONTROLLER,
    "mixer.mixture.weights": _CONTROLLER,
    "mixer.mixture.batch_size": ("tests/mixer/mixture/test_batch_size.py", *_CONTROLLER),
    "mixer.mixture.clock": (*_CLOCK, *_CONTROLLER),
    "tasks.metrics.metrics": _METRICS,
    "tasks.metrics.score_matrix": _METRICS,
}
LEAST_KILLED = 0.85


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the mutants of the modules asked for, prints the table, and fails where too many survive.

    Args:
        argv: Command line; `None` takes the process's own.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--modules", nargs="+", default=list(TESTS), choices=list(TESTS), metavar="MODULE")
    parser.add_argument("--num-workers", type=int, default=os.cpu_count() or 1, help="processes at once")
    parser.add_argument("--every", type=int, default=1, help="runs each n-th mutant only")
    parser.add_argument("--most-seconds", type=float, default=0.3, help="leaves out tests that take longer")
    parser.add_argument("--again", metavar="FILE", help="runs only those that lived in this file of figures")
    parser.add_argument("--json", metavar="FILE", help="file of the figures")
    parser.add_argument("--markdown", action="store_true", help="prints the table in Markdown")
    options = parser.parse_args(argv)
    mutants = [mutant for name in options.modules for mutant in _mutants(name)[options.every // 2 :: options.every]]
    if options.again:
        lived = {tuple(one.values()) for one in json.loads(Path(options.again).read_text())["alive"]}
        mutants = [mutant for mutant in mutants if tuple(_named(mutant).values()) in lived]
    figures = run_mutants(mutants, options.num_workers, options.most_seconds)

    from benchmarks.common import write_json  # after the tests' own settings of the environment
    from benchmarks.presenting import present

    columns = ["module", "mutants", "killed", "survived", "no test", "killed of all"]
    rows = [[name, *map(str, counts), f"{share:.1%}"] for name, *counts, share in map(_row, figures["modules"].items())]
    present(f"Mutants of mutmut's operators, {figures['seconds']:.0f} s", columns, rows, options.markdown)
    write_json(options.json, figures)
    total = _row(("all", figures["modules"]["all"]))
    sys.exit(0 if total[-1] >= LEAST_KILLED else 1)


def run_mutants(mutants: Sequence[Mutant], num_workers: int, most_seconds: float) -> dict[str, Any]:
    """Runs the tests of every mutant.

    Args:
        mutants: The mutants.
        num_workers: How many mutants run at once.
        most_seconds: Tests that take more processor time than this are left out.

    Returns:
        By module, how many mutants were killed, survived or have no test; and those that live.
    """
    import pytest

    from benchmarks.tools.mutation.mutant_tests import KILLED, NO_PROGRAM, MutantTests

    start = time.monotonic()
    modules = list(dict.fromkeys(mutant.module for mutant in mutants))
    files = sorted({file for name in modules for file in TESTS[name]})
    with tempfile.TemporaryDirectory() as folder:
        tests = MutantTests(mutants, TESTS, Path(folder), num_workers, most_seconds)
        code = pytest.main(["-q", "-p", "no:cacheprovider", "-p", "no:xdist", *files], plugins=[tests])
    if code != 0:
        raise SystemExit("the tests could not be run")
    results: dict[str, Counter[str]] = {name: Counter() for name in modules}
    alive = []
    for mutant, result in zip(mutants, tests.results, strict=True):
        if result != NO_PROGRAM:
            results[mutant.module][result] += 1
        if result not in (KILLED, NO_PROGRAM):
            alive.append(_named(mutant))
    results["all"] = sum(results.values(), Counter())
    return {"modules": results, "alive": alive, "seconds": time.monotonic() - start}


def _mutants(name: str) -> list[Mutant]:
    return mutants_of(name, Path(importlib.import_module(name).__file__ or ""))


def _named(mutant: Mutant) -> dict[str, Any]:
    return {"module": mutant.module, "line": mutant.line, "change": mutant.change}


def _row(entry: tuple[str, Counter[str]]) -> tuple[Any, ...]:
    name, counts = entry
    killed, num = counts["killed"], sum(counts.values())
    return name, num, killed, counts["survived"], counts["no test"], killed / max(1, num)
