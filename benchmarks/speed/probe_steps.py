"""The steps that `benchmarks.speed.probe` compares: plain, with a probe, and other ways to the streams' gradients."""

import argparse
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from benchmarks.speed.overhead import new_model
from mixer.gradients.probe import GradientProbe

PLAIN, AGAIN, IDLE = "plain step", "plain step again", "probe that is idle"
EXACT, EXACT_VARIANCE = "exact", "exact, variance"
SKETCH, SKETCH_VARIANCE = "sketch", "sketch, variance"
PURE, PURE_VARIANCE = "homogeneous", "homogeneous, variance"
PASSES, GRAPH = "K passes", "K backwards of one graph"
WITHOUT_VARIANCE, WITH_VARIANCE = (EXACT, SKETCH, PURE), (EXACT_VARIANCE, SKETCH_VARIANCE, PURE_VARIANCE)
PROBED = (*WITHOUT_VARIANCE, *WITH_VARIANCE)

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

    def loss(self, ids: Tensor) -> Tensor:
        """Runs the model forward.

        Args:
            ids: int64 `[num_rows, length]`.

        Returns:
            The mean loss over the tokens.
        """
        with self._autocast():
            loss: Tensor = self.model(input_ids=ids, labels=ids).loss
        return loss

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self._autocasts)

    def _update(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()

    def plain(self) -> None:
        """Does a step as the Trainer would."""
        self.loss(self.ids).backward()  # type: ignore[no-untyped-call]
        self._update()

    def probed(self, probe: GradientProbe) -> None:
        """Does a step in which one backward of the mixed batch is read.

        Args:
            probe: What reads it.
        """
        probe.start(self.stream_ids)
        self.loss(self.ids).backward()  # type: ignore[no-untyped-call]
        probe.finish()
        self._update()

    def pure(self, probe: GradientProbe, pieces: Sequence[Tensor]) -> None:
        """Does a step in micro-batches of one stream each, whose whole gradients are read.

        Args:
            probe: What reads them.
            pieces: int64 `[num_rows]` each: the rows of each micro-batch.
        """
        for rows in pieces:
            probe.start(self.stream_ids[rows.cpu().numpy()])
            (self.loss(self.ids[rows]) * (len(rows) / len(self.ids))).backward()  # type: ignore[no-untyped-call]
        probe.finish()
        self._update()

    def passes(self) -> None:
        """Does a step of one forward and backward a stream, and multiplies the gradients, which are all held."""
        gradients = [self._gradient(self.loss(self.ids[rows]) * (len(rows) / len(self.ids))) for rows in self.pieces(1)]
        self._multiply_and_update(gradients)

    def graph(self) -> None:
        """Does a step of one forward and as many backwards as streams, and multiplies the gradients."""
        with self._autocast():
            logits = self.model(input_ids=self.ids).logits
        tokens = F.cross_entropy(logits[:, :-1].float().transpose(1, 2), self.ids[:, 1:], reduction="none")
        per_row = tokens.mean(1) / len(self.ids)
        last = self.num_streams - 1
        pieces = self.pieces(1)
        gradients = [self._gradient(per_row[rows].sum(), keeps=k < last) for k, rows in enumerate(pieces)]
        self._multiply_and_update(gradients)

    def pieces(self, per_stream: int) -> list[Tensor]:
        """Parts the batch.

        Args:
            per_stream: Parts of each stream; fewer where it has fewer rows.

        Returns:
            int64 `[num_rows]` each: rows of one stream.
        """
        own = [np.flatnonzero(self.stream_ids == stream) for stream in range(self.num_streams)]
        parts = [part for rows in own for part in np.array_split(rows, min(per_stream, len(rows)))]
        return [torch.from_numpy(part).to(self.device) for part in parts]

    def _gradient(self, loss: Tensor, keeps: bool = False) -> tuple[Tensor, ...]:
        parameters = list(self.model.parameters())
        return torch.autograd.grad(loss, parameters, retain_graph=keeps)

    def _multiply_and_update(self, gradients: Sequence[tuple[Tensor, ...]]) -> None:
        gram = torch.zeros(len(gradients), len(gradients), dtype=torch.float64, device=self.device)
        for parameter, *own in zip(self.model.parameters(), *gradients, strict=True):
            stack = torch.stack(own).flatten(1)
            gram += stack @ stack.T
            parameter.grad = stack.sum(0).view_as(parameter)
        gram.cpu()
        self._update()


def new_step(name: str, args: argparse.Namespace, num_streams: int) -> Step:
    """Builds a competitor, with a model and an optimizer of its own.

    Args:
        name: Which one.
        args: The command line.
        num_streams: Number of streams.

    Returns:
        What does a step.
    """
    subject = Subject(args, num_streams)
    if name in (PLAIN, AGAIN):
        return subject.plain
    if name == IDLE:
        probe = _probe(subject.model, args, num_streams, "exact", True)
        subject.probed(probe)  # and leaves nothing behind
        return lambda: _beside(probe, subject.plain)
    if name in (PASSES, GRAPH):
        return subject.passes if name == PASSES else subject.graph
    variance = name in WITH_VARIANCE
    if name in (PURE, PURE_VARIANCE):
        reader = _probe(subject.model, args, num_streams, "sketch", variance, homogeneous=True)
        pieces = subject.pieces(1 + variance)
        return lambda: subject.pure(reader, pieces)
    mode = "exact" if name in (EXACT, EXACT_VARIANCE) else "sketch"
    reader = _probe(subject.model, args, num_streams, mode, variance)
    return lambda: subject.probed(reader)


def _beside(probe: GradientProbe, step: Step) -> None:
    """Does a step while a probe is held."""
    assert probe.coverage > 0.0
    step()


def _probe(
    model: nn.Module, args: argparse.Namespace, num_streams: int, mode: Any, variance: bool, **options: Any
) -> GradientProbe:
    return GradientProbe(model, num_streams, mode, variance=variance, sketch_size=args.sketch_size, **options)
