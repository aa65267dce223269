"""A recipe of a continual run: model, tasks, memory and training as typed data."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import nn
from transformers import set_seed

from mixer.policies import Policy
from mixer.run.config import MixingConfig
from mixer.tools.recipe.data.collators import collator_for
from mixer.tools.recipe.model import ModelRecipe, Task as HeadTask
from mixer.tools.recipe.recipe import load_tokenizer
from mixer.tools.recipe.streams import Factory, call_by_name
from mixer.trainer.method import Method
from mixer.utils.errors import InvalidValueError, wrong_value
from replay import ReplayBuffer
from tasks.continual.continual import ContinualRun
from tasks.continual.continual_checks import Optimizer
from tasks.heads import HeadKind
from tasks.methods.nearest_mean import nearest_mean
from tasks.score import Score, mean_over
from tasks.sequences import held_out_of_training, joined
from tasks.task import TaskSequence

ScoreName = Literal[
    "accuracy",
    "loss",
    "nearest-mean",
    "method",
    "exact_match",
    "first_word_match",
    "last_number_match",
    "json_lines_match",
    "token_f1",
    "rouge_l",
    "edit_similarity",
]

# Fields that are passed on to the run.
_RUN_OPTIONS = ("head", "second_draw", "batch_size", "optimizer", "scores_before", "score_steps", "score_samples")
_TWO_DATA_SETS = "not two data sets: for training and for evaluation."


@dataclass
class ClassifierRecipe(ModelRecipe):
    """Which model to train: one of transformers, or what a function gives.

    Args:
        task: See `ModelRecipe`, as all that follow but the last two.
        name_or_path: See `ModelRecipe`.
        config: See `ModelRecipe`.
        factory: Or dotted name of a function that gives a model, such as `tasks.mlp.mlp`.
        arguments: What to call it with.
    """

    task: HeadTask = "sequence-classification"
    factory: str | None = None
    arguments: dict[str, Any] = field(default_factory=dict)

    def make(self) -> nn.Module:
        """Loads the model, or makes a new one.

        Returns:
            The model.

        Raises:
            ValueError: If it cannot be built; the field is named.
        """
        if self.factory is None:
            try:
                return self.build()
            except (OSError, ValueError, TypeError, KeyError) as error:
                raise ValueError(f"model: {error}") from error
        if self.name_or_path is not None or self.gguf_file is not None or self.config:
            raise ValueError("model: give a factory, or name_or_path, gguf_file and config, not both.")
        model: nn.Module = _made("model", Factory(self.factory, self.arguments), nn.Module, "not a torch.nn.Module.")
        return model


@dataclass
class ContinualRecipe:
    """A continual run.

    Args:
        model: The model.
        sequence: The function that makes the tasks, such as `tasks.sequences.by_class`; is called with the source's two
            data sets and its own arguments.
        training: The training arguments, for each task.
        source: The function that gives the data, for training and for evaluation, such as `tasks.sources.digits`;
            `None` where the sequence's function needs none.
        tokenizer: A tokenizer to load, from a folder or the hub, or a function that returns one: of the run, and where
            there is no source the sequence's function is called with it.
        data_collator: A function that returns what makes a batch of samples; `None` follows from model and tokenizer.
        head: What becomes of the output layer: `whole`, `growing` or `masked`; see `ContinualRun`.
        memory: The buffer: `replay.ReplayBuffer` and its arguments; `None` trains without.
        second_draw: Name of a stream that draws from it once more; see `ContinualRun`.
        mixing: How much of it is replayed; `None` replays as many samples on top as there are new ones.
        methods: What else takes part in steps or at the ends of tasks, for all tasks: classes with their arguments,
            such as `replay.DER` or `tasks.methods.OnlineEWC`. Or names, as `er,lwf,own.py:Mine`: `mixer continual` then
            runs each of these methods, in place of the recipe's own, and compares them.
        batch_size: New samples of a step over all ranks.
        optimizer: Whether each task begins with a `fresh` optimizer or continues with the one `kept`.
        scores_before: Whether all tasks are scored before the first, as forward transfer needs it.
        score: What a task is scored by: a name, or `tasks.generated` or `tasks.lm_eval_score` and its arguments;
            `nearest-mean` is the accuracy by means of the memory's classes, as in iCaRL; `method` is that of the one of
            `methods` that predicts by itself, such as `RanPAC` or `CLSER`; `None` takes the accuracy where all tasks
            have classes, else the loss.
        score_steps: Number of steps after which the tasks seen so far are scored, again and again.
        score_samples: Samples of each evaluation set that are scored then; `None` for all.
        held_out: Functions that give evaluation sets that are no task, or scores such as `tasks.lm_eval_score`, by
            name.
        joint: Whether all tasks are trained on at once, and scored one by one: the upper bound.
        tuning_tasks: Train on so many of the first tasks only, and score them on a fifth of their training samples,
            which is held out, in place of their evaluation samples: to choose strengths by.
    """

    model: ClassifierRecipe
    sequence: Factory
    training: MixingConfig
    source: Factory | None = None
    tokenizer: str | Factory | None = None
    data_collator: Factory | None = None
    head: HeadKind | None = None
    memory: Factory | None = None
    second_draw: str | None = None
    mixing: Policy | str | None = None
    methods: list[Method] | str = field(default_factory=list)
    batch_size: int | None = None
    optimizer: Optimizer = "fresh"
    scores_before: bool = True
    score: ScoreName | Factory | None = None
    score_steps: int | None = None
    score_samples: int | None = None
    held_out: dict[str, Factory] = field(default_factory=dict)
    joint: bool = False
    tuning_tasks: int | None = None

    def build(self) -> ContinualRun:
        """Builds the tasks, the model, the memory and the run.

        Returns:
            The run, ready to begin.

        Raises:
            ValueError: If a part cannot be built; the field is named.
        """
        if isinstance(self.methods, str):
            raise wrong_value("methods", "must be classes in a single run; mixer continual RECIPE takes names.")
        tokenizer = load_tokenizer(self.tokenizer or self.model.own_tokenizer, self.model.task, pads=True)
        sequence = self._tasks(tokenizer)
        if self.tuning_tasks is not None:
            if isinstance(self.score, Factory) and self.score.factory.endswith("lm_eval_score"):
                raise wrong_value("score", "must be of the tasks' own samples to choose strengths by, not of lm-eval.")
            sequence = held_out_of_training(sequence, self.tuning_tasks)
        set_seed(self.training.seed)
        collator = None if tokenizer is None else collator_for(self.model.task, tokenizer)
        if (given := self.data_collator) is not None:
            collator = call_by_name("data_collator.factory", given.factory, given.arguments)
        memory: ReplayBuffer | None = None
        if self.memory is not None:
            memory = _made("memory", self.memory, ReplayBuffer, "no ReplayBuffer.")
        methods = copy.deepcopy(self.methods)
        score = self._score(memory, methods)
        training = self.training
        if self.joint:
            if training.max_steps > 0:
                training = copy.copy(training)
                training.max_steps *= len(sequence)
            sequence, score = joined(sequence), mean_over(sequence, score)
        return ContinualRun(
            self.model.make(),
            sequence,
            training,
            memory=memory,
            mixing=self.mixing,
            methods=methods or None,
            score=score,
            held_out={
                name: call_by_name(f"held_out.{name}.factory", made.factory, made.arguments)
                for name, made in self.held_out.items()
            },
            **{option: getattr(self, option) for option in _RUN_OPTIONS},
            processing_class=tokenizer,
            data_collator=collator,
        )

    def _score(self, memory: ReplayBuffer | None, methods: Sequence[Method]) -> Score | str | None:
        if isinstance(self.score, Factory):
            made: Score = _made("score", self.score, Score, "no Score.")
            return made
        if self.score == "method":
            return _score_of_method(methods)
        if self.score != "nearest-mean":
            return self.score
        if memory is None:
            raise ValueError("score: nearest-mean classifies by the samples of a memory; give one.")
        return nearest_mean(memory)

    def _tasks(self, tokenizer: Any) -> TaskSequence:
        data: tuple[Any, ...] = () if tokenizer is None else (tokenizer,)
        if self.source is not None:
            data = _made("source", self.source, tuple, _TWO_DATA_SETS)
            if len(data) != 2:
                raise ValueError(f"source.factory: {self.source.factory} gives a tuple, {_TWO_DATA_SETS}")
        expected = "not a TaskSequence; tasks.sequences has functions that do, such as tasks.sequences.by_class."
        sequence: TaskSequence = _made("sequence", self.sequence, TaskSequence, expected, *data)
        return sequence


def _score_of_method(methods: Sequence[Method]) -> Score:
    """Makes the accuracy of the one method that predicts by itself."""
    predicting = {method.name: method.score for method in methods if hasattr(method, "score")}
    if len(predicting) != 1:
        raise InvalidValueError.about(
            "score", f"must be another than 'method', which needs one that predicts, got {list(predicting)}."
        )
    return Score(next(iter(predicting.values())), metric="accuracy")


def _made(field_name: str, factory: Factory, kind: type, expected: str, *data: Any) -> Any:
    made = call_by_name(f"{field_name}.factory", factory.factory, factory.arguments, *data)
    if not isinstance(made, kind):
        raise ValueError(f"{field_name}.factory: {factory.factory} gives a {type(made).__name__}, {expected}")
    return made
