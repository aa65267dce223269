"""Checks of a recipe's streams and of its evaluation."""

import contextlib
import logging as logging_of_python
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import fields
from typing import Any

import datasets
from transformers import IntervalStrategy, TrainingArguments
from transformers.utils import logging

from mixer.mixture.split_names import is_held_out
from mixer.mixture.stream import Stream
from mixer.policies.contract import weights_array
from mixer.run.config import OF_TRAINER, MixingConfig
from mixer.tools.recipe.data.splits import check_disjoint
from mixer.tools.recipe.places import placed
from mixer.tools.recipe.streams import BuiltStream, StreamRecipe
from mixer.trainer.checks.shared_rows import tell_shared_rows
from mixer.utils.errors import ErrorFacts, require, wrong_value
from mixer.utils.random_state import drawn_places

logger = logging.get_logger(__name__)

_NUM_CHECKED_ROWS = 256
# Parameters of the trainer that a recipe calls otherwise. Arguments of one word, such as `seed`, are also plain words.
_NAMES = {"eval_dataset": "evaluation", "train_dataset": "streams", "processing_class": "tokenizer"}
_NAMES |= {
    option.name: f"training.{option.name}"
    for option in fields(MixingConfig)
    if "_" in option.name and option.name not in OF_TRAINER
}
_NAMES["development_sets"] = "targets"
_PARAMETER = re.compile(rf"(?<![\w.'\"])({'|'.join(_NAMES)})\b(?!['\"])")
# What is written in Python, and how a recipe writes it.
_WRITTEN = {
    r"\bObjective\(development_sets=\{(.+?): dataset\}\)": r"targets: {\1: {data: {path: PATH}}}",
    r"Load the model in float32\b": "Set model.config.dtype: float32",
    r"(?<![\w.])bf16=True\b": "training.bf16: true",
    r"\bcall train\(\) without resume_from_checkpoint\b": "run the command without --resume",
    r"\bcall train\(resume_from_checkpoint=True\)": "give --resume auto",
    r"(?<![\w.])args\.(?=\w)": "training.",
}


@contextlib.contextmanager
def in_words_of_recipes(known: Collection[str] = frozenset({"evaluation", "streams", "targets"})) -> Iterator[None]:
    """Calls parameters of the trainer in errors and warnings as a recipe does: `evaluation` for `eval_dataset`.

    Args:
        known: Names of the recipe's fields; the parameter of one that it lacks keeps its name.
    """
    known = {*known, "tokenizer", "training"}
    made = logging_of_python.getLogRecordFactory()

    def translated(name: str, *args: Any, **kwargs: Any) -> logging_of_python.LogRecord:
        record = made(name, *args, **kwargs)
        if name.partition(".")[0] in ("mixer", "replay", "tasks"):
            record.msg = _in_words(str(record.msg), known)
        return record

    logging_of_python.setLogRecordFactory(translated)
    try:
        yield
    except (ValueError, TypeError) as error:
        if error.args == (str(error),):
            error.args = (_in_words(str(error), known),)
        if isinstance(error, ErrorFacts) and error.option is not None:
            error.option = _in_words(error.option, known)
        raise
    finally:
        logging_of_python.setLogRecordFactory(made)


def _in_words(text: str, known: Collection[str]) -> str:
    for written, own in _WRITTEN.items():
        text = re.sub(written, own, text)

    def renamed(found: re.Match[str]) -> str:
        own = _NAMES[found[1]]
        return own if own.partition(".")[0] in known else found[1]

    return _PARAMETER.sub(renamed, text)


