"""Applies a format to a data set: cached on disk by a fingerprint, or while streaming."""

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import datasets
import numpy as np
from jinja2 import TemplateError
from transformers.utils import logging

from mixer.loading.same_data import holds_files
from mixer.models.labels import IGNORED
from mixer.tools.recipe.data.formats.base import Format, Row, Sample
from mixer.tools.recipe.data.formats.images import decoded, undecoded
from mixer.tools.recipe.data.formats.tokens import IS_PARSED, NUM_CUT
from mixer.tools.recipe.places import retold
from mixer.utils.data_set import DataSet
from mixer.utils.errors import InvalidTypeError, InvalidValueError
from mixer.utils.files import read_json, write_json
from mixer.utils.text import shortened

ROWS_AT_ONCE = 1000
# Errors of formats, templates and tokenizers about a malformed row.
_ROW_ERRORS = (ValueError, TypeError, AttributeError, LookupError, TemplateError)
# Evenly spaced rows that are compared when a run resumes: reading all would cost as much as an epoch.
_NUM_COMPARED = 256
# Settings that the last call leaves in a fast tokenizer.
_PASSING = ("truncation", "padding")

logger = logging.get_logger(__name__)


def formatted(
    dataset: DataSet, chosen: Format, tokenizer: Any, task: str = "causal-lm", called: str = "data"
) -> DataSet:
    """Turns rows into samples by a format.

    The samples of a `datasets.Dataset` are cached on disk, for other ranks, processes and runs with the same rows and
    format. Samples without a token or a label to learn are left out, and answers that `max_length` cuts off are
    counted; a warning gives both numbers. The samples of a `datasets.IterableDataset` are made while streaming; it can
    still save its state.

    Args:
        dataset: The rows: a `datasets.Dataset` or `datasets.IterableDataset`.
        chosen: The format.
        tokenizer: The tokenizer.
        task: The model's task.
        called: Name of the data in logs, and in errors as their stream.

    Returns:
        A data set of the same kind.

    Raises:
        ValueError: If the format is for another task, a column is missing, a row cannot be read, or no sample is left.
        TypeError: If the data set is of another kind.

    Example:
        >>> rows = datasets.Dataset.from_dict({"text": ["a b"]})
        >>> formatted(rows, Text(max_length=8), tokenizer)[0]  # doctest: +SKIP
        {'input_ids': [5, 6, 2], 'labels': [5, 6, 2]}
    """
    chosen, dataset = fitted(dataset, chosen, tokenizer, task, called), undecoded(dataset)
    encode = _Encoding(chosen, tokenizer, task, called, dataset.features)
    options = {"batch_size": ROWS_AT_ONCE, "remove_columns": column_names(dataset), "features": chosen.features}
    encode_all = partial(dataset.map, encode, batched=True, with_indices=True, **options)
    if isinstance(dataset, datasets.IterableDataset):
        _check_first(dataset, encode)
        return decoded(encode_all())
    fingerprint = fingerprint_of(dataset, chosen, tokenizer, task)
    path = Path(datasets.config.HF_DATASETS_CACHE) / "adaptive_mixer" / f"{fingerprint}.arrow"
    path.parent.mkdir(parents=True, exist_ok=True)
    samples = encode_all(new_fingerprint=fingerprint, cache_file_name=str(path), desc=f"{called}: {_name(chosen)}")
    if not len(samples):
        why = "they have no text, or no label to learn within max_length tokens"
        text = f"{_name(chosen)} leaves nothing of {len(dataset)} rows: {why}."
        raise InvalidValueError(text, option="format", stream=called)
    if encode.cut["rows"]:  # else they come from the cache
        write_json(path.with_suffix(".json"), encode.cut)
    elif path.with_suffix(".json").is_file():
        encode.cut.update(read_json(path.with_suffix(".json")))
    if not chosen.packs:
        _warn(called, len(dataset), len(dataset) - len(samples), encode.cut)
    return samples


def _check_first(dataset: datasets.IterableDataset, encode: "_Encoding") -> None:
    """Refuses streamed rows of which the first cannot be read, before the run draws them."""
    first = next(iter(dataset), None)
    if first is not None:
        encode({name: [value] for name, value in first.items()}, [0])


def _warn(called: str, num_rows: int, num_left_out: int, cut: Mapping[str, int]) -> None:
    """Warns of rows that are left out, and of answers that are cut off."""
    if num_left_out:
        text = "%s: %d of %d rows are left out: they have no token, or no label to learn within max_length."
        if cut["wholly"]:
            text += f" The answer of {cut['wholly']:,} of them is cut off: raise max_length, or shorten the prompts."
        logger.warning(text, called, num_left_out, num_rows)
    if cut["partly"]:
        text = "%s: the end of what is learned is cut off in %d of %d rows: raise max_length, or shorten these rows."
        logger.warning(text, called, cut["partly"], num_rows)


