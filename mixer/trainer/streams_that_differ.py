"""Streams that differ: collators, preprocessing, labels, losses and heads of their own."""

import contextlib
import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, Trainer
from transformers.utils import logging

import mixer.models.labels as label_checks
from mixer.loading.collate import Collator, StreamSpecifics
from mixer.loading.loaded_step import StepBatch
from mixer.losses.stream_losses import computes_loss
from mixer.mixture.stream import Stream
from mixer.models.heads import tasks_of
from mixer.models.inputs import TASK, check_columns, heads_of
from mixer.models.token_ids import check_token_column, check_tokens, num_tokens_of
from mixer.run import hf_compat
from mixer.run.loading import LoadingRules, StreamLoading, goes_by_first
from mixer.run.plan import differ_by_options
from mixer.utils.arrays import Int64Array
from mixer.utils.random_state import seeded
from mixer.utils.text import listed

logger = logging.get_logger(__name__)


class StreamDifferences:
    """Finds how the streams of a trainer differ, and refuses what the model cannot use.

    Args:
        trainer: The trainer.
        streams: The streams.
        loading: Makes samples and their collators.
        rules: How the trainer loads.

    Raises:
        ValueError: With the stream and its option.
    """

    def __init__(self, trainer: Trainer, streams: Sequence[Stream], loading: StreamLoading, rules: LoadingRules):
        self._trainer, self._streams, self._loading, self._rules = trainer, streams, loading, rules
        self._take_label_columns()
        # Of each stream: the argument `task` of a model with several heads.
        self.tasks = tasks_of(self._model, list(streams))
        _check_unused_heads(trainer, self.tasks)
        self._check_smoothing()
        self._num_tokens = num_tokens_of(self._model)
        self._num_classes = self._find_classes()  # of each stream's head, if it is a classifier
        forms = {number: self._form(stream, self.tasks[number]) for number, stream in enumerate(streams)}
        # Collators and heads of single streams.
        self.specifics = {number: form for number, form in forms.items() if form != StreamSpecifics()}
        first_samples = self._first_samples()
        self._check_columns(first_samples)
        # Whether samples of several streams can be collated together; tried only where options do not rule it out.
        self.share_batches = not differ_by_options(streams, self.tasks)
        if self.share_batches and not (self._have_same_columns() and self._are_alike(first_samples)):
            logger.info("Streams differ in columns, so every micro-batch contains one stream only.")
            self.share_batches = False

    @property
    def _model(self) -> nn.Module:
        model: nn.Module | None = self._trainer.model
        assert model is not None, "the Trainer has made its model"  # noqa: S101
        return model

    def _is_users(self, number: int) -> bool:
        """Whether the user computes the loss of a stream, not the model."""
        return computes_loss(self._trainer, self._streams[number])

    def _find_classes(self) -> tuple[int | None, ...]:
        """Finds the number of classes of each stream's head, if that head computes the loss."""
        num_classes = tuple(
            None if self._is_users(number) else label_checks.num_classes_of(self._model, task)
            for number, task in enumerate(self.tasks)
        )
        for stream, task, number in zip(self._streams, self.tasks, num_classes, strict=True):
            collator = stream.data_collator or self._trainer.data_collator
            # A user's collator may change the labels of the data set.
            if stream.preprocess is None and goes_by_first(collator):
                label_checks.check_label_values(f"Stream {stream.name!r}", stream.dataset, number, _head(task))
                if number is not None:
                    label_checks.check_label_column(stream.name, stream.dataset, number, _head(task))
                if self._num_tokens is not None:
                    check_token_column(f"Stream {stream.name!r}", stream.dataset, self._num_tokens)
        return num_classes

    def _check_smoothing(self) -> None:
        """Refuses label smoothing if labels are no classes: the Trainer treats all labels as classes."""
        heads = heads_of(self._model) or {}
        for number, task in enumerate(self.tasks):
            problem = getattr(heads.get(task or ""), "problem_type", "")
            is_smoothed = self._trainer.args.label_smoothing_factor and not self._is_users(number)
            if is_smoothed and problem in ("regression", "multi_label_classification"):
                raise ValueError(
                    f"label_smoothing_factor={self._trainer.args.label_smoothing_factor} needs classes, but stream "
                    f"{self._streams[number].name!r} trains {_head(task)} on other labels ({problem}). Set it to 0, or "
                    "set the stream's compute_loss_func."
                )

    def _form(self, stream: Stream, task: str | None) -> StreamSpecifics:
        if stream.data_collator is None:
            return StreamSpecifics(None, task)
        collator: Any = stream.data_collator
        if not self._loading.columns_are_removed:
            collator = hf_compat.collator_removing_columns(self._trainer, collator, f"stream {stream.name!r}")
        return StreamSpecifics(collator, task)

    def _first_samples(self) -> dict[int, Any]:
        """Reads the first sample of each map-style stream; one that cannot be read is reported when it is used."""
        samples, missing = dict[int, Any](), dict[int, Sequence[Any]]()
        for number, (stream, dataset) in enumerate(zip(self._streams, self._loading.datasets(), strict=True)):
            if not (stream.is_iterable or stream.is_memory):
                with try_user_code(f"The first sample of stream {stream.name!r} cannot be read."):
                    try:
                        samples[number] = dataset[0]
                    except KeyError as error:
                        missing[number] = error.args
        for number, names in missing.items():
            self._check_removed(self._streams[number], names)
        return samples

    def _check_removed(self, stream: Stream, missing: Sequence[Any]) -> None:
        """Refuses a transform of a data set that needs a column which is removed before it."""
        for name in missing if self._rules.removes_columns else ():
            if name in (getattr(stream.dataset, "column_names", None) or ()):
                raise ValueError(
                    f"Stream {stream.name!r}: its transform reads the column {name!r}, which remove_unused_columns=True"
                    " removes (not in the model's forward). Set it to False, or pass it as preprocess."
                )

    def _check_columns(self, samples: Mapping[int, Any]) -> None:
        if type(self._trainer).compute_loss != Trainer.compute_loss or hf_compat.prepares_inputs_itself(self._trainer):
            return  # the user's code decides what happens to the columns
        for number, sample in samples.items():
            if (inputs := self.trial_batch(number, sample)) is not None:
                to_loss = {"labels"} if self._is_users(number) else set()
                columns = {column: value for column, value in inputs.items() if column not in to_loss}
                check_columns(self._model, self._streams[number].name, columns)
                self._check_labels(number, sample, inputs)

    def _check_labels(self, number: int, sample: Any, inputs: Mapping[str, Any]) -> None:
        stream, model = self._streams[number], self._model
        if (classes := self._num_classes[number]) is not None and heads_of(model) is None:
            label_checks.check_whole_numbers(stream.name, inputs.get("labels"), classes, _head(None))
        lack = (
            None if self._is_users(number) else label_checks.find_lack_of_labels(model, inputs, stream.dataset, sample)
        )
        if lack is not None and label_checks.needs_labels(model):
            raise ValueError(f"Stream {stream.name!r}: {lack}")
        if lack is not None:
            logger.warning("Stream %r: %s", stream.name, lack)

    def trial_batch(self, number: int, sample: Any, times: int = 1) -> Mapping[str, Any] | None:
        """Makes a micro-batch of one sample, so many times; `None` if that fails, as is reported when it is used."""
        form = self.specifics.get(number, StreamSpecifics())
        collator, inputs = form.collator or self._loading.common_collator, None
        with try_user_code(f"A sample of stream {self._streams[number].name!r} cannot be collated."):
            inputs = collator([copy.copy(sample) for _ in range(times)])  # some remove columns from their input
        if not isinstance(inputs, Mapping):
            return None
        return inputs if form.task is None else {**inputs, TASK: form.task}

    def trial_batch_like(self, stream: Stream | None, sample: Any) -> Mapping[str, Any] | None:
        """Makes a micro-batch of one sample, as of a stream; `None` if that fails."""
        return self.trial_batch(-1 if stream is None else self._streams.index(stream), sample)

    def _have_same_columns(self) -> bool:
        """Compares the columns of data sets if some are iterable, whose rows are not read."""
        if not any(stream.is_iterable for stream in self._streams):
            return True
        known, removes = frozenset(hf_compat.signature_columns(self._trainer)), self._rules.removes_columns
        columns = [frozenset(getattr(dataset, "column_names", None) or ()) for dataset in self._loading.datasets()]
        return len({names & known if removes else names for names in columns if names}) <= 1

    def _are_alike(self, samples: Mapping[int, Any]) -> bool:
        """Compares the collated first samples; `False` if one of them cannot be read or collated."""
        if len(samples) < sum(not (stream.is_iterable or stream.is_memory) for stream in self._streams):
            return False
        if len(samples) < 2:
            return True
        for times in (1, 2):  # a collator may need several samples
            collated = (self.trial_batch(number, sample, times) for number, sample in samples.items())
            if known := [inputs for inputs in collated if inputs is not None]:
                break
        with seeded(0):
            return len(known) == len(samples) and can_share_batch(
                self._loading.common_collator, [*samples.values()], known
            )

    def _take_label_columns(self) -> None:
        """Counts the streams' own label columns as columns of the model."""
        hf_compat.find_signature_columns(self._trainer)
        known: Any = hf_compat.signature_columns(self._trainer)
        own = [column for stream in self._streams for column in stream.label_names or ()]
        known += [column for column in own if column not in known]

    def check_classes(self, batch: StepBatch) -> None:
        """Refuses labels that the head of their stream does not have, and tokens that the model does not have."""
        for micro in batch.micro_batches:
            if isinstance(micro.inputs, Mapping) and any(self._num_classes):
                self._check_classes(micro.inputs.get("labels"), micro.stream_ids)
            if isinstance(micro.inputs, Mapping) and self._num_tokens is not None:
                names = [repr(self._streams[stream_id].name) for stream_id in np.unique(micro.stream_ids).tolist()]
                called = f"A micro-batch of {listed(names) if names else 'no stream'}"
                check_tokens(called, micro.inputs.get("input_ids"), self._num_tokens)

    def _check_classes(self, labels: Any, stream_ids: Int64Array) -> None:
        for stream_id in np.unique(stream_ids).tolist():
            if (number := self._num_classes[stream_id]) is not None and isinstance(labels, Tensor):
                are_rows = labels.dim() > 0 and len(labels) == len(stream_ids)
                own = labels[torch.from_numpy(stream_ids == stream_id)] if are_rows else labels
                label_checks.check_labels(self._streams[stream_id].name, own, number, _head(self.tasks[stream_id]))


