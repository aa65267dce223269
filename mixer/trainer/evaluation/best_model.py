"""The metric that chooses the best model, and the best weights of each evaluation set."""

import contextlib
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from transformers import EarlyStoppingCallback, Trainer, TrainerCallback, TrainingArguments
from transformers.utils import logging

from mixer.policies.objective import Objective
from mixer.run.replaced_methods import replaced
from mixer.utils.errors import InvalidValueError, wrong_value
from mixer.utils.files import folder_name, make_folder, write_json
from mixer.utils.text import did_you_mean, safe_name
from mixer.utils.user_code import library_of

_PREFIX, _SUFFIX, _OBJECTIVE = "eval_", "_loss", "objective"
_NO_CALL = TrainerCallback.on_evaluate
_TIMINGS = ("_runtime", "_per_second", "_preparation_time")
_FOLDER, _NOTE = "best", "best.json"
logger = logging.get_logger(__name__)


def check_best_metric(trainer: Trainer, has_metrics: bool, objective: Objective | None = None) -> None:
    """Refuses a metric of the best model or of the objective that no evaluation returns, before training.

    Other metrics may come from `compute_metrics`: `check_found` refuses a wrong one at the first evaluation.

    Args:
        trainer: The trainer.
        has_metrics: Whether the user computes metrics.
        objective: The objective, or `None`.

    Raises:
        ValueError: With the available losses.
    """
    args = trainer.args
    metric = args.metric_for_best_model
    if objective is not None and not (objective.metric == "loss" or has_metrics or _evaluates_itself(trainer)):
        raise wrong_value(
            "objective", f": its metric {objective.metric!r} needs compute_metrics: pass it, or leave metric='loss'."
        )
    if metric is None or args.eval_strategy == "no" or trainer.eval_dataset is None or _evaluates_itself(trainer):
        return
    key = _key_of(metric)
    sets = trainer.eval_dataset if isinstance(trainer.eval_dataset, dict) else {}
    if key == _PREFIX + _OBJECTIVE:
        _check_objective_metric(args, objective)
        return
    known = [_PREFIX + "loss", *(f"{_PREFIX}{name}{_SUFFIX}" for name in (("worst", *sets) if sets else ()))]
    if key in known or key.endswith(_TIMINGS):
        return
    if not _may_be_computed(key, trainer, has_metrics):
        way = "Name one, pass eval_dataset as a dict that contains the set, or return the metric from compute_metrics."
        raise _no_metric(metric, key, known, way)


def check_found(trainer: Trainer, metrics: Mapping[str, float]) -> None:
    """Refuses a metric of the best model that an evaluation of a run has not returned.

    Args:
        trainer: The trainer.
        metrics: What the evaluation has returned.

    Raises:
        InvalidValueError: With the metrics that there are.
    """
    metric = trainer.args.metric_for_best_model
    if metric is not None and (key := _key_of(metric)) not in metrics:
        way = "Name one of these, or return the metric from compute_metrics."
        raise _no_metric(metric, key, [name for name in metrics if not name.endswith(_TIMINGS)], way)


def _no_metric(metric: str, key: str, known: Sequence[str], way: str) -> InvalidValueError:
    expected = f"a metric of the evaluation, {', '.join(known)}"
    hint = f"{did_you_mean(key, known)} {way}".strip()
    return InvalidValueError(option="metric_for_best_model", expected=expected, found=metric, hint=hint)


def with_safe_name(metric: str | None, sets: Any) -> str | None:
    """Returns `metric_for_best_model` with the name of an evaluation set as logs have it: `org--name_loss`.

    Args:
        metric: The option as it was given, such as `org/name_loss`.
        sets: The evaluation data, with safe names.
    """
    parts = (metric or "").removeprefix(_PREFIX).split("_")
    for number in range(1, len(parts)) if isinstance(sets, Mapping) else ():
        given, rest = "_".join(parts[:number]), "_".join(parts[number:])
        if (name := safe_name(given)) in sets and name != given:
            return f"{name}_{rest}"
    return metric


def _check_objective_metric(args: TrainingArguments, objective: Objective | None) -> None:
    if objective is None:
        raise wrong_value("metric_for_best_model", "='objective' needs an objective: pass one to the trainer.")
    if bool(args.greater_is_better) != objective.greater_is_better:
        given = f"got {args.greater_is_better} (the Trainer's default for names that do not end in 'loss' is True)."
        raise wrong_value("greater_is_better", f"must be {objective.greater_is_better} for the objective, {given}")


def _may_be_computed(key: str, trainer: Trainer, has_metrics: bool) -> bool:
    """Whether `compute_metrics` may return this metric, such as `eval_math_aux_loss`, or the user's code add it."""
    sets, is_loss = trainer.eval_dataset, key.endswith(_SUFFIX)
    adds = [
        *(kind for kind in type(trainer).__mro__ if {"evaluation_loop", "prediction_step"} & vars(kind).keys()),
        *(type(callback) for callback in trainer.callback_handler.callbacks if type(callback).on_evaluate != _NO_CALL),
    ]
    if not is_loss and not all(map(_is_ours, adds)):
        return True
    # Other metrics may be averages over several sets.
    prefixes = [f"{_PREFIX}{name}_" for name in ("mean", *sets)] if is_loss and isinstance(sets, dict) else [_PREFIX]
    return has_metrics and key.startswith(tuple(prefixes))


