"""What is known of a trainer and its streams before a run is planned: heads, classes, what can be collated together.

It is read off the trainer, its model, and the first sample of each stream.
"""

import copy
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel, Trainer
from transformers.utils import logging

import mixer.models.labels as label_checks
from mixer.loading.collate import Collator
from mixer.losses.stream_losses import computes_loss
from mixer.mixture.stream import Stream
from mixer.models.inputs import check_columns, heads_of
from mixer.models.token_ids import check_token_column, num_tokens_of
from mixer.run import hf_compat
from mixer.run.plan import Facts, differ_by_options
from mixer.run.samples import StreamSamples, goes_by_first, try_user_code
from mixer.trainer.checks.labels import called_head
from mixer.utils.errors import InvalidValueError, wrong_value
from mixer.utils.random_state import seeded

# Gives the micro-batch of a stream's first sample alone; `None` if it cannot be collated.
_Trial = Callable[[int], Mapping[str, Any] | None]

logger = logging.get_logger(__name__)


def facts_of(trainer: Trainer, samples: StreamSamples) -> Facts:
    """Reads what the plan of a run needs to know, and refuses streams that the model cannot use.

    Args:
        trainer: The trainer.
        samples: The samples of its streams.

    Raises:
        ValueError: With the stream and its option.
    """
    streams, tasks, model = samples.streams, samples.tasks, _model_of(trainer)
    _check_unused_heads(trainer, tasks)
    _check_smoothing(trainer, samples)
    num_tokens = num_tokens_of(model)
    num_classes = tuple(
        None if computes_loss(trainer, stream) else label_checks.num_classes_of(model, task)
        for stream, task in zip(streams, tasks, strict=True)
    )
    _check_data(samples, num_classes, num_tokens)
    first_samples = _first_samples(samples)
    trial = functools.cache(lambda number: samples.trial_batch(number, first_samples[number]))
    _check_columns(samples, first_samples, trial, num_classes)
    # Tried only where options do not rule it out.
    share_batches = not differ_by_options(streams, tasks)
    if share_batches and not (_have_same_columns(samples) and _are_alike(samples, first_samples, trial)):
        logger.info("Streams differ in columns, so every micro-batch contains one stream only.")
        share_batches = False
    # TRL's trainers set padding_free if one row holds several samples.
    packs_rows = bool(getattr(trainer, "padding_free", False))
    return Facts(samples.rules.most_samples, tasks, share_batches, packs_rows, num_classes, num_tokens)


def _model_of(trainer: Trainer) -> nn.Module:
    model: nn.Module | None = trainer.model
    assert model is not None, "the Trainer has made its model"  # noqa: S101
    return model


# ---- Heads, labels and columns ----


def _check_unused_heads(trainer: Trainer, tasks: tuple[str | None, ...]) -> None:
    """Refuses settings under which ranks would wait for gradients of heads that a step does not use."""
    args, model = trainer.args, trainer.model
    if args.world_size == 1 or len(set(tasks)) < 2:
        return
    finds: bool | None = args.ddp_find_unused_parameters
    is_checkpointed = args.gradient_checkpointing or getattr(model, "is_gradient_checkpointing", False)
    if finds is False or (finds is None and is_checkpointed and isinstance(model, PreTrainedModel)):
        why = "" if finds is False else ", which gradient checkpointing makes False"
        text = f"={finds}{why}: the heads of streams that a step does not draw have no gradients, and ranks would wait "
        raise wrong_value("ddp_find_unused_parameters", f"{text}for them. It has to be True.")


def _check_smoothing(trainer: Trainer, samples: StreamSamples) -> None:
    """Refuses label smoothing if labels are no classes: the Trainer treats all labels as classes."""
    heads, factor = heads_of(_model_of(trainer)) or {}, trainer.args.label_smoothing_factor
    for stream, task in zip(samples.streams, samples.tasks, strict=True):
        problem = getattr(heads.get(task or ""), "problem_type", "")
        is_smoothed = factor and not computes_loss(trainer, stream)
        if is_smoothed and problem in ("regression", "multi_label_classification"):
            text = f"={factor} needs classes, but stream {stream.name!r} trains {called_head(task)} on other labels "
            text += f"({problem}). Set it to 0, or set the stream's compute_loss_func."
            raise wrong_value("label_smoothing_factor", text, stream=stream.name)


