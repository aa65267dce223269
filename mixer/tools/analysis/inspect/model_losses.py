"""Losses and entropies of a model on a run's sources, before any training."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase
from transformers.trainer_utils import align_special_tokens

from mixer.mixture.stream import Stream
from mixer.models.heads import tasks_of
from mixer.models.inputs import TASK, heads_of
from mixer.models.labels import IGNORED, shifts_labels
from mixer.models.row_losses import RowLossReader, items_per_row
from mixer.run.hf_compat import loss_shifts_labels
from mixer.run.replaced_methods import replaced
from mixer.tools.analysis.inspect.sample_reader import SampleReading, readable
from mixer.tools.recipe.streams import BuiltStream
from mixer.trainer.trainer import MixingMixin
from mixer.utils.random_state import seeded

MOST_ROWS = 1000  # of a source
QUANTILES = (0.05, 0.5, 0.95)


@dataclass(frozen=True)
class SourceLosses:
    """What a model does on the rows of a source.

    Args:
        source: Name of the stream or of the evaluation set.
        is_validation: Whether the rows are for evaluation.
        num_rows: Number of rows that were read.
        num_labels: Number of their labels that count: of tokens, or of rows with a class. Those of -100 do not.
        loss: Mean loss of a label; `None` if the model tells no losses of rows.
        entropy: Mean entropy of the prediction of a label, in nats; `None` for labels that are no classes.
        row_losses: Quantiles of the mean losses of rows, by share of the rows.
    """

    source: str
    is_validation: bool
    num_rows: int
    num_labels: int
    loss: float | None
    entropy: float | None
    row_losses: dict[float, float]


@dataclass(frozen=True)
class Source:
    """Rows of a stream, for training or for evaluation, or of an evaluation set that is no stream's.

    Args:
        name: Its name.
        is_validation: Whether the rows are for evaluation.
        dataset: The samples.
        stream: The stream; `None` for other sets.
        task: The head for it, if the model takes one.
    """

    name: str
    is_validation: bool
    dataset: Any
    stream: Stream | None = None
    task: str | None = None


def sources_of(trainer: MixingMixin, streams: Mapping[str, BuiltStream]) -> list[Source]:
    """Lists the sources of a run: its streams, their validation rows, and further evaluation sets."""
    model, sets, sources = cast(nn.Module, trainer.model), trainer.eval_dataset, list[Source]()
    tasks = tasks_of(model, trainer.streams)
    for stream, task in zip(trainer.streams, tasks, strict=True):
        held_out = streams[stream.name].evaluation
        sources.append(Source(stream.name, False, readable(stream), stream, task))
        sources += [] if held_out is None else [Source(stream.name, True, held_out, stream, task)]
    heads, only = heads_of(model) or (), tasks[0] if len(set(tasks)) == 1 else None
    for name, dataset in sets.items() if isinstance(sets, Mapping) else ():
        if name not in streams:
            sources.append(Source(name, True, dataset, None, name if name in heads else only))
    return sources


def losses_of(trainer: MixingMixin, sources: Sequence[Source], most: int, seed: int) -> list[SourceLosses]:
    """Measures losses by plain forward passes of the trainer's model, without dropout.

    Args:
        trainer: The trainer; its model has weights.
        sources: The sources.
        most: Maximum number of rows of each.
        seed: Seed of their draw, and of random collators.
    """
    model: Any = trainer.model
    if isinstance(trainer.processing_class, PreTrainedTokenizerBase) and hasattr(model, "config"):
        align_special_tokens(model, trainer.processing_class)  # type: ignore[no-untyped-call]  # as the Trainer does when it begins: who is padding?
    was_training, shifts = model.training, shifts_labels(model, loss_shifts_labels(trainer))
    reader = RowLossReader(model, shifts, keeps_output=True)
    reader.attach()
    model.eval()
    try:
        return [_measured(trainer, reader, shifts, source, most, seed) for source in sources]
    finally:
        reader.detach()
        model.train(was_training)


def _measured(
    trainer: MixingMixin, reader: RowLossReader, shifts: bool, source: Source, most: int, seed: int
) -> SourceLosses:
    samples = [sample for _, sample in SampleReading(source.dataset, most, seed)]
    sums, counts, entropies = list[float](), list[int](), list[float]()
    for inputs in _batches(trainer, source, samples, seed):
        reader.listen(inputs)
        with torch.no_grad():
            trainer.model(**inputs)  # type: ignore[misc]  # it is there
        output, rows = reader.output, reader.take_row_losses()
        counts += items_per_row(inputs, shifts).tolist()
        sums += [] if rows is None else rows.double().tolist()
        entropies += _entropies(output, inputs["labels"], shifts) if isinstance(inputs.get("labels"), Tensor) else []
    number, is_known = sum(counts), len(sums) == len(counts) > 0
    means = [total / count for total, count in zip(sums, counts, strict=True) if count] if is_known else []
    quantiles = dict(zip(QUANTILES, np.quantile(means, QUANTILES).tolist(), strict=True)) if means else {}
    loss = sum(sums) / number if means else None
    entropy = sum(entropies) / number if number and len(entropies) == number else None
    return SourceLosses(source.name, source.is_validation, len(samples), number, loss, entropy, quantiles)


def _batches(trainer: MixingMixin, source: Source, samples: list[Any], seed: int) -> Iterator[dict[str, Any]]:
    if not samples:
        return
    own = None if source.stream is None else source.stream.data_collator
    with replaced(trainer, data_collator=own or trainer.data_collator), seeded(seed):
        for inputs in trainer.get_eval_dataloader(samples):
            yield {**inputs, **({} if source.task is None else {TASK: source.task})}


def _entropies(output: Any, labels: Tensor, shifts: bool) -> list[float]:
    """Returns the entropy of the prediction of each label that counts; nothing if the labels are no classes."""
    known = getattr(output, "entropy", None)  # of TRL's fused head, which has no logits
    logits = getattr(output, "logits", None)
    if labels.is_floating_point():
        return []
    if isinstance(known, Tensor):
        return _flat(known[labels[:, -known.shape[1] :] != IGNORED])
    if not isinstance(logits, Tensor) or logits.shape[:-1] != labels.shape or logits.shape[-1] < 2:
        return []
    if shifts:
        logits, labels = logits[:, :-1], labels[:, 1:]
    entropies = list[float]()
    for row, own in zip(logits, labels, strict=True):  # row by row, as distributions over words are large
        log_shares = row[own != IGNORED].double().log_softmax(-1)
        entropies += _flat(-(log_shares.exp() * log_shares).sum(-1))
    return entropies


def _flat(values: Tensor) -> list[float]:
    flat: list[float] = values.double().reshape(-1).tolist()
    return flat
