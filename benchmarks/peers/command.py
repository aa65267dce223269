"""This toolkit beside others, on the same work: `python -m benchmarks peers [PART ...]`.

`mixing`: the plain Trainer on `datasets.interleave_datasets`, torchdata's weighted sampler and Grain's mix. `gramian`:
the streams' gradient Gramian with TorchJD. Each run is in a fresh process of the same interpreter with the same number
of threads; contestants take turns, in another order in every round, which has a seed of its own. Ratios are taken round
by round; beside the wall time stands that of the processor, which other work on the machine changes less. Memory is the
peak of the resident set over what was there after all imports, until the training or the measuring is done. What is not
installed is said so; the peers' environment is made as `benchmarks/peers/requirements.txt` says.
"""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from transformers.utils import logging

from benchmarks.common import hardware, new_parser, write_json
from benchmarks.peers import contests
from benchmarks.peers.contestants import GRAMIAN, MIXING
from benchmarks.peers.tables import COLUMNS, OURS, Row
from benchmarks.presenting import markdown

_PARTS: dict[str, Callable[[Any], tuple[Any, list[Row]]]] = {
    "mixing": contests.mixing,
    "gramian": contests.gramian,
}
_ALL = (*MIXING, *GRAMIAN)


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the contests, prints the table and writes the figures.

    Args:
        argv: Command line; `None` takes the process's own.
    """
    args = _arguments(argv)
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    figures, seconds, rows = dict[str, Any](), dict[str, float](), list[Row]()
    for part in args.parts or _PARTS:
        print(part, flush=True)
        started = time.perf_counter()
        figures[part], own = _PARTS[part](args)
        rows += own
        seconds[part] = time.perf_counter() - started
        write_json(args.json, {"seconds": seconds, **figures})
    text = f"{markdown(COLUMNS, rows)}\n\n{_surroundings(seconds)}"
    print(text)
    if args.markdown is not None:
        args.markdown.write_text(text + "\n")


def _surroundings(seconds: dict[str, float]) -> str:
    machine = hardware()
    versions = ", ".join(f"{name} {machine[name]}" for name in ("python", "torch", "transformers", "numpy"))
    peers = {own.package: own.version for own in _ALL if own.package is not None}
    known = ", ".join(f"{package} {version or 'not installed'}" for package, version in peers.items())
    took = ", ".join(f"{part} {own:.0f} s" for part, own in seconds.items())
    return f"{machine['cpu']}, {machine['cores']} cores; {versions}; {known}. Took: {took}."


def _arguments(argv: Sequence[str] | None) -> Any:
    parser = new_parser(__doc__)
    parser.add_argument("parts", nargs="*", choices=[*_PARTS, []], help="what is run; default: all")
    names = sorted({own.name for own in _ALL if own.name != OURS})
    parser.add_argument("--only", metavar="NAME", choices=names, help="one contestant beside ours: " + ", ".join(names))
    parser.add_argument("--markdown", metavar="FILE", type=Path, help="where the table is written")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5, help="of `mixing`")
    parser.add_argument("--steps", type=int, default=300, help="steps of a run of `mixing`")
    parser.add_argument("--seeds", type=int, default=3, help="rounds of `gramian`")
    parser.add_argument("--gramian-steps", type=int, default=15, help="turns in each round of `gramian`")
    args = parser.parse_args(argv)
    args.divisor = 1
    if args.quick:
        args.rounds = args.seeds = 1
        args.steps, args.gramian_steps, args.divisor = 10, 2, 10
    return args