def _check_data(samples: StreamSamples, num_classes: Sequence[int | None], num_tokens: int | None) -> None:
    """Refuses labels and tokens in the columns of data sets, where the collator does not change them."""
    for stream, task, number in zip(samples.streams, samples.tasks, num_classes, strict=True):
        # A user's collator may change the labels of the data set.
        if stream.preprocess is None and goes_by_first(stream.data_collator or samples.data_collator):
            label_checks.check_label_values(f"Stream {stream.name!r}", stream.dataset, number, called_head(task))
            if number is not None:
                label_checks.check_label_column(stream.name, stream.dataset, number, called_head(task))
            if num_tokens is not None:
                check_token_column(f"Stream {stream.name!r}", stream.dataset, num_tokens)


def _check_columns(
    samples: StreamSamples, first_samples: Mapping[int, Any], trial: _Trial, num_classes: Sequence[int | None]
) -> None:
    """Refuses columns of first samples that the model does not take, and labels that it cannot learn."""
    trainer = samples.trainer
    if type(trainer).compute_loss != Trainer.compute_loss or hf_compat.prepares_inputs_itself(trainer):
        return  # the user's code decides what happens to the columns
    model, fitting = _model_of(trainer), set[tuple[str, ...]]()
    for number, sample in first_samples.items():
        stream = samples.streams[number]
        is_users = computes_loss(trainer, stream)
        inputs = trial(number)
        samples.check_not_raw(f"Stream {stream.name!r}", stream.dataset, stream, sample, inputs)
        if inputs is not None:
            to_loss = {"labels"} if is_users else set()
            columns = tuple(column for column in inputs if column not in to_loss)
            if columns not in fitting:
                check_columns(model, stream.name, columns)
                fitting.add(columns)
            if (classes := num_classes[number]) is not None and heads_of(model) is None:
                label_checks.check_whole_numbers(stream.name, inputs.get("labels"), classes, called_head(None))
            if not is_users:
                _check_lack_of_labels(model, stream, sample, inputs)


def _check_lack_of_labels(model: nn.Module, stream: Stream, sample: Any, inputs: Mapping[str, Any]) -> None:
    lack = label_checks.find_lack_of_labels(model, inputs, stream.dataset, sample)
    if lack is not None and label_checks.needs_labels(model):
        raise InvalidValueError(f"Stream {stream.name!r}: {lack}", option="labels", stream=stream.name)
    if lack is not None:
        logger.warning("Stream %r: %s", stream.name, lack)


# ---- What can be collated together ----


def _first_samples(samples: StreamSamples) -> dict[int, Any]:
    """Reads the first sample of each map-style stream; one that cannot be read is reported when it is used."""
    first, missing = dict[int, Any](), dict[int, Sequence[Any]]()
    with seeded(0):
        for number, (stream, dataset) in enumerate(zip(samples.streams, samples.datasets(), strict=True)):
            if stream.is_iterable or stream.is_memory:
                continue
            with try_user_code(f"The first sample of stream {stream.name!r} cannot be read.", seeds=False):
                try:
                    first[number] = dataset[0]
                except KeyError as error:
                    missing[number] = error.args
    for number, names in missing.items() if samples.rules.removes_columns else ():
        stream = samples.streams[number]
        if removed := [name for name in names if name in (getattr(stream.dataset, "column_names", None) or ())]:
            text = f"Stream {stream.name!r}: its transform reads {removed[0]!r}, which the model does not take; "
            text += "remove_unused_columns=True removes it. Set it to False, or pass the transform as preprocess."
            raise InvalidValueError(text, option="remove_unused_columns", stream=stream.name)
    return first


def _have_same_columns(samples: StreamSamples) -> bool:
    """Compares the columns of data sets if some are iterable, whose rows are not read."""
    if not any(stream.is_iterable for stream in samples.streams):
        return True
    taken = samples.taken_columns
    columns = [frozenset(getattr(dataset, "column_names", None) or ()) for dataset in samples.datasets()]
    return len({names if taken is None else names & frozenset(taken) for names in columns if names}) <= 1


def _are_alike(samples: StreamSamples, first_samples: Mapping[int, Any], trial: _Trial) -> bool:
    """Compares the collated first samples; `False` if one of them cannot be read or collated."""
    if len(first_samples) < sum(not (stream.is_iterable or stream.is_memory) for stream in samples.streams):
        return False
    if len(first_samples) < 2:
        return True
    known = [inputs for number in first_samples if (inputs := trial(number)) is not None]
    if not known:  # a collator may need several samples
        collated = (samples.trial_batch(number, sample, times=2) for number, sample in first_samples.items())
        known = [inputs for inputs in collated if inputs is not None]
    with seeded(0):
        is_whole = len(known) == len(first_samples)
        return is_whole and can_share_batch(samples.common_collator, [*first_samples.values()], known)


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
