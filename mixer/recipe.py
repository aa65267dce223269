"""A recipe: a whole training run as typed data, from which model, streams and trainer are built."""

import inspect
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import transformers
from transformers import AutoConfig, AutoTokenizer, PreTrainedModel, TrainingArguments, set_seed

from mixer.budget import Budget
from mixer.gradient_aggregation import GradientAggregation
from mixer.groups import Grouping
from mixer.heads import Head
from mixer.method import Method
from mixer.model_inputs import takes_task
from mixer.multi_task import MultiTaskModel
from mixer.planner import Drawing
from mixer.policies.base import Policy
from mixer.probing import Probing
from mixer.schedules import Schedule
from mixer.stream import Stream
from mixer.trainer import MixingTrainer
from mixer.updates import NonFinite

Task = Literal["causal-lm", "masked-lm", "seq2seq-lm", "sequence-classification", "token-classification", "encoder"]

# Fields of a recipe that are made by name or by class, to be tried one at a time when one of them is wrong.
RECIPE_FIELDS = ("mixing", "batch_size", "budget", "probe", "methods", "conflict", "groupings", "streams", "model")

_AUTO_CLASSES: dict[str, str] = {
    "causal-lm": "AutoModelForCausalLM",
    "masked-lm": "AutoModelForMaskedLM",
    "seq2seq-lm": "AutoModelForSeq2SeqLM",
    "sequence-classification": "AutoModelForSequenceClassification",
    "token-classification": "AutoModelForTokenClassification",
    "encoder": "AutoModel",
}


# Fields of a stream's recipe that are those of `Stream`.
_STREAM_OPTIONS = (
    *("weight", "max_epochs", "shuffle", "seed", "enters_at", "leaves_at", "is_random", "groups"),
    *("head", "loss_weight"),
)


@dataclass
class ModelRecipe:
    """Which model to train.

    Args:
        task: The kind of head.
        name_or_path: A model to load, from a folder or by its name on the hub.
        config: Without `name_or_path`: the configuration of a new model, `model_type` among its entries. Beside it:
            entries that are changed.
        heads: With the task `"encoder"`: one head for each task, on one encoder (`MultiTaskModel`), by the name of the
            stream or of its `head`, such as `{"topic": {"num_labels": 6}}`. A saved `MultiTaskModel` has its own.
    """

    task: Task = "causal-lm"
    name_or_path: str | None = None
    config: dict[str, Any] = field(default_factory=dict)
    heads: dict[str, Head] = field(default_factory=dict)

    def build(self) -> PreTrainedModel:
        """Loads the model, or makes a new one.

        Returns:
            The model.

        Raises:
            ValueError: If neither a model nor the type of a new one is named, heads are given to a task that has
                one of its own, or an encoder has none.
        """
        if not self.heads:
            return self._with_loss(self._build())
        if self.task != "encoder":
            raise ValueError(
                f"heads are for an encoder, and the task {self.task!r} has a head of its own: set task to encoder."
            )
        return MultiTaskModel.from_encoder(self._build(), self.heads)

    def _with_loss(self, model: PreTrainedModel) -> PreTrainedModel:
        if self.task == "encoder" and not takes_task(model):
            raise ValueError(
                f"{type(model).__name__} is an encoder, which has no loss: give it heads, such as "
                '{"topic": {"num_labels": 6}}, or set task to another one.'
            )
        return model

    def _build(self) -> PreTrainedModel:
        auto = getattr(transformers, _AUTO_CLASSES[self.task])
        if self.name_or_path is not None:
            return auto.from_pretrained(self.name_or_path, **self.config)  # type: ignore[no-any-return]
        if "model_type" not in self.config:
            raise ValueError("give name_or_path, or a config with a model_type (such as 'llama') for a new model.")
        return auto.from_config(AutoConfig.for_model(**self.config))  # type: ignore[no-any-return]


@dataclass
class StreamRecipe:
    """One data source.

    Args:
        factory: Dotted name of a function that gives a data set, or a mapping of splits: `package.module.function`.
        arguments: What to call it with.
        train_split: The split to train on, where the function gives several.
        validation_split: The split to evaluate on, if the function gives it.
        weight: See `Stream`, as all that follow.
        max_epochs: See `Stream`.
        shuffle: See `Stream`.
        seed: See `Stream`.
        enters_at: See `Stream`.
        leaves_at: See `Stream`.
        is_random: See `Stream`.
        groups: See `Stream`.
        head: See `Stream`.
        loss_weight: See `Stream`.
    """

    factory: str
    arguments: dict[str, Any] = field(default_factory=dict)
    train_split: str = "train"
    validation_split: str = "validation"
    weight: float | None = None
    max_epochs: float | None = None
    shuffle: bool = True
    seed: int | None = None
    enters_at: float = 0.0
    leaves_at: float = 1.0
    is_random: bool | None = None
    groups: dict[str, str] = field(default_factory=dict)
    head: str | None = None
    loss_weight: float = 1.0

    def build(self, name: str) -> tuple[Stream, Any]:
        """Calls the function.

        Args:
            name: The stream's name.

        Returns:
            The stream, and its data set for evaluation or `None`.

        Raises:
            ValueError: If the function cannot be found or called, or does not give the split; the stream is named.
        """
        splits = call_by_name(f"streams.{name}.factory", self.factory, self.arguments)
        validation = None
        if isinstance(splits, Mapping):
            if self.train_split not in splits:
                raise ValueError(
                    f"streams.{name}.train_split: {self.factory} gives the splits {list(splits)}, "
                    f"not {self.train_split!r}."
                )
            splits, validation = splits[self.train_split], splits.get(self.validation_split)
        return Stream(name, splits, **{option: getattr(self, option) for option in _STREAM_OPTIONS}), validation


