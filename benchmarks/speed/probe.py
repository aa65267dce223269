"""What a step costs in which the streams' gradients are measured, over a plain step of the same batch.

Run `python -m benchmarks probe [--model gpt2]`; on a GPU `--device cuda --dtype bf16 --layers 12 --hidden 768`. A step
is forward, backward and AdamW. Each competitor has a model and an optimizer of its own; they go in turns, step by step
in rotated order, and each is compared with the plain step of the same round.

*Exact* and *sketch* are the modes of `GradientProbe`; *variance* adds the noise of the samples. *Idle* is a probe that
was used once and is then only held. *K backwards of one graph* is what one would do without a probe; it takes several
times as long, and goes every third round. A run that measures one step in 20 pays a twentieth of what a step adds.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from transformers.utils import logging

from benchmarks.common import in_words, new_parser, paired_ratio, rotated, show, spread, write_json
from benchmarks.speed.overhead import add_shape, new_model, set_shape
from mixer.gradients.probe import GradientProbe

PLAIN, AGAIN, IDLE, GRAPH = "plain step", "plain step again", "probe that is idle", "K backwards of one graph"
# Mode, and whether the variance is measured too.
PROBED: dict[str, tuple[Any, bool]] = {
    "exact": ("exact", False),
    "sketch": ("sketch", False),
    "exact, variance": ("exact", True),
    "sketch, variance": ("sketch", True),
}
NAMES = (PLAIN, AGAIN, IDLE, *PROBED, GRAPH)
# 17 million parameters, and 14.
_SHAPES = {
    "llama": {"vocabulary": 8_192, "layers": 6, "hidden": 384},
    "gpt2": {"vocabulary": 20_000, "layers": 6, "hidden": 320},
}
_INTERVAL, _GRAPH_EVERY = 20, 3
_AIMS = {IDLE: "1.00", **{name: "1.15" if variance else "1.05" for name, (_, variance) in PROBED.items()}}

Step = Callable[[], None]


class Subject:
    """A model that is trained on one batch, with an optimizer of its own.

    Args:
        args: The command line.
        num_streams: Number of streams in the batch.
    """

    def __init__(self, args: argparse.Namespace, num_streams: int):
        self.device = torch.device(args.device)
        self.model: Any = new_model(args).to(self.device)
        self.num_streams = num_streams
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self._autocasts = args.dtype == "bf16"
        ids = torch.randint(args.vocabulary, (args.batch, args.length), generator=torch.Generator().manual_seed(1))
        self.ids = ids.to(self.device)
        streams = np.arange(args.batch) % num_streams
        self.stream_ids = streams if args.alternating else np.sort(streams)

    def _logits(self) -> Tensor:
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self._autocasts):
            logits: Tensor = self.model(input_ids=self.ids).logits
        return logits

    def _row_losses(self) -> Tensor:
        logits = self._logits()[:, :-1].float().transpose(1, 2)
        return F.cross_entropy(logits, self.ids[:, 1:], reduction="none").mean(1) / len(self.ids)

    def _update(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()

    def plain(self) -> None:
        """Does a step as the Trainer would."""
        self._row_losses().sum().backward()  # type: ignore[no-untyped-call]
        self._update()

    def probed(self, probe: GradientProbe) -> None:
        """Does a step in which one backward of the mixed batch is read.

        Args:
            probe: What reads it.
        """
        probe.start(self.stream_ids)
        self._row_losses().sum().backward()  # type: ignore[no-untyped-call]
        probe.finish()
        self._update()

    def graph(self) -> None:
        """Does a step of one forward and as many backwards as streams, and multiplies the gradients."""
        losses, parameters = self._row_losses(), list(self.model.parameters())
        of_streams = [losses[torch.from_numpy(self.stream_ids == k)].sum() for k in range(self.num_streams)]
        gradients = [torch.autograd.grad(loss, parameters, retain_graph=True) for loss in of_streams]
        gram = torch.zeros(len(gradients), len(gradients), dtype=torch.float64, device=self.device)
        for parameter, *own in zip(parameters, *gradients, strict=True):
            stack = torch.stack(own).flatten(1)
            gram += stack @ stack.T
            parameter.grad = stack.sum(0).view_as(parameter)
        gram.cpu()
        self._update()


def new_step(name: str, args: argparse.Namespace, num_streams: int) -> Step:
    """Builds a competitor, with a model and an optimizer of its own.

    Args:
        name: Which one, of `NAMES`.
        args: The command line.
        num_streams: Number of streams.

    Returns:
        What does a step.
    """
    subject = Subject(args, num_streams)
    if name == GRAPH:
        return subject.graph
    if name in (PLAIN, AGAIN):
        return subject.plain
    mode, variance = PROBED.get(name, ("exact", True))
    probe = GradientProbe(subject.model, num_streams, mode, variance=variance, sketch_size=args.sketch_size)
    if name == IDLE:
        subject.probed(probe)  # and leaves nothing behind
    return lambda: subject.plain() if name == IDLE else subject.probed(probe)


def measure(args: argparse.Namespace, num_streams: int) -> dict[str, Any]:
    """Measures steps with one number of streams.

    Args:
        args: The command line.
        num_streams: Number of streams.

    Returns:
        `milliseconds`, and `ratio` over the plain step.
    """
    steps = {name: new_step(name, args, num_streams) for name in NAMES}
    for _ in range(args.warmup):
        for step in steps.values():
            step()
    times: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(args.rounds):
        for name in rotated(list(steps), number):
            if name != GRAPH or number % _GRAPH_EVERY == 0:
                times[name].append(_milliseconds(steps[name], args))
    return {
        "milliseconds": {name: spread(own) for name, own in times.items()},
        "ratio": {
            name: paired_ratio(own, times[PLAIN][:: _GRAPH_EVERY if name == GRAPH else 1])
            for name, own in times.items()
            if name != PLAIN
        },
    }


def _milliseconds(step: Step, args: argparse.Namespace) -> float:
    synchronise = torch.cuda.synchronize if args.device == "cuda" else lambda: None
    synchronise()
    started = time.perf_counter()
    for _ in range(args.block):
        step()
    synchronise()
    return (time.perf_counter() - started) / args.block * 1e3


def _show(args: argparse.Namespace, num_streams: int, figures: dict[str, Any]) -> None:
    rows = []
    for name, times in figures["milliseconds"].items():
        ratio = figures["ratio"].get(name)
        spread_out = f"{1.0 + (ratio['median'] - 1.0) / _INTERVAL:.4f}" if name in PROBED else ""
        rows.append([name, f"{times['median']:,.0f}", in_words(ratio), _AIMS.get(name, ""), spread_out])
    title = f"{args.model}, {num_streams} streams, batch {args.batch} x {args.length}, {args.dtype} on {args.device}"
    show(title, ["step", "ms", "over plain", "aim: at most", f"1 in {_INTERVAL}, computed"], rows)


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the benchmark, prints the tables and writes the figures.

    Args:
        argv: Command line; `None` takes the process's own.
    """
    parser = new_parser(__doc__)
    add_shape(parser, _SHAPES)
    parser.add_argument("--streams", type=int, nargs="+", default=[3, 8], help="numbers of streams")
    parser.add_argument("--batch", type=int, default=24, help="rows of a batch")
    parser.add_argument("--alternating", action="store_true", help="streams alternate by row, in place of in order")
    parser.add_argument("--sketch-size", type=int, default=64)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", choices=("fp32", "bf16"), default="fp32", help="bf16 is mixed precision")
    parser.add_argument("--rounds", type=int, default=12, help="turns of each competitor")
    parser.add_argument("--block", type=int, default=1, help="steps of a turn; on a GPU 10 or so")
    parser.add_argument("--warmup", type=int, default=2, help="steps of each competitor that do not count")
    args = parser.parse_args(argv)
    set_shape(args, _SHAPES)
    if args.quick:
        args.streams, args.length, args.rounds, args.warmup = [3], 32, 4, 1
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    torch.set_num_threads(args.threads)
    figures = {}
    for num_streams in args.streams:
        figures[str(num_streams)] = measure(args, num_streams)
        _show(args, num_streams, figures[str(num_streams)])
    write_json(args.json, {"arguments": vars(args), "streams": figures})
