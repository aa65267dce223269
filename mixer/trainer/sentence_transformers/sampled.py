"""Batches of a stream by a batch sampler of sentence-transformers, or by one of the user's."""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import torch

Batch = Sequence[int]


class SampledBatches:
    """Makes the batches of a pass by the trainer's `get_batch_sampler`, each for one device, and joins them to steps.

    Args:
        trainer: The trainer, which has the options of the sampler.
        dataset: The data set of the stream.
    """

    def __init__(self, trainer: Any, dataset: Any):
        self._trainer, self._dataset, self._sampler = trainer, dataset, None
        self._generator = torch.Generator()

    def __call__(self, batch_size: int, number: int, seed: int) -> list[list[int]]:
        """Returns the batches of a pass; see `Stream.batches`."""
        args = self._trainer.args
        if self._sampler is None:
            self._sampler = self._trainer.get_batch_sampler(
                self._dataset,
                batch_size=args.train_batch_size,
                drop_last=args.dataloader_drop_last,
                valid_label_columns=self._trainer.data_collator.valid_label_columns,
                generator=self._generator,
                seed=seed,
            )
        sampler: Any = self._sampler
        self._generator.manual_seed(seed + number)
        if hasattr(sampler, "set_epoch"):
            sampler.set_epoch(number)
        num_batches = max(batch_size // (args.train_batch_size * args.world_size), 1)
        return [*steps_of([*sampler], num_batches, args.world_size, args.dataloader_drop_last)]


def steps_of(batches: Sequence[Batch], num_batches: int, num_ranks: int, drops: bool) -> Iterator[list[int]]:
    """Joins batches to steps, so that each rank gets whole ones.

    Args:
        batches: The batches of a pass, each for one device.
        num_batches: Number of batches of a rank in a step.
        num_ranks: Number of ranks. Rows of a step go to them in turn.
        drops: Whether to drop full batches that are too few for all ranks; otherwise ranks share each of them.

    Yields:
        The rows of each step: first those of full batches, then those of each smaller one.
    """
    size = max(map(len, batches), default=0)
    full = [batch for batch in batches if len(batch) == size]
    most = len(full) - len(full) % num_ranks
    step = num_batches * num_ranks
    for start in range(0, most, step):
        joined = full[start : min(start + step, most)]
        of_ranks = [[*itertools.chain(*joined[rank::num_ranks])] for rank in range(num_ranks)]
        yield [row for rows in zip(*of_ranks, strict=True) for row in rows]
    yield from ([*batch] for batch in ([] if drops else full[most:]))
    yield from ([*batch] for batch in batches if len(batch) < size)
