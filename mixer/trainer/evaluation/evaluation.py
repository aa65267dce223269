"""Evaluation of each stream."""

import contextlib
import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from functools import partial
from typing import Any, NamedTuple

from transformers import Trainer
from transformers.utils import logging

from mixer.ledger.evaluated_losses import mean_loss, mean_metrics, metrics_by_set, worst_loss
from mixer.loading.collate import batch_mapping
from mixer.loading.preprocessing import preprocessed
from mixer.losses.set_loss import SetLoss
from mixer.losses.stream_losses import StreamLosses
from mixer.mixture.stream import Stream
from mixer.models.inputs import TASK, heads_of, parameters_of_forward, takes_task
from mixer.policies.objective import Objective
from mixer.run.hf_compat import note_removed_columns
from mixer.run.replaced_methods import replaced
from mixer.run.samples import LoadingRules, StreamSamples
from mixer.run.state import Basis
from mixer.run.trl_metrics import name_by_set
from mixer.trainer.evaluation.best_model import early_stopping_by_its_metric, save_best_of_each
from mixer.trainer.evaluation.evaluation_sets import checking_metrics, lack_of_labels
from mixer.utils.attributes import attributes_held
from mixer.utils.errors import InvalidValueError, wrong_value
from mixer.utils.text import safe_name, safe_names

_PREFIX = "eval_"
logger = logging.get_logger(__name__)


class EvaluatedMixture(NamedTuple):
    """What a trainer with streams knows of their evaluation.

    Attributes:
        basis: The trainer, the plan of the run, the run and its ranks.
        samples: The samples of the streams.
        agree: Makes ranks agree on what callbacks ask for.
    """

    basis: Basis
    samples: StreamSamples
    agree: Callable[[], None]


