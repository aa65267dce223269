"""A data set in a format: its rows made into samples, once and for all or as they are read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
from jinja2 import TemplateError
from transformers.utils import logging

from mixer.recipe.data.fingerprint import fingerprint_of
from mixer.recipe.data.formats.base import Format, Row, Sample
from mixer.recipe.data.formats.tokens import IGNORED
from mixer.utils.text import shortened

ROWS_AT_ONCE = 1000
# What formats, templates and tokenizers raise of a row that is not as they expect.
_ROW_ERRORS = (ValueError, TypeError, AttributeError, LookupError, TemplateError)

logger = logging.get_logger(__name__)


def formatted(dataset: Any, chosen: Format, tokenizer: Any, task: str = "causal-lm", called: str = "data") -> Any:
    """Makes samples of rows by a format.

    The samples of a `datasets.Dataset` are kept on disk, where another rank, process or run finds them that makes the
    same of the same rows. Samples without a token or a label to learn are left out. Those of a
    `datasets.IterableDataset` are made as they are read; it can give its state as before.

    Args:
        dataset: The rows: a `datasets.Dataset` or `datasets.IterableDataset`.
        chosen: The format.
        tokenizer: The tokenizer.
        task: The model's task.
        called: What to call it in errors.

    Returns:
        A data set of the same kind.

    Raises:
        ValueError: If the format is not for that task, a column is missing, a row cannot be read, or nothing is left.
        TypeError: If it is a data set of another kind.

    Example:
        >>> rows = datasets.Dataset.from_dict({"text": ["a b"]})
        >>> formatted(rows, Text(max_length=8), tokenizer)[0]  # doctest: +SKIP
        {'input_ids': [5, 6, 2], 'labels': [5, 6, 2]}
    """
    chosen = fitted(dataset, chosen, tokenizer, task, called)
    encode = _Encoding(chosen, tokenizer, task, called)
    options = {
        "batched": True,
        "with_indices": True,
        "batch_size": ROWS_AT_ONCE,
        "remove_columns": column_names(dataset),
    }
    if isinstance(dataset, datasets.IterableDataset):
        return dataset.map(encode, **options)
    fingerprint = fingerprint_of(dataset, chosen, tokenizer, task)
    path = Path(datasets.config.HF_DATASETS_CACHE) / "adaptive_mixer" / f"{fingerprint}.arrow"
    path.parent.mkdir(parents=True, exist_ok=True)
    samples = dataset.map(
        encode, **options, new_fingerprint=fingerprint, cache_file_name=str(path), desc=f"{called}: {_name(chosen)}"
    )
    if not len(samples):
        raise ValueError(
            f"{called}: {_name(chosen)} leaves nothing of {len(dataset)} rows: "
            f"{chosen.why_nothing(dataset.select(range(min(ROWS_AT_ONCE, len(dataset)))).to_list())}."
        )
    if not chosen.packs and len(samples) < len(dataset):
        logger.warning(
            "%s: %d of %d rows are left out, which have no token or no label to learn within max_length.",
            called,
            len(dataset) - len(samples),
            len(dataset),
        )
    return samples


def column_names(dataset: Any) -> list[str]:
    """Gives the columns of a data set, by its first row where it does not know them.

    Args:
        dataset: A `datasets.Dataset` or an iterable one of any kind.

    Returns:
        Their names.
    """
    known: Sequence[str] | None = getattr(dataset, "column_names", None)
    if known:
        return list(known)
    first = next(iter(dataset), None)
    return list(first) if isinstance(first, Mapping) else []


def fitted(dataset: Any, chosen: Format, tokenizer: Any, task: str, called: str) -> Format:
    """Makes sure that a data set, a format and a task go together, and settles what the format leaves open.

    Args:
        dataset: The rows that are trained on.
        chosen: The format.
        tokenizer: The tokenizer.
        task: The model's task.
        called: What to call the data set in errors.

    Returns:
        The format, for rows that are evaluated on too.

    Raises:
        ValueError: If the format is not for that task, a column is missing, or the format needs what is not there.
        TypeError: If it is a data set of another kind.
    """
    if not isinstance(dataset, (datasets.Dataset, datasets.IterableDataset)):
        raise TypeError(
            f"{called}: {_name(chosen)} reads a datasets.Dataset or datasets.IterableDataset, got a "
            f"{type(dataset).__name__}. Dataset.from_list or Dataset.from_generator make one."
        )
    if task not in chosen.tasks:
        raise ValueError(
            f"{called}: {_name(chosen)} makes samples for a model of the task {' or '.join(chosen.tasks)}, not {task}."
        )
    columns = column_names(dataset)
    missing = [name for name in chosen.columns if name not in columns]
    if missing:
        raise ValueError(
            f"{called}: {_name(chosen)} reads the column {missing[0]!r}, which the data do not have; they have "
            f"{columns}."
        )
    try:
        return chosen.fitted(dataset, tokenizer)
    except (ValueError, OSError) as error:
        raise ValueError(f"{called}.format: {error}") from error


def _name(chosen: Format) -> str:
    return type(chosen).__name__


@dataclass(frozen=True)
class _Encoding:
    """Makes samples of a batch of rows by columns, without those that nothing is learned of."""

    chosen: Format
    tokenizer: Any
    task: str
    called: str

    def __call__(self, columns: Mapping[str, Sequence[Any]], numbers: Sequence[int]) -> dict[str, list[Any]]:
        rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
        try:
            samples = self.chosen.encode(rows, self.tokenizer, self.task)
        except _ROW_ERRORS as error:
            where, why = self._find_wrong(rows, numbers, error)
            told = str(why) if isinstance(why, ValueError) else f"{type(why).__name__}: {why}"
            raise ValueError(f"{self.called}: {_name(self.chosen)}: {told}{where}") from error
        kept = [sample for sample in samples if self._is_learned(sample)]
        names = kept[0] if kept else ("input_ids", "labels")
        return {name: [sample[name] for sample in kept] for name in names}

    def _find_wrong(self, rows: Sequence[Row], numbers: Sequence[int], error: Exception) -> tuple[str, Exception]:
        """Finds the first row that cannot be encoded by itself."""
        for row, number in zip(rows, numbers, strict=True):
            try:
                self.chosen.encode([row], self.tokenizer, self.task)
            except _ROW_ERRORS as own:
                return f" (row {number}, counted from 0: {shortened(repr(row))})", own
        return "", error

    def _is_learned(self, sample: Sample) -> bool:
        labels = sample.get("labels")
        if isinstance(labels, list):
            learned = labels[1:] if self.task == "causal-lm" else labels  # the first token is told by none before it
            return any(label != IGNORED for label in learned)
        return bool(sample["input_ids"])
