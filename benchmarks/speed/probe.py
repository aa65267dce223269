"""What a step costs in which the streams' gradients are measured, over a plain one.

Run `python -m benchmarks probe [--model gpt2]`; on a GPU `--device cuda --dtype bf16 --layers 12 --hidden 768`. A
step is forward, backward and AdamW of a batch of 24 rows of 128 tokens, of 3 streams and of 8. Every competitor has a
model and an optimizer of its own; they go in turns in one process, a block of steps each in every round, and each is
compared with the plain step of the same round. The plain step is there twice: the second shows what the comparison of
equals gives (A/A).

*exact* and *sketch* are the probe's modes, with or without the variance. *homogeneous* reads micro-batches of one
stream each: K of them for the Gram matrix alone, 2K with the variance. The probe *that is idle* was used once and then
only held. Two ways need no probe: *K passes*, a forward and backward for each stream, which hold K gradients, and
*K backwards of one graph*. A run measures now and then: what that costs at an interval of 20 is computed, and with
`--amortised N` measured, in N rounds of 20 steps.

Memory is the peak of a step over what was there before it. Accuracy is the largest difference of a sketch's cosines
from the exact ones, on the model after some steps on real text (`--trained-steps`).
"""

import argparse
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from transformers.utils import logging

from benchmarks.common import paired_ratio, rotated, show, spread, write_json
from benchmarks.speed.overhead import new_model
from benchmarks.speed.probe_accuracy import accuracy
from benchmarks.speed.probe_memory import largest_pieces, peak_bytes
from benchmarks.speed.probe_steps import (
    AGAIN,
    EXACT,
    EXACT_VARIANCE,
    GRAPH,
    IDLE,
    PASSES,
    PLAIN,
    PROBED,
    SKETCH,
    SKETCH_VARIANCE,
    Step,
    new_step,
)

INTERVAL = 20
# 17 million parameters, and 14.
_SHAPES = {
    "llama": {"vocabulary": 8_192, "layers": 6, "hidden": 384},
    "gpt2": {"vocabulary": 20_000, "layers": 6, "hidden": 320},
}
_GRAPH_EVERY = 3  # rounds: it takes several times as long as the others
_AIMS = {IDLE: "1.00", EXACT: "1.05", SKETCH: "1.05", EXACT_VARIANCE: "1.15", SKETCH_VARIANCE: "1.15"}
_AMORTISED_AIM = "1.01"
_KINDS = {"computed": f"1 in {INTERVAL}, computed", "measured": "measured"}


def measure(args: argparse.Namespace, num_streams: int) -> dict[str, Any]:
    """Measures time, memory and accuracy with one number of streams.

    Args:
        args: The command line.
        num_streams: Number of streams.

    Returns:
        `milliseconds`, `ratio` (over the plain step), `amortised`, `peak_bytes`, `largest_pieces` and `accuracy`.
    """
    device = torch.device(args.device)
    names = [PLAIN, AGAIN, IDLE, *PROBED, PASSES, GRAPH]
    steps = {name: new_step(name, args, num_streams) for name in names}
    for _ in range(args.warmup):
        for step in steps.values():
            step()
    times = _take_turns(args, steps)
    ratios = {name: _over_plain(times, name) for name in names if name != PLAIN}
    peaks = {name: peak_bytes(step, device) for name, step in steps.items()}
    return {
        "milliseconds": {name: spread(own) for name, own in times.items()},
        "ratio": ratios,
        "amortised": _amortised(args, steps, ratios),
        "peak_bytes": peaks,
        "largest_pieces": largest_pieces(new_model(args), num_streams),
        "accuracy": accuracy(args, num_streams),
    }


def _take_turns(args: argparse.Namespace, steps: Mapping[str, Step]) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(args.rounds):
        for name in rotated(list(steps), number):
            if name != GRAPH or number % _GRAPH_EVERY == 0:
                times[name].append(_time([steps[name]] * args.block, args.device))
    return times


def _over_plain(times: Mapping[str, Sequence[float]], name: str) -> dict[str, float]:
    plain = times[PLAIN][::_GRAPH_EVERY] if name == GRAPH else times[PLAIN]
    return paired_ratio(times[name], plain)


def _time(steps: Sequence[Step], device: str) -> float:
    """Does some steps; gives milliseconds a step."""
    if device == "cuda":
        torch.cuda.synchronize()
    started = time.perf_counter()
    for step in steps:
        step()
    if device == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - started) / len(steps) * 1e3


def _amortised(
    args: argparse.Namespace, steps: Mapping[str, Step], ratios: Mapping[str, Mapping[str, float]]
) -> dict[str, dict[str, Any]]:
    """Spreads the cost of a measurement over an interval, by calculation and, if asked for, by measurement."""
    ends = ("median", "low", "high")
    figures: dict[str, dict[str, Any]] = {
        name: {"computed": {end: 1.0 + (ratios[name][end] - 1.0) / INTERVAL for end in ends}} for name in PROBED
    }
    blocks = {name: [steps[PLAIN]] * (INTERVAL - 1) + [steps[name]] for name in (PLAIN, AGAIN, *args.amortised_of)}
    times: dict[str, list[float]] = {name: [] for name in blocks}
    for number in range(args.amortised):
        for name in rotated(list(blocks), number):
            times[name].append(_time(blocks[name], args.device))
    for name in (AGAIN, *args.amortised_of) if args.amortised else ():
        figures.setdefault(name, {})["measured"] = paired_ratio(times[name], times[PLAIN])
    return figures


