"""This toolkit beside others, on the same work: `python -m benchmarks peers`.

A mixture is trained on by ours and by the plain Trainer on `datasets.interleave_datasets`, torchdata's weighted sampler
and Grain's mix. Each run is in a fresh process of the same interpreter with the same number of threads; contestants
take turns, in another order in every round, which has a seed of its own. Ratios are taken round by round; beside the
wall time stands that of the processor, which other work on the machine changes less. Memory is the peak of the resident
set over what was there after all imports, until the training is done. What is not installed is said so; the peers'
environment is made as `benchmarks/peers/requirements.txt` says.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers.utils import logging

from benchmarks.common import hardware, new_parser, write_json
from benchmarks.peers.contest import CONTESTANTS, OURS, run_all
from benchmarks.peers.tables import COLUMNS, rows_of
from benchmarks.presenting import markdown


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the contest, prints the table and writes the figures.

    Args:
        argv: Command line; `None` takes the process's own.
    """
    args, started = _arguments(argv), time.perf_counter()
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    runs = run_all(args)
    seconds = time.perf_counter() - started
    write_json(args.json, {"seconds": seconds, "mixing": runs})
    text = f"{markdown(COLUMNS, rows_of(runs))}\n\n{_surroundings(seconds)}"
    print(text)
    if args.markdown is not None:
        args.markdown.write_text(text + "\n")


def _surroundings(seconds: float) -> str:
    machine = hardware()
    versions = ", ".join(f"{name} {machine[name]}" for name in ("python", "torch", "transformers", "numpy"))
    peers = {own.package: own.version for own in CONTESTANTS if own.package is not None}
    known = ", ".join(f"{package} {version or 'not installed'}" for package, version in peers.items())
    return f"{machine['cpu']}, {machine['cores']} cores; {versions}; {known}. Took {seconds:.0f} s."


def _arguments(argv: Sequence[str] | None) -> Any:
    parser = new_parser(__doc__)
    names = sorted(own.name for own in CONTESTANTS if own.name != OURS)
    parser.add_argument("--only", metavar="NAME", choices=names, help="one contestant beside ours: " + ", ".join(names))
    parser.add_argument("--markdown", metavar="FILE", type=Path, help="where the table is written")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=300, help="steps of a run")
    args = parser.parse_args(argv)
    args.divisor = 1
    if args.quick:
        args.rounds, args.steps, args.divisor = 1, 10, 10
    return args
