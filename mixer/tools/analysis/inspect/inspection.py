"""Inspects the data of a run as training will see them."""

import math
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, cast

import numpy as np

from mixer.loading.loaded_step import MicroBatch
from mixer.loading.row_digest import digest
from mixer.models.heads import tasks_of
from mixer.models.labels import num_classes_of
from mixer.models.multi_task import MultiTaskModel
from mixer.models.row_losses import tokens_per_row
from mixer.policies.objective import Objective
from mixer.tools.analysis.inspect.duplicates import Part, find_overlaps
from mixer.tools.analysis.inspect.examples import Decoder
from mixer.tools.analysis.inspect.measures import Limits, Measures, parsed_of, truncation_of
from mixer.tools.analysis.inspect.model_losses import MOST_ROWS, losses_of, sources_of
from mixer.tools.analysis.inspect.sample_reader import SampleReading, readable
from mixer.tools.console import Result
from mixer.tools.recipe.data.file_list import files_of
from mixer.tools.recipe.data.formats.base import Format
from mixer.tools.recipe.recipe import Recipe
from mixer.tools.recipe.streams import BuiltStream
from mixer.trainer.trainer import MixingMixin
from mixer.utils.errors import wrong_value
from mixer.utils.text import in_words, shortened


@dataclass(frozen=True)
class CollatedMicroBatch:
    """A collated micro-batch.

    Args:
        shapes: Shapes of its tensors, by name.
        streams: The stream of each row.
        padding: Share of each row that is padding; empty for inputs other than tokens.
    """

    shapes: dict[str, list[int]]
    streams: list[str]
    padding: list[float]


@dataclass(frozen=True)
class Batch:
    """The batch of a step.

    Args:
        counts: Number of samples by stream.
        micro_batches: The micro-batches, in order.
        padding: Share of all token positions that is padding; `None` for inputs other than tokens.
        error: The error that forming the batch raised; empty without one.
    """

    counts: dict[str, int]
    micro_batches: list[CollatedMicroBatch]
    padding: float | None = None
    error: str = ""


class InspectedStream(Result):
    """A stream: samples for training and for evaluation, up to `num_samples` of each that are drawn by the seed.

    Attributes:
        name: The stream's name.
        is_memory: Whether it is a replay buffer, which is empty before the run.
        weight: Its initial weight.
        format: Name and arguments of the format that makes samples of rows; `None` without one.
        packs: Whether the format packs several rows into a sample.
        files: The files that its rows come from; none if there are none, or they are read on demand.
        num_rows: Number of rows before formatting; `None` without a format, or if unknown.
        truncation: The rows that the format truncates; `None` if it truncates none.
        parsed: Of up to 1,000 rows of chats, those with calls or tools that are texts in JSON, which the chat template
            would quote: they are parsed. `None` for other formats.
        limits: The inputs and labels that the model, with the stream's head, can take.
        class_names: Names of the classes; empty without names.
        training: Measures of the samples for training.
        validation: Measures of the samples for evaluation; `None` without any.
        examples: Some samples as text, by index.
    """

    def __init__(self, trainer: MixingMixin, built: BuiltStream, limits: Limits, num_samples: int, seed: int):
        stream, tokenizer, dataset = built.stream, trainer.processing_class, readable(built.stream)
        evaluation, read = built.evaluation, (num_samples, seed, limits)
        self.name = stream.name
        self.is_memory = stream.is_memory
        self.weight = trainer.mixing.weights[stream.name]
        self.format = None if built.format is None else described(built.format)
        self.packs = built.format is not None and built.format.packs
        self.files = files_of(stream.dataset if built.rows is None else built.rows)
        self.num_rows = len(built.rows) if hasattr(built.rows, "__len__") else None
        self.truncation = truncation_of(built, tokenizer, limits.task, num_samples, seed)
        self.parsed = parsed_of(built, tokenizer, limits.task, num_samples, seed)
        self.limits = limits
        self.class_names = list(built.class_names or ())
        self.training = Measures(dataset, *read)
        self.validation = None if evaluation is None else Measures(evaluation, *read)
        self.examples = Decoder(tokenizer, limits.task, self.class_names).examples_of(dataset, seed)


@dataclass(frozen=True)
class InspectedObjective:
    """The declared objective.

    Args:
        in_words: What it is.
        test_rows: Number of test rows, by target or set with a bound; development rows are not among them.
    """

    in_words: str
    test_rows: dict[str, int]


class Inspection(Result):
    """The data of a run as training will see them: formatted, with the first step.

    Args:
        trainer: The trainer of the run.
        streams: Its streams by name, with their evaluation sets and formats.
        task: The model's task.
        num_samples: Maximum number of samples to read of a stream, and of its data for evaluation.
        seed: Seed of their draw.
        has_losses: Whether to measure the losses of the trainer's model, which then has weights.

    Attributes:
        task: The model's task.
        weight_unit: Whether weights are shares of samples or of tokens.
        evaluates: Whether the run evaluates.
        objective: The objective, or `None`.
        streams: The streams, in order.
        overlaps: The duplicates.
        seconds: Duration of reading and comparing them.
        batch: The first step.
        samples_read: Number of samples that were read.
        losses: Losses of the model by source; `None` if they were not asked for.
    """

    def __init__(
        self,
        trainer: MixingMixin,
        streams: Mapping[str, BuiltStream],
        task: str,
        num_samples: int,
        seed: int,
        has_losses: bool = False,
    ):
        started = time.perf_counter()
        self.task = task
        self.weight_unit = trainer.mixing.policy.unit
        self.evaluates = trainer.args.eval_strategy != "no"
        self.objective = _objective(trainer)
        self.streams, parts = [], list[Part]()
        for stream, limits in zip(trainer.streams, _limits(trainer, task), strict=True):
            built = streams[stream.name]
            self.streams.append(InspectedStream(trainer, built, limits, num_samples, seed))
            parts += _parts(built, self.streams[-1], num_samples, seed)
        self.overlaps = find_overlaps(parts)
        sources = sources_of(trainer, streams) if has_losses else []
        self.losses = losses_of(trainer, sources, min(num_samples, MOST_ROWS), seed) if has_losses else None
        self.seconds = time.perf_counter() - started
        self.batch = first_batch(trainer)
        self.samples_read = sum(
            part.num_read for own in self.streams for part in (own.training, own.validation) if part
        )


