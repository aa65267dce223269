"""Checks of the arguments of a continual run, before anything is created."""

import inspect
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from torch import nn
from transformers import Trainer, TrainingArguments
from transformers.utils import logging

from mixer.measurements import EvaluationLoss, Needs, asked
from mixer.models.class_names import NamedClasses, check_same_classes, find_class_names
from mixer.models.inputs import takes_task
from mixer.models.labels import LABEL_COLUMNS
from mixer.trainer.checks.engines import engine_of
from mixer.trainer.checks.shared_rows import rows_trained_on
from mixer.trainer.method import as_methods
from mixer.trainer.trainer import MixingMixin
from mixer.utils.errors import InvalidTypeError, InvalidValueError
from mixer.utils.ranges import check_count
from mixer.utils.recorded_arguments import check_keywords
from mixer.utils.user_code import is_user_code
from replay import ReplayBuffer
from tasks.score import Score
from tasks.sources.checks import check_map_style
from tasks.task import TaskSequence

Optimizer = Literal["fresh", "kept"]
logger = logging.get_logger(__name__)


def check_types(model: Any, sequence: Any, args: Any, memory: Any, methods: Any, trainer_class: Any) -> None:
    """Raises a `TypeError` for an argument of the wrong type."""
    kinds = {"model": (model, nn.Module), "sequence": (sequence, TaskSequence), "args": (args, TrainingArguments)}
    for name, (found, kind) in {**kinds, "memory": (memory, ReplayBuffer)}.items():
        if not isinstance(found, kind) and not (name == "memory" and found is None):
            raise InvalidTypeError.about(name, f"must be a {kind.__name__}, got a {type(found).__name__}.")
    if not callable(methods):
        as_methods(methods or ())
    if not (isinstance(trainer_class, type) and issubclass(trainer_class, MixingMixin)):
        raise InvalidTypeError.about("trainer_class", f"must derive from MixingTrainer, got {trainer_class!r}.")


def check_classes(model: nn.Module, sequence: TaskSequence) -> None:
    """Raises a `ValueError` if tasks of one head have `ClassLabel`s with other numbers for the same classes."""
    named = []
    for task in () if takes_task(model) else sequence:
        for called, dataset in ((task.name, task.train), (f"{task.name} (evaluation)", task.evaluation)):
            if (found := find_class_names(dataset, LABEL_COLUMNS)) is not None:
                named.append(NamedClasses(f"Task {called!r}", f"task {called!r}", found[1], found[0]))
    check_same_classes(named)


def warn_of_same_rows(sequence: TaskSequence, args: TrainingArguments) -> None:
    """Warns of tasks that are evaluated on rows that they, or others, train on."""
    if args.process_index == 0:
        trained = {f"the task {task.name!r}": task.train for task in sequence}
        evaluated = {f"the evaluation set of {task.name!r}": task.evaluation for task in sequence}
        warning = rows_trained_on(trained, evaluated)
        if warning is not None:
            logger.warning("%s", warning)


def check_evaluation(needs: Needs, eval_dataset: Any, sequence: TaskSequence) -> None:
    """Raises a `ValueError` if the policy follows evaluations of earlier tasks that the trainer does not make."""
    there = eval_dataset.keys() if isinstance(eval_dataset, Mapping) else ()
    missing = [name for name in sequence.names[:-1] if name not in there]
    if missing and asked(needs, EvaluationLoss):
        raise InvalidValueError.about(
            "eval_dataset",
            f"must have held-out samples of {missing} by name: mixing follows their losses.",
            found=missing,
        )


def check_held_out(held_out: Any) -> None:
    """Raises a `TypeError` or `ValueError` for held-out sets that are none."""
    if held_out is not None and not isinstance(held_out, Mapping):
        raise InvalidTypeError.about("held_out", f"must be {{NAME: data set}}, got a {type(held_out).__name__}.")
    for name, dataset in (held_out or {}).items():
        called = f"held_out[{name!r}]"
        if isinstance(dataset, Score):
            continue
        check_map_style(dataset, called)
        if not len(dataset):
            raise InvalidValueError.about(called, "is empty. Leave it out, or give it at least one sample.")
        if not isinstance(dataset[0], Mapping):
            raise InvalidTypeError.about(called, f"must have dicts as samples, got a {type(dataset[0]).__name__}.")


