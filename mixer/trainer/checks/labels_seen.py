"""Streams without a label that counts, from which nothing is learned."""

from collections.abc import Sequence

import numpy as np
from transformers.utils import logging

from mixer.mixture.stream import Stream
from mixer.utils.arrays import BoolArray, Int64Array

# Samples without a label after which a stream has none: labels may be sparse.
_ENOUGH, _ENOUGH_FOR_ALL = 100, 1_000
_WHY = (
    "A label counts unless it is -100. Usual causes: max_length cuts the answers off; a collator finds no answer and "
    "ignores the text. `mixer inspect`, or inspect_trainer(trainer), shows the labels"
)
logger = logging.get_logger(__name__)


class LabelsSeen:
    """Counts the samples of streams that had no label yet, over all ranks, which count alike.

    Args:
        streams: The streams.
        is_main: Whether this process logs.
    """

    def __init__(self, streams: Sequence[Stream], is_main: bool):
        self._names, self._is_main = [stream.name for stream in streams], is_main
        self._sizes = np.array([stream.num_samples or np.iinfo(np.int64).max for stream in streams])
        self.begin_run()

    def begin_run(self) -> None:
        """Begins a run."""
        self._samples, self._items = np.zeros((2, len(self._names)), dtype=np.int64)
        self._warned: set[int] = set()

    def note(self, samples: Int64Array, items: Int64Array, teaches: bool) -> None:
        """Notes a step, warns of streams without labels, and ends a run without any.

        Args:
            samples: int64 `[num_streams]`: samples of each stream in the step.
            items: int64 `[num_streams]`: their terms of the loss.
            teaches: Whether steps without labels teach something, too: by a term of a method.

        Raises:
            ValueError: If no stream has had a label for long.
        """
        self._samples += samples
        self._items += items
        if not items.all():
            self._warn(self._samples >= np.minimum(self._sizes, _ENOUGH))
            self._refuse(teaches, _ENOUGH_FOR_ALL)

    def end(self, teaches: bool) -> None:
        """Ends a run: warns of all streams that had no label, and raises as `note` does, after fewer samples."""
        self._warn(self._samples > 0)
        self._refuse(teaches, _ENOUGH)

    def _warn(self, are_sure: BoolArray) -> None:
        for number in np.flatnonzero(are_sure & (self._samples > 0) & (self._items == 0)).tolist():
            if number not in self._warned and self._is_main:
                logger.warning(
                    "Stream %r: nothing is learned from it, as none of its %d samples had a label that counts, but it "
                    "keeps its share of the batches. %s.",
                    *(self._names[number], self._samples[number], _WHY),
                )
            self._warned.add(number)

    def _refuse(self, teaches: bool, enough: int) -> None:
        num_samples, whole = self._samples.sum(), float(self._sizes.astype(float).sum())
        if self._items.any() or teaches or num_samples < min(enough, whole):
            return
        raise ValueError(
            f"Nothing was learned: none of the {num_samples} samples of the streams {self._names} that this run has "
            f"trained on had a label that counts. {_WHY}."
        )
