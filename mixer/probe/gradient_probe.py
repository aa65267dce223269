"""The gradients of all streams from the one backward that is done anyway."""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn
from transformers.utils import logging

from mixer.gradient_statistics import GradientStatistics, signal_and_noise
from mixer.gradients import add_up
from mixer.probe.check import PieceCheck
from mixer.probe.discovery import discover
from mixer.probe.eager import Eager
from mixer.probe.reading import Reading, Stopwatch
from mixer.probe.rows import Rows
from mixer.probe.sketch import Projection
from mixer.probe.sums import ExactSums, HeldSums, SketchSums, Sums
from mixer.probe.whole import WholeReading

Mode = Literal["exact", "sketch"]
Int64Array = NDArray[np.int64]

logger = logging.get_logger(__name__)


class GradientProbe:
    """Tells the gradients of the streams apart in one backward of mixed batches, at little more than its own cost.

    At a linear layer with inputs A and output gradients D the weight gradient of stream k is `D_kᵀ A_k` over its own
    rows; these pieces cost together what the whole gradient costs, and it is computed as their sum. Their products are
    all that is kept. Of a sketch too: that is linear, so that it adds up over micro-batches and ranks.

    Known are Linear, Conv1D, Embedding, LayerNorm and RMSNorm (LoRA's adapters are Linear), tied or not; trained
    parameters of other layers are left out of all figures, and named in a warning. The first axis of a layer's inputs
    has to be the rows of the batch. Between `start` and `finish` the layers run with a backward of ours; before and
    after that the model is untouched.

    The losses that are back-propagated from `start` to `finish` have to add up to the mean over all items, averaged
    over ranks as DDP does. Gradients are read before clipping.

    Args:
        model: The model, wrapped (DDP, FSDP2, `torch.compile`) or not. Probed steps of a compiled one run uncompiled.
        num_streams: Number of streams.
        mode: `"exact"` multiplies the gradients of one micro-batch on one rank. `"sketch"` multiplies random
            projections, of any number of micro-batches and ranks; `GradientStatistics.gram_error` says how far off they
            may be.
        variance: Whether norms are taken of every sample's gradient, for `variance` and the unbiased `squared_norm`;
            without, both are NaN.
        layers: Patterns of names of the layers to read (`["*.mlp.*"]`); `None` for all.
        homogeneous: Reads whole gradients of micro-batches of one stream each: for layers of any kind. A stream's
            variance then comes from the differences between its micro-batches, of which it needs two.
        exact_accumulate: Lets `"exact"` go over several micro-batches and ranks, for the memory (and traffic between
            ranks) of `num_streams` times the parameters.
        sketch_size: Rows and columns of each parameter's projection, at most.
        seed: Seed of the projections; the same on all ranks.
        world_size: Number of ranks that train together; `None` asks torch.

    Raises:
        ValueError: If a value is outside its range, or nothing of the model can be read that way.

    Example:
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
    ):
        if num_streams < 1 or sketch_size < 1:
            raise ValueError(f"num_streams and sketch_size must be at least 1, got {num_streams} and {sketch_size}.")
        if mode not in ("exact", "sketch"):
            raise ValueError(f"mode must be 'exact' or 'sketch', got {mode!r}.")
        if isinstance(layers, str):
            raise ValueError(f"layers must be a list of patterns, got the text {layers!r}: write [{layers!r}].")
        if world_size is None:
            world_size = dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
        self._accumulates = mode == "sketch" or exact_accumulate
        if not self._accumulates and (world_size > 1 or homogeneous):
            raise ValueError(_WHY_NOT.format(what=f"{world_size} ranks" if world_size > 1 else "several micro-batches"))
        self.model, self.num_streams, self.mode = model, num_streams, mode
        self._homogeneous, self._world_size = homogeneous, world_size
        self._covered = discover(model, layers, lambda: self._present, any_kind=homogeneous)
        self._warn(self._covered.missed)
        self._device = self._covered.targets[0].device
        self._wants_squares = variance
        self._projections = [
            Projection(target.name, target.shape, sketch_size, seed, target.device, target.dtype)
            for target in (self._covered.targets if mode == "sketch" else ())
        ]
        self._eager = Eager(model)
        self._is_checked = homogeneous
        self._left_out: set[int] = set()
        self._stopwatch = Stopwatch()
        self._reset()

    @property
    def coverage(self) -> float:
        """Share of the trainable parameters that is read."""
        return self._covered.share

    @property
    def seconds(self) -> float:
        """Time spent on what a plain step would not do, so far; on a GPU, time to give it the work."""
        return self._stopwatch.seconds

    def _reset(self) -> None:
        self._sums: Sums | None = None
        self._reading: Reading | WholeReading | None = None
        self._check: PieceCheck | None = None
        self._squares: Tensor | None = None
        self._failures = np.zeros(len(self._covered.targets))
        # Of each stream: samples, items, and the sum of the squares of the sizes of the groups that the variance is of.
        self._counts = np.zeros((3, self.num_streams))

    # ---- From start to finish ----

    def start(self, stream_ids: ArrayLike | Tensor, num_items: ArrayLike | Tensor | None = None) -> None:
        """Reads the next forward and backward; to be called before each micro-batch.

        Args:
            stream_ids: int `[num_rows]`: the stream of each row of the batch.
            num_items: int `[num_rows]`: terms of the loss in each row, where the loss is a mean over those (tokens of a
                language model that count); `None` if it is a mean over rows.

        Raises:
            ValueError: If the ids fit no streams, or an exact probe is to read a second micro-batch.
        """
        ids = _whole_numbers(stream_ids, "stream_ids")
        items = np.ones_like(ids) if num_items is None else _whole_numbers(num_items, "num_items")
        if (
            not len(ids)
            or ids.min() < 0
            or ids.max() >= self.num_streams
            or items.shape != ids.shape
            or items.min() < 0
        ):
            raise ValueError(
                f"stream_ids must be a stream from 0 to {self.num_streams - 1} for each row, and num_items as many "
                f"numbers from 0 on; got {ids.tolist()[:8]} and {items.tolist()[:8]}."
            )
        if self._homogeneous and ids.min() != ids.max():
            raise ValueError(
                f"homogeneous=True needs micro-batches of one stream, got streams {np.unique(ids).tolist()}."
            )
        with self._stopwatch.running():
            if self._sums is None:
                self._begin()
            elif not self._accumulates:
                raise ValueError(_WHY_NOT.format(what="a second micro-batch"))
            self._close_reading()
            self._open_reading(Rows(ids, items, self.num_streams, self._device))

    def _begin(self) -> None:
        targets = self._covered.targets
        if self.mode == "sketch":
            self._sums = SketchSums(targets, self.num_streams, self._projections)
        else:
            self._sums = (HeldSums if self._accumulates else ExactSums)(targets, self.num_streams)
        if self._wants_squares:
            shape = (len(targets), self.num_streams)
            self._squares = torch.zeros(shape, dtype=torch.float64, device=self._device)
        for capture in self._covered.captures:
            capture.install()
        self._eager.begin()

    def _open_reading(self, rows: Rows) -> None:
        assert self._sums is not None, "sums are made before anything is read"  # noqa: S101
        group_sizes = rows.counts**2 if self._homogeneous else rows.counts
        self._counts += np.stack([rows.counts, rows.num_items, group_sizes])
        if self._homogeneous:
            parameters = self._covered.parameters
            self._reading = WholeReading(parameters, rows, self._sums, self._squares, self._stopwatch)
        else:
            self._reading = Reading(rows, self._sums, self._squares, self._stopwatch)
        if not self._is_checked:
            self._check = PieceCheck(self._covered.parameters)
            self._is_checked = True

    @property
    def _present(self) -> Reading | None:
        return self._reading if isinstance(self._reading, Reading) else None

    def _close_reading(self) -> None:
        reading, self._reading = self._reading, None
        if reading is None or self._sums is None:
            return
        reading.close()
        self._failures[list(reading.failed)] += 1
        if self._check is not None:
            found = self._check.finish(self._sums)
            self._check, self._is_checked = None, found is not None
            self._failures[list(found or ())] += 1

    def cancel(self) -> None:
        """Forgets what was read since `start`, after a forward or backward that failed."""
        if isinstance(self._reading, WholeReading):
            self._reading.close()
        if self._check is not None:
            self._check.remove()
            self._is_checked = False
        self._end()
        self._reset()

    def _end(self) -> None:
        for capture in self._covered.captures:
            capture.remove()
        self._eager.end()

    def finish(self, loss_scale: float = 1.0, loss_weights: ArrayLike | None = None) -> GradientStatistics:
        """Gives what the backwards since `start` showed; to be called on all ranks.

        Args:
            loss_scale: What the losses were multiplied by (`GradScaler.get_scale()`).
            loss_weights: `[num_streams]`: factors on the streams' losses, which are taken out again; `None` for none.

        Returns:
            The statistics, the same on every rank.

        Raises:
            RuntimeError: If nothing was started.
        """
        if self._sums is None:
            raise RuntimeError("finish() came without start(): call start(stream_ids) before the forward.")
        with self._stopwatch.running():
            self._close_reading()
            self._end()
            statistics = self._statistics(self._sums, loss_scale, loss_weights)
            self._reset()
        return statistics

    def _statistics(self, sums: Sums, loss_scale: float, loss_weights: ArrayLike | None) -> GradientStatistics:
        squares = self._add_up(sums)
        read = self._covered_everywhere()
        counts, items, num_squared = self._counts
        factors = np.ones(self.num_streams) if loss_weights is None else np.asarray(loss_weights, dtype=np.float64)
        with np.errstate(divide="ignore", invalid="ignore"):
            # From a share of the whole loss to the mean loss of the stream.
            to_mean = items.sum() / items / (factors * loss_scale * self._world_size)
        products = sums.products().numpy()[read]
        diagonals = np.diagonal(products, axis1=1, axis2=2)
        scale = np.outer(to_mean, to_mean)
        gram = products.sum(0) * scale
        bound = np.einsum("p,pi,pj->ij", sums.relative_variances().numpy()[read], diagonals, diagonals)
        squared_norm, variance = np.full((2, self.num_streams), np.nan)
        if squares is not None:
            own = squares[read].sum(0) * (to_mean * counts) ** 2
            squared_norm, variance = signal_and_noise(np.diagonal(gram) * counts**2, own, counts, num_squared)
        return GradientStatistics(
            gram=gram,
            variance=variance,
            squared_norm=squared_norm,
            counts=counts.astype(np.int64),
            shares=items / items.sum(),
            gram_error=np.sqrt(bound) * scale,
        )

    def _add_up(self, sums: Sums) -> np.ndarray | None:
        """Adds up what the ranks hold."""
        small = np.concatenate([self._failures, self._counts.reshape(-1)])
        squares = self._squares
        if self._world_size > 1:
            add_up(sums.travelling())
            message = torch.from_numpy(small).to(self._device)
            message = message if squares is None else torch.cat([message, squares.reshape(-1)])
            dist.all_reduce(message)
            self._failures, counts, rest = np.split(
                message.cpu().numpy(), [len(self._failures), len(self._failures) + self._counts.size]
            )
            self._counts = counts.reshape(self._counts.shape)
            return None if squares is None else rest.reshape(squares.shape)
        return None if squares is None else squares.cpu().numpy()

    def _covered_everywhere(self) -> Int64Array:
        """Gives the parameters that every rank could read in every micro-batch."""
        failed = set(np.flatnonzero(self._failures).tolist()) - self._left_out
        self._left_out |= failed
        targets, parameters = self._covered.targets, self._covered.parameters
        self._warn({targets[index].name: parameters[index].numel() for index in failed})
        return np.array([target.index for target in targets if target.index not in self._left_out], dtype=np.int64)

    def _warn(self, missed: dict[str, int]) -> None:
        if not missed:
            return
        total = sum(one.numel() for one in self.model.parameters() if one.requires_grad)
        names = sorted(missed, key=lambda name: -missed[name])
        more = f" and {len(names) - 5} more" if len(names) > 5 else ""
        logger.warning(
            "The gradient probe cannot tell the streams apart in %s%s: %.1f %% of the trainable parameters, left out "
            "of its figures. homogeneous=True reads any kind of layer.",
            ", ".join(names[:5]),
            more,
            100.0 * sum(missed.values()) / total,
        )


_WHY_NOT = (
    "mode='exact' multiplies the gradients of one micro-batch on one rank, and there is {what}: products of parts lack "
    "the cross terms. Use mode='sketch', or exact_accumulate=True, which holds num_streams times the parameters."
)


def _whole_numbers(values: Any, name: str) -> Int64Array:
    array = values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)
    if array.ndim != 1 or (array.size and not np.issubdtype(array.dtype, np.integer)):
        raise ValueError(f"{name} must be one whole number a row, got shape {list(array.shape)} of {array.dtype}.")
    return array.astype(np.int64)
