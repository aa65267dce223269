"""Data loader for your own PyTorch or accelerate loop: prefetches samples, yet plans each batch at the last moment."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from torch.utils.data import default_collate

from mixer.loading.batching import MicroBatchCap, MicroBatchOptions, Splitting
from mixer.loading.collate import Collation, Collator, StreamSpecifics
from mixer.loading.loaded_step import MicroBatch, StepBatch
from mixer.loading.loader import MixingLoader
from mixer.loading.preprocessing import preprocessed
from mixer.loading.standalone import Standalone
from mixer.loading.standalone_options import BatchSizeLike, MixingLike
from mixer.loading.workers import WorkerOptions
from mixer.mixture.clock import Budget
from mixer.mixture.stream import Stream
from mixer.mixture.streams import read_from
from mixer.schedules.limits import check_whole
from mixer.utils.data_set import DataSet
from mixer.utils.errors import wrong_value
from mixer.utils.recorded_arguments import names_arguments

_ALL = 2**62  # micro-batch size that means the whole batch


@names_arguments
class MixingDataLoader(Standalone):
    """Yields this rank's collated batches, one epoch per iteration; an interrupted epoch continues where it stopped.

    Each batch is planned when it is requested, with any number of workers: new settings and observations take effect at
    once, and `state_dict` reflects exactly the batches that were returned. Tensors stay on the CPU. In an accelerate
    loop pass `rank=accelerator.process_index` and `world_size=accelerator.num_processes`; `accelerator.prepare` is not
    needed and returns this loader unchanged.

    A rank without samples in a small last batch repeats another rank's sample and sets `is_padding`. Every rank must
    run the model, but a padding sample must not contribute to the loss: multiply by `loader.loss_scale`.

    Args:
        data: Dataset, mapping of names to datasets, or list of `Stream`; no iterable datasets.
        batch_size: Samples per batch over all ranks: a number, a schedule, its name, or `f(step, batch_size)`. A
            function starts from one sample per rank at step 0 (`Function(f, initial=...)` for another number).
        mixing: Mixing policy, as for `MixingTrainer`.
        micro_batch_size: Maximum samples per micro-batch. If set, each batch is a tuple of `MicroBatch`, equally many
            on every rank. They hold one stream each if losses are weighted (`plan.loss_weights`) or streams have their
            own collators or heads; the head is in the batch, as `task`.
        collate_fn: Collates a list of samples; `None` uses torch's default.
        shuffle: Whether to shuffle each stream anew in every epoch.
        seed: Seed of shuffling and of samples and collators that draw random numbers.
        drop_last: Whether to drop the incomplete last batch of an epoch.
        epoch_size: Samples per epoch; `None` uses the total of all streams.
        budget: Length of the run, after which no more batches come; required by schedules and policies that depend on
            progress. `None` means no end.
        num_workers: Worker processes that prefetch samples; 0 loads in this process.
        prefetch_factor: Batches, or micro-batches, that each worker prefetches.
        persistent_workers: Whether workers stay alive between epochs, until `stop`.
        worker_init_fn: Called first in each worker.
        pin_memory: Whether to copy batches that are mappings into pinned memory.
        rank: Rank of this process; `None` uses `torch.distributed`, or 0.
        world_size: Number of ranks; `None` uses `torch.distributed`, or 1.

    Raises:
        ValueError: If sizes, ranks and streams are inconsistent.
        TypeError: If an argument has the wrong type.

    Example:
        >>> loader = MixingDataLoader(range(5), batch_size=2, shuffle=False)
        >>> for batch in loader:
        ...     print(batch)
        ...     loader.set_batch_size(3)
        tensor([0, 1])
        tensor([2, 3, 4])
    """

    _supported = ("preprocess", "data_collator", "head")

    def __init__(
        self,
        data: int | DataSet | Mapping[str, DataSet] | Sequence[Stream],
        batch_size: BatchSizeLike,
        *,
        mixing: MixingLike | None = None,
        micro_batch_size: int | None = None,
        collate_fn: Collator | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        epoch_size: int | None = None,
        budget: Budget | None = None,
        num_workers: int = 0,
        prefetch_factor: int = 2,
        persistent_workers: bool = False,
        worker_init_fn: Callable[[int], None] | None = None,
        pin_memory: bool = False,
        rank: int | None = None,
        world_size: int | None = None,
    ):
        self._is_whole = micro_batch_size is None
        super().__init__(
            data,
            batch_size,
            mixing=mixing,
            shuffle=shuffle,
            seed=seed,
            drop_last=drop_last,
            epoch_size=epoch_size,
            budget=budget,
            rank=rank,
            world_size=world_size,
        )
        if micro_batch_size is not None:
            check_whole("micro_batch_size", micro_batch_size)
        _check_workers(num_workers, prefetch_factor, persistent_workers)
        specifics = self._specifics()
        own_size = -(-self.mixing.batch_size // self.world_size)
        self._workers = WorkerOptions(
            num_workers, prefetch_factor, persistent_workers, worker_init_fn, job_size=micro_batch_size or own_size
        )
        lasting = {s.name: preprocessed(s.dataset, s.preprocess) for s in self.streams if not s.is_memory}
        is_compared = collate_fn is None and len(self.streams) > 1
        collation = Collation(
            default_collate if collate_fn is None else collate_fn,
            self.mixing.names,
            dict if collate_fn is None else None,
            seed,
            self.rank,
            pin_memory,
            specifics,
            frozenset([-1] if is_compared else []),
        )
        self._loader = MixingLoader(
            self.mixing,
            read_from(self.streams, lasting),
            collation,
            self.rank,
            self.world_size,
            MicroBatchOptions(micro_batch_size or _ALL),
            workers=self._workers,
            splitting=partial(Splitting, MicroBatchCap(micro_batch_size or _ALL), by_stream=bool(specifics)),
        )

    def _specifics(self) -> dict[int, StreamSpecifics]:
        own = {
            number: StreamSpecifics(stream.data_collator, stream.head)
            for number, stream in enumerate(self.streams)
            if stream.data_collator is not None or stream.head is not None
        }
        if own and self._is_whole and len(self.streams) > 1:
            names = [self.streams[number].name for number in own]
            raise wrong_value(
                "micro_batch_size",
                f"must be set, for micro-batches of one stream each: the streams {names} have their own collators or "
                "heads, which a mixed batch cannot use.",
            )
        return own

    def __iter__(self) -> Iterator[Any]:
        try:
            for plan in self._plans():
                yield self._batch(self._loader.load(plan))
        finally:
            if not self._workers.persistent_workers:
                self.stop()

    def loss_scale_of(self, micro_batch: MicroBatch) -> float:
        """Returns the factor for the mean loss of a micro-batch.

        Summed over micro-batches, the scaled losses equal the batch's mean loss scaled by `loss_scale`.

        Args:
            micro_batch: Micro-batch of the last batch.

        Returns:
            Factor; 0 for a padding micro-batch.
        """
        return self._loss_scale(0 if micro_batch.is_padding else len(micro_batch.stream_ids))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores a saved state; see `Standalone.load_state_dict`."""
        self.stop()
        super().load_state_dict(state)

    def stop(self) -> None:
        """Stops the workers; they restart with the next batch."""
        self._loader.stop()

    def _batch(self, batch: StepBatch) -> Any:
        micro_batches = batch.micro_batches
        own = [micro for micro in micro_batches if not micro.is_padding]
        self.is_padding = not own
        self.stream_ids = np.concatenate([micro.stream_ids for micro in own or micro_batches[:1]])
        return micro_batches[0].inputs if self._is_whole else micro_batches


def _check_workers(num_workers: int, prefetch_factor: int, persistent_workers: bool) -> None:
    check_whole("num_workers", num_workers, "worker", least=0)
    check_whole("prefetch_factor", prefetch_factor)
    if persistent_workers and not num_workers:
        raise wrong_value("persistent_workers", "=True needs workers: set num_workers above 0.", found=True)
