"""From a plan to the micro-batches of one rank: samples are fetched, a call a stream, and collated."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from mixer.controller import Mixing
from mixer.plan import MicroBatchSlice, Plan, split_by_stream, split_mixed
from mixer.reader import Columns, Share, StreamReader

Int64Array = NDArray[np.int64]
Collator = Callable[[list[Any]], Any]


@dataclass(frozen=True)
class MicroBatch:
    """One micro-batch of one rank.

    Args:
        inputs: What the collator gave.
        stream_ids: int64 `[num_samples]`: the stream of each sample.
        is_padding: Whether it only keeps this rank in step with the others and counts for nothing.
    """

    inputs: Any
    stream_ids: Int64Array
    is_padding: bool


@dataclass(frozen=True)
class Update:
    """All micro-batches of one rank for one optimizer step.

    The Trainer's loop asks an update for its tensors only to count tokens; it gets those of all samples, flattened.

    Args:
        plan: The plan that it carries out.
        micro_batches: The micro-batches, in order.
    """

    plan: Plan
    micro_batches: tuple[MicroBatch, ...]

    def __contains__(self, key: str) -> bool:
        return any(key in micro.inputs for micro in self.micro_batches)

    def __getitem__(self, key: str) -> torch.Tensor:
        parts = [micro.inputs[key].flatten() for micro in self.micro_batches if not micro.is_padding]
        return torch.cat(parts) if parts else torch.empty(0, dtype=torch.int64)


class MixingLoader:
    """Gives the updates of one rank, an epoch of the run at a time.

    Every update is planned when it is asked for, so it follows the newest weights.

    Args:
        mixing: The controller of the mixture.
        datasets: The streams' data sets, in order.
        collator: Makes a micro-batch of a list of samples.
        rank: This rank.
        world_size: Number of ranks.
        max_micro_batch_size: Most samples of a micro-batch.
        stack_columns: Makes a micro-batch of columns, in place of the collator, where all data sets can be read by
            columns; `None` always goes by samples.
    """

    def __init__(
        self,
        mixing: Mixing,
        datasets: Sequence[Any],
        collator: Collator,
        rank: int = 0,
        world_size: int = 1,
        max_micro_batch_size: int = 8,
        stack_columns: Callable[[Columns], Any] | None = None,
    ):
        self.mixing = mixing
        self.dataset = datasets[0] if len(datasets) == 1 else torch.utils.data.ConcatDataset(datasets)
        self.collator = collator
        self.by_stream = False
        self._reader = StreamReader(mixing.names, datasets)
        self._stack_columns = stack_columns if self._reader.has_columns else None
        self._rank, self._world_size = rank, world_size
        self._max_size = max_micro_batch_size

    def __len__(self) -> int:
        return self.mixing.clock.steps_per_epoch

    def __iter__(self) -> Iterator[Update]:
        for _ in range(self.mixing.clock.step_in_epoch, len(self)):
            update = self.next_update()
            if update is None:
                return
            yield update

    def next_update(self) -> Update | None:
        """Plans, fetches and collates the next update.

        Returns:
            The update, or `None` if the streams are exhausted.

        Raises:
            SampleError: If a sample cannot be loaded.
        """
        plan = self.mixing.next_plan()
        return None if plan is None else self.load(plan)

    def load(self, plan: Plan) -> Update:
        """Fetches and collates this rank's share of a plan.

        Args:
            plan: The plan.

        Returns:
            The micro-batches: of one stream each if the plan weighs losses or `by_stream` is set, else mixed.

        Raises:
            SampleError: If a sample cannot be loaded.
        """
        share = self.mixing.planner.rank_share(plan, self._rank, self._world_size)
        stream_ids = np.repeat([stream_id for stream_id, _ in share], [len(indices) for _, indices in share])
        make = self._batches_of(share)
        split = split_by_stream if self.by_stream or plan.loss_weights is not None else split_mixed
        slices = split(plan, self._rank, self._world_size, self._max_size)
        return Update(
            plan,
            tuple(
                MicroBatch(make(cut.start, cut.stop), stream_ids[cut.start : cut.stop], False)
                if cut.start < cut.stop
                else self._padding(plan, cut)
                for cut in slices
            ),
        )

    def _padding(self, plan: Plan, cut: MicroBatchSlice) -> MicroBatch:
        """Repeats one sample of the plan: every rank runs as many forwards and backwards as the others."""
        stream_id = cut.stream_id if cut.stream_id >= 0 else int(np.argmax(plan.counts > 0))
        start = int(plan.starts[stream_id])
        indices = self.mixing.planner.drawers[stream_id].references(range(start, start + 1))
        return MicroBatch(self._batches_of([(stream_id, indices)])(0, 1), np.array([stream_id]), True)

    def _batches_of(self, share: Share) -> Callable[[int, int], Any]:
        """Reads samples and gives what makes a micro-batch of a slice of them."""
        stack = self._stack_columns
        if stack is not None and share:
            columns = self._reader.read_columns(share)
            return lambda start, stop: stack({name: values[start:stop] for name, values in columns.items()})
        samples = self._reader.read(share)
        return lambda start, stop: self.collator(samples[start:stop])


def batch_mapping(inputs: Any) -> Mapping[str, Any]:
    """Checks that a collator gave what a model can be called with.

    Args:
        inputs: A collated micro-batch.

    Returns:
        The same object.

    Raises:
        TypeError: If it is no mapping.
    """
    if not isinstance(inputs, Mapping):
        raise TypeError(f"The data_collator must return a mapping of model inputs, got {type(inputs).__name__}.")
    return inputs