@contextlib.contextmanager
def try_user_code(failure: str) -> Iterator[None]:
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


def can_share_batch(collator: Collator, samples: Sequence[Any], alone: Sequence[Mapping[str, Any]]) -> bool:
    """Checks whether a collator can mix samples of several streams in one batch without loss.

    A collator that pads can. One that stacks fails if shapes differ. One that follows the first sample's columns, shape
    or label type would silently drop or convert data of the others.

    Args:
        collator: Collator.
        samples: One sample of each stream.
        alone: The collator's output for each sample alone.

    Returns:
        Whether the streams have the same columns of the same kinds, alone and together.
    """
    kinds = [_kinds(inputs) for inputs in alone]
    if any(kind != kinds[0] for kind in kinds):
        return False
    try:
        together = collator([copy.copy(sample) for sample in samples])
    except Exception:  # the collator cannot mix these samples
        return False
    if not isinstance(together, Mapping) or _kinds(together) != kinds[0]:
        return False
    # No stream's values may be truncated: no dimension is smaller than for a stream alone.
    tensors = [(name, value) for name, value in together.items() if isinstance(value, Tensor)]
    pairs = [(value.shape[1:], inputs[name].shape[1:]) for name, value in tensors for inputs in alone]
    return all(size >= own for both in pairs for size, own in zip(*both, strict=True))


def _kinds(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the kind of each column: for tensors, dtype and number of dimensions."""
    return {
        name: (value.dtype, value.dim()) if isinstance(value, Tensor) else type(value) for name, value in inputs.items()
    }
