"""Scores of tasks, computed in parallel on all ranks."""

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from numbers import Real
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import default_data_collator
from transformers.utils import logging

from mixer import MixingTrainer
from mixer.distributed.collectives import RemoteError
from mixer.loading.loaded_step import MicroBatch
from mixer.loading.reader import ColumnReader
from mixer.models.side_state import evaluating
from mixer.utils.arrays import Int64Array
from mixer.utils.errors import InvalidTypeError, InvalidValueError
from mixer.utils.ranges import check_count
from replay import ReplayBuffer
from tasks.generation import TEXT_SCORES, TextScore, generate_answers, score_texts
from tasks.task import Task, TaskSequence

Inputs = Mapping[str, Any]
Sums = tuple[float, int]  # of what is averaged, and how many there are
logger = logging.get_logger(__name__)

_ANY_TASK = ""  # which no task is called


def accuracy(
    trainer: MixingTrainer,
    dataset: Any,
    classes: Sequence[int] | None = None,
    batch_size: int = 1_024,
    model: nn.Module | None = None,
) -> float:
    """Computes the accuracy of a classifier; all ranks have to call it.

    Args:
        trainer: The trainer of the model; its state does not change.
        dataset: Labelled samples, map-style.
        classes: The classes to choose from; `None` for all. Classes without an output are never chosen.
        batch_size: Samples per forward pass.
        model: The model to score, such as an averaged copy, the same on every rank; `None` for the trainer's.

    Returns:
        The accuracy, the same on every rank.

    Raises:
        ValueError: If the samples have no labels, or the model returns no class logits.
        RemoteError: If another rank failed.
    """
    return _mean_over(trainer, dataset, batch_size, partial(_num_right, trainer, classes), model)


def mean_loss(trainer: MixingTrainer, dataset: Any, batch_size: int = 64, model: nn.Module | None = None) -> float:
    """Computes the mean loss per item (sample, or token with a label); all ranks have to call it.

    Args:
        trainer: The trainer of the model, collator and loss; its state does not change.
        dataset: Samples, map-style.
        batch_size: Samples per forward pass.
        model: The model to score; `None` for the trainer's.

    Returns:
        The loss, the same on every rank.

    Raises:
        RemoteError: If another rank failed.
    """
    passes = trainer.auxiliary_passes

    def measure(model: nn.Module, inputs: Inputs) -> Sums:
        micro = MicroBatch(inputs, np.zeros(0, dtype=np.int64), False)
        num_items, loss = int(passes.items(micro).sum()), float(passes.mean_loss(micro, model))
        return (loss * num_items if num_items else 0.0), num_items

    return _mean_over(trainer, dataset, batch_size, measure, model)


def _mean_over(
    trainer: MixingTrainer,
    dataset: Any,
    batch_size: int,
    measure: Callable[[nn.Module, Inputs], Sums],
    scored: nn.Module | None = None,
) -> float:
    model = trainer.accelerator.unwrap_model(trainer.model_wrapped) if scored is None else scored
    on_all_ranks = trainer.auxiliary_passes.on_all_ranks
    rank, world_size = trainer.args.process_index, trainer.args.world_size
    own = np.arange(rank, len(dataset), world_size)

    def own_sums() -> Tensor:
        sums = torch.zeros(2, dtype=torch.float64)
        with evaluating(model), trainer.accelerator.autocast():
            # As many batches on each rank: those of sharded models run together. One without samples does not count.
            for start in range(0, math.ceil(len(dataset) / world_size), batch_size):
                part = own[start : start + batch_size]
                inputs = on_all_ranks(partial(_inputs, trainer, dataset, part if len(part) else np.zeros(1, dtype=int)))
                sums += torch.tensor(measure(model, inputs), dtype=torch.float64) * bool(len(part))
        return sums

    sums = on_all_ranks(own_sums)
    total, count = trainer.accelerator.reduce(sums.to(trainer.args.device), "sum").tolist()
    return float(total / count) if count else float("nan")


def _inputs(trainer: MixingTrainer, dataset: Any, indices: Int64Array) -> Inputs:
    """Returns inputs as the model is trained on them."""
    if isinstance(dataset, ColumnReader) and trainer.data_collator is default_data_collator:
        return trainer.auxiliary_passes.inputs_of_columns(dataset.read_columns(indices))
    read_several = getattr(dataset, "__getitems__", None)
    samples = read_several(indices.tolist()) if read_several else [dataset[index] for index in indices.tolist()]
    collated: Inputs = trainer.auxiliary_passes.collator(list(samples))
    return collated


