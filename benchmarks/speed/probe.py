"""What a step costs in which the streams' gradients are measured, over a plain step of the same batch.

Run `python -m benchmarks probe [--model gpt2]`; on a GPU `python -m benchmarks gpu --only gradients-125m`. A step is
forward, backward and AdamW. The competitors train one model in turns, step by step in rotated order, and each is
compared with the plain step of the same round; on a CPU by processor time.

*Exact* and *sketch* are the modes of `GradientProbe`; *variance* adds the noise of the samples. *Micro-batches of one
stream* are read whole (`homogeneous=True`, a sketch; two for each stream with the variance). *K backwards of one graph*
is what one would do without a probe; it takes several times as long, and goes every third round. A run that measures
one step in 20 pays a twentieth of what a step adds.

*Operations* are those that a step gives to a GPU, views left out; they are counted on any device. A GPU that has less
work in an operation than the host needs to launch it, as with small models, takes as long as their number says.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from transformers.utils import logging

from benchmarks.common import in_words, new_parser, paired_ratio, rotated, show, spread, write_json
from benchmarks.speed.overhead import add_shape, new_model, set_shape
from mixer.gradients.probe import GradientProbe, reading, sketch

PLAIN, AGAIN, GRAPH = "plain step", "plain step again", "K backwards of one graph"
# Mode, whether the variance is measured too, and whether in micro-batches of one stream.
PROBED: dict[str, tuple[Any, bool, bool]] = {
    "exact": ("exact", False, False),
    "sketch": ("sketch", False, False),
    "micro-batches of one stream": ("sketch", False, True),
    "exact, variance": ("exact", True, False),
    "sketch, variance": ("sketch", True, False),
    "micro-batches of one stream, variance": ("sketch", True, True),
}
NAMES = (PLAIN, AGAIN, *PROBED, GRAPH)
# 17 million parameters, and 14.
_SHAPES = {
    "llama": {"vocabulary": 8_192, "layers": 6, "hidden": 384},
    "gpt2": {"vocabulary": 20_000, "layers": 6, "hidden": 320},
}
_INTERVAL, _GRAPH_EVERY = 20, 3
_NO_WORK = ("empty", "new_empty", "_unsafe_view", "promote_types", "_record_function")  # besides views

Step = Callable[[], None]


class Operations(TorchDispatchMode):
    """Counts the operations that give a device work, and the single numbers that the host reads."""

    def __init__(self) -> None:
        super().__init__()
        self.count = self.num_read = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = function.overloadpacket.__name__
        self.count += not (function.is_view or name.startswith(_NO_WORK))
        self.num_read += name == "_local_scalar_dense"
        return function(*args, **(kwargs or {}))


class Subject:
    """A model that is trained on one batch.

    Args:
        args: The command line.
        num_streams: Number of streams in the batch.
    """

    def __init__(self, args: argparse.Namespace, num_streams: int):
        self.device = torch.device(args.device)
        self.model: Any = new_model(args).to(self.device)
        self.num_streams, self._sketch_size = num_streams, args.sketch_size
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)  # as the Trainer's
        self._autocasts = args.dtype == "bf16"
        ids = torch.randint(args.vocabulary, (args.batch, args.length), generator=torch.Generator().manual_seed(1))
        self.ids = ids.to(self.device)
        streams = np.arange(args.batch) % num_streams
        self.stream_ids = streams if args.alternating else np.sort(streams)

    def _row_losses(self, ids: Tensor) -> Tensor:
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self._autocasts):
            logits: Tensor = self.model(input_ids=ids).logits
        losses = F.cross_entropy(logits[:, :-1].float().transpose(1, 2), ids[:, 1:], reduction="none")
        return losses.mean(1) / len(self.ids)

    def _update(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()

    def plain(self) -> None:
        """Does a step as the Trainer would."""
        self._row_losses(self.ids).sum().backward()  # type: ignore[no-untyped-call]
        self._update()

    def step(self, name: str) -> Step:
        """Returns the step of a competitor."""
        return self.probed(name) if name in PROBED else self.graph if name == GRAPH else self.plain

    def probed(self, name: str) -> Step:
        """Returns a step in which the gradients are read, in one backward or one for each part of a stream."""
        mode, variance, is_apart = PROBED[name]
        probe = GradientProbe(
            self.model,
            self.num_streams,
            mode,
            variance=variance,
            homogeneous=is_apart,
            sketch_size=self._sketch_size,
        )
        places = [np.flatnonzero(self.stream_ids == k) for k in range(self.num_streams)]
        parts = [part for own in places for part in np.array_split(own, 1 + variance) if len(part)]
        micros = [(self.stream_ids[part], self.ids[torch.from_numpy(part)]) for part in parts]

        def step() -> None:
            for stream_ids, ids in micros if is_apart else [(self.stream_ids, self.ids)]:
                probe.start(stream_ids)
                self._row_losses(ids).sum().backward()  # type: ignore[no-untyped-call]
            probe.finish()
            self._update()

        return step

    def graph(self) -> None:
        """Does a step of one forward and as many backwards as streams, and multiplies the gradients."""
        losses, parameters = self._row_losses(self.ids), list(self.model.parameters())
        of_streams = [losses[torch.from_numpy(self.stream_ids == k)].sum() for k in range(self.num_streams)]
        gradients = [torch.autograd.grad(loss, parameters, retain_graph=True) for loss in of_streams]
        gram = torch.zeros(len(gradients), len(gradients), dtype=torch.float64, device=self.device)
        for parameter, *own in zip(parameters, *gradients, strict=True):
            stack = torch.stack(own).flatten(1)
            gram += stack @ stack.T
            parameter.grad = stack.sum(0).view_as(parameter)
        gram.cpu()
        self._update()


def measure(args: argparse.Namespace, num_streams: int) -> dict[str, Any]:
    """Measures steps with one number of streams.

    Args:
        args: The command line.
        num_streams: Number of streams.

    Returns:
        `milliseconds`, `operations`, and `ratio` of the time over the plain step.
    """
    subject = Subject(args, num_streams)
    steps = {name: subject.step(name) for name in NAMES}
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
        "operations": {name: _operations(subject, name) for name in steps},
        "ratio": {
            name: paired_ratio(own, times[PLAIN][:: _GRAPH_EVERY if name == GRAPH else 1])
            for name, own in times.items()
            if name != PLAIN
        },
    }


def _operations(subject: Subject, name: str) -> int:
    as_on_gpu = patch.object(reading, "BYTES_AT_ONCE_ON_CPU", reading.BYTES_AT_ONCE)
    with as_on_gpu, patch.object(sketch, "is_sparse", lambda _: False):
        step = subject.step(name)
        step()  # the first measurement also checks that the pieces are the whole
        with Operations() as operations:
            step()
    return operations.count


def _milliseconds(step: Step, args: argparse.Namespace) -> float:
    is_gpu = args.device == "cuda"
    synchronise, clock = (torch.cuda.synchronize, time.perf_counter) if is_gpu else (lambda: None, time.process_time)
    synchronise()
    started = clock()
    for _ in range(args.block):
        step()
    synchronise()
    return (clock() - started) / args.block * 1e3


def _show(args: argparse.Namespace, num_streams: int, figures: dict[str, Any]) -> None:
    rows = []
    for name, times in figures["milliseconds"].items():
        ratio = figures["ratio"].get(name)
        spread_out = f"{1.0 + (ratio['median'] - 1.0) / _INTERVAL:.4f}" if name in PROBED else ""
        operations = f"{figures['operations'][name] / figures['operations'][PLAIN]:.2f}"
        aim = f"{args.aim or (1.15 if PROBED[name][1] else 1.05):g}" if name in PROBED else ""
        time_columns = [f"{times['median']:,.0f}", in_words(ratio), aim, spread_out]
        rows.append([name, *time_columns, operations])
    title = f"{args.model}, {num_streams} streams, batch {args.batch} x {args.length}, {args.dtype} on {args.device}"
    show(
        title,
        ["step", "ms", "over plain", "aim: at most", f"1 in {_INTERVAL}, computed", "operations over plain"],
        rows,
    )


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Reads the command line; `None` takes the process's own."""
    parser = new_parser(__doc__)
    add_shape(parser, _SHAPES)
    parser.add_argument("--streams", type=int, nargs="+", default=[3, 8], help="numbers of streams")
    parser.add_argument("--batch", type=int, default=24, help="rows of a batch")
    parser.add_argument("--alternating", action="store_true", help="streams alternate by row, in place of in order")
    parser.add_argument("--aim", type=float, help="of a measured step; default: 1.05, and 1.15 with the variance")
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
    return args


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the benchmark, prints the tables and writes the figures.

    Args:
        argv: Command line; `None` takes the process's own.
    """
    args = arguments(argv)
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    torch.set_num_threads(args.threads)
    figures = {}
    for num_streams in args.streams:
        figures[str(num_streams)] = measure(args, num_streams)
        _show(args, num_streams, figures[str(num_streams)])
    write_json(args.json, {"arguments": vars(args), "streams": figures})
