"""The gradients of all streams from the backward pass that training runs anyway."""

import sys
from collections.abc import Sequence
from typing import Literal

import torch.distributed as dist
from numpy.typing import ArrayLike
from torch import Tensor, nn

import mixer.gradients.probe.probe_arguments as probe_arguments
from mixer.gradients.probe.check import PieceCheck
from mixer.gradients.probe.discovery import Covered
from mixer.gradients.probe.plain_forward import PlainForward
from mixer.gradients.probe.reading import Desk, Reading, Stopwatch, Workspace
from mixer.gradients.probe.row_streams import Rows
from mixer.gradients.probe.sums import Totals, projections_of
from mixer.gradients.probe.whole import WholeReading
from mixer.measurements.gradients import GradientStatistics

Mode = Literal["exact", "sketch"]


class GradientProbe:
    """Measures per-stream gradients in one backward pass of mixed batches, at little extra cost.

    At a linear layer with inputs A and output gradients D the weight gradient of stream k is `D_kᵀ A_k` over its own
    rows. These pieces together cost as much as the whole gradient, which is computed as their sum. Only their products
    are kept, or their sketches, which are linear and so add up over micro-batches and ranks.

    Supported layers are Linear, Conv1D, Embedding, LayerNorm and RMSNorm (LoRA's adapters are Linear), tied or not.
    Trained parameters of other layers are left out of all statistics, and named in a warning. The first axis of a
    layer's inputs has to be the rows of the batch, in their order. Inputs of other shapes are detected, except those
    that look alike: time first with as many steps as rows, rows that the model permutes, or rows routed to as many
    experts as rows. Between `start` and `finish` the layers run with a backward function of ours; before and after, the
    model is untouched.

    The losses between `start` and `finish` have to add up to the mean over all items, averaged over ranks as DDP does.
    Gradients are read before clipping.

    Args:
        model: The model, wrapped (DDP, FSDP2, `torch.compile`) or not. Probed steps of a compiled model run uncompiled.
        num_streams: Number of streams.
        mode: `"exact"` multiplies the gradients of one micro-batch on one rank. `"sketch"` multiplies random
            projections, of any number of micro-batches and ranks; `GradientStatistics.gram_error` bounds their error.
        variance: Whether to measure the norm of every sample's gradient, for `variance` and the unbiased
            `squared_norm`; otherwise both are NaN.
        layers: Patterns of names of the layers to read (`["*.mlp.*"]`); `None` for all.
        homogeneous: Reads whole gradients of micro-batches of one stream each: for layers of any kind. A stream's
            variance then comes from the differences between its micro-batches, of which it needs two.
        exact_accumulate: Allows several micro-batches and ranks with `"exact"`, for the memory (and traffic between
            ranks) of `num_streams` times the parameters.
        sketch_size: Largest number of rows and columns of each parameter's projection.
        seed: Seed of the projections; the same on all ranks.
        world_size: Number of ranks that train together; `None` reads it from torch.
        warned: Names of parameters that need no further warning; newly named ones are added.

    Raises:
        ValueError: If a value is outside its range, or no part of the model can be read.
        TypeError: If the model is no module.

    Example:
        >>> import torch
        >>> probe = GradientProbe(torch.nn.Linear(2, 1), num_streams=2)
        >>> inputs, stream_ids = torch.randn(8, 2), [0, 0, 0, 0, 1, 1, 1, 1]
        >>> probe.start(stream_ids)
        >>> probe.model(inputs).square().mean().backward()
        >>> probe.finish().gram.shape
        (2, 2)
    """

    def __init__(
        self,
        model: nn.Module,
        num_streams: int,
        mode: Mode = "exact",
        *,
        variance: bool = True,
        layers: Sequence[str] | None = None,
        homogeneous: bool = False,
        exact_accumulate: bool = False,
        sketch_size: int = 64,
        seed: int = 0,
        world_size: int | None = None,
        warned: set[str] | None = None,
    ):
        if world_size is None:
            world_size = dist.get_world_size() if probe_arguments.is_distributed() else 1
        probe_arguments.check_arguments(model, num_streams, mode, layers, sketch_size, world_size)
        self._accumulates = mode == "sketch" or exact_accumulate
        if not self._accumulates and (world_size > 1 or homogeneous):
            raise probe_arguments.exact_refusal(f"world_size is {world_size}" if world_size > 1 else "homogeneous=True")
        probe_arguments.check_ranks(world_size)
        self.model, self.num_streams, self.mode = model, num_streams, mode
        self._homogeneous, self._world_size, self._variance = homogeneous, world_size, variance
        self._desk = Desk()
        self._covered = Covered(model, layers, self._desk, any_kind=homogeneous, warned=warned)
        targets = self._covered.targets
        self._device = targets[0].device
        size = sketch_size if mode == "sketch" else sys.maxsize  # without a fold: whole gradients
        self._projections = projections_of(targets, size, seed) if self._accumulates else None
        self._plain_forward = PlainForward(model, homogeneous)
        self._check = PieceCheck(() if homogeneous else self._covered.parameters, targets, num_streams)
        self._stopwatch, self._workspace = Stopwatch(), Workspace()
        self._totals: Totals | None = None
        self._reading: Reading | WholeReading | None = None

    @property
    def coverage(self) -> float:
        """Probed share of the trainable parameters."""
        return self._covered.share

    @property
    def seconds(self) -> float:
        """Time spent on the probe so far; on a GPU, the time to launch its work."""
        return self._stopwatch.seconds

    def start(
        self, stream_ids: ArrayLike | Tensor, num_items: ArrayLike | Tensor | None = None, *, draw: int = 0
    ) -> None:
        """Reads the next forward and backward pass; call it before each micro-batch.

        Args:
            stream_ids: int `[num_rows]`: the stream of each row of the batch.
            num_items: int `[num_rows]`: terms of the loss in each row, if the loss is a mean over those (the tokens
                that count, for a language model); `None` if it is a mean over rows.
            draw: Number of the random signs of a sketch, the same on all ranks and until `finish`. Different numbers
                for each measurement average out the errors of the sketch.

        Raises:
            ValueError: If the ids fit no streams, or an exact probe is to read a second micro-batch; measurements since
                the first `start` are discarded.
        """
        try:
            ids, items = probe_arguments.check_rows(stream_ids, num_items, self.num_streams, self._homogeneous)
            if self._totals is not None and not self._accumulates:
                raise probe_arguments.exact_refusal("a second one came")
            with self._stopwatch.running():
                totals = self._begin(draw) if self._totals is None else self._totals
                self._close_reading(totals)
                self._open_reading(totals, Rows(ids, items, self.num_streams, self._device))
        except BaseException:
            self.cancel()
            raise

    def _begin(self, draw: int) -> Totals:
        if self._projections is not None:
            self._projections.draw(draw)
        self._totals = Totals(self._covered.targets, self.num_streams, self._projections, self._variance)
        for capture in self._covered.captures:
            capture.install()
        self._plain_forward.begin()
        return self._totals

    def _open_reading(self, totals: Totals, rows: Rows) -> None:
        totals.count(rows, is_one_group=self._homogeneous)
        if self._homogeneous:
            parameters = self._covered.parameters
            self._reading = WholeReading(parameters, rows, totals.sums, totals.squares, self._stopwatch)
        else:
            sums = self._check.begin(totals.sums)
            self._reading = self._desk.reading = Reading(rows, sums, totals.squares, self._stopwatch, self._workspace)

    def _close_reading(self, totals: Totals) -> None:
        reading, self._reading, self._desk.reading = self._reading, None, None
        if reading is not None:
            reading.close()
            totals.failures[list(reading.failed) if reading.has_seen else slice(None)] += 1
            totals.failures[self._check.finish()] += 1

    def cancel(self) -> None:
        """Discards the measurements since `start`, after a forward or backward pass that failed."""
        if self._reading is not None:
            self._reading.clear()
        self._check.cancel()
        for capture in self._covered.captures:
            capture.remove()
        self._plain_forward.end()
        self._totals = self._reading = self._desk.reading = None

    def finish(self, loss_scale: float = 1.0, loss_weights: ArrayLike | None = None) -> GradientStatistics:
        """Returns the statistics of the backward passes since `start`; call it on all ranks.

        Args:
            loss_scale: Factor on the losses (`GradScaler.get_scale()`).
            loss_weights: `[num_streams]`: factors on the streams' losses, which are removed; `None` for none.

        Returns:
            The statistics, the same on every rank.

        Raises:
            ValueError: If no layer could be read, no backward pass ran, or an argument is outside its range.
            RuntimeError: If `start` was not called.
        """
        factors = probe_arguments.factors_of(loss_scale, loss_weights, self.num_streams)
        totals = self._totals
        if totals is None:
            raise RuntimeError("finish() came without start(): call start(stream_ids) before the forward.")
        with self._stopwatch.running():
            try:
                self._close_reading(totals)
            finally:
                self.cancel()
            if self._world_size > 1:
                totals.add_up(self._device)
            self._covered.leave_out(totals.failures)
            # Averaging over ranks divides each rank's share of the loss by `world_size`.
            return totals.statistics(self._covered.read, factors * self._world_size)