def check_streams(streams: Mapping[str, StreamRecipe], mixing: Any) -> None:
    """Refuses streams that cannot be mixed, before their data are loaded.

    Args:
        streams: The streams.
        mixing: The recipe's `mixing`.

    Raises:
        ValueError: Names the field and the way out.
    """
    require(bool(streams), "streams", "one or more, such as {text: {data: {path: PATH}}}", {})
    for name, stream in streams.items():
        split = stream.train_split if stream.data is None else stream.data.split
        held_out = [part for part in (own.partition("[")[0].strip() for own in split.split("+")) if is_held_out(part)]
        if held_out:
            field = "train_split" if stream.data is None else "data.split"
            logger.warning("streams.%s.%s: %r is trained on, which data sets hold out.", name, field, held_out[0])
        if stream.data is not None and stream.data.validation_split is not None:
            with placed(f"streams.{name}.data"):
                check_disjoint(stream.data.split, stream.data.validation_split)
    without = [name for name, stream in streams.items() if stream.weight is None]
    require(len(without) in (0, len(streams)), "streams", "all with a weight, or none; these have none", without)
    is_by_column = any(own.data is not None and own.data.by is not None for own in streams.values())
    if isinstance(mixing, Mapping) and not is_by_column:  # else the names are not known before the data
        weights_array(mixing, list(streams), "mixing")


def check_evaluation(
    streams: Mapping[str, StreamRecipe], evaluated: Collection[str], training: TrainingArguments
) -> None:
    """Refuses an evaluation without data, and warns of held-out rows that are never evaluated.

    Args:
        streams: The streams.
        evaluated: Names of the streams with an evaluation set.
        training: Arguments of the Trainer.

    Raises:
        ValueError: If the run is to evaluate and no stream has an evaluation set.
    """
    evaluates = training.eval_strategy != "no"
    if evaluates and not evaluated:
        strategy = IntervalStrategy(training.eval_strategy).value
        raise wrong_value(
            "training.eval_strategy",
            f"is {strategy!r}, and no stream has data to evaluate on: give "
            "one validation (a share or a number of its rows) or data.validation_split, or set eval_strategy to 'no'.",
        )
    held_out = [
        name
        for name, own in streams.items()
        if own.validation is not None or (own.data is not None and own.data.validation_split is not None)
    ]
    if held_out and not evaluates and training.process_index == 0:
        logger.warning(
            "streams.%s: validation is given, but training.eval_strategy is 'no': those rows are not evaluated. Set it "
            "to 'steps' or 'epoch'.",
            held_out[0],
        )


def tell_shared_documents(streams: Mapping[str, BuiltStream], sets: Mapping[str, BuiltStream]) -> None:
    """Warns of documents that are trained and evaluated on, of formats that pack several into a sample.

    The trainer compares samples, and the same documents are packed differently elsewhere.

    Args:
        streams: The streams by name.
        sets: Evaluation sets that are no streams.
    """
    trained = {name: _packed(part, part.rows) for name, part in streams.items()}
    evaluated = {name: _packed(part, part.evaluation_rows) for name, part in streams.items()}
    evaluated |= {name: _packed(part, part.evaluation_rows or part.rows) for name, part in sets.items()}
    packed = [Stream(name, rows) for name, rows in trained.items() if rows is not None]
    if packed and any(rows is not None for rows in evaluated.values()):
        tell_shared_rows(packed, False, evaluated)


def _packed(part: BuiltStream, rows: Any) -> Any:
    """Returns the columns that a format packs, by numbers, as their names differ between streams."""
    if part.format is None or not (isinstance(rows, datasets.Dataset) and part.format.packs):
        return None
    columns = list(part.format.columns)
    return rows.select_columns(columns).rename_columns(dict(zip(columns, map(str, range(len(columns))), strict=True)))


def check_lengths(datasets_by_name: Mapping[str, Any]) -> None:
    """Refuses rows of different lengths without a tokenizer, which would pad them; checks some rows.

    Args:
        datasets_by_name: Rows of tokens, by stream; only a `datasets.Dataset` is checked.

    Raises:
        ValueError: If the lengths of a stream differ.
    """
    for name, dataset in datasets_by_name.items():
        if not isinstance(dataset, datasets.Dataset):
            continue
        some = dataset[drawn_places(len(dataset), _NUM_CHECKED_ROWS, 0)]["input_ids"]
        lengths = sorted({len(tokens) for tokens in some if isinstance(tokens, list)})
        if len(lengths) > 1:
            text = f"is needed for its pad token: rows of {name} have from {lengths[0]} to {lengths[-1]} tokens."
            raise wrong_value("tokenizer", f"{text} Give the one that made them.", stream=name)