@dataclass
class Recipe:
    """A training run.

    Args:
        model: The model.
        streams: The data sources by name.
        training: Arguments of the Trainer.
        mixing: The policy: a class of `mixer policies` with its arguments, a name, or weights by name.
        batch_size: Samples of an update over all ranks: a number, or a class of `mixer schedules` with its arguments.
        budget: How much to train in all: epochs, samples, tokens or steps, whichever ends first.
        epoch_size: Samples of an epoch of the mixture.
        groupings: Groups of streams.
        drawing: How counts come of weights.
        max_tokens_per_micro_batch: Most tokens of a micro-batch, in place of a number of samples.
        probe: How the streams' gradients are measured, and how often.
        reference_model: A trained model for a policy that needs one, with the head of `model.task`: a folder, or its
            name on the hub.
        methods: What takes part in updates beside the samples' own loss: classes with their arguments, such as
            `replay.DER`.
        conflict: What becomes of streams' gradients that are at odds: `pcgrad`, `cagrad`, `mgda`, `nash-mtl`, `upgrad`,
            or the class `GradientAggregation` with its arguments.
        nonfinite: What to do when a stream's loss is not finite.
        allow_inexact: Whether to resume with streams, policy, `conflict` or data that are not what they were.
        tokenizer: A tokenizer to load, from a folder or by its name on the hub; pads batches.
    """

    model: ModelRecipe
    streams: dict[str, StreamRecipe]
    training: TrainingArguments
    mixing: Policy | dict[str, float] | str | None = None
    batch_size: Schedule | int | str | None = None
    budget: Budget | None = None
    epoch_size: int | None = None
    groupings: list[Grouping] = field(default_factory=list)
    drawing: Drawing = "exact"
    max_tokens_per_micro_batch: int | None = None
    probe: Probing | None = None
    reference_model: str | None = None
    methods: list[Method] = field(default_factory=list)
    conflict: GradientAggregation | str | None = None
    nonfinite: NonFinite = "warn"
    allow_inexact: bool = False
    tokenizer: str | None = None

    def build(self, model_field: str = "model") -> MixingTrainer:
        """Builds the model, the streams and the trainer.

        Args:
            model_field: What the user calls the field `model`, for errors.

        Returns:
            The trainer, ready to train.

        Raises:
            ValueError: If a part cannot be built; the field is named.
        """
        reference = _load("reference_model", self._reference)  # before the seed is set: loading may draw
        set_seed(self.training.seed)
        built = {name: stream.build(name) for name, stream in self.streams.items()}
        evaluation = {name: validation for name, (_, validation) in built.items() if validation is not None}
        return MixingTrainer(
            model=_load(model_field, self.model.build),
            args=self.training,
            train_dataset=[stream for stream, _ in built.values()],
            eval_dataset=evaluation or None,
            processing_class=_load("tokenizer", self._tokenizer),
            mixing=self.mixing,
            batch_size=self.batch_size,
            budget=self.budget,
            epoch_size=self.epoch_size,
            groupings=self.groupings,
            drawing=self.drawing,
            max_tokens_per_micro_batch=self.max_tokens_per_micro_batch,
            probe=self.probe,
            reference_model=reference,
            methods=self.methods,
            conflict=self.conflict,
            nonfinite=self.nonfinite,
            allow_inexact=self.allow_inexact,
        )

    def _reference(self) -> PreTrainedModel | None:
        if self.reference_model is None:
            return None
        return ModelRecipe(self.model.task, self.reference_model).build()

    def _tokenizer(self) -> Any:
        return None if self.tokenizer is None else AutoTokenizer.from_pretrained(self.tokenizer)


def _load(field_name: str, build: Callable[[], Any]) -> Any:
    try:
        return build()
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{field_name}: {error}") from error


def call_by_name(field_name: str, dotted_name: str, arguments: Mapping[str, Any], *positional: Any) -> Any:
    """Calls a function that a recipe names.

    Args:
        field_name: The recipe's field, for errors.
        dotted_name: The function: `package.module.function`.
        arguments: What to call it with, by name.
        *positional: What to call it with before.

    Returns:
        What the function gives.

    Raises:
        ValueError: If it cannot be found, or fails; the field is named.
    """
    try:
        function = pkgutil.resolve_name(dotted_name)
        if inspect.ismodule(function):  # of a package's function that is called like the file that it stands in
            package, _, name = dotted_name.rpartition(".")
            function = getattr(pkgutil.resolve_name(package), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(
            f"{field_name}: {dotted_name!r} cannot be found ({error}). Is its package installed?"
        ) from None
    try:
        return function(*positional, **arguments)
    except (TypeError, ValueError, OSError, ImportError) as error:
        raise ValueError(f"{field_name}: {dotted_name}({_written(arguments)}) failed: {error}") from error


def _written(arguments: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in arguments.items())
