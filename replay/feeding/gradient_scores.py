"""Gradient similarity between new samples and the entries of a buffer."""

from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from mixer.gradients.probe import GradientProbe
from mixer.loading.step import StepBatch
from mixer.mixture.cursors import StreamShare
from mixer.mixture.permutation import Permutation
from mixer.trainer.method import RunContext
from mixer.utils.arrays import FloatArray, Int64Array
from replay.memory.kept_rows import KeptRows
from replay.memory.memory import Memory
from replay.shared.offered import Facts, Offered
from replay.shared.random_numbers import RandomNumbers

_MOST_ROWS = 32  # new samples in one backward: each holds a gradient of a layer of its own
_PURPOSE = 13  # of the random numbers


class GradientScores:
    """Scores the samples of a step for gradient-based sample selection.

    Aljundi et al. 2019, arXiv:1903.08671, algorithm 2: the score of a sample is the largest cosine of its gradient with
    the gradients of some randomly drawn entries. Gradients are computed after the optimizer step, in evaluation mode.
    Each step costs an extra read, forward and backward pass of its samples and, on every rank and for each 32 of them,
    of the compared entries. Layers that `GradientProbe` does not support are left out.

    Args:
        run: The run.
        buffer: The buffer.
        stream_id: Its stream.
        kept: Reads this rank's samples of a step.
    """

    def __init__(self, run: RunContext, buffer: Memory, stream_id: int, kept: KeptRows):
        self._run, self._buffer, self._stream_id = run, buffer, stream_id
        self._num_compared, self._kept = getattr(buffer.selection, "num_compared", 10), kept

    def prepare(self, model: nn.Module) -> None:
        """Refuses a model none of whose gradients can be read.

        Args:
            model: The model as it is trained.

        Raises:
            ValueError: If it is such a model.
        """
        num_streams = _MOST_ROWS + self._num_compared
        self._probe = GradientProbe(self._run.runs.model, num_streams, "exact", variance=False, world_size=1)

    def __call__(self, batch: StepBatch, offered: Offered) -> FloatArray:
        """Scores what a step offers; all ranks have to call it.

        Args:
            batch: This rank's part of the step.
            offered: The samples.

        Returns:
            `[count]`: in [-1, 1]; NaN where there is no entry, or a gradient is 0.

        Raises:
            RemoteError: If another rank failed; one that failed itself raises that error.
        """
        slots, rank_sync = self._compared_slots(), self._run.rank_sync
        if not len(slots):
            return np.full(offered.count, np.nan)
        facts = rank_sync.run_on_all(partial(self._own_scores, batch, offered, slots))
        return facts.gathered(rank_sync)["score"]

    def _own_scores(self, batch: StepBatch, offered: Offered, slots: Int64Array) -> Facts:
        addresses, runs = self._buffer.addresses(slots), self._run.runs
        entries = list(runs.read(StreamShare(self._stream_id, slots, addresses)))
        parts = [offered.of_micro_batch(micro) for micro in batch.micro_batches]
        indexed = self._kept.read_indexed(np.sort(np.concatenate([part[part >= 0] for part in parts])))
        own, facts = dict(self._kept.rows_of_iterables(batch)) | indexed, Facts(("score",), offered.count)
        numbers = np.array(sorted(own), dtype=np.int64)
        for first in range(0, len(numbers), _MOST_ROWS):
            part = numbers[first : first + _MOST_ROWS]
            cosines = self._cosines(batch, [own[number] for number in part.tolist()], entries)
            facts.note("score", part, torch.from_numpy(cosines.max(axis=1)))
        return facts

    def _compared_slots(self) -> Int64Array:
        size = len(self._buffer)
        if not size:
            return np.zeros(0, dtype=np.int64)
        key = RandomNumbers(self._buffer.key or 0, _PURPOSE).key(self._buffer.num_offered)
        # Readers seed random transforms by ascending positions; the order of entries means nothing.
        return np.sort(Permutation(size, key).indices(0, min(self._num_compared, size)))

    def _cosines(self, batch: StepBatch, samples: list[Any], entries: list[Any]) -> FloatArray:
        """Gives `[num_samples, num_entries]`: cosines of their gradients."""
        runs, probe = self._run.runs, self._probe
        micro = runs.collate([*samples, *entries], batch.plan)
        items = runs.items(micro)
        if len(items) != len(samples) + len(entries):
            raise ValueError(
                "selection=GradientDiversity needs a row for each sample, but the data_collator packs them. "
                "Use one that pads."
            )
        with runs.alone() as model:
            try:
                probe.start(np.arange(len(items)), items)
                torch.autograd.backward(runs.mean_loss(micro, model))
                cosines = probe.finish().cosines
            except BaseException:
                probe.cancel()
                raise
        return np.asarray(cosines[: len(samples), len(samples) : len(items)])
