"""The cost of every part as a function of streams, batch, ranks, steps and data, at sizes that few runs have.

Run `python -m benchmarks scale`. Each term is measured at two sizes or more; its exponent is the slope between
the two largest, and where 10,000 streams, 4,096 ranks, 1e6 steps or 1e13 samples are not among the sizes, the cost
there goes on with it. Seconds are of a CPU, so that other work on the machine counts little.
"""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from benchmarks.common import write_json
from benchmarks.presenting import present
from benchmarks.scale import planning, records
from benchmarks.scale.limits import checks
from benchmarks.scale.term import TARGETS, Term, in_words

_PARTS: dict[str, Callable[[], list[Term]]] = {
    "planning": planning.terms,
    "records": records.terms,
}
_EXACT = "exact"


def show_terms(name: str, terms: Sequence[Term], as_markdown: bool) -> None:
    """Prints terms.

    Args:
        name: What they are of.
        terms: The terms.
        as_markdown: Whether in Markdown.
    """
    rows = []
    for term in terms:
        sizes = ", ".join(_size(size) for size in term.sizes)
        values = ", ".join(in_words(value, term.unit) for value in term.values)
        mark = "" if term.is_measured else "≈ "
        target = f"{mark}{in_words(term.at_target, term.unit)}"
        part = f"{term.part} ({term.at})" if term.at else term.part
        rows.append([part, f"{term.variable}: {sizes}", values, f"{term.exponent:.2f}", target])
    targets = ", ".join(f"{_size(TARGETS[variable])} {variable}" for variable in {term.variable: 0 for term in terms})
    present(f"{name.capitalize()}, and what it is at {targets}", _COLUMNS, rows, as_markdown)


_COLUMNS = ["part", "sizes", "cost", "exponent", "there"]


def _size(size: float) -> str:
    return f"{size:,.0f}" if size < 1e7 else f"{size:.0e}".replace("e+", "e")


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", metavar="FILE", help="where all figures are written")
    parser.add_argument("--markdown", action="store_true", help="print the tables in Markdown")
    parser.add_argument("--parts", nargs="+", choices=[_EXACT, *_PARTS], default=[_EXACT, *_PARTS])
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    """Measures, prints the tables and writes the figures; fails if something is not exact.

    Args:
        argv: Command line; `None` takes the process's own.
    """
    args = _arguments(argv)
    exact = checks() if _EXACT in args.parts else []
    if exact:
        rows = [[check.what, check.found, "yes" if check.holds else "NO"] for check in exact]
        title = "Exact at 10,000 streams, 4,096 ranks and 1e13 samples"
        present(title, ["what", "found", "holds"], rows, args.markdown)
    found: dict[str, list[Term]] = {}
    for name in (name for name in _PARTS if name in args.parts):
        started = time.perf_counter()
        found[name] = _PARTS[name]()
        print(f"{name}: {time.perf_counter() - started:.0f} s", file=sys.stderr, flush=True)
        show_terms(name, found[name], args.markdown)
    figures: dict[str, Any] = {
        name: [{**asdict(term), "exponent": term.exponent, "at_target": term.at_target} for term in terms]
        for name, terms in found.items()
    }
    write_json(args.json, {"terms": figures, "exact": [asdict(check) for check in exact]})
    if not all(check.holds for check in exact):
        sys.exit(1)