def _num_right(trainer: MixingTrainer, classes: Sequence[int] | None, model: nn.Module, inputs: Inputs) -> Sums:
    prepared = trainer.auxiliary_passes.prepare_inputs(inputs)
    labels = [prepared.pop(name, None) for name in trainer.label_names]
    if not labels or not isinstance(labels[0], Tensor):
        raise InvalidValueError.about("label_names", f"must be in the samples, got {trainer.label_names}.")
    outputs = model(**prepared)
    logits = outputs["logits"] if isinstance(outputs, Mapping) else getattr(outputs, "logits", outputs)
    if not isinstance(logits, Tensor) or logits.dim() != 2:
        found = f"logits of shape {list(logits.shape)}" if isinstance(logits, Tensor) else type(logits).__name__
        raise InvalidValueError.about("logits", f"must be [num_rows, num_classes] for accuracy, got {found}.")
    known = range(logits.shape[1]) if classes is None else [label for label in classes if label < logits.shape[1]]
    allowed = torch.full_like(logits, float("-inf"))
    allowed[:, list(known)] = 0.0
    is_right = (logits + allowed).argmax(dim=-1) == labels[0]
    return int(is_right.sum()) if known else 0, len(next(iter(inputs.values())))


@dataclass(frozen=True)
class Score:
    """The score of a task.

    Args:
        measure: Returns the score of a task. Every rank calls it, and it must return the same on all; if it
            communicates between ranks, an error must occur on all of them too.
        metric: Name of the score.
        higher_is_better: Whether a higher score is better; false for losses.
        names: The tasks that it can score; `None` for any.
        memory: The buffer that it goes by, which must be that of the run; `None` for none.
        depends_on: Returns what of a task the score depends on, such as `id(task.evaluation)`: where it is the same for
            several tasks, the first of them is scored for all; `None` scores each task.

    Raises:
        TypeError: If `measure` is not callable.
    """

    measure: Callable[[MixingTrainer, Task], float]
    metric: str = "score"
    higher_is_better: bool = True
    names: frozenset[str] | None = None
    memory: ReplayBuffer | None = None
    depends_on: Callable[[Task], Hashable] | None = None

    def __post_init__(self) -> None:
        if not callable(self.measure):
            raise TypeError(f"Score.measure must be a function of a trainer and a task, got {self.measure!r}.")


def generated(
    score: TextScore | str | Mapping[str, TextScore | str],
    max_new_tokens: int = 64,
    batch_size: int = 16,
    higher_is_better: bool = True,
) -> Score:
    """Makes a score of the answers that the model generates to the prompts of a task; see `generate_answers`.

    Args:
        score: A name of `tasks.generation.TEXT_SCORES` (`"exact_match"`, `"first_word_match"`, `"last_number_match"`,
            `"json_lines_match"`, `"token_f1"`, `"rouge_l"`, `"edit_similarity"`), or a function of `predictions` and
            `references` that gives a number or a dict with one, such as those of `evaluate`; or the score of each
            task, by its name.
        max_new_tokens: Most tokens of an answer.
        batch_size: Prompts per batch.
        higher_is_better: Whether a higher score is better.

    Raises:
        ValueError: If a name is unknown, there is no score, or a number is less than 1.

    Example:
        >>> generated("exact_match", max_new_tokens=8).metric
        'exact match'
    """
    check_count("max_new_tokens", max_new_tokens, 1, "it is the most tokens of an answer")
    check_count("batch_size", batch_size, 1, "it is the number of prompts")
    given: Mapping[str, TextScore | str] = score if isinstance(score, Mapping) else {_ANY_TASK: score}
    if not given:
        raise InvalidValueError.about("score", "must have a score for each task, by its name, but is empty.")
    named = {task: (_text_score(own), _name(own)) for task, own in given.items()}

    def measure(trainer: MixingTrainer, task: Task) -> float:
        function, name = named[_ANY_TASK if _ANY_TASK in named else task.name]
        return score_texts(function, name, *generate_answers(trainer, task.evaluation, max_new_tokens, batch_size))

    called = {name for _, name in named.values()}
    metric = next(iter(called)).replace("_", " ") if len(called) == 1 else "answer score"
    names = frozenset(named.keys() - {_ANY_TASK}) or None
    return Score(measure, metric, higher_is_better, names, depends_on=None if names else _evaluation_set)


