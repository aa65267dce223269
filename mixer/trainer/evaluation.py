"""Evaluation of each stream, and the metric that chooses the best model."""

import contextlib
import difflib
import inspect
from collections.abc import Callable, Mapping, Sized
from typing import Any

from torch import nn
from transformers import Trainer
from transformers.utils import logging

from mixer.distributed.collectives import RankSync
from mixer.ledger.evaluated_losses import mean_loss, metrics_by_set, worst_loss
from mixer.loading.collate import batch_mapping
from mixer.loading.preprocessing import preprocessed
from mixer.mixture.stream import Stream
from mixer.models.inputs import TASK, heads_of, parameters_of_forward, takes_task
from mixer.models.labels import find_lack_of_labels
from mixer.trainer.losses import attributes_held
from mixer.trainer.streams_that_differ import StreamSpecificsMixin, tried

_PREFIX, _SUFFIX = "eval_", "_loss"
logger = logging.get_logger(__name__)


def check_best_metric(trainer: Trainer) -> None:
    """Refuses `metric_for_best_model` if it names a loss that no evaluation returns, before training.

    Other metrics may come from `compute_metrics`: a wrong one ends the run at its first evaluation.

    Raises:
        ValueError: With the available losses.
    """
    args = trainer.args
    metric = args.metric_for_best_model
    if metric is None or args.eval_strategy == "no" or trainer.eval_dataset is None or _evaluates_itself(trainer):
        return
    key = metric if metric.startswith(_PREFIX) else _PREFIX + metric
    sets = trainer.eval_dataset if isinstance(trainer.eval_dataset, dict) else {}
    known = [_PREFIX + "loss", *(f"{_PREFIX}{name}{_SUFFIX}" for name in (("worst", *sets) if sets else ()))]
    if key in known or not key.endswith(_SUFFIX) or _may_be_computed(key, trainer):
        return
    near = difflib.get_close_matches(key, known, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise ValueError(
        f"metric_for_best_model={metric!r} names the loss of no evaluation set; the losses are {known}.{hint} Name one "
        f"of them, or pass eval_dataset as a dict that contains the set."
    )


def _may_be_computed(key: str, trainer: Trainer) -> bool:
    """Whether `compute_metrics` may return a loss of this name, such as `eval_math_aux_loss`."""
    if trainer.compute_metrics is None and getattr(trainer, "_metrics_by_set", None) is None:
        return False
    sets = trainer.eval_dataset
    return not isinstance(sets, dict) or any(key.startswith(f"{_PREFIX}{name}_") for name in sets)


def _evaluates_itself(trainer: Trainer) -> bool:
    """Whether a user's class overrides `evaluate`, which may then return other metrics."""
    own = [kind for kind in type(trainer).__mro__ if "evaluate" in vars(kind)]
    return any(kind.__module__.split(".")[0] not in ("mixer", "transformers") for kind in own)


class EvaluatingMixin(StreamSpecificsMixin):
    """A Trainer that evaluates the set named like a stream with that stream's collator, labels, loss and head."""

    _metrics_by_set: Mapping[str, Callable[..., Any]] | None = None
    _evaluated_prefix: str | None = None  # prefix of the sets of a dict while they are evaluated
    _evaluation_options: Mapping[str, Any] = {}  # options for all sets of a dict
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
        """Refuses an empty set, which would have no loss, and warns of one without labels."""
        if not len(dataset):
            raise ValueError(
                f"{called} is empty, so evaluations would return no loss for it. Add samples, leave it out, or set "
                f"eval_strategy='no'."
            )
        model, has_own_loss = self.model, stream is not None and stream.compute_loss_func is not None
        if model is None or has_own_loss or self._has_own_loss or type(self).compute_loss != Trainer.compute_loss:
            return
        inputs = None
        with tried(f"The first sample of {called} cannot be read."):
            sample = preprocessed(dataset, None if stream is None else stream.preprocess)[0]
            inputs = self._collated(-1 if stream is None else self.streams.index(stream), sample)
        lack = None if inputs is None else find_lack_of_labels(model, inputs, dataset, sample)
        if lack is not None:
            logger.warning("%s has no loss: %s", called, lack)

    def _stream_of(self, name: str) -> Stream | None:
        only = self.streams[0] if len(self.streams) == 1 else None  # with one stream, a set of any name belongs to it
        return next((stream for stream in self.streams if stream.name == name), only)

    def evaluate(
        self,
        eval_dataset: Any = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
        **options: Any,
    ) -> dict[str, float]:
        """Evaluates; a set of a dict, or one with the prefix `eval_NAME`, is treated like the stream `NAME`.

        For a dict of sets it also returns `eval_loss`, the mean of their losses (weighted by `eval_weights`, which must
        then name all sets), and `eval_worst_loss`.

        Args:
            eval_dataset: As for the Trainer.
            ignore_keys: As for the Trainer.
            metric_key_prefix: As for the Trainer.
            **options: Further options of the Trainer class, such as a `Seq2SeqTrainer`'s `num_beams=4`. They apply to
                each set of a dict; the Trainer would drop them there.

        Returns:
            The metrics.
        """
        sets = self.eval_dataset if eval_dataset is None else eval_dataset
        options = {**self._evaluation_options, **options}
        is_several = isinstance(sets, dict)
        name = eval_dataset if isinstance(eval_dataset, str) else self._set_name(metric_key_prefix)
        # Parent classes may have other parameters.
        prefix = None if metric_key_prefix == "eval" else metric_key_prefix
        own = {"eval_dataset": eval_dataset, "ignore_keys": ignore_keys, "metric_key_prefix": prefix}
        own = {option: value for option, value in own.items() if value is not None}
        with self._evaluating_sets(metric_key_prefix, options) if is_several else self._evaluating(name):
            metrics: dict[str, float] = super().evaluate(**own, **options)
        if isinstance(sets, dict) and self._mixing is not None:
            self._summarise(metrics, metric_key_prefix, sets)
        if self.is_in_train and self._evaluated_prefix is None:  # callbacks have seen all sets
            self._agree_on_control()
        return metrics

    def _summarise(self, metrics: dict[str, float], prefix: str, sets: Mapping[str, Any]) -> None:
        by_set, keys = metrics_by_set(metrics, prefix, sets), {name: f"{prefix}_{name}_loss" for name in sets}
        if losses := {name: metrics[key] for name, key in keys.items() if key in metrics}:
            mean, worst = mean_loss(losses, self._mixture.eval_weights), worst_loss(losses)
            summary = {f"{prefix}_loss": mean, f"{prefix}_worst_loss": worst}
            self.log(dict(summary))
            metrics.update(summary)
            # Callbacks such as early stopping have seen each set, but not yet these summaries.
            self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, summary)
        if self.is_in_train:
            self.mixing.observe_evaluation(losses)
            self.ledger.record_evaluation(self.state.global_step, losses, by_set)

    def predict(self, test_dataset: Any, *args: Any, **kwargs: Any) -> Any:
        """Predicts; a set of a dict, or one with the prefix `test_NAME`, is treated like the stream `NAME`.

        Args:
            test_dataset: As for the Trainer, or a dict of sets by name.
            *args: As for the Trainer.
            **kwargs: As for the Trainer.

        Returns:
            The result of `Trainer.predict`; for a dict, one per set, with metrics under `test_NAME_`.
        """
        predict = super().predict
        call = inspect.signature(predict).bind(test_dataset, *args, **kwargs)
        call.apply_defaults()
        prefix = kwargs.get("metric_key_prefix", call.arguments.get("metric_key_prefix", "test"))
        if not isinstance(test_dataset, dict):
            with self._evaluating(self._set_name(prefix)):
                return predict(test_dataset, *args, **kwargs)
        options = {**dict(zip(("ignore_keys", "metric_key_prefix"), args, strict=False)), **kwargs}
        with self._evaluating_sets(prefix, {}):
            return {
                name: self.predict(dataset, **{**options, "metric_key_prefix": f"{prefix}_{name}"})
                for name, dataset in test_dataset.items()
            }

    def _evaluating_sets(self, prefix: str, options: Mapping[str, Any]) -> contextlib.AbstractContextManager[None]:
        return attributes_held(self, _evaluated_prefix=f"{prefix}_", _evaluation_options=options)

    def _set_name(self, prefix: str) -> str:
        outer = self._evaluated_prefix
        return prefix.removeprefix(outer) if outer is not None else prefix.partition("_")[2]

    def _evaluating(self, name: str) -> contextlib.AbstractContextManager[None]:
        stream = self._stream_of(name)
        if self._metrics_by_set is not None and name not in self._metrics_by_set and self._evaluated_prefix is None:
            logger.warning(
                "compute_metrics is a dict by set and has no entry %r: name the set with metric_key_prefix, as in "
                "'eval_NAME' or 'test_NAME'.",
                name,
            )
        own: dict[str, Any] = {"_evaluated_stream": stream, "_evaluated_task": self._task_of(name, stream)}
        if self._metrics_by_set is not None:
            own["compute_metrics"] = self._metrics_by_set.get(name)
        for attribute in ("label_names", "compute_loss_func", "data_collator"):
            if getattr(stream, attribute, None) is not None:
                own[attribute] = getattr(stream, attribute)
        return attributes_held(self, **own)

    def _task_of(self, name: str, stream: Stream | None) -> str | None:
        """Returns the model's argument `task` for a set; raises a `ValueError` if it is needed but unknown."""
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
        called = repr(name) if name else "without a name"
        raise ValueError(
            f"The model takes a task, but the evaluation set {called} belongs to no stream and no head. Pass "
            f"eval_dataset as a dict by the streams' names, or metric_key_prefix='eval_NAME' ('test_NAME' to predict)."
        )

    def evaluation_loop(self, dataloader: Any, *args: Any, **kwargs: Any) -> Any:
        """Checks that the set has the same length on all ranks, and evaluates; see `Trainer.evaluation_loop`.

        Raises:
            ValueError: On all ranks, if the lengths differ: the ranks would wait for each other forever.
        """
        if self._mixing is not None and self.args.world_size > 1:
            dataset = getattr(dataloader, "dataset", None)
            check_same_length(self._rank_sync, len(dataset) if isinstance(dataset, Sized) else -1)
        return super().evaluation_loop(dataloader, *args, **kwargs)

    def prediction_step(self, model: nn.Module, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """Predicts a batch with the head of its stream; see `Trainer.prediction_step`."""
        inputs = inputs if self._evaluated_task is None else {**batch_mapping(inputs), TASK: self._evaluated_task}
        return super().prediction_step(model, inputs, *args, **kwargs)

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        """Creates the loader of an evaluation set, preprocessed like its stream; see `Trainer.get_eval_dataloader`."""
        sets: Any = self.eval_dataset
        if isinstance(eval_dataset, str):  # persistent workers are kept by this name
            sets = {**sets, eval_dataset: self._like_stream(sets[eval_dataset])}
        else:
            eval_dataset = self._like_stream(sets if eval_dataset is None else eval_dataset)
        with attributes_held(self, eval_dataset=sets):
            return self._let_go(super().get_eval_dataloader(eval_dataset))

    def get_test_dataloader(self, test_dataset: Any) -> Any:
        """Creates the loader of a test set, preprocessed like its stream; see `Trainer.get_test_dataloader`."""
        return self._let_go(super().get_test_dataloader(self._like_stream(test_dataset)))

    def _like_stream(self, dataset: Any) -> Any:
        stream = self._evaluated_stream
        return dataset if stream is None or dataset is None else preprocessed(dataset, stream.preprocess)

    def _let_go(self, loader: Any) -> Any:
        """Makes accelerate forget a loader: it keeps every one that it prepares, one per set and evaluation."""
        prepared = getattr(self.accelerator, "_dataloaders", [])
        prepared[:] = [one for one in prepared if one is not loader]
        return loader


def check_same_length(rank_sync: RankSync, length: int) -> None:
    """Refuses an evaluation set whose length differs between ranks; all ranks have to call it.

    Args:
        rank_sync: Collective operations.
        length: Number of samples on this rank; -1 if unknown.

    Raises:
        ValueError: On all ranks, with the lengths.
    """
    lengths = [int(one) for one in rank_sync.gather_bytes(str(length).encode())]
    if len(set(lengths)) == 1:
        return
    by_rank = ", ".join(f"{'no length' if one < 0 else one} on rank {rank}" for rank, one in enumerate(lengths))
    raise ValueError(
        f"The evaluation set has different lengths on the ranks, which would wait for each other: {by_rank}. Pass the "
        f"whole set on every rank: the trainer shards it."
    )
