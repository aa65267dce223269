"""Evaluation sets: their names and labels, and the metrics and weights that are given for them."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from torch import Tensor
from transformers import Trainer

from mixer.ledger.evaluated_losses import check_eval_weights
from mixer.loading.preprocessing import preprocessed
from mixer.losses.stream_losses import StreamLosses
from mixer.mixture.stream import Stream
from mixer.mixture.streams import is_dataset
from mixer.models.labels import find_lack_of_labels
from mixer.run.samples import StreamSamples, try_user_code
from mixer.utils.errors import wrong_type, wrong_value
from mixer.utils.random_state import drawn_places

_MOST_LOOKED_AT = 100  # samples of a set in search of a label


def check_sets(
    metrics_by_set: Mapping[str, Callable[..., Any]] | None, eval_weights: Mapping[str, float] | None, sets: Any
) -> None:
    """Refuses metrics and weights of evaluation sets that do not exist.

    Args:
        metrics_by_set: The option `compute_metrics` as a dict, or `None`.
        eval_weights: The option `eval_weights`, or `None`.
        sets: The evaluation sets.

    Raises:
        ValueError: If the evaluation data are not a dict, or lack a named set.
        TypeError: If a metric is not a function.
    """
    names = list(sets) if isinstance(sets, Mapping) else None
    metrics = metrics_by_set or {}
    if unknown := [name for name in metrics if names is None or name not in names]:
        state = "is not a dict" if names is None else f"has the sets {names}"
        raise wrong_value("compute_metrics", f"names the evaluation sets {unknown}, but eval_dataset {state}.")
    for name, function in metrics.items():
        if not callable(function):
            raise wrong_type("compute_metrics", f"[{name!r}] must be a function, got {function!r}.", stream=name)
    check_eval_weights(eval_weights, sets)


def check_evaluation_names(eval_dataset: Any) -> None:
    """Refuses unnamed evaluation sets, and reserved names.

    Args:
        eval_dataset: Evaluation data of the trainer.

    Raises:
        ValueError: If a set is called `"worst"` or `"mean"`.
        TypeError: If they are a list of datasets or streams.
    """
    if isinstance(eval_dataset, (list, tuple)) and eval_dataset and is_dataset(eval_dataset[0]):
        text = 'is a list of datasets: use a dict of them by name, such as {"math": math_dev, "code": code_dev}.'
        raise wrong_type("eval_dataset", text)
    for name, entry in {"worst": "eval_worst_loss", "mean": "eval_mean_METRIC, means over the sets"}.items():
        if isinstance(eval_dataset, dict) and name in eval_dataset:
            raise wrong_value("eval_dataset", f": the name {name!r} is reserved for {entry}; rename the set.")


def lack_of_labels(
    trainer: Any, losses: StreamLosses, samples: StreamSamples, called: str, dataset: Any, stream: Stream | None
) -> str | None:
    """Looks for a label that counts in a data set.

    Args:
        trainer: The trainer.
        losses: The losses of the streams.
        samples: The samples of the streams.
        called: What the data set is called, for messages.
        dataset: The data set, which has a length.
        stream: The stream that it is treated like.

    Returns:
        Why it has no loss; `None` if it has one, or if that is the business of the user's code.
    """
    has_own_loss = losses.user_computes_loss or (stream is not None and stream.compute_loss_func is not None)
    if trainer.model is None or has_own_loss or type(trainer).compute_loss != Trainer.compute_loss:
        return None
    rows, num_samples = preprocessed(dataset, None if stream is None else stream.preprocess), len(dataset)
    places = drawn_places(num_samples, _MOST_LOOKED_AT, 0).tolist()
    for place in places:  # the first one with a label is enough
        inputs, is_read = None, False
        with try_user_code(f"Sample {place} of {called} cannot be read."):
            sample = rows[place]
            inputs = samples.trial_batch_like(stream, sample)
            is_read = True
        if is_read:
            samples.check_not_raw(called, dataset, stream, sample, inputs)
        if inputs is None:
            return None
        lack = find_lack_of_labels(trainer.model, inputs, dataset, sample)
        if lack is not None or (counted := losses.labels_per_row(inputs)).any() or not len(counted):
            return lack
    return (
        f"none of its samples ({len(places)} of {num_samples} were looked at) has a label that counts: all labels "
        "are -100. Leave it out, or give it labels."
    )


def checking_metrics(compute_metrics: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Returns a function that computes metrics and refuses what a run cannot log or write to its checkpoints.

    Args:
        compute_metrics: The user's function.
        name: The evaluation set; empty if it has no name.
    """

    @functools.wraps(compute_metrics)
    def checked(*args: Any, **kwargs: Any) -> Any:
        found = compute_metrics(*args, **kwargs)
        if not kwargs.get("compute_result", True):  # between batches only
            return found
        expected = (f"of the evaluation set {name!r} " if name else "") + "must return a dict of numbers by name"
        if not isinstance(found, Mapping) or not all(isinstance(key, str) for key in found):
            raise wrong_type("compute_metrics", f"{expected}, got {_shown(found)}.", stream=name)
        for metric, value in found.items():
            if (isinstance(value, Tensor) and value.numel() != 1) or isinstance(value, np.ndarray):
                text = f"{expected}, but {metric!r} is {_shown(value)}, which checkpoints cannot hold: return a "
                raise wrong_type(
                    "compute_metrics", f"{text}number, such as float(...), or a list (.tolist()).", stream=name
                )
        return found

    return checked


def _shown(value: Any) -> str:
    shape = getattr(value, "shape", None)
    return f"{value!r:.100}" if shape is None else f"a {type(value).__name__} of shape {list(shape)}"
