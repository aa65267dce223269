"""A batch sampler for a PyTorch loop of one's own: batches of a size that may change, of one stream or several."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from torch.utils.data import Sampler

from mixer.loading.batching import ids_of
from mixer.loading.standalone import BatchSizeLike, MixingLike, Standalone
from mixer.mixture.clock import Budget
from mixer.mixture.plan import Plan


class AdaptiveBatchSampler(Standalone, Sampler[list[int]]):
    """Gives the batches of an epoch, as indices of this rank's samples: `DataLoader(data, batch_sampler=sampler)`.

    Each iteration is an epoch; one that was left in the middle, or resumed there, is gone on with. Of a batch no rank
    has two samples more than another. Where the last batch of an epoch has fewer samples than there are ranks, a rank
    without any is given one of the others' and `is_padding` is set: every rank has to run the model, but that sample
    must count for nothing, which `loss * sampler.loss_scale` sees to.

    Limits: a DataLoader with workers asks for `num_workers` × `prefetch_factor` batches ahead. Sizes and weights rule
    that much later then, and `state_dict`, `plan`, `stream_ids`, `is_padding`, `loss_scale` and `observe` are that much
    ahead of the batch that is trained on. `MixingDataLoader` knows neither limit. So that ranks are not dealt out
    twice, the DataLoader must not be given to `accelerator.prepare`.

    Args:
        data: A number of samples, a data set, a mapping of names to data sets, or a list of `Stream`. Of several
            streams the indices are those of their concatenation, `sampler.dataset`.
        batch_size: Samples of a batch over all ranks: a number, a schedule, its name, or `f(step, batch_size)`, which
            is given one sample a rank at step 0 (`Function(f, initial=...)` for another number).
        mixing: What decides the streams' weights, as for `MixingTrainer`.
        shuffle: Whether every epoch of a stream has a shuffled order of its own.
        seed: The seed of those orders.
        drop_last: Whether the rest of an epoch that makes no whole batch is dropped.
        epoch_size: Samples of an epoch; `None` takes those of all streams together.
        budget: How much is trained in all, after which there are no more batches; a schedule or policy that goes by
            progress needs one. `None` is without end.
        rank: This rank; `None` takes that of `torch.distributed`, or 0.
        world_size: Number of ranks; `None` takes that of `torch.distributed`, or 1.

    Raises:
        ValueError: If sizes, ranks and streams do not fit together.
        TypeError: If something is of the wrong kind.

    Example:
        >>> sampler = AdaptiveBatchSampler(5, batch_size=2, shuffle=False)
        >>> for batch in sampler:
        ...     print(batch)
        ...     sampler.set_batch_size(3)
        [0, 1]
        [2, 3, 4]
    """

    # There is no attribute `batch_size`: accelerate takes an integer of that name for the size of all batches and drops
    # those of another size.

    def __init__(
        self,
        data: Any,
        batch_size: BatchSizeLike,
        *,
        mixing: MixingLike | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        epoch_size: int | None = None,
        budget: Budget | None = None,
        rank: int | None = None,
        world_size: int | None = None,
    ):
        super().__init__(
            data, batch_size, mixing, shuffle, seed, drop_last, epoch_size, budget, rank=rank, world_size=world_size
        )
        memories = [stream.name for stream in self.streams if stream.is_memory]
        if memories:
            raise ValueError(
                f"The streams {memories} are replay buffers, which no index leads to: use MixingDataLoader."
            )
        ends = np.cumsum([len(stream.dataset) for stream in self.streams])
        self._offsets = np.concatenate([[0], ends[:-1]])

    def __iter__(self) -> Iterator[list[int]]:
        for plan in self._plans():
            yield self._indices(plan)

    def _indices(self, plan: Plan) -> list[int]:
        planner = self.mixing.planner
        share = planner.rank_share(plan, self.rank, self.world_size)
        self.is_padding = not share
        share = share or [planner.example(plan, plan.first_stream)]
        self.stream_ids = ids_of(share)
        indices: list[int] = np.concatenate([part.indices + self._offsets[part.stream_id] for part in share]).tolist()
        return indices
