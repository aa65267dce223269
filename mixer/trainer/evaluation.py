"""Evaluation of each stream, and the metric that chooses the best model."""

import contextlib
import difflib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sized
from typing import Any

import numpy as np
from torch import nn
from transformers import Trainer
from transformers.utils import logging

from mixer.distributed.collectives import RankSync
from mixer.loading.collate import batch_mapping
from mixer.loading.preprocessing import preprocessed
from mixer.mixture.stream import Stream
from mixer.models.inputs import TASK, heads_of, parameters_of_forward, takes_task
from mixer.models.labels import find_lack_of_labels
from mixer.trainer.streams_that_differ import StreamSpecificsMixin
from mixer.utils.random_state import seeded

_PREFIX, _SUFFIX = "eval_", "_loss"


def check_best_metric(trainer: Trainer) -> None:
    """Refuses a loss that no evaluation will give, before anything is trained.

    Other metrics may come from `compute_metrics`: a wrong one of those ends the run at its first evaluation.

    Args:
        trainer: The trainer, after its own construction.

    Raises:
        ValueError: With the losses that there will be.
    """
    args = trainer.args
    asked = args.metric_for_best_model
    if asked is None or args.eval_strategy == "no" or trainer.eval_dataset is None or _evaluates_itself(trainer):
        return
    key = asked if asked.startswith(_PREFIX) else _PREFIX + asked
    known = _losses(trainer.eval_dataset)
    if key in known or not key.endswith(_SUFFIX) or _may_be_computed(key, trainer):
        return
    near = difflib.get_close_matches(key, known, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise ValueError(
        f"metric_for_best_model={asked!r} names the loss of no evaluation set; the losses are {known}.{hint} Name one "
        "of them, or give eval_dataset as a dict that has the set."
    )


def _losses(eval_dataset: Any) -> list[str]:
    """Lists the losses that an evaluation gives."""
    if not isinstance(eval_dataset, dict):
        return [_PREFIX + "loss"]
    return [_PREFIX + "loss", _PREFIX + "worst_loss", *(f"{_PREFIX}{name}{_SUFFIX}" for name in eval_dataset)]


def _may_be_computed(key: str, trainer: Trainer) -> bool:
    """Whether `compute_metrics` may give a loss of that name, such as `eval_math_aux_loss`."""
    if trainer.compute_metrics is None and getattr(trainer, "_metrics_by_set", None) is None:
        return False
    sets = trainer.eval_dataset
    return not isinstance(sets, dict) or any(key.startswith(f"{_PREFIX}{name}_") for name in sets)


def _evaluates_itself(trainer: Trainer) -> bool:
    """Whether a class of the user's has its own way to evaluate, which may give other metrics."""
    own = [kind for kind in type(trainer).__mro__ if "evaluate" in vars(kind)]
    return any(kind.__module__.split(".")[0] not in ("mixer", "transformers") for kind in own)


logger = logging.get_logger(__name__)


class EvaluatingMixin(StreamSpecificsMixin):
    """A Trainer that evaluates a stream's set, the one that is called like it, by what the stream has of its own."""

    _metrics_by_set: Mapping[str, Callable[..., Any]] | None = None
    _evaluated_prefix: str | None = None  # that of the sets of a dict, while they are evaluated one after the other
    _evaluation_options: Mapping[str, Any] = {}  # that all of them are evaluated with
    _evaluated_stream: Stream | None = None
    _evaluated_task: str | None = None

    def _take_specifics(self) -> None:
        super()._take_specifics()
        if self.args.eval_strategy == "no" or self.eval_dataset is None:
            return
        sets = self.eval_dataset if isinstance(self.eval_dataset, dict) else {"": self.eval_dataset}
        for name, dataset in sets.items():
            stream = self._stream_of(name)
            self._task_of(name, stream)
            if isinstance(dataset, Sized):
                self._check_set(f"eval_dataset[{name!r}]" if name else "eval_dataset", dataset, stream)

    def _check_set(self, called: str, dataset: Any, stream: Stream | None) -> None:
        """Refuses a set that would give no loss as it is empty, and warns of one without labels."""
        if not len(dataset):
            raise ValueError(
                f"{called} has no sample, so that evaluations would give no loss of it. Give it some, leave it out, or "
                "set eval_strategy='no'."
            )
        model, has_own_loss = self.model, stream is not None and stream.compute_loss_func is not None
        if model is None or has_own_loss or self._has_own_loss or type(self).compute_loss != Trainer.compute_loss:
            return
        with seeded(0):  # what a data set draws at random here must not show in the run
            try:
                sample = preprocessed(dataset, None if stream is None else stream.preprocess)[0]
            except Exception:
                logger.debug("The first sample of %s cannot be read.", called, exc_info=True)
                return
        inputs = self._collated(-1 if stream is None else self.streams.index(stream), sample)
        lack = None if inputs is None else find_lack_of_labels(model, inputs, dataset, sample)
        if lack is not None:
            logger.warning("%s gives no loss: %s", called, lack)

    def _stream_of(self, name: str) -> Stream | None:
        only = self.streams[0] if len(self.streams) == 1 else None  # a set of any name is of its kind
        return next((stream for stream in self.streams if stream.name == name), only)

    def evaluate(
        self,
        eval_dataset: Any = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
        **options: Any,
    ) -> dict[str, float]:
        """Evaluates; a set of a dict, or one under the prefix `eval_NAME`, as the stream `NAME` is trained.

        Args:
            eval_dataset: As for the Trainer.
            ignore_keys: As for the Trainer.
            metric_key_prefix: As for the Trainer.
            **options: What else the Trainer class takes, such as a `Seq2SeqTrainer`'s `num_beams=4`; it holds for each
                set of a dict, which the Trainer evaluates by calls without it.

        Returns:
            The metrics.
        """
        sets = self.eval_dataset if eval_dataset is None else eval_dataset
        options = {**self._evaluation_options, **options}
        is_several = isinstance(sets, dict)
        name = eval_dataset if isinstance(eval_dataset, str) else self._set_name(metric_key_prefix)
        with self._evaluating_sets(metric_key_prefix, options) if is_several else self._evaluating(name):
            metrics: dict[str, float] = super().evaluate(
                **_given(eval_dataset, ignore_keys, metric_key_prefix), **options
            )
        return metrics

    def predict(self, test_dataset: Any, *args: Any, **kwargs: Any) -> Any:
        """Predicts; a set of a dict, or one under the prefix `test_NAME`, as the stream `NAME` is trained.

        Args:
            test_dataset: As for the Trainer, or a dict of them by name.
            *args: As for the Trainer.
            **kwargs: As for the Trainer.

        Returns:
            What `Trainer.predict` gives; for a dict, by name of the set, with metrics under `test_NAME_`.
        """
        predict = super().predict
        call = inspect.signature(predict).bind(test_dataset, *args, **kwargs)
        call.apply_defaults()
        prefix = kwargs.get("metric_key_prefix", call.arguments.get("metric_key_prefix", "test"))
        if isinstance(test_dataset, dict):
            return self._predict_sets(test_dataset, prefix, args, kwargs)
        with self._evaluating(self._set_name(prefix)):
            return predict(test_dataset, *args, **kwargs)

    def _predict_sets(self, sets: Mapping[str, Any], prefix: str, args: Any, kwargs: Mapping[str, Any]) -> Any:
        given = {**dict(zip(("ignore_keys", "metric_key_prefix"), args, strict=False)), **kwargs}
        with self._evaluating_sets(prefix, {}):
            return {
                name: self.predict(dataset, **{**given, "metric_key_prefix": f"{prefix}_{name}"})
                for name, dataset in sets.items()
            }

    @contextlib.contextmanager
    def _evaluating_sets(self, prefix: str, options: Mapping[str, Any]) -> Iterator[None]:
        outer = self._evaluated_prefix, self._evaluation_options
        self._evaluated_prefix, self._evaluation_options = f"{prefix}_", options
        try:
            yield
        finally:
            self._evaluated_prefix, self._evaluation_options = outer

    def _set_name(self, prefix: str) -> str:
        outer = self._evaluated_prefix
        return prefix.removeprefix(outer) if outer is not None else prefix.partition("_")[2]

    @contextlib.contextmanager
    def _evaluating(self, name: str) -> Iterator[None]:
        stream = self._stream_of(name)
        if self._metrics_by_set is not None and name not in self._metrics_by_set and self._evaluated_prefix is None:
            logger.warning(
                "compute_metrics is a dict by set, and a set called %r has none: say which by metric_key_prefix, as in "
                "'eval_NAME' or 'test_NAME'.",
                name,
            )
        own: dict[str, Any] = {"_evaluated_stream": stream, "_evaluated_task": self._task_of(name, stream)}
        if self._metrics_by_set is not None:
            own["compute_metrics"] = self._metrics_by_set.get(name)
        if stream is not None:
            own |= self._own_of(stream)
        before = {attribute: getattr(self, attribute) for attribute in own}
        self._set(own)
        try:
            yield
        finally:
            self._set(before)

    def _own_of(self, stream: Stream) -> dict[str, Any]:
        own: dict[str, Any] = {}
        if stream.label_names is not None:
            own["label_names"] = list(stream.label_names)
        if stream.compute_loss_func is not None:
            own["compute_loss_func"] = stream.compute_loss_func
        if stream.data_collator is not None:
            own["data_collator"] = stream.data_collator
        return own

    def _task_of(self, name: str, stream: Stream | None) -> str | None:
        """Gives what the model is told as `task` for a set; raises a `ValueError` if it has to be and nobody knows."""
        model = self.model
        if model is None or not takes_task(model):
            return None
        if stream is not None:
            return self._tasks[self.streams.index(stream)]
        if name in (heads_of(model) or {}):
            return name
        if len(set(self._tasks)) == 1:
            return self._tasks[0]
        if parameters_of_forward(model)[TASK].default is not inspect.Parameter.empty:
            return None
        called = f"called {name!r}" if name else "without a name"
        raise ValueError(
            f"The model takes a task, but an evaluation set {called} is of no stream and no head. Give "
            "eval_dataset as a dict by the streams' names, or metric_key_prefix='eval_NAME' ('test_NAME' to predict)."
        )

    def evaluation_loop(self, dataloader: Any, *args: Any, **kwargs: Any) -> Any:
        """Evaluates what all ranks have alike; see `Trainer.evaluation_loop`.

        Raises:
            ValueError: On all ranks, if one has a set of another length: they would wait for each other in vain.
        """
        if self._mixing is not None and self.args.world_size > 1:
            dataset = getattr(dataloader, "dataset", None)
            check_same_length(self._rank_sync, len(dataset) if isinstance(dataset, Sized) else -1)
        return super().evaluation_loop(dataloader, *args, **kwargs)

    def prediction_step(self, model: nn.Module, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """Predicts for a batch, by the head of its stream; see `Trainer.prediction_step`."""
        told = inputs if self._evaluated_task is None else {**batch_mapping(inputs), TASK: self._evaluated_task}
        return super().prediction_step(model, told, *args, **kwargs)

    def _set(self, values: Mapping[str, Any]) -> None:
        for attribute, value in values.items():
            setattr(self, attribute, value)

    def _get_dataloader(self, dataset: Any, *args: Any, **kwargs: Any) -> Any:
        if self._evaluated_stream is not None:
            dataset = preprocessed(dataset, self._evaluated_stream.preprocess)
        loader = super()._get_dataloader(dataset, *args, **kwargs)
        # Accelerate keeps each loader that it prepares, which would be one more for each set of each evaluation.
        prepared = getattr(self.accelerator, "_dataloaders", [])
        prepared[:] = [one for one in prepared if one is not loader]
        return loader


def check_same_length(rank_sync: RankSync, length: int) -> None:
    """Refuses an evaluation set that is not of the same length on all ranks; all of them have to call it.

    Args:
        rank_sync: What brings the ranks together.
        length: How many samples this rank has; -1 where that is not known.

    Raises:
        ValueError: On all ranks, with the lengths.
    """
    most, negated_least = rank_sync.greatest(np.array([length, -length])).tolist()
    if most == -negated_least:
        return
    lengths = [int(one) for one in rank_sync.gather_bytes(str(length).encode())]
    told = ", ".join(f"{'no length' if one < 0 else one} on rank {rank}" for rank, one in enumerate(lengths))
    raise ValueError(
        f"The evaluation set has not as many samples on all ranks: {told}. They would wait for each other. Give every "
        "rank the whole set: the trainer shares it out among them."
    )


def _given(eval_dataset: Any, ignore_keys: list[str] | None, prefix: str) -> dict[str, Any]:
    """Names those arguments of an evaluation that were given: classes below may have others, in another order."""
    given = {"eval_dataset": eval_dataset, "ignore_keys": ignore_keys, "metric_key_prefix": prefix}
    return {
        name: value
        for name, value in given.items()
        if value is not None and (name, value) != ("metric_key_prefix", "eval")
    }
