"""A data loader for a PyTorch or accelerate loop of one's own: loaded ahead, and yet planned at the last moment."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from torch.utils.data import default_collate

from mixer.loading.batching import MicroBatchOptions
from mixer.loading.collate import Collator, StreamSpecifics
from mixer.loading.loader import MixingLoader, WorkerOptions
from mixer.loading.preprocessing import preprocessed
from mixer.loading.standalone import BatchSizeLike, MixingLike, Standalone
from mixer.loading.step import MicroBatch, StepBatch
from mixer.mixture.clock import Budget
from mixer.mixture.stream import read_from
from mixer.schedules.limits import check_whole

_ALL = 2**62  # samples of a micro-batch that is the whole batch


class MixingDataLoader(Standalone):
    """Gives this rank's batches, collated, an epoch at an iteration; one that was left in the middle is gone on with.

    Each batch is planned when it is asked for, with any number of workers: what is set or observed before rules it, and
    `state_dict` is exactly what was given. Tensors stay on the CPU. In an accelerate loop give
    `rank=accelerator.process_index` and `world_size=accelerator.num_processes`; `accelerator.prepare` has nothing to do
    for it and, if it is given this loader, gives it back as it is.

    A rank without a sample of a small last batch is given one of the others', and `is_padding` is set: every rank has
    to run the model, but that sample must count for nothing, which `loss * loader.loss_scale` sees to.

    Args:
        data: A data set, a mapping of names to data sets, or a list of `Stream`; no iterable ones.
        batch_size: Samples of a batch over all ranks: a number, a schedule, its name, or `f(step, batch_size)`, which
            is given one sample a rank at step 0 (`Function(f, initial=...)` for another number).
        mixing: What decides the streams' weights, as for `MixingTrainer`.
        micro_batch_size: Most samples of a micro-batch. If given, each batch is a tuple of `MicroBatch`, as many on
            every rank, and of one stream each where losses are weighed (`plan.loss_weights`) or streams have
            collators or heads of their own; the head is in the batch, as `task`.
        collate_fn: Makes a batch of a list of samples; `None` takes torch's default.
        shuffle: Whether every epoch of a stream has a shuffled order of its own.
        seed: The seed of those orders, and of samples and collators that draw random numbers.
        drop_last: Whether the rest of an epoch that makes no whole batch is dropped.
        epoch_size: Samples of an epoch; `None` takes those of all streams together.
        budget: How much is trained in all, after which there are no more batches; a schedule or policy that goes by
            progress needs one. `None` is without end.
        num_workers: Number of processes that load samples ahead; 0 loads in this one.
        prefetch_factor: Number of batches, or micro-batches, whose samples each of them loads ahead.
        persistent_workers: Whether they live on at an epoch's end, until `stop`.
        worker_init_fn: What each of them does first.
        pin_memory: Whether batches that are mappings are put into memory from where a GPU can fetch them by itself.
        rank: This rank; `None` takes that of `torch.distributed`, or 0.
        world_size: Number of ranks; `None` takes that of `torch.distributed`, or 1.

    Raises:
        ValueError: If sizes, ranks and streams do not fit together.
        TypeError: If something is of the wrong kind.

    Example:
        >>> loader = MixingDataLoader(range(5), batch_size=2, shuffle=False)
        >>> for batch in loader:
        ...     print(batch)
        ...     loader.set_batch_size(3)
        tensor([0, 1])
        tensor([2, 3, 4])
    """

    _honoured = ("preprocess", "data_collator", "head")

    def __init__(
        self,
        data: Any,
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
        super().__init__(
            data, batch_size, mixing, shuffle, seed, drop_last, epoch_size, budget, rank=rank, world_size=world_size
        )
        if micro_batch_size is not None:
            check_whole("micro_batch_size", micro_batch_size)
        _check_workers(num_workers, prefetch_factor, persistent_workers)
        self._is_whole = micro_batch_size is None
        specifics = self._specifics()
        own_size = -(-self.mixing.batch_size // self.world_size)
        self._workers = WorkerOptions(
            num_workers, prefetch_factor, persistent_workers, worker_init_fn, job_size=micro_batch_size or own_size
        )
        self._loader = MixingLoader(
            self.mixing,
            read_from(self.streams, self._preprocessed()),
            default_collate if collate_fn is None else collate_fn,
            self.rank,
            self.world_size,
            MicroBatchOptions(micro_batch_size or _ALL),
            stack_columns=dict if collate_fn is None else None,
            seed=seed,
            workers=self._workers,
            pin_memory=pin_memory,
            specifics=specifics,
        )
        self._loader.by_stream = bool(specifics)
        if collate_fn is None and len(self.streams) > 1:
            self._loader.compare_columns([-1])

    def _preprocessed(self) -> dict[str, Any]:
        lasting = [stream for stream in self.streams if not stream.is_memory]
        return {stream.name: preprocessed(stream.dataset, stream.preprocess) for stream in lasting}

    def _specifics(self) -> dict[int, StreamSpecifics]:
        forms = {
            number: StreamSpecifics(stream.data_collator, stream.head) for number, stream in enumerate(self.streams)
        }
        own = {number: form for number, form in forms.items() if form != StreamSpecifics()}
        if own and self._is_whole and len(self.streams) > 1:
            names = [self.streams[number].name for number in own]
            raise ValueError(
                f"The streams {names} have collators or heads of their own, which one batch of several streams cannot "
                "show: give micro_batch_size, for micro-batches of one stream each."
            )
        return own

    def __iter__(self) -> Iterator[Any]:
        try:
            for plan in self._plans():
                if self._is_whole and plan.loss_weights is not None:
                    raise ValueError(
                        f"{self.mixing.policy.name}, or a stream's loss_weight, weighs losses, which one batch of "
                        "several streams cannot show: give micro_batch_size, for micro-batches of one stream each."
                    )
                yield self._batch(self._loader.load(plan))
        finally:
            if not self._workers.persistent_workers:
                self.stop()

    def loss_scale_of(self, micro_batch: MicroBatch) -> float:
        """Gives what the mean loss of a micro-batch is multiplied by; with all of them it does what `loss_scale` does.

        Args:
            micro_batch: One of the batch that was given last.

        Returns:
            The factor; 0 for a micro-batch that only keeps this rank in step with the others.
        """
        return self._loss_scale(0 if micro_batch.is_padding else len(micro_batch.stream_ids))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes up a saved state; see `Standalone.load_state_dict`."""
        self.stop()
        super().load_state_dict(state)

    def stop(self) -> None:
        """Ends the workers; they start again when samples are loaded."""
        self._loader.stop()

    def _batch(self, batch: StepBatch) -> Any:
        micro_batches = batch.micro_batches
        own = [micro for micro in micro_batches if not micro.is_padding]
        self.is_padding = not own
        self.stream_ids = np.concatenate([micro.stream_ids for micro in own or micro_batches[:1]])
        return micro_batches[0].inputs if self._is_whole else micro_batches


def _check_workers(num_workers: int, prefetch_factor: int, persistent_workers: bool) -> None:
    if isinstance(num_workers, bool) or not isinstance(num_workers, int):
        raise TypeError(f"num_workers must be a whole number of processes, got {num_workers!r}.")
    if num_workers < 0:
        raise ValueError(f"num_workers must be 0 or more, got {num_workers}; 0 loads in this process.")
    check_whole("prefetch_factor", prefetch_factor)
    if persistent_workers and not num_workers:
        raise ValueError("persistent_workers=True needs workers: set num_workers above 0.")
