"""A recipe: a whole training run as typed data, from which model, streams and trainer are built."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from transformers import AutoTokenizer, PreTrainedModel, TrainingArguments, set_seed

from mixer.mixture.bad_samples import OnSampleError
from mixer.mixture.clock import Budget
from mixer.mixture.groups import Grouping
from mixer.mixture.planner import Drawing
from mixer.policies.contract import Policy
from mixer.recipe.called_by_name import Factory, call_by_name
from mixer.recipe.checks import check_evaluation, check_lengths, check_streams
from mixer.recipe.class_names import note_class_names
from mixer.recipe.data.collators import collator_for, ensure_pad_token
from mixer.recipe.data.turns import in_turns
from mixer.recipe.model_recipe import ModelRecipe
from mixer.recipe.pretrained import load_pretrained
from mixer.recipe.stream_recipe import BuiltStream, StreamRecipe
from mixer.schedules import Schedule
from mixer.trainer.gradient_aggregation import GradientAggregation
from mixer.trainer.method import Method
from mixer.trainer.observers.gradient_options import Probing
from mixer.trainer.step import NonFinite
from mixer.trainer.trainer import MixingTrainer
from mixer.trainer.variants import WeightlessTrainer

# Fields of a recipe that are made by name or by class, to be tried one at a time when one of them is wrong.
RECIPE_FIELDS = ("mixing", "batch_size", "budget", "probe", "methods", "conflict", "groupings", "streams", "model")


class BuiltRecipe(NamedTuple):
    """What a recipe's trainer was built of, with it.

    Args:
        trainer: The trainer.
        streams: The streams by name, with what goes with them.
    """

    trainer: MixingTrainer
    streams: dict[str, BuiltStream]


@dataclass
class Recipe:
    """A training run.

    Args:
        model: The model.
        streams: The data sources by name.
        training: Arguments of the Trainer.
        mixing: The policy: a class of `mixer policies` with its arguments, a name, or weights by name.
        batch_size: Samples of a step over all ranks: a number, or a class of `mixer schedules` with its arguments.
        budget: How much to train in all: epochs, samples, tokens or steps, whichever ends first.
        epoch_size: Samples of an epoch of the mixture.
        groupings: Groups of streams.
        drawing: How counts come of weights.
        max_tokens_per_micro_batch: Most tokens of a micro-batch, in place of a number of samples.
        probe: How the streams' gradients are measured, and how often.
        reference_model: A trained model for a policy that needs one, with the head of `model.task`: a folder, or its
            name on the hub.
        methods: What takes part in steps beside the samples' own loss: classes with their arguments, such as
            `replay.DER`.
        conflict: What becomes of streams' gradients that are at odds: `pcgrad`, `cagrad`, `mgda`, `nash-mtl`, `upgrad`,
            or the class `GradientAggregation` with its arguments.
        nonfinite: What to do when a stream's loss is not finite.
        on_sample_error: What to do when a sample cannot be loaded: `raise` or `skip`.
        max_skipped_share: Largest share of a stream's samples that may be skipped.
        allow_inexact: Whether to resume with streams, policy, `conflict` or data that are not what they were.
        eval_weights: Weights of the streams' evaluation sets in `eval_loss`, by name, in place of the plain mean.
        tokenizer: A tokenizer to load, from a folder or by its name on the hub, or a function that gives one; makes
            tokens for the streams' formats and pads batches.
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
    on_sample_error: OnSampleError = "raise"
    max_skipped_share: float = 0.1
    allow_inexact: bool = False
    eval_weights: dict[str, float] | None = None
    tokenizer: str | Factory | None = None

    def build(self, model_field: str = "model") -> MixingTrainer:
        """Builds the model, the streams and the trainer.

        Args:
            model_field: What the user calls the field `model`, for errors.

        Returns:
            The trainer, ready to train.

        Raises:
            ValueError: If a part cannot be built; the field is named.
        """
        return self.build_parts(model_field).trainer

    def build_parts(self, model_field: str = "model", has_weights: bool = True) -> BuiltRecipe:
        """Builds the model, the streams and the trainer, and gives what they were built of too.

        Args:
            model_field: What the user calls the field `model`, for errors.
            has_weights: Whether the model has weights. Without, it is made of its configuration alone, and the trainer
                plans, loads and collates, but cannot train.

        Returns:
            The trainer, and the streams.

        Raises:
            ValueError: If a part cannot be built; the field is named.
        """
        check_streams(self.streams, self.mixing)
        # Before the seed is set: loading may draw.
        reference = _load("reference_model", partial(self._reference, has_weights))
        tokenizer = self.load_tokenizer()
        set_seed(self.training.seed)
        built = self.build_streams(tokenizer)
        if tokenizer is None and self.training.per_device_train_batch_size > 1:
            for name, one in built.items():
                if self.streams[name].data is not None:
                    check_lengths(one.stream.dataset, f"streams.{name}")
        evaluation = {name: one.evaluation for name, one in built.items() if one.evaluation is not None}
        check_evaluation(self.streams, evaluation, self.training)
        model = _load(model_field, self.model.build if has_weights else self.model.build_empty)
        heads = {name: one.stream.head or name for name, one in built.items()}
        note_class_names(model, heads, {name: one.class_names for name, one in built.items() if one.class_names})
        collator = None if tokenizer is None or not self._reads_rows else collator_for(self.model.task, tokenizer)
        trainer = (MixingTrainer if has_weights else WeightlessTrainer)(
            model=model,
            args=self.training,
            data_collator=collator,
            train_dataset=[one.stream for one in built.values()],
            eval_dataset=evaluation or None,
            processing_class=tokenizer,
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
            on_sample_error=self.on_sample_error,
            max_skipped_share=self.max_skipped_share,
            allow_inexact=self.allow_inexact,
            eval_weights=self.eval_weights,
        )
        return BuiltRecipe(trainer, built)

    def build_streams(self, tokenizer: Any) -> dict[str, BuiltStream]:
        """Builds the streams; where they leave files behind, on the first process of each machine before the others.

        Args:
            tokenizer: The tokenizer, for formats.

        Returns:
            Streams by name, with what goes with them.

        Raises:
            ValueError: On all ranks, if one cannot be built on one of them.
            OSError: If there are no such data, on the rank that misses them.
        """

        def build() -> dict[str, BuiltStream]:
            return {name: stream.build(name, tokenizer, self.model.task) for name, stream in self.streams.items()}

        return in_turns(self.training, build) if self._reads_rows else build()

    def load_tokenizer(self) -> Any:
        """Loads the tokenizer.

        Returns:
            It, with a pad token where streams are read here; `None` for a recipe without one.

        Raises:
            ValueError: If it cannot be loaded.
        """
        return _load("tokenizer", self._tokenizer)

    @property
    def _reads_rows(self) -> bool:
        """Whether a stream's samples are rows that are read or made here, and not what a function gives."""
        return any(stream.data is not None or stream.format is not None for stream in self.streams.values())

    def _reference(self, has_weights: bool) -> PreTrainedModel | None:
        if self.reference_model is None:
            return None
        reference = ModelRecipe(self.model.task, self.reference_model)
        return reference.build() if has_weights else reference.build_empty()

    def _tokenizer(self) -> Any:
        if self.tokenizer is None:
            return None
        if isinstance(self.tokenizer, Factory):
            tokenizer = call_by_name("factory", self.tokenizer.factory, self.tokenizer.arguments)
        else:
            tokenizer = load_pretrained(AutoTokenizer, self.tokenizer)
        if self._reads_rows:
            ensure_pad_token(tokenizer, self.model.task)
        return tokenizer


def _load(field_name: str, build: Callable[[], Any]) -> Any:
    try:
        return build()
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{field_name}: {error}") from error