def check_names(score: Score, names: Sequence[str], called: str = "score") -> None:
    """Raises a `ValueError` if a score is of other tasks than those that there are."""
    if score.names is None:
        return
    if missing := [name for name in names if name not in score.names]:
        raise InvalidValueError.about(called, f"must score all tasks and held-out sets, but lacks {missing}.")


def check_score_memory(score: Score, memory: ReplayBuffer | None, is_one: bool) -> None:
    """Raises a `ValueError` if a score goes by a memory that the run does not fill."""
    if score.memory is not None and not (score.memory is memory and is_one):
        raise InvalidValueError.about("score", "must go by the run's own memory: nearest_mean(BUFFER), memory=BUFFER.")


def check_added_parameters(args: TrainingArguments, optimizer: Optimizer) -> None:
    """Raises a `ValueError` for what does not go with methods that add parameters when a task begins."""
    if args.load_best_model_at_end:
        raise InvalidValueError.about("load_best_model_at_end", "restores one adapter, but there is one per task.")
    if optimizer == "kept":
        raise InvalidValueError.about("optimizer", "must be 'fresh' where a method adds parameters, got 'kept'.")


def check_engine(trainer: Trainer, keeps_optimizer: bool, memory: ReplayBuffer | None) -> None:
    """Raises a `ValueError` for what the engine of a task's trainer does not support in a continual run."""
    engine = engine_of(trainer)
    if not engine.has_layers:
        raise InvalidValueError.about(
            "model", f"must be copied for each task, but {engine.name} has parts of it. Use FSDP2, stage 2 or DDP."
        )
    if not engine.has_gradients and keeps_optimizer:
        raise InvalidValueError.about("optimizer", f"must be 'fresh' with {engine.name}, got 'kept'.")
    if not engine.has_gradients and memory is not None and "features" in memory.selection.needs:
        raise InvalidValueError.about(
            "memory", f"must select without features with {engine.name}: use 'Reservoir' or 'ClassBalanced', or DDP."
        )


def check_options(options: Mapping[str, Any], trainer_class: type, own: Iterable[str]) -> None:
    """Raises a `TypeError` for an option that neither a continual run nor its trainer has.

    Args:
        options: The options for the trainer.
        trainer_class: The trainer; one of the user's that takes any option is not looked into.
        own: Names of the run's own options.
    """
    known = set[str]()
    for kind in trainer_class.__mro__[:-1]:
        parameters = inspect.signature(kind.__init__).parameters.values() if "__init__" in vars(kind) else ()  # type: ignore[misc]
        takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
        if takes_any and is_user_code(kind):
            return
        known |= {parameter.name for parameter in parameters}
    check_keywords(options, sorted({*known, *own}), "ContinualRun")


def check_values(
    optimizer: Any, scores_before: Any, score_steps: Any, score_samples: Any, options: Mapping[str, Any]
) -> None:
    """Raises a `ValueError` for a value that a continual run does not support."""
    if not isinstance(scores_before, bool):
        raise InvalidValueError.about("scores_before", f"must be True or False, got {scores_before!r}.")
    if optimizer not in ("fresh", "kept"):
        raise InvalidValueError.about("optimizer", f"must be 'fresh' or 'kept', got {optimizer!r}.")
    if any(given is not None for given in options.get("optimizers", ())):
        raise InvalidValueError.about("optimizers", "are made for each task: set args.optim in their place.")
    if score_steps is not None and not (type(score_steps) is int and score_steps >= 1):
        raise InvalidValueError.about("score_steps", f"must be 1 or more, or None, got {score_steps!r}.")
    if score_samples is not None:
        check_count("score_samples", score_samples, 1, "it is what is scored after each score_steps, None for all")
        if score_steps is None:
            raise InvalidValueError.about("score_samples", "is for scores within tasks: set score_steps, too.")