def _evaluates_itself(trainer: Trainer) -> bool:
    """Whether a user's class overrides `evaluate`, which may then return other metrics."""
    return any("evaluate" in vars(kind) and not _is_ours(kind) for kind in type(trainer).__mro__)


def _is_ours(kind: type) -> bool:
    return library_of(kind) in ("mixer", "transformers")


def _key_of(metric: str | None) -> str:
    """Returns the key of `metric_for_best_model` in the results of an evaluation."""
    return f"{_PREFIX}{(metric or '').removeprefix(_PREFIX)}"


def is_best(
    trainer: Trainer, determine: Callable[..., bool], metrics: Mapping[str, float], trial: Any, warned: set[str]
) -> bool:
    """Says whether an evaluation is the best so far; one whose metric is not finite never is.

    Args:
        trainer: The trainer.
        determine: The Trainer's own decision.
        metrics: The metrics of the evaluation.
        trial: The trial of a search, or `None`.
        warned: Metrics that were not finite before, of which it has warned; this one is added.
    """
    metric = trainer.args.metric_for_best_model
    key = _key_of(metric)
    if math.isfinite(metrics.get(key, 0.0)):
        return determine(metrics, trial)
    if key not in warned and trainer.is_world_process_zero():
        logger.warning(
            "metric_for_best_model=%r is %s in step %d: this evaluation cannot be the best.",
            *(metric, metrics[key], trainer.state.global_step),
        )
    warned.add(key)
    return False


@contextlib.contextmanager
def early_stopping_by_its_metric(trainer: Any, seen: Collection[str] | None = None) -> Iterator[None]:
    """Shows early stopping only the evaluations with its metric: it warns of others that it is disabled.

    Args:
        trainer: The trainer.
        seen: Metrics that it has seen; `None` while each of several sets is evaluated.

    Yields:
        Nothing.
    """
    metric = _key_of(trainer.args.metric_for_best_model)
    with contextlib.ExitStack() as stack:
        for callback in trainer.callback_handler.callbacks:
            if isinstance(callback, EarlyStoppingCallback) and (seen is None or metric in seen):
                shown = partial(_show_metric, callback.on_evaluate, metric)
                stack.enter_context(replaced(callback, on_evaluate=shown))
        yield


def _show_metric(on_evaluate: Callable[..., Any], metric: str, *args: Any, metrics: Any, **kwargs: Any) -> Any:
    return on_evaluate(*args, metrics=metrics, **kwargs) if metric in metrics else None


def check_best_of_each(trainer: Trainer) -> None:
    """Refuses a run that never evaluates sets by name.

    Args:
        trainer: The trainer.

    Raises:
        ValueError: If evaluations are off, or the evaluation data are not a dict.
    """
    if trainer.args.eval_strategy == "no" or not isinstance(trainer.eval_dataset, dict):
        found = "eval_strategy='no'" if isinstance(trainer.eval_dataset, dict) else "eval_dataset is not a dict"
        text = f"=True saves weights when an evaluation set is at its best, but {found}. Pass eval_dataset as a dict "
        raise wrong_value("save_best_of_each", f"{text}by name, and set eval_strategy='steps' or 'epoch'.")


def folder_of(output_dir: str | Path, name: str) -> Path:
    """Returns the folder of the best weights of an evaluation set, `output_dir/best/NAME`.

    Args:
        output_dir: The run's folder.
        name: The set.
    """
    return Path(output_dir) / _FOLDER / folder_name(name)


def save_best_of_each(
    trainer: Any, objective: Objective | None, found: Mapping[str, Mapping[str, float]], prefix: str
) -> None:
    """Saves the weights for each evaluation set that is better than ever before; all ranks have to call it.

    What was best is read from the trainer's log, which checkpoints hold.

    Args:
        trainer: The trainer.
        objective: The objective, whose metric decides; `None` for the loss.
        found: Results of an evaluation by set and metric, the loss included.
        prefix: Prefix of its names in the log.
    """
    metric = "loss" if objective is None else objective.metric
    sign = -1.0 if objective is not None and objective.greater_is_better else 1.0
    step = trainer.state.global_step
    for name, values in found.items():
        value, key = values.get(metric, math.nan), f"{prefix}_{name}_{metric}"
        before = [entry[key] for entry in trainer.state.log_history if key in entry and entry["step"] < step]
        if math.isnan(value) or any(sign * value >= sign * earlier for earlier in before):
            continue
        folder = folder_of(trainer.args.output_dir, name)
        if trainer.args.should_save:
            for place in (folder.parent, folder):
                make_folder(place)
        trainer.save_model(str(folder))
        if trainer.is_world_process_zero():
            write_json(folder / _NOTE, {"set": name, "metric": metric, "value": value, "step": step})