def inspect_recipe(recipe: Recipe, num_samples: int, seed: int, model: str | None = None) -> Inspection:
    """Inspects the data of a recipe.

    Args:
        recipe: The recipe. Without `model`, the weights of its own are neither created nor loaded.
        num_samples: See `Inspection`.
        seed: See `Inspection`.
        model: Folder or name on the hub of the model whose losses to measure; an empty text for the recipe's own.

    Raises:
        ValueError: If the recipe cannot be trained; the message names the field.
    """
    if model is not None and recipe.trainer in ("dpo", "reward"):
        raise wrong_value("--losses", f"Rows of trainer {recipe.trainer} are pairs, without a loss of labels.")
    if model:
        recipe.tokenizer = recipe.tokenizer_name  # of the recipe's own model
        recipe.model = replace(recipe.model, name_or_path=model, gguf_file=None, config={})
    built = recipe.build_parts(has_weights=model is not None)
    return Inspection(built.trainer, built.streams, recipe.model.task, num_samples, seed, model is not None)


def _objective(trainer: MixingMixin) -> InspectedObjective | None:
    content, sets = trainer.describe_run()["objective"], cast(Any, trainer.eval_dataset)
    if content is None or not isinstance(sets, Mapping):
        return None
    objective = Objective(**content)
    return InspectedObjective(objective.in_words, {name: len(sets[name]) for name in objective.names})


def _limits(trainer: MixingMixin, task: str) -> list[Limits]:
    """Returns the inputs and labels that the model can take, by stream."""
    model: Any = trainer.model
    config: Any = getattr(model.encoder if isinstance(model, MultiTaskModel) else model, "config", None)
    config = config.get_text_config() if hasattr(config, "get_text_config") else config  # a user's own model has none
    vocabulary, positions = (getattr(config, name, None) for name in ("vocab_size", "max_position_embeddings"))
    end = getattr(trainer.processing_class, "eos_token_id", None) if task == "causal-lm" else None
    heads = tasks_of(model, trainer.streams)
    return [Limits(task, vocabulary, num_classes_of(model, head), end, positions) for head in heads]


def described(chosen: Format) -> dict[str, Any]:
    """Returns the name and the arguments of a format."""
    settings: Any = chosen  # formats are dataclasses
    return {"name": type(chosen).__name__, "arguments": asdict(settings)}


def _parts(built: BuiltStream, inspected: InspectedStream, num_samples: int, seed: int) -> list[Part]:
    """Returns digests of a stream's samples; of its rows, where a format packs parts of several into a sample."""
    if built.format is None or not built.format.packs:
        measured = ((False, inspected.training), (True, inspected.validation))
        name = built.stream.name
        return [Part(name, held, "samples", own.digests, own.is_whole) for held, own in measured if own is not None]
    parts = []
    for held, rows in ((False, built.rows), (True, built.evaluation_rows)):
        if rows is not None:
            reading = SampleReading(rows, num_samples, seed)
            contents = [[row[name] for name in built.format.columns] for _, row in reading if isinstance(row, Mapping)]
            digests = np.array([digest(content) for content in contents], np.uint64)
            parts.append(Part(built.stream.name, held, "rows", digests, reading.is_whole))
    return parts


def first_batch(trainer: MixingMixin) -> Batch:
    """Plans, loads and collates the first step; the run's streams stay where they are."""
    loader = trainer.get_train_dataloader()
    names = trainer.mixing.names
    try:
        batch = loader.next_batch()
    except Exception as error:  # any error here would end training
        return Batch({}, [], error=shortened(in_words(error), 600))
    finally:
        loader.stop()
    if batch is None:
        return Batch({}, [], error="the streams have no samples")
    counts = dict(zip(names, batch.plan.counts.tolist(), strict=True))
    micro_batches = [_collated(micro, names) for micro in batch.micro_batches if not micro.is_padding]
    widths = [_width(micro.shapes) for micro in micro_batches for _ in micro.padding]
    shares = [share for micro in micro_batches for share in micro.padding]
    padding = float(np.average(shares, weights=widths)) if shares else None
    return Batch(counts, micro_batches, padding)


def _collated(micro: MicroBatch, names: tuple[str, ...]) -> CollatedMicroBatch:
    inputs = micro.inputs if isinstance(micro.inputs, Mapping) else {}
    shapes = {name: list(value.shape) for name, value in inputs.items() if hasattr(value, "shape")}
    streams = [names[stream_id] for stream_id in micro.stream_ids.tolist()]
    tokens, width = tokens_per_row(inputs).numpy(), _width(shapes)
    is_padded = width > 0 and tokens.any() and len(tokens) == len(streams)  # else packed into one row, or no tokens
    return CollatedMicroBatch(shapes, streams, (1.0 - tokens / width).tolist() if is_padded else [])


def _width(shapes: Mapping[str, list[int]]) -> int:
    """Returns the number of token positions of a row."""
    return math.prod((shapes.get("attention_mask") or shapes.get("input_ids") or [0, 0])[1:])
