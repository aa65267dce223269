"""Checks that all data sets of a run number the classes of a head alike."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import datasets
import numpy as np
from torch import Tensor
from transformers import Trainer
from transformers.utils import logging

from mixer.loading.preprocessing import preprocessed
from mixer.mixture.stream import Stream, is_iterable
from mixer.models.class_names import NamedClasses, check_same_classes, find_class_names, warn_of_config
from mixer.models.labels import IGNORED, LABEL_COLUMNS, check_label_values, num_classes_of
from mixer.models.token_ids import check_token_column, num_tokens_of
from mixer.run.plan import RunPlan
from mixer.run.samples import StreamSamples, goes_by_first, try_user_code
from mixer.trainer.checks.labels import called_head
from mixer.utils.random_state import drawn_places
from mixer.utils.text import listed

logger = logging.get_logger(__name__)

_MOST_TRIED = 32  # samples of a data set


def check_classes(
    trainer: Trainer, plan: RunPlan, samples: StreamSamples, like: Callable[[str], tuple[Stream | None, str | None]]
) -> None:
    """Refuses streams and evaluation sets of one head whose `ClassLabel`s have other numbers for the same classes.

    Evaluation sets with missing labels, or with text or fractions for classes, are refused too.

    Args:
        trainer: The trainer.
        plan: The plan of the run.
        samples: The samples of the streams.
        like: Returns the stream that an evaluation set is treated like, and its head.

    Raises:
        ValueError: Names both data sets, and the call that renumbers one.
    """
    model, sets = trainer.model, trainer.eval_dataset
    if model is None:
        return
    by_name = sets if isinstance(sets, dict) else {} if sets is None else {"": sets}
    if trainer.args.eval_strategy == "no" and any(plan.tasks):
        by_name = {}  # a set that is never evaluated needs no head
    parts = [(f"eval_dataset[{name!r}]" if name else "eval_dataset", name, own) for name, own in by_name.items()]
    splits = plan.target_splits
    rows = {} if splits is None else splits.rows
    parts += [(f"targets[{name!r}]", name, own) for name, own in rows.items()]
    evaluated = [(called, own, *like(name)) for called, name, own in parts]
    for called, own, stream, task in evaluated:
        if trainer.args.eval_strategy != "no" and _is_stock(trainer, stream):
            check_label_values(called, own, num_classes_of(model, task), called_head(task))
            if (num_tokens := num_tokens_of(model)) is not None:
                check_token_column(called, own, num_tokens)
    trained = [
        (f"Stream {own.name!r}", own.dataset, own, task) for own, task in zip(plan.streams, plan.tasks, strict=True)
    ]
    found = [classes for own in (*trained, *evaluated) if (classes := _named(trainer, samples, *own)) is not None]
    by_head = check_same_classes(classes for classes in found if classes.names)
    if "" in by_head:
        warn_of_config(model, by_head[""])
    if trainer.is_world_process_zero():
        _tell_of_numbers(found, by_head)


def _tell_of_numbers(found: Sequence[NamedClasses], by_head: Mapping[str, NamedClasses]) -> None:
    """Tells how labels are read that are numbers without names, where those of other data sets have names."""
    numbers = [own for own in found if not own.names and own.head in by_head]
    if numbers:
        named = by_head[numbers[0].head]
        logger.warning(
            "The labels of %s are numbers without names: they are trained as those of %s, %s. If they mean these, say "
            "so: dataset.cast_column(%r, ClassLabel(names=%s)).",
            *(listed([own.name for own in numbers]), named.name, dict(enumerate(named.names))),
            *(numbers[0].column, list(named.names)),
        )


def _is_stock(trainer: Trainer, stream: Stream | None) -> bool:
    """Whether labels reach the model as they are: without preprocessing, by a collator of transformers."""
    if stream is not None and (stream.preprocess is not None or stream.compute_loss_func is not None):
        return False
    if trainer.compute_loss_func is not None or type(trainer).compute_loss != Trainer.compute_loss:
        return False
    collator: Any = (None if stream is None else stream.data_collator) or trainer.data_collator
    return goes_by_first(collator)


def _named(
    trainer: Trainer, samples: StreamSamples, called: str, dataset: Any, stream: Stream | None, task: str | None
) -> NamedClasses | None:
    """Finds the names of a data set's classes; `None` without labels, or if code of the user renumbers them."""
    if stream is not None and stream.compute_loss_func is not None:
        return None
    own = () if stream is None else stream.label_names or ()
    columns = dict.fromkeys([*own, *(trainer.args.label_names or ()), *LABEL_COLUMNS])
    found, name = find_class_names(dataset, columns), called[0].lower() + called[1:]
    if found is None and trainer.model is not None and _is_stock(trainer, stream):
        column = next((column for column in columns if _has_numbers(dataset, column)), None)
        is_single = column is not None and num_classes_of(trainer.model, task) is not None
        return NamedClasses(called, name, (), column, task or "") if is_single else None
    if found is None or not _keeps_numbers(trainer, samples, dataset, stream, found[0]):
        return None
    return NamedClasses(called, name, found[1], found[0], task or "", is_iterable(dataset))


def _has_numbers(dataset: Any, column: str) -> bool:
    features = dataset.features if isinstance(dataset, datasets.Dataset) else {}  # of others it may be a tensor
    return str(getattr(features.get(column), "dtype", "")).startswith("int")


def _keeps_numbers(trainer: Trainer, samples: StreamSamples, dataset: Any, stream: Stream | None, column: str) -> bool:
    """Whether the model gets the numbers in a column, as far as some samples tell: preprocessing may change them."""
    if not isinstance(dataset, datasets.Dataset) or not len(dataset):
        return True
    if _is_stock(trainer, stream) and dataset.format["type"] != "custom":
        return True
    preprocess = None if stream is None else stream.preprocess
    places = drawn_places(len(dataset), _MOST_TRIED, 0).tolist()
    numbers = dataset.with_format(None).select_columns([column])[places][column]
    rows, labels = preprocessed(dataset, preprocess), None
    for place, own in zip(places, numbers, strict=True):
        with try_user_code(f"A sample of stream {column!r} cannot be read."):
            inputs = samples.trial_batch_like(stream, rows[place])
            labels = None if inputs is None else inputs.get("labels")
        if isinstance(labels, Tensor) and not {*labels.flatten().tolist(), IGNORED} <= {*np.ravel(own), IGNORED}:
            return False
    return True
