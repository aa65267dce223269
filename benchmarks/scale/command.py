"""The cost of every part as a function of streams, batch, ranks, steps and data, at sizes that few runs have.

Run `python -m benchmarks scale`. Each term is measured at two sizes or more; its exponent is the slope between
the two largest, and where 10,000 streams, 4,096 ranks, 1e6 steps or 1e13 samples are not among the sizes, the cost
there goes on with it. Seconds are of a CPU, so that other work on the machine counts little. What cannot be timed
without a network, the collectives, is counted in bytes.
"""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from benchmarks.common import write_json
from benchmarks.presenting import present
from benchmarks.scale import planning, policies, ranks, records
from benchmarks.scale.limits import checks
from benchmarks.scale.term import RANKS, STEPS, STREAMS, TARGETS, Term, in_words

_PARTS: dict[str, Callable[[], list[Term]]] = {
    "planning": planning.terms,
    "records": records.terms,
    "policies": policies.terms,
    "ranks": ranks.terms,
}
_EXACT = "exact"
_IF_KEPT = "were streams' entries not left out beyond 256"
_GRAM_BYTES = 8
_PROBE_COPIES = 2  # the Gram matrix and how far off it may be


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


def large(found: dict[str, list[Term]]) -> list[list[str]]:
    """Puts together what is largest in a run of the targeted size.

    Args:
        found: Terms by part.

    Returns:
        Rows of a table: what, how much, of what.
    """
    at = {(term.part, term.variable, term.unit): term.at_target for terms in found.values() for term in terms}
    streams, ranks, steps = (TARGETS[name] for name in (STREAMS, RANKS, STEPS))
    rows = []
    entry = at.get(("log entry of all streams", STREAMS, "bytes"))
    if entry is not None:
        last, written = records.history_bytes(entry, steps)
        rows.append(["trainer_state.json of the last checkpoint", last, f"an entry every 10 steps, {_IF_KEPT}"])
        rows.append(["trainer_state.json of all checkpoints together", written, f"one every 1,000 steps, {_IF_KEPT}"])
    row = at.get(("ledger, a step", STREAMS, "bytes"))
    if row is not None:
        rows.append(["ledger", row * steps, "a row a stream for 100 steps"])
    gram = _PROBE_COPIES * _GRAM_BYTES * streams**2
    rows.append(["a measurement of gradients, on each rank and in the ledger", gram, "K x K products and their errors"])
    state = at.get(("RegularizedBalance, state", STREAMS, "bytes"))
    if state is not None:
        rows.append(["state of a policy that remembers K x K products, in a checkpoint", state, "JSON"])
    state = at.get(("state in a checkpoint", STREAMS, "bytes"))
    if state is not None:
        rows.append(
            ["texts of the run from all ranks on each, before ranks compared hashes", state * ranks, "at start"]
        )
    return [[what, in_words(size, "bytes"), note] for what, size, note in sorted(rows, key=lambda one: -one[1])]


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
    present("Largest at 10,000 streams, 4,096 ranks, 1e6 steps", ["what", "bytes", "with"], large(found), args.markdown)
    figures: dict[str, Any] = {
        name: [{**asdict(term), "exponent": term.exponent, "at_target": term.at_target} for term in terms]
        for name, terms in found.items()
    }
    write_json(args.json, {"terms": figures, "exact": [asdict(check) for check in exact]})
    if not all(check.holds for check in exact):
        sys.exit(1)
