"""Labels that a head does not have, and streams without a label that counts, from which nothing is learned."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers.utils import logging

from mixer.loading.loaded_step import StepBatch
from mixer.mixture.stream import Stream
from mixer.models.labels import check_labels
from mixer.models.token_ids import check_tokens
from mixer.run.plan import RunPlan
from mixer.utils.arrays import BoolArray, Int64Array
from mixer.utils.errors import InvalidValueError
from mixer.utils.text import listed

# Samples without a label after which a stream has none: labels may be sparse.
_ENOUGH, _ENOUGH_FOR_ALL = 100, 1_000
_WHY = (
    "A label counts unless it is -100. Usual causes: max_length cuts the answers off; a collator finds no answer and "
    "ignores the text. `mixer inspect`, or inspect_trainer(trainer), shows the labels"
)
logger = logging.get_logger(__name__)


def called_head(task: str | None) -> str:
    """Names a head in an error, by the model's argument `task`."""
    return "the model's head" if task is None else f"the head {task!r}"


def check_batch(plan: RunPlan, batch: StepBatch) -> None:
    """Refuses labels that the head of their stream does not have, and tokens that the model does not have.

    Args:
        plan: The plan of the run.
        batch: This rank's part of a step.

    Raises:
        ValueError: With the streams, and what was found.
    """
    have_classes = any(plan.facts.num_classes)
    for micro in batch.micro_batches:
        if not isinstance(micro.inputs, dict | Mapping):
            continue
        if have_classes:
            _check_classes(plan, micro.inputs.get("labels"), micro.stream_ids)
        if plan.facts.num_tokens is not None:
            _check_tokens(plan, micro.inputs.get("input_ids"), micro.stream_ids, plan.facts.num_tokens)


def _check_tokens(plan: RunPlan, ids: Any, stream_ids: Int64Array, num_tokens: int) -> None:
    if not isinstance(ids, Tensor) or not ids.numel() or 0 <= int(ids.min()) <= int(ids.max()) < num_tokens:
        return  # before anything is named: this is done in every step
    names = [repr(plan.streams[stream_id].name) for stream_id in np.unique(stream_ids).tolist()]
    check_tokens(f"A micro-batch of {listed(names) if names else 'no stream'}", ids, num_tokens)


def _check_classes(plan: RunPlan, labels: Any, stream_ids: Int64Array) -> None:
    for stream_id in np.unique(stream_ids).tolist():
        if (number := plan.facts.num_classes[stream_id]) is not None and isinstance(labels, Tensor):
            are_rows = labels.dim() > 0 and len(labels) == len(stream_ids)
            own = labels[torch.from_numpy(stream_ids == stream_id)] if are_rows else labels
            check_labels(plan.streams[stream_id].name, own, number, called_head(plan.tasks[stream_id]))


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
        text = f"Nothing was learned: none of the {num_samples} samples of the streams {self._names} that this run has "
        raise InvalidValueError(f"{text}trained on had a label that counts. {_WHY}.", option="labels")