def _evaluation_set(task: Task) -> Hashable:
    return id(task.evaluation)


def _name(score: Any) -> str:
    return score if isinstance(score, str) else str(getattr(score, "__name__", type(score).__name__))


def _text_score(score: object) -> TextScore:
    if isinstance(score, str) and score in TEXT_SCORES:
        return TEXT_SCORES[score]
    if isinstance(score, str) or not callable(score):
        known = "'accuracy', 'loss', a function or one of " + str([*TEXT_SCORES])
        raise InvalidValueError.about("score", f"must be {known}, got {score!r}.")
    return score


def as_score(score: Score | str | None, sequence: TaskSequence) -> Score:
    """Converts a user's score.

    Args:
        score: A score; `"accuracy"`, among a task's own classes in a task-incremental sequence; `"loss"`, the mean per
            item; the name of a score of generated answers, see `generated`; or `None` for the accuracy if all tasks
            have classes, else the loss.
        sequence: The tasks.

    Raises:
        ValueError: If the name is unknown, or accuracy is requested for tasks without classes.
        TypeError: If it is anything else.
    """
    without = [task.name for task in sequence if task.classes is None]
    if score is None:
        score = "loss" if without else "accuracy"
    if score == "loss":
        return Score(
            lambda trainer, task: mean_loss(trainer, task.evaluation),
            "loss",
            higher_is_better=False,
            depends_on=_evaluation_set,
        )
    if score == "accuracy":
        if without:
            raise InvalidValueError.about("score", f"must not be 'accuracy', as {without} have no classes: say 'loss'.")
        own = sequence.scenario == "task"
        return Score(
            lambda trainer, task: accuracy(trainer, task.evaluation, task.classes if own else None),
            "accuracy",
            depends_on=lambda task: (id(task.evaluation), task.classes if own else None),
        )
    if isinstance(score, str):
        return generated(score)
    if not isinstance(score, Score):
        raise InvalidTypeError.about("score", f"must be a name or Score(FUNCTION, METRIC), got {type(score).__name__}.")
    return score


def mean_over(sequence: TaskSequence, score: Score | str | None = None) -> Score:
    """Makes the score of a model that was trained on `joined(sequence)`: the mean over the tasks.

    Args:
        sequence: The tasks.
        score: The score of one of them; see `as_score`.

    Raises:
        ValueError: As `as_score`.
    """
    of_task = as_score(score, sequence)
    return Score(
        lambda trainer, _: float(np.mean([of_task.measure(trainer, task) for task in sequence])),
        of_task.metric,
        of_task.higher_is_better,
    )


def score_of(score: Score, trainer: MixingTrainer, task: Task, when: str) -> tuple[float, str | None]:
    """Scores a task; an error on any rank is logged, and the run continues.

    Args:
        score: The score.
        trainer: The trainer.
        task: The task.
        when: Time of the evaluation, for the warning.

    Returns:
        The score, or NaN and the reason; the same on every rank.
    """
    value, why = math.nan, None
    try:
        value = _number(score.measure(trainer, task))
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
    parts = trainer.auxiliary_passes.ranks.gather([repr(value), why])
    reasons = {rank: reason for rank, (_, reason) in enumerate(parts) if reason is not None}
    if reasons:
        # What a rank says of another one is worth less than what that one says of itself.
        rank = min(reasons, key=lambda rank: (reasons[rank].startswith(RemoteError.__name__), rank))
        why = reasons[rank] if len(parts) == 1 else f"rank {rank}: {reasons[rank]}"
    elif len({written for written, _ in parts}) > 1:
        why = f"ranks gave different scores, {[float(written) for written, _ in parts]}: reduce them over the ranks"
    if why is None:
        return value, None
    logger.warning("The evaluation of task %r %s failed: %s", task.name, when, why)
    return math.nan, why


def _number(value: Any) -> float:
    """Converts a score; a function of the user's may give anything."""
    if isinstance(value, Tensor) and value.dim() == 0:
        value = value.item()
    if not isinstance(value, Real):
        raise TypeError(f"the score must be a number, got {value!r}")
    return float(value)
