"""The rows of an epoch, as code of others asks the sampler of a DataLoader for them."""

from collections.abc import Iterator

import numpy as np
from torch.utils.data import Sampler

from mixer.mixture.controller import Mixing


class EpochSampler(Sampler[int]):
    """Yields the rows of a rank in an epoch at the present weights and batch size, without moving the streams.

    Args:
        mixing: Mixture controller; all its streams have an index.
        rank: The rank.
        world_size: Number of ranks.
    """

    def __init__(self, mixing: Mixing, rank: int, world_size: int):
        self._mixing, self._rank, self._world_size = mixing, rank, world_size

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __iter__(self) -> Iterator[int]:
        mixing = self._mixing.preview_copy()
        starts = np.cumsum([0, *(stream.num_samples for stream in mixing.planner.streams)])
        epoch = mixing.clock.num_epochs_done
        while mixing.clock.num_epochs_done == epoch and (plan := mixing.next_plan()) is not None:
            for part in mixing.planner.rank_share(plan, self._rank, self._world_size):
                yield from (part.indices + starts[part.stream_id]).tolist()
            mixing.count_untrained(plan)
