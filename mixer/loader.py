"""From a plan to the micro-batches of one rank: samples are fetched, a call a stream, and collated."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray

from mixer.controller import Mixing
from mixer.plan import MicroBatchSlice, Plan, split_by_stream, split_mixed

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


@runtime_checkable
class _BatchReader(Protocol):
    def __getitems__(self, indices: list[int]) -> Sequence[Any]: ...


class SampleError(RuntimeError):
    """A sample could not be loaded; the stream and the index are in the message."""


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
    """

    def __init__(
        self,
        mixing: Mixing,
        datasets: Sequence[Any],
        collator: Collator,
        rank: int = 0,
        world_size: int = 1,
        max_micro_batch_size: int = 8,
    ):
        self.mixing = mixing
        self.dataset = datasets[0] if len(datasets) == 1 else torch.utils.data.ConcatDataset(datasets)
        self.collator = collator
        self.by_stream = False
        self._datasets = tuple(datasets)
        self._readers = tuple(dataset if isinstance(dataset, _BatchReader) else None for dataset in datasets)
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
        stream_ids, positions = plan.rank_share(self._rank, self._world_size)
        samples = self._fetch(plan, stream_ids, positions)
        split = split_by_stream if self.by_stream or plan.loss_weights is not None else split_mixed
        slices = split(plan, self._rank, self._world_size, self._max_size)
        return Update(plan, tuple(self._collate(plan, cut, samples, stream_ids) for cut in slices))

    def _collate(self, plan: Plan, cut: MicroBatchSlice, samples: list[Any], stream_ids: Int64Array) -> MicroBatch:
        if cut.start < cut.stop:
            return MicroBatch(self.collator(samples[cut.start : cut.stop]), stream_ids[cut.start : cut.stop], False)
        # Every rank runs as many forwards and backwards as the others; one without a sample left repeats one of the
        # plan's, at weight 0.
        stream_id = np.array([cut.stream_id if cut.stream_id >= 0 else int(np.argmax(plan.counts > 0))])
        return MicroBatch(self.collator(self._fetch(plan, stream_id, plan.starts[stream_id])), stream_id, True)

    def _fetch(self, plan: Plan, stream_ids: Int64Array, positions: Int64Array) -> list[Any]:
        indices = self.mixing.planner.references(stream_ids, positions, plan.total).tolist()
        ends = np.searchsorted(stream_ids, np.arange(len(self._datasets)), side="right").tolist()
        samples: list[Any] = []
        for stream_id, end in enumerate(ends):
            if end > len(samples):
                samples += self._read(stream_id, indices[len(samples) : end])
        return samples

    def _read(self, stream_id: int, indices: list[int]) -> Sequence[Any]:
        reader, dataset = self._readers[stream_id], self._datasets[stream_id]
        try:
            samples = [dataset[index] for index in indices] if reader is None else reader.__getitems__(indices)
        except Exception as error:  # whatever a user's data set raises is passed on, with the place
            raise self._sample_error(stream_id, indices, error) from error
        if len(samples) != len(indices):
            name = self.mixing.names[stream_id]
            raise SampleError(f"Stream {name!r}: __getitems__ gave {len(samples)} samples for {len(indices)} indices.")
        return samples

    def _sample_error(self, stream_id: int, indices: list[int], error: Exception) -> SampleError:
        name, where = self.mixing.names[stream_id], f"one of the samples {indices}"
        for index in indices:
            try:
                self._datasets[stream_id][index]
            except Exception as single:
                where, error = f"sample {index}", single
                break
        return SampleError(f"Stream {name!r}: {where} could not be loaded: {type(error).__name__}: {error}")


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