class StreamEvaluation:
    """Evaluates the set named like a stream with that stream's collator, labels, loss and head.

    Args:
        trainer: The trainer, after the construction of its parent class.
        losses: The losses of the streams.
        rules: How the trainer loads.
        metrics_by_set: The option `compute_metrics` as a dict with one function per set.
        mixture: What a trainer with streams knows of their evaluation.

    Raises:
        ValueError: If a set is empty, the head to evaluate it with is unknown, or a target has no labels.
    """

    def __init__(
        self,
        trainer: Trainer,
        losses: StreamLosses,
        rules: LoadingRules,
        metrics_by_set: Mapping[str, Callable[..., Any]] | None = None,
        mixture: EvaluatedMixture | None = None,
    ):
        self._trainer, self._rules = trainer, rules
        self._metrics_by_set, self._mixture = metrics_by_set, mixture
        self.set_loss = SetLoss(trainer, losses)
        self._streams: Sequence[Stream] = () if mixture is None else mixture.samples.streams
        self._tasks: tuple[str | None, ...] = () if mixture is None else mixture.samples.tasks
        self.prefix: str | None = None  # of the sets of a dict while they are evaluated
        self.task: str | None = None  # of the set that is evaluated
        self._options: Mapping[str, Any] = {}  # for all sets of a dict
        self._set: str | None = None  # the set of a dict that is evaluated
        self._own_metrics: set[str] = set()  # names of those that TRL's trainer adds to each set's
        self._stream: Stream | None = None
        self.warned_metrics: set[str] = set()  # metrics of the best model that were not finite
        # Sets that have no loss.
        self._without_labels = set() if mixture is None else set(self._check_sets(losses, mixture))

    def _check_sets(self, losses: StreamLosses, mixture: EvaluatedMixture) -> Iterator[str]:
        """Refuses sets that cannot be evaluated; yields those without a loss."""
        lack_of = partial(lack_of_labels, self._trainer, losses, mixture.samples)
        splits = mixture.basis.plan.target_splits
        for name, rows in {} if splits is None else splits.rows.items():
            called = f"The target {name!r} of the objective"
            if (lack := lack_of(called, rows, self._stream_of(name))) is not None:
                raise InvalidValueError(f"{called} has no loss: {lack}", option="objective", stream=name)
        sets = self._trainer.eval_dataset
        if self._trainer.args.eval_strategy == "no" or sets is None:
            return
        for name, dataset in (sets if isinstance(sets, dict) else {"": sets}).items():
            (stream, _), called = self.stream_and_task_of(name), f"eval_dataset[{name!r}]" if name else "eval_dataset"
            if isinstance(dataset, Sized) and not len(dataset):
                text = f"{called} is empty. Add samples, leave it out, or set eval_strategy='no'."
                raise InvalidValueError(text, option="eval_dataset", stream=name or None)
            if isinstance(dataset, Sized) and (lack := lack_of(called, dataset, stream)) is not None:
                if self._trainer.is_world_process_zero():
                    logger.warning("%s has no loss: %s", called, lack)
                yield name

    def _stream_of(self, name: str) -> Stream | None:
        only = self._streams[0] if len(self._streams) == 1 else None  # a set of any name belongs to a single stream
        return next((stream for stream in self._streams if stream.name == name), only)

    def stream_and_task_of(self, name: str) -> tuple[Stream | None, str | None]:
        """Returns the stream that a set is treated like, and the model's argument `task` for it."""
        stream = self._stream_of(name)
        return stream, self._task_of(name, stream)

    @property
    def present_stream(self) -> Stream | None:
        """The stream that the set which is evaluated is treated like."""
        return self._stream

    # ---- Evaluating and predicting ----

    def evaluate(
        self,
        evaluate: Callable[..., dict[str, float]],
        eval_dataset: Any,
        ignore_keys: list[str] | None,
        metric_key_prefix: str,
        options: Mapping[str, Any],
    ) -> dict[str, float]:
        """Evaluates a set, or a dict of sets; see `MixingMixin.evaluate`."""
        trainer: Any = self._trainer
        if isinstance(eval_dataset, Mapping | str):
            eval_dataset = safe_names(eval_dataset, "eval_dataset")
        sets = trainer.eval_dataset if eval_dataset is None else eval_dataset
        options = {**self._options, **options}
        name = eval_dataset if isinstance(eval_dataset, str) else self._set_name(metric_key_prefix)
        # Parent classes may have other parameters.
        prefix = None if metric_key_prefix == "eval" else metric_key_prefix
        own = {"eval_dataset": eval_dataset, "ignore_keys": ignore_keys, "metric_key_prefix": prefix}
        own = {option: value for option, value in own.items() if value is not None}
        is_several = isinstance(sets, dict)
        with self._evaluating_sets(metric_key_prefix, options) if is_several else self._evaluating(name):
            metrics = evaluate(**own, **options)
        if isinstance(sets, dict) and self._mixture is not None:
            self._summarise(self._mixture.basis, metrics, metric_key_prefix, sets)
        if trainer.is_in_train and self.prefix is None and self._mixture is not None:  # callbacks have seen all sets
            self._mixture.agree()
        return metrics

    def _summarise(self, basis: Basis, metrics: dict[str, float], prefix: str, sets: Mapping[str, Any]) -> None:
        """Adds the mean and the worst loss of several sets, and the mean of each metric that all of them have."""
        trainer: Any = self._trainer
        run, plan = basis.run, basis.plan
        by_set, keys = metrics_by_set(metrics, prefix, sets), {name: f"{prefix}_{name}_loss" for name in sets}
        losses = {name: metrics[key] for name, key in keys.items() if key in metrics}
        labelled = {
            name: loss for name, loss in losses.items() if name not in self._without_labels or math.isfinite(loss)
        }
        if losses := labelled or losses:
            weights = plan.mixture.eval_weights
            summary = {f"{prefix}_loss": mean_loss(losses, weights), f"{prefix}_worst_loss": worst_loss(losses)}
            for name, mean in mean_metrics(by_set, sets, weights).items():
                summary[f"{prefix}_{name}" if name in self._own_metrics else f"{prefix}_mean_{name}"] = mean
            objective = plan.mixture.objective
            value = math.nan if objective is None else objective.evaluated(losses, by_set)
            summary |= {} if math.isnan(value) else {f"{prefix}_objective": value}
            if objective is not None and math.isnan(value):
                self._warn_of_metric(objective, losses, by_set)
            trainer.log(dict(summary))
            metrics.update(summary)
            # Callbacks such as early stopping have seen each set, but not yet these summaries.
            with early_stopping_by_its_metric(trainer, metrics.keys() - summary.keys()):
                trainer.control = trainer.callback_handler.on_evaluate(
                    trainer.args, trainer.state, trainer.control, summary
                )
        if trainer.is_in_train:
            run.mixing.observe_evaluation(losses)
            run.ledger.record_evaluation(trainer.state.global_step, losses, by_set)
            if plan.config.save_best_of_each:
                found = {name: {**by_set.get(name, {}), "loss": loss} for name, loss in losses.items()}
                save_best_of_each(trainer, plan.mixture.objective, found, prefix)

    def _warn_of_metric(
        self, objective: Objective, losses: Mapping[str, float], by_set: Mapping[str, Mapping[str, float]]
    ) -> None:
        """Says once why an evaluation of all targets has no objective."""
        lacking = [name for name in objective.importance if objective.metric not in by_set.get(name, {})]
        if objective.metric != "loss" and lacking and objective.importance.keys() <= losses.keys():
            found = {name: sorted(by_set.get(name, {})) for name in lacking}
            logger.warning_once(
                f"No eval_objective: {objective.metric!r} is missing for {lacking}; compute_metrics returned {found}."
            )

    def predict(self, predict: Callable[..., Any], test_dataset: Any, *args: Any, **kwargs: Any) -> Any:
        """Predicts a set, or each of a dict of sets; see `MixingMixin.predict`."""
        trainer: Any = self._trainer
        call = inspect.signature(predict).bind(test_dataset, *args, **kwargs)
        call.apply_defaults()
        prefix = kwargs.get("metric_key_prefix", call.arguments.get("metric_key_prefix", "test"))
        if not isinstance(test_dataset, dict):
            with self._evaluating(self._set_name(prefix)):
                return predict(test_dataset, *args, **kwargs)
        options = {**dict(zip(("ignore_keys", "metric_key_prefix"), args, strict=False)), **kwargs}
        with self._evaluating_sets(prefix, {}):
            return {
                name: trainer.predict(dataset, **{**options, "metric_key_prefix": f"{prefix}_{safe_name(name)}"})
                for name, dataset in test_dataset.items()
            }

    @contextlib.contextmanager
    def _evaluating_sets(self, prefix: str, options: Mapping[str, Any]) -> Iterator[None]:
        self._own_metrics.clear()
        with attributes_held(self, prefix=f"{prefix}_", _options=options), early_stopping_by_its_metric(self._trainer):
            yield

    def _set_name(self, prefix: str) -> str:
        return prefix.removeprefix(self.prefix) if self.prefix is not None else prefix.partition("_")[2]

    @contextlib.contextmanager
    def _evaluating(self, name: str) -> Iterator[None]:
        """Treats a set like the stream of its name."""
        stream = self._stream_of(name)
        functions = {"compute_metrics": self._metrics_of(name)}
        for attribute in ("compute_loss_func", "data_collator"):
            if getattr(stream, attribute, None) is not None:
                functions[attribute] = getattr(stream, attribute)
        own_names = getattr(stream, "label_names", None)
        label_names = self._trainer.label_names if own_names is None else own_names
        task, own_set = self._task_of(name, stream), None if self.prefix is None else name
        with (
            replaced(self._trainer, **functions),
            attributes_held(self._trainer, label_names=label_names),
            attributes_held(self, _stream=stream, task=task, _set=own_set),
        ):
            try:
                yield
            except KeyError as error:
                note_removed_columns(self._trainer, error)
                raise

    def _metrics_of(self, name: str) -> Callable[..., Any] | None:
        """Returns the function that computes the metrics of a set, which are checked."""
        compute_metrics = self._trainer.compute_metrics
        if self._metrics_by_set is not None:
            compute_metrics = self._metrics_by_set.get(name)
            if name not in self._metrics_by_set and self.prefix is None:
                logger.warning(
                    "compute_metrics is a dict by set and has no entry %r: name the set with metric_key_prefix, as in "
                    "'eval_NAME' or 'test_NAME'.",
                    name,
                )
        return None if compute_metrics is None else checking_metrics(compute_metrics, name)

    def _task_of(self, name: str, stream: Stream | None) -> str | None:
        """Returns the model's argument `task` for a set; raises a `ValueError` if it is needed but unknown."""
        model: Any = self._trainer.model
        if model is None or not takes_task(model):
            return None
        if stream is not None:
            return self._tasks[self._streams.index(stream)]
        if name in (heads_of(model) or {}):
            return name
        if len(set(self._tasks)) == 1:
            return self._tasks[0]
        if parameters_of_forward(model)[TASK].default is not inspect.Parameter.empty:
            return None
        called = repr(name) if name else "without a name"
        raise wrong_value(
            "eval_dataset",
            f"has a set {called} of no stream and no head, but the model takes a task. Pass a dict by the streams' "
            "names, or metric_key_prefix='eval_NAME' ('test_NAME' to predict).",
        )

    # ---- Loaders and batches ----

    def check_length(self, dataloader: Any) -> None:
        """Refuses a set whose length differs between ranks: they would wait for each other forever."""
        if self._mixture is not None and self._trainer.args.world_size > 1:
            dataset = getattr(dataloader, "dataset", None)
            lengths = self._mixture.basis.ranks.gather(len(dataset) if isinstance(dataset, Sized) else "no length")
            if len(set(lengths)) > 1:
                by_rank = ", ".join(f"{length} on rank {rank}" for rank, length in enumerate(lengths))
                text = f"has different lengths on the ranks, which would wait for each other: {by_rank}. Pass the "
                raise wrong_value("eval_dataset", f"{text}whole set on every rank: the trainer shards it.")

    def measured(self, evaluate: Callable[..., Any], dataloader: Any, *args: Any, **kwargs: Any) -> Any:
        """Evaluates a set, and computes its loss over all ranks; see `Trainer.evaluation_loop`."""
        call = inspect.signature(evaluate).bind(dataloader, *args, **kwargs)
        call.apply_defaults()
        stream = self._stream
        with self.set_loss.measuring(None if stream is None else self._streams.index(stream)):
            output = evaluate(dataloader, *args, **kwargs)
            self.set_loss.corrected(output.metrics, call.arguments.get("metric_key_prefix", "eval"))
        if self._set is not None and self.prefix == _PREFIX:  # what TRL's trainer has measured, before it logs that
            self._own_metrics |= name_by_set(self._trainer, self._set)
        return output

    def with_task(self, inputs: Any) -> Any:
        """Returns inputs for the head of the set's stream."""
        return inputs if self.task is None else {**batch_mapping(inputs), TASK: self.task}

    def eval_loader(self, make: Callable[[Any], Any], eval_dataset: Any) -> Any:
        """Makes the loader of an evaluation set, preprocessed like its stream; see `Trainer.get_eval_dataloader`."""
        sets: Any = self._trainer.eval_dataset
        if isinstance(eval_dataset, str):  # persistent workers are kept by this name
            sets = {**sets, eval_dataset: self._like_stream(sets[eval_dataset])}
        else:
            eval_dataset = self._like_stream(sets if eval_dataset is None else eval_dataset)
        with attributes_held(self._trainer, eval_dataset=sets):
            return self._new_loader(make, eval_dataset)

    def test_loader(self, make: Callable[[Any], Any], test_dataset: Any) -> Any:
        """Makes the loader of a test set, preprocessed like its stream; see `Trainer.get_test_dataloader`."""
        return self._new_loader(make, self._like_stream(test_dataset))

    def _like_stream(self, dataset: Any) -> Any:
        stream = self._stream
        return dataset if stream is None or dataset is None else preprocessed(dataset, stream.preprocess)

    def _new_loader(self, make: Callable[[Any], Any], dataset: Any) -> Any:
        """Makes a loader that accelerate forgets: it keeps every one that it prepares, one per set and evaluation."""
        with attributes_held(self._trainer.args, remove_unused_columns=self._rules.removes_columns):
            loader = make(dataset)
        prepared = getattr(self._trainer.accelerator, "_dataloaders", [])
        prepared[:] = [other for other in prepared if other is not loader]
        return loader
