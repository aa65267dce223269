"""Streams that differ: collators, preprocessing, labels, losses and heads of their own."""

import contextlib
import copy
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel, Trainer
from transformers.utils import logging

from mixer.loading.collate import StreamSpecifics, can_share_batch
from mixer.loading.step import StepBatch, StepCounts
from mixer.mixture.stream import Stream
from mixer.models.heads import tasks_of
from mixer.models.inputs import TASK, check_columns, heads_of
from mixer.models.labels import check_label_column, check_labels, find_lack_of_labels, needs_labels, num_classes_of
from mixer.trainer.loader_options import LoadingMixin
from mixer.utils.arrays import Int64Array
from mixer.utils.random_state import seeded

logger = logging.get_logger(__name__)


class StreamSpecificsMixin(LoadingMixin):
    """A Trainer whose streams may differ in everything between a sample and its loss."""

    _tasks: tuple[str | None, ...] = ()  # of each stream: the argument `task` of a model with several heads
    _num_classes: tuple[int | None, ...] = ()  # of each stream's head, if it is a classifier

    def _take_specifics(self) -> None:
        """Finds the streams' own options; raises a `ValueError` for those that the model cannot use."""
        streams = self.streams
        self._take_label_columns()
        self._tasks = tasks_of(self._own_model, streams)
        self._normalizations = {}  # needed by a score before the first run
        _check_unused_heads(self, self._tasks)
        self._check_smoothing()
        self._take_classes()
        differ_in_loss = any(stream.compute_loss_func != streams[0].compute_loss_func for stream in streams)
        self._losses_differ = differ_in_loss or len(set(self._tasks)) > 1
        forms = {number: self._form(stream, self._tasks[number]) for number, stream in enumerate(streams)}
        self._specifics = {number: form for number, form in forms.items() if form != StreamSpecifics()}
        first_samples = self._first_samples()
        self._check_columns(first_samples)
        differ_in_labels = len({tuple(stream.label_names or ()) for stream in streams}) > 1
        if differ_in_labels or differ_in_loss or self._specifics:
            self._wants_one_stream_each = True
        elif not (self._have_same_columns() and self._are_alike(first_samples)):
            logger.info("Streams differ in columns, so every micro-batch contains one stream only.")
            self._wants_one_stream_each = True

    def _take_classes(self) -> None:
        """Finds the number of classes of each stream's head, if that head computes the loss."""
        self._num_classes = tuple(
            None if self._computes_own_loss(number) else num_classes_of(self._own_model, task)
            for number, task in enumerate(self._tasks)
        )
        for stream, task, number in zip(self.streams, self._tasks, self._num_classes, strict=True):
            collator = stream.data_collator or self.data_collator
            # A user's collator may change the labels of the data set.
            is_stock = str(getattr(collator, "__module__", "")).startswith("transformers.")
            if number is not None and stream.preprocess is None and is_stock:
                check_label_column(stream.name, stream.dataset, number, _head(task))

    def _check_smoothing(self) -> None:
        """Refuses label smoothing if labels are no classes: the Trainer treats all labels as classes."""
        heads = heads_of(self._own_model) or {}
        for number, task in enumerate(self._tasks):
            problem = getattr(heads.get(task or ""), "problem_type", "")
            is_smoothed = self.args.label_smoothing_factor and not self._computes_own_loss(number)
            if is_smoothed and problem in ("regression", "multi_label_classification"):
                raise ValueError(
                    f"label_smoothing_factor={self.args.label_smoothing_factor} needs classes, but stream "
                    f"{self.streams[number].name!r} trains {_head(task)} on other labels ({problem}). Set it to 0, or "
                    f"set the stream's compute_loss_func."
                )

    def _form(self, stream: Stream, task: str | None) -> StreamSpecifics:
        if stream.data_collator is None:
            return StreamSpecifics(None, task)
        collator: Any = stream.data_collator
        if not self._columns_are_removed:
            collator = self._get_collator_with_removed_columns(collator, description=f"stream {stream.name!r}")
        return StreamSpecifics(collator, task)

    def _first_samples(self) -> dict[int, Any]:
        """Reads the first sample of each map-style stream; one that cannot be read is reported when it is used."""
        samples: dict[int, Any] = {}
        for number, (stream, dataset) in enumerate(zip(self.streams, self._datasets(), strict=True)):
            if not (stream.is_iterable or stream.is_memory):
                with tried(f"The first sample of stream {stream.name!r} cannot be read."):
                    samples[number] = dataset[0]
        return samples

    def _check_columns(self, samples: Mapping[int, Any]) -> None:
        own = type(self).compute_loss, type(self)._prepare_inputs  # noqa: SLF001
        if own != (Trainer.compute_loss, Trainer._prepare_inputs):  # noqa: SLF001
            return  # the user's code decides what happens to the columns
        for number, sample in samples.items():
            if (inputs := self._collated(number, sample)) is not None:
                to_loss = {"labels"} if self._computes_own_loss(number) else set()
                columns = {column: value for column, value in inputs.items() if column not in to_loss}
                check_columns(self._own_model, self.streams[number].name, columns)
                self._check_labels(number, sample, inputs)

    def _check_labels(self, number: int, sample: Any, inputs: Mapping[str, Any]) -> None:
        stream, model = self.streams[number], self._own_model
        lack = None if self._computes_own_loss(number) else find_lack_of_labels(model, inputs, stream.dataset, sample)
        if lack is not None and needs_labels(model):
            raise ValueError(f"Stream {stream.name!r}: {lack}")
        if lack is not None:
            logger.warning("Stream %r: %s", stream.name, lack)

    def _collated(self, number: int, sample: Any) -> Mapping[str, Any] | None:
        """Makes a micro-batch of one sample; `None` if that fails, which is reported when the sample is used."""
        form = self._specifics.get(number, StreamSpecifics())
        collator, inputs = form.collator or self._common_collator, None
        with tried(f"A sample of stream {self.streams[number].name!r} cannot be collated."):
            inputs = collator([copy.copy(sample)])  # some collators remove columns from their input
        if not isinstance(inputs, Mapping):
            return None
        return inputs if form.task is None else {**inputs, TASK: form.task}

    def _have_same_columns(self) -> bool:
        """Compares the columns of data sets if some are iterable, whose rows are not read."""
        if not any(stream.is_iterable for stream in self.streams):
            return True
        known: Any = self._signature_columns
        columns = [frozenset(getattr(dataset, "column_names", None) or ()) for dataset in self._datasets()]
        return len({names & frozenset(known) if self._removes_columns else names for names in columns if names}) <= 1

    def _are_alike(self, samples: Mapping[int, Any]) -> bool:
        """Compares the collated first samples; `False` if one of them cannot be read or collated."""
        if len(samples) < sum(not (stream.is_iterable or stream.is_memory) for stream in self.streams):
            return False
        if len(samples) < 2:
            return True
        collated = (self._collated(number, sample) for number, sample in samples.items())
        known = [inputs for inputs in collated if inputs is not None]
        with seeded(0):
            return len(known) == len(samples) and can_share_batch(self._common_collator, [*samples.values()], known)

    def _take_label_columns(self) -> None:
        """Counts the streams' own label columns as columns of the model."""
        self._set_signature_columns_if_needed()
        known: Any = self._signature_columns
        own = [column for stream in self.streams for column in stream.label_names or ()]
        known += [column for column in own if column not in known]

    def _contents(self, batch: StepBatch) -> StepCounts:
        for micro in batch.micro_batches if any(self._num_classes) else ():
            if isinstance(micro.inputs, Mapping):
                self._check_classes(micro.inputs.get("labels"), micro.stream_ids)
        return super()._contents(batch)

    def _check_classes(self, labels: Any, stream_ids: Int64Array) -> None:
        for stream_id in np.unique(stream_ids).tolist():
            if (number := self._num_classes[stream_id]) is not None and isinstance(labels, Tensor):
                are_rows = labels.dim() > 0 and len(labels) == len(stream_ids)
                own = labels[torch.from_numpy(stream_ids == stream_id)] if are_rows else labels
                check_labels(self.streams[stream_id].name, own, number, _head(self._tasks[stream_id]))


@contextlib.contextmanager
def tried(failure: str) -> Iterator[None]:
    """Tries the user's code, without a change of the random numbers of the run; only logs a failure."""
    with seeded(0):
        try:
            yield
        except Exception:
            logger.debug(failure, exc_info=True)


def _check_unused_heads(trainer: Trainer, tasks: tuple[str | None, ...]) -> None:
    """Refuses settings under which ranks would wait for gradients of heads that a step does not use."""
    args, model = trainer.args, trainer.model
    if args.world_size == 1 or len(set(tasks)) < 2:
        return
    finds: bool | None = args.ddp_find_unused_parameters
    is_checkpointed = args.gradient_checkpointing or getattr(model, "is_gradient_checkpointing", False)
    if finds is False or (finds is None and is_checkpointed and isinstance(model, PreTrainedModel)):
        why = "" if finds is False else ", which gradient checkpointing makes False"
        raise ValueError(
            f"ddp_find_unused_parameters={finds}{why}: the heads of streams that a step does not draw have no "
            f"gradients, and the ranks would wait for them. It has to be True."
        )


def _head(task: str | None) -> str:
    return "the model's head" if task is None else f"the head {task!r}"