def readable(row: Row, chosen: Format, features: Mapping[str, Any] | None) -> Row:
    """Returns a row as a format reads it: some read objects without the fields that Arrow fills in.

    Args:
        row: The row.
        chosen: The format.
        features: The features of the data set; `None` if unknown.
    """
    if not chosen.reads_objects:
        return row
    return {name: _as_written(value, (features or {}).get(name)) for name, value in row.items()}


def _as_written(value: Any, feature: Any) -> Any:
    """Leaves out the fields that an object of a row lacks, and that Arrow fills with `None`.

    Objects in an Arrow table have the fields of all rows, so a `None` among them is taken for a missing field. Objects
    that `datasets` stores as JSON are as they were written.

    Args:
        value: The value.
        feature: Its feature in the data set; `None` if unknown.
    """
    if isinstance(value, list):
        own = getattr(feature, "feature", feature[0] if isinstance(feature, list) else None)
        return value if _is_json(feature) else [_as_written(part, own) for part in value]
    if not isinstance(value, dict) or _is_json(feature):
        return value
    features = feature if isinstance(feature, dict) else {}
    return {name: _as_written(part, features.get(name)) for name, part in value.items() if part is not None}


def _is_json(feature: Any) -> bool:
    return type(feature).__name__ == "Json"  # a class of datasets since 4.7


def column_names(dataset: DataSet) -> list[str]:
    """Lists the columns of a data set, from its first row if it does not know them."""
    known: Sequence[str] | None = getattr(dataset, "column_names", None)
    if known:
        return list(known)
    first = next(iter(dataset), None)
    return list(first) if isinstance(first, Mapping) else []


def fitted(dataset: DataSet, chosen: Format, tokenizer: Any, task: str, called: str) -> Format:
    """Checks that data set, format and task fit together, and fills in the format's open settings.

    Args:
        dataset: The rows to train on.
        chosen: The format.
        tokenizer: The tokenizer.
        task: The model's task.
        called: Name of the data in logs, and in errors as their stream.

    Returns:
        The format for training and evaluation rows.

    Raises:
        ValueError: If the format is for another task, a column is missing, or the format lacks something.
        TypeError: If the data set is of another kind.
    """
    if not isinstance(dataset, (datasets.Dataset, datasets.IterableDataset)):
        expected = f"a datasets.Dataset or IterableDataset (Dataset.from_list makes one), which {_name(chosen)} reads"
        raise InvalidTypeError(option="data", stream=called, expected=expected, found=type(dataset).__name__)
    if task not in chosen.tasks:
        text = f"{_name(chosen)} makes samples for the task {' or '.join(chosen.tasks)}, not {task}."
        raise InvalidValueError(text, option="task", stream=called, found=task)
    columns = column_names(dataset)
    missing = [name for name in chosen.columns if name not in columns]
    if missing:
        text = f"{_name(chosen)} reads the column {missing[0]!r}, which the data do not have; they have {columns}."
        raise InvalidValueError(text, option=missing[0], stream=called, expected=f"one of {columns}")
    _warn_of_lost_characters(dataset, chosen, called)
    ignored = getattr(chosen, "ignored_columns", ())
    unread = [name for name in columns if name in chosen.telling_columns and name not in (*chosen.columns, *ignored)]
    if unread:
        says = f"does not read the column {unread[0]!r}, whose name says that it changes what is learned"
        hint = f"Remove it from the data, or leave it unread, {_name(chosen)}(ignored_columns={unread})."
        text = f"{_name(chosen)} {says}. {hint}"
        raise InvalidValueError(text, option="ignored_columns", stream=called, found=unread, hint=hint)
    try:
        return chosen.fitted(dataset, tokenizer)
    except (ValueError, OSError) as error:
        raise retold(error, f"{_name(chosen)}: {error}", stream=called) from error


def _warn_of_lost_characters(dataset: DataSet, chosen: Format, called: str) -> None:
    """Tells that `datasets` has read cells of CSV, such as 061, as numbers where a text is learned."""
    features = (dataset.features or {}) if dataset.info.builder_name == "csv" else {}
    texts = set(chosen.columns).intersection(features).difference(chosen.numbers)
    lost = sorted(name for name in texts if getattr(features[name], "dtype", "string") not in ("string", "null"))
    if lost:
        text = "%s: datasets has read the column %r of CSV as %s, so that 061 is learned as 61. Read the file by data: "
        way = "{path: FILE}, or load it with features that say Value('string')."
        logger.warning(text + way, called, lost[0], features[lost[0]].dtype)


