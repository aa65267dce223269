"""Batch sampler with a variable batch size, for your own PyTorch training loop."""

import inspect
from collections.abc import Iterator
from functools import cached_property

import numpy as np
from torch.utils.data import Sampler
from torch.utils.data.dataloader import _BaseDataLoaderIter

from mixer.loading.standalone import Standalone
from mixer.mixture.step_plan import ids_of
from mixer.utils.arrays import Int64Array
from mixer.utils.errors import wrong_value


class AdaptiveBatchSampler(Standalone, Sampler[list[int]]):
    """Batch sampler over one or several streams: `DataLoader(data, batch_sampler=sampler)`.

    Yields the indices of this rank's samples. Each iteration is one epoch; an interrupted or resumed epoch continues
    where it stopped. Within a batch, rank sizes differ by at most one sample. If the last batch of an epoch has fewer
    samples than ranks, a rank without samples repeats another rank's sample and sets `is_padding`. Every rank must run
    the model, but a padding sample must not contribute to the loss: multiply by `sampler.loss_scale`.

    Limits: a DataLoader with workers requests `num_workers` × `prefetch_factor` batches ahead. Batch sizes and weights
    take effect that much later, and `state_dict`, `plan`, `stream_ids`, `is_padding`, `loss_scale` and `observe` run
    ahead of training by as much. `MixingDataLoader` has neither limit. Do not pass the DataLoader to
    `accelerator.prepare`: it would shard the data a second time.

    Args:
        data: Number of samples, dataset, mapping of names to datasets, or list of `Stream`. With several streams, the
            indices refer to their concatenation, `sampler.dataset`.
        batch_size: Samples per batch over all ranks: a number, a schedule, its name, or `f(step, batch_size)`. A
            function starts from one sample per rank at step 0 (`Function(f, initial=...)` for another number).
        mixing: Mixing policy, as for `MixingTrainer`.
        shuffle: Whether to shuffle each stream anew in every epoch.
        seed: Shuffling seed.
        drop_last: Whether to drop the incomplete last batch of an epoch.
        epoch_size: Samples per epoch; `None` uses the total of all streams.
        budget: Length of the run, after which no more batches come; required by schedules and policies that depend on
            progress. `None` means no end.
        rank: Rank of this process; `None` uses `torch.distributed`, or 0.
        world_size: Number of ranks; `None` uses `torch.distributed`, or 1.

    Raises:
        ValueError: If sizes, ranks and streams are inconsistent.
        TypeError: If an argument has the wrong type.

    Example:
        >>> sampler = AdaptiveBatchSampler(5, batch_size=2, shuffle=False)
        >>> for batch in sampler:
        ...     print(batch)
        ...     sampler.set_batch_size(3)
        [0, 1]
        [2, 3, 4]
    """

    # No attribute `batch_size`: accelerate would take an integer of that name as the size of all batches and drop
    # others.

    def _check_streams(self) -> None:
        memories = [stream.name for stream in self.streams if stream.is_memory]
        if memories:
            raise wrong_value(
                "data", f": {memories} are replay buffers, whose samples have no index: use MixingDataLoader."
            )

    @cached_property
    def _offsets(self) -> Int64Array:
        return np.cumsum([0, *(len(stream.dataset) for stream in self.streams)], dtype=np.int64)

    def __iter__(self) -> Iterator[list[int]]:
        for plan in self._plans():
            self._runs_ahead = _is_asked_ahead()
            planner = self.mixing.planner
            share = planner.rank_share(plan, self.rank, self.world_size)
            self.is_padding = not share
            share = share or [planner.example(plan, plan.first_stream)]
            self.stream_ids = ids_of(share)
            yield np.concatenate([part.indices + self._offsets[part.stream_id] for part in share]).tolist()


def _is_asked_ahead() -> bool:
    """Whether a DataLoader with workers asks the calling generator for a batch; only its iterator tells."""
    frame = inspect.currentframe()
    for _ in range(2):
        frame = None if frame is None else frame.f_back
    asking = None if frame is None else frame.f_locals.get("self")
    return isinstance(asking, _BaseDataLoaderIter) and getattr(asking, "_num_workers", 0) > 0
