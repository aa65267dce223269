"""A recipe's data, looked at as a run would be given them."""

import math
import time
from dataclasses import dataclass
from typing import Any

from mixer.analysis.inspect.distribution import Distribution, distribution_of
from mixer.analysis.inspect.duplicates import Overlap, Part, find_overlaps
from mixer.analysis.inspect.examples import Decoding, Example, examples_of
from mixer.analysis.inspect.first_batch import Batch, first_batch
from mixer.analysis.inspect.measures import Limits, Measures
from mixer.analysis.inspect.measuring import measure
from mixer.analysis.inspect.parts import parts_of
from mixer.analysis.inspect.passes import planned_passes
from mixer.analysis.inspect.reading import readable
from mixer.analysis.inspect.truncation import Truncation, truncation_of
from mixer.mixture.stream import Stream
from mixer.models.heads import tasks_of
from mixer.models.labels import num_classes_of
from mixer.models.multi_task import MultiTaskModel
from mixer.recipe.data.formats.base import Format
from mixer.recipe.recipe import BuiltRecipe, Recipe
from mixer.recipe.streams import BuiltStream
from mixer.trainer.trainer import MixingTrainer


@dataclass(frozen=True)
class Look:
    """How closely data are looked at.

    Args:
        num_samples: The most samples of a stream, and the most validation samples.
        seed: Seed of which those are.
    """

    num_samples: int
    seed: int


@dataclass(frozen=True)
class InspectedStream:
    """A stream.

    Args:
        stream: The stream.
        format: What makes its samples of rows, or `None`.
        num_rows: Of how many rows they were made; `None` without a format, or where that is not known.
        weight: The weight that the run begins with, as a share of samples or of tokens.
        passes: How often the run passes over it if the weights stay so; `None` where nobody can tell.
        measures: What was measured of the samples that are trained on.
        evaluation: Likewise of those for evaluation; `None` where there are none.
        lengths: How their lengths are distributed.
        truncation: What its format cuts off; `None` where it cuts nothing off.
        beyond_positions: How many samples that were looked at are longer than the model's positions.
        examples: Some samples to be read.
        class_names: What its classes are called; empty where they have no names.
        num_classes: How many there are; `None` where its labels are none.
    """

    stream: Stream
    format: Format | None
    num_rows: int | None
    weight: float
    passes: float | None
    measures: Measures
    evaluation: Measures | None
    lengths: Distribution | None
    truncation: Truncation | None
    beyond_positions: int
    examples: list[Example]
    class_names: list[str]
    num_classes: int | None


@dataclass(frozen=True)
class Inspection:
    """All that there is to say of a recipe's data.

    Args:
        trainer: The trainer that would be given them, whose model has no weights.
        task: The model's task.
        streams: The streams, in order.
        batch: The first step.
        overlaps: Samples that come more than once.
        look: How closely the data were looked at.
        seconds: How long the samples were looked at.
        vocabulary: Number of tokens that the model knows; `None` where that is not known.
        positions: The most tokens that it has positions for; `None` where there is no such number.
    """

    trainer: MixingTrainer
    task: str
    streams: list[InspectedStream]
    batch: Batch
    overlaps: list[Overlap]
    look: Look
    seconds: float
    vocabulary: int | None
    positions: int | None

    @property
    def num_read(self) -> int:
        """How many samples were looked at."""
        parts = [part for one in self.streams for part in (one.measures, one.evaluation) if part is not None]
        return sum(part.num_read for part in parts)

    @property
    def samples_per_second(self) -> float:
        """How many samples were looked at in a second."""
        return self.num_read / self.seconds if self.seconds else math.inf


def inspect_recipe(recipe: Recipe, look: Look) -> Inspection:
    """Loads and formats a recipe's data as in training, makes its first step, and looks at the samples.

    Args:
        recipe: The recipe. No weights of a model are made or loaded.
        look: How closely.

    Returns:
        What was found.

    Raises:
        ValueError: If the recipe cannot be trained; the field is named.
    """
    built = recipe.build_parts(has_weights=False)
    trainer, task = built.trainer, recipe.model.task
    started = time.perf_counter()
    model: Any = trainer.model
    vocabulary, positions = _model_limits(model)
    heads = tasks_of(model, trainer.streams)
    end = getattr(trainer.processing_class, "eos_token_id", None) if task == "causal-lm" else None
    parts: list[Part] = []
    streams = []
    passes = planned_passes(trainer)
    for stream, head in zip(trainer.streams, heads, strict=True):
        limits = Limits(task, vocabulary, num_classes_of(model, head), end, positions)
        one = built.streams[stream.name]
        streams.append(_inspected(built, one, limits, look, passes.get(stream.name)))
        parts += parts_of(one, streams[-1].measures, streams[-1].evaluation, look.num_samples, look.seed)
    overlaps = find_overlaps(parts)
    seconds = time.perf_counter() - started
    return Inspection(trainer, task, streams, first_batch(trainer), overlaps, look, seconds, vocabulary, positions)


def _model_limits(model: Any) -> tuple[int | None, int | None]:
    """Gives how many tokens a model knows, and how many positions."""
    inner = model.encoder if isinstance(model, MultiTaskModel) else model
    config = inner.config.get_text_config()
    vocabulary, positions = (getattr(config, name, None) for name in ("vocab_size", "max_position_embeddings"))
    return vocabulary, positions


def _inspected(
    built: BuiltRecipe, one: BuiltStream, limits: Limits, look: Look, passes: float | None
) -> InspectedStream:
    trainer, stream = built.trainer, one.stream
    tokenizer, dataset = trainer.processing_class, readable(stream)
    measures = measure(dataset, look.num_samples, look.seed, limits)
    held = None if one.evaluation is None else measure(one.evaluation, look.num_samples, look.seed, limits)
    return InspectedStream(
        stream,
        one.format,
        len(one.rows) if hasattr(one.rows, "__len__") else None,
        trainer.mixing.weights[stream.name],
        passes,
        measures,
        held,
        distribution_of(measures.known_lengths),
        truncation_of(one, tokenizer, limits.task, look.num_samples, look.seed),
        measures.num_beyond(limits.positions),
        examples_of(dataset, Decoding(tokenizer, limits.task, one.class_names or ()), look.seed),
        list(one.class_names or ()),
        limits.num_classes,
    )