def fingerprint_of(dataset: DataSet, chosen: Format, tokenizer: Any, task: str) -> str:
    """Computes the fingerprint of the samples of a `datasets.Dataset` in a format.

    Args:
        dataset: The rows.
        chosen: The format.
        tokenizer: The tokenizer.
        task: The model's task.

    Returns:
        32 hexadecimal digits, the same in every process for the same rows, code, settings and tokenizer.
    """
    kind = type(chosen)
    parts = [
        dataset._fingerprint,  # noqa: SLF001 datasets has no public name for it
        f"{kind.__module__}.{kind.__qualname__}",
        kind.version,
        asdict(chosen),  # type: ignore[call-overload]  # formats are dataclasses
        task,
        tokenizer_content(tokenizer),
    ]
    return _digest(parts, num_bytes=16)


def content_of(dataset: DataSet) -> str:
    """Computes a digest of up to 256 evenly spaced rows of a `datasets.Dataset`: 16 hexadecimal digits.

    It recognises the same samples, wherever they are stored and whenever they were made: images do not count.
    """
    places = np.unique(np.linspace(0, len(dataset) - 1, _NUM_COMPARED).astype(np.int64))
    names = [field.name for field in dataset.data.schema if not holds_files(field.type)]
    return _digest(dataset.select_columns(names).with_format("arrow")[places].to_pylist(), num_bytes=8)


def _digest(content: Any, num_bytes: int) -> str:
    text = json.dumps(content, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=num_bytes).hexdigest()


def tokenizer_content(tokenizer: Any) -> Mapping[str, Any]:
    """Describes a tokenizer by plain data that determine its tokens, independent of earlier calls."""
    template = tokenizer.chat_template
    tokenizer = getattr(tokenizer, "tokenizer", tokenizer)  # of a processor
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        content: Any = sorted(tokenizer.get_vocab().items())
    else:
        content = {name: part for name, part in json.loads(backend.to_str()).items() if name not in _PASSING}
    return {
        "class": f"{type(tokenizer).__module__}.{type(tokenizer).__qualname__}",
        "content": content,
        "chat_template": template,
        "special_tokens": {name: str(token) for name, token in tokenizer.special_tokens_map.items()},
        "model_max_length": tokenizer.model_max_length,
        "truncation_side": tokenizer.truncation_side,
        "split_special_tokens": getattr(tokenizer, "split_special_tokens", False),
    }


def _name(chosen: Format) -> str:
    return type(chosen).__name__


@dataclass(frozen=True)
class _Encoding:
    """Turns a batch of rows, given by columns, into samples; drops samples with nothing to learn.

    It counts rows, and those of them whose labels `max_length` cuts off, wholly or partly.
    """

    chosen: Format
    tokenizer: Any
    task: str
    called: str
    features: Mapping[str, Any] | None
    cut: Counter[str] = field(default_factory=Counter)

    def __call__(self, columns: Mapping[str, Sequence[Any]], numbers: Sequence[int]) -> dict[str, list[Any]]:
        rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
        rows = [readable(row, self.chosen, self.features) for row in rows]
        try:
            samples = self.chosen.encode(rows, self.tokenizer, self.task)
        except _ROW_ERRORS as error:
            place, cause = self._first_wrong(rows, numbers, error)
            text = str(cause) if isinstance(cause, ValueError) else f"{type(cause).__name__}: {cause}"
            message = f"{self.called}: {_name(self.chosen)}: {text}{place}"  # of a stream it is raised in the run
            raise retold(cause, message, stream=self.called) from error
        learned = [sample for sample in samples if self._is_learned(sample)]
        names = learned[0] if learned else ("input_ids", "labels")
        return {name: [sample[name] for sample in learned] for name in names}

    def _first_wrong(self, rows: Sequence[Row], numbers: Sequence[int], error: Exception) -> tuple[str, Exception]:
        for row, number in zip(rows, numbers, strict=True):
            try:
                self.chosen.encode([row], self.tokenizer, self.task)
            except _ROW_ERRORS as own:
                return f" (row {number}, counted from 0: {shortened(repr(row))})", own
        return "", error

    def _is_learned(self, sample: Sample) -> bool:
        self.cut["rows"] += 1
        self.cut["parsed"] += sample.pop(IS_PARSED, False)
        if "input_ids" not in sample:  # TRL tokenizes it
            return True
        num_cut, labels = sample.pop(NUM_CUT, 0), sample.get("labels")
        is_learned = bool(sample["input_ids"])
        if isinstance(labels, list):
            learned = labels[1:] if self.task == "causal-lm" else labels  # no token predicts the first one
            is_learned = any(label != IGNORED for label in learned)
        if num_cut:
            self.cut["partly" if is_learned else "wholly"] += 1
        return is_learned