def _show(args: argparse.Namespace, num_streams: int, figures: Mapping[str, Any]) -> None:
    title = f"{args.model}, {args.parameters / 1e6:.1f}M parameters, {num_streams} streams, "
    title += f"batch of {args.batch} rows of {args.length} tokens, {args.dtype} on {args.device}"
    rows = []
    for name, times in figures["milliseconds"].items():
        ratio, amortised = figures["ratio"].get(name), figures["amortised"].get(name, {})
        more = (figures["peak_bytes"][name] - figures["peak_bytes"][PLAIN]) / 2**20
        over = [f"{ratio['median']:.3f}", _interval(ratio)] if ratio else ["1", ""]
        spread_out = [f"{amortised[kind]['median']:.4f}" if kind in amortised else "" for kind in _KINDS]
        rows.append([name, f"{times['median']:,.0f}", *over, _AIMS.get(name, ""), *spread_out, f"{more:+,.0f}"])
    columns = ["step", "ms", "over plain", "95 % interval", "aim: at most", *_KINDS.values(), "MiB over plain"]
    show(title, columns, rows)
    peak, pieces = figures["peak_bytes"][PLAIN] / 2**20, figures["largest_pieces"] / 2**20
    print(f"Peak of the plain step: {peak:,.0f} MiB; the largest layer's {num_streams} pieces: {pieces:,.0f} MiB.")
    print(f"The aim for one measurement in {INTERVAL} steps is at most {_AMORTISED_AIM}.\n")
    _show_accuracy(args, num_streams, figures["accuracy"])


def _interval(ratio: Mapping[str, float]) -> str:
    return f"{ratio['low']:.3f} to {ratio['high']:.3f}"


def _show_accuracy(args: argparse.Namespace, num_streams: int, figures: Mapping[str, Any]) -> None:
    cosines = figures["cosines"]
    title = f"Error of a sketch's cosines after {args.trained_steps} steps on {num_streams} streams of text; exact "
    title += f"cosines from {cosines['least']:.3f} to {cosines['most']:.3f}, mean {cosines['mean']:.3f}"
    kinds = ("largest", "root_mean_square", "mean_bar")
    rows = [[size, *(f"{own[kind]:.4f}" for kind in kinds)] for size, own in figures["sketch_size"].items()]
    show(title, ["sketch_size", "largest error", "root mean square", "mean bound (gram_error)"], rows)


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", metavar="FILE", help="where all figures are written")
    parser.add_argument("--quick", action="store_true", help="a small model and few rounds, for a test")
    parser.add_argument("--model", choices=("llama", "gpt2"), default="llama")
    parser.add_argument("--vocabulary", type=int, help="default: 8192 for llama, 20000 for gpt2")
    parser.add_argument("--layers", type=int, help="default: 6")
    parser.add_argument("--hidden", type=int, help="default: 384 for llama, 320 for gpt2")
    parser.add_argument("--streams", type=int, nargs="+", default=[3, 8], help="numbers of streams")
    parser.add_argument("--length", type=int, default=128, help="tokens of a row")
    parser.add_argument("--batch", type=int, default=24, help="rows of a batch")
    parser.add_argument(
        "--alternating", action="store_true", help="streams alternate by row; the mixer puts them in order"
    )
    parser.add_argument("--sketch-size", type=int, default=64, help="of the sketches that are timed")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", choices=("fp32", "bf16"), default="fp32", help="bf16 is mixed precision")
    parser.add_argument("--threads", type=int, default=2, help="torch's threads on the CPU")
    parser.add_argument("--rounds", type=int, default=12, help="turns of each competitor")
    parser.add_argument("--block", type=int, help="steps of a turn; default: 1 on the CPU, 10 on a GPU")
    parser.add_argument("--warmup", type=int, default=2, help="steps of each competitor that do not count")
    parser.add_argument("--amortised", type=int, default=0, metavar="N", help=f"rounds of {INTERVAL} steps; 0 for none")
    parser.add_argument("--amortised-of", nargs="+", choices=PROBED, default=[SKETCH_VARIANCE])
    parser.add_argument("--trained-steps", type=int, default=60, help="steps before accuracy is measured")
    args = parser.parse_args(argv)
    if args.quick:
        args.layers, args.hidden, args.vocabulary, args.rounds, args.warmup = 1, 64, 256, 4, 1
        args.length, args.trained_steps, args.amortised = 32, 3, min(args.amortised, 2)
    for name, value in _SHAPES[args.model].items():
        setattr(args, name, getattr(args, name) or value)
    args.block = args.block or (10 if args.device == "cuda" else 1)
    args.parameters = sum(parameter.numel() for parameter in new_model(args).parameters())
    return args


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the benchmark, prints the tables and writes the figures.

    Args:
        argv: Command line; `None` takes the process's own.
    """
    args = _arguments(argv)
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    torch.set_num_threads(args.threads)
    figures = {}
    for num_streams in args.streams:
        figures[str(num_streams)] = measure(args, num_streams)
        _show(args, num_streams, figures[str(num_streams)])
        write_json(args.json, {"arguments": vars(args), "streams": figures})
