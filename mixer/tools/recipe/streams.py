"""A recipe's streams: their data, formats, held-out rows and mixture options; and functions called by name."""

import inspect
import pkgutil
from collections.abc import Mapping, Sequence, Sized
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, NamedTuple

import datasets
import numpy as np

from mixer.mixture.bad_samples import OnSampleError
from mixer.mixture.by_column import rows_by_name, split_by_value
from mixer.mixture.permutation import Permutation
from mixer.mixture.stream import Stream, selected
from mixer.models.class_names import NamedClasses, check_same_classes
from mixer.tools.recipe.data.formats import Chat, Dialogue, Format, Labelled
from mixer.tools.recipe.data.formats.conversation import COLUMNS
from mixer.tools.recipe.data.formats.dialogue import shapes_in
from mixer.tools.recipe.data.formatting import column_names, content_of, fitted, formatted
from mixer.tools.recipe.data.source import DataSource
from mixer.tools.recipe.data.validation import Validation
from mixer.tools.recipe.places import placed
from mixer.tools.recipe.storage_options import hidden_values, without_values
from mixer.utils.errors import require, wrong_value
from mixer.utils.hidden_names import hidden
from mixer.utils.ranges import check_range

_SHARE_SEED = 0  # the same rows in all runs, whatever their seeds
IMAGE_TASK = "image-text-to-text"
COLUMN_TRAINERS = ("sentence-transformer", "cross-encoder", "sparse-encoder", "multi-vector-encoder")
# Trainers that read the columns of rows as they are.
_READING_COLUMNS = (*COLUMN_TRAINERS, "grpo")
# Fields of the data; all others are passed on to `Stream`.
_OF_DATA = (
    *("factory", "arguments", "train_split", "validation_split", "data", "generated"),
    *("format", "validation", "rows_share"),
)


@dataclass
class Factory:
    """A function and its arguments.

    Args:
        factory: Dotted name of the function or class: `package.module.function`.
        arguments: Its arguments by name.
    """

    factory: str
    arguments: dict[str, Any] = field(default_factory=dict)


def call_by_name(option: str, dotted_name: str, arguments: Mapping[str, Any], *positional: Any) -> Any:
    """Calls a function by its dotted name.

    Args:
        option: The recipe's field, for errors.
        dotted_name: The function: `package.module.function`.
        arguments: Arguments by name.
        *positional: Positional arguments.

    Raises:
        ValueError: If the function does not exist or fails; names the field.
    """
    function = named(option, dotted_name)
    try:
        return function(*positional, **arguments)
    except (TypeError, ValueError, OSError, ImportError) as error:
        call = ", ".join(f"{name}={value!r}" for name, value in hidden_values(arguments).items())
        cause = without_values(str(error), arguments)
        raise wrong_value(option, f": {dotted_name}({call}) failed: {cause}") from error


def named(option: str, dotted_name: str) -> Any:
    """Returns what a dotted name stands for.

    Args:
        option: The recipe's field, for errors.
        dotted_name: A function or class: `package.module.function`.

    Raises:
        ValueError: If it does not exist; names the field.
    """
    try:
        function = pkgutil.resolve_name(dotted_name)
        if inspect.ismodule(function):  # a package exports a function under the name of its module
            package, _, name = dotted_name.rpartition(".")
            function = getattr(pkgutil.resolve_name(package), name)
    except (ImportError, AttributeError, ValueError) as error:
        hint = hidden(dotted_name) or "Is its package installed, or its file beside the recipe?"
        raise wrong_value(option, f": {dotted_name!r} cannot be found ({error}). {hint}") from None
    return function


class BuiltStream(NamedTuple):
    """A stream with its evaluation set and the rows that its samples were made from.

    Args:
        stream: The stream.
        evaluation: The data set for evaluation, or `None`.
        class_names: Names of the label's classes; see `Format.class_names`.
        rows: The rows before formatting; `None` without a format.
        evaluation_rows: The rows of the evaluation set before formatting.
        format: The format with all settings filled in, or `None`.
    """

    stream: Stream
    evaluation: Any
    class_names: Sequence[str] | None
    rows: Any = None
    evaluation_rows: Any = None
    format: Format | None = None


@dataclass
class StreamRecipe:
    """One data source.

    Args:
        factory: Dotted name of a function that returns a data set or a mapping of splits: `package.module.function`.
        arguments: Arguments of that function.
        train_split: The split to train on, if the function returns several.
        validation_split: The split to evaluate on, if the function returns it.
        data: Data by name or path, in place of a function.
        generated: In their place: a function that gets the model before training, the tokenizer and the ranks, and
            writes rows, such as `replay.self_generated`; they are kept in the folder `generated` of the run.
        format: Turns rows into samples: `Text`, `Prompt`, `Chat` or `Labelled` with their arguments, or a class of your
            own. Needs the recipe's tokenizer; leave it out for tokenized data.
        validation: Rows to hold out for evaluation: a share, a number of rows, or `Validation`.
        rows_share: Share of the rows to train on, drawn alike in every run: a short run then repeats a stream as a long
            one does. A larger share has the rows of a smaller one.
        weight: See `Stream`, as for all that follow.
        max_epochs: See `Stream`.
        max_samples: See `Stream`.
        max_tokens: See `Stream`.
        max_labels: See `Stream`.
        shuffle: See `Stream`.
        seed: See `Stream`.
        enters_at: See `Stream`.
        leaves_at: See `Stream`.
        is_random: See `Stream`.
        groups: See `Stream`.
        head: See `Stream`.
        loss_weight: See `Stream`.
        on_sample_error: See `Stream`.
        distinct_by: See `Stream`.
    """

    factory: str | None = None
    arguments: dict[str, Any] = field(default_factory=dict)
    train_split: str = "train"
    validation_split: str = "validation"
    data: DataSource | None = None
    generated: Factory | None = None
    format: Format | None = None
    validation: int | float | Validation | None = None
    rows_share: float = 1.0
    weight: float | None = None
    max_epochs: float | None = None
    max_samples: int | None = None
    max_tokens: int | None = None
    max_labels: int | None = None
    shuffle: bool = True
    seed: int | None = None
    enters_at: float | Literal["decay"] = 0.0
    leaves_at: float | Literal["decay"] = 1.0
    is_random: bool | None = None
    groups: dict[str, str] = field(default_factory=dict)
    head: str | None = None
    loss_weight: float = 1.0
    on_sample_error: OnSampleError | None = None
    distinct_by: list[str] | str | None = None

    def build(
        self,
        name: str,
        tokenizer: Any = None,
        task: str = "causal-lm",
        trainer: str | None = None,
        training: Any = None,
        field: str = "streams",
    ) -> BuiltStream:
        """Loads the data, holds rows out for evaluation and formats both.

        Args:
            name: The stream's name.
            tokenizer: The recipe's tokenizer.
            task: The model's task.
            trainer: The trainer, by its name in recipes; `None` for `MixingTrainer`.
            training: Its arguments.
            field: The recipe's field that it stands in.

        Raises:
            ValueError: If a part is wrong, or parts do not fit together; names the stream.
            OSError: If the data do not exist, or the hub cannot be reached.
        """
        called = f"{field}.{name}"
        with placed(called):
            if self.data is not None and self.data.by is not None:
                text = f"={self.data.by!r} makes several streams, which only streams can be: leave it out."
                raise wrong_value("data.by", text, found=self.data.by)
            return self._built(name, *self._split(called), tokenizer, task, trainer, training, called)

    def build_all(
        self,
        name: str,
        tokenizer: Any = None,
        task: str = "causal-lm",
        trainer: str | None = None,
        training: Any = None,
    ) -> dict[str, BuiltStream]:
        """Builds the stream, or one of each value of the column `data.by`; see `build`.

        Returns:
            The streams by name, those of values in the order of their first rows.
        """
        if self.data is None or self.data.by is None:
            return {name: self.build(name, tokenizer, task, trainer, training)}
        called = f"streams.{name}"
        with placed(called):
            train, evaluation = self._split(called)
            with placed("data"):
                parts = _by_column(self.data, train, evaluation)
            return {
                value: self._built(value, *rows, tokenizer, task, trainer, training, f"{called}.{value}")
                for value, rows in parts.items()
            }

    def _built(
        self,
        name: str,
        train: Any,
        evaluation: Any,
        tokenizer: Any,
        task: str,
        trainer: str | None,
        training: Any,
        called: str,
    ) -> BuiltStream:
        train = _part_of(train, self.rows_share)
        rows, names, chosen = (None, None), None, None
        own_format = self.format if trainer is None else self._format_of(trainer, training, train)
        if isinstance(self.validation, Validation) and (column := self.validation.stratify_by):
            own_format = _without(own_format, column)
        if self.data is not None and self.data.by is not None:
            own_format = _without(own_format, self.data.by)
        if isinstance(own_format, Dialogue) and task == IMAGE_TASK and own_format.image_folder is None:
            own_format = replace(own_format, image_folder="." if self.data is None else self.data.folder)
        if isinstance(own_format, Dialogue) and trainer is None:
            raise wrong_value("format", "Dialogue is for TRL's trainers: give the recipe trainer, such as sft.")
        if own_format is not None:
            if tokenizer is None:
                raise wrong_value("format", f"{type(own_format).__name__} needs a tokenizer: give the recipe one.")
            rows = train, evaluation
            chosen = fitted(train, own_format, tokenizer, task, called)
            names = chosen.class_names(train)
            if isinstance(own_format, Labelled) and isinstance(chosen, Labelled) and evaluation is not None:
                _check_labels(own_format, chosen, train, evaluation)
            train = formatted(train, chosen, tokenizer, task, called)
            if evaluation is not None:
                evaluation = formatted(evaluation, chosen, tokenizer, task, f"{called} (validation)")
        elif trainer is None and self.data is not None and "input_ids" not in (columns := column_names(train)):
            text = f"is needed, one of Text, Prompt, Chat and Labelled: of the columns {columns} none is input_ids."
            raise wrong_value("format", text, found=columns)
        is_own = self.data is not None or self.format is not None or self.validation is not None
        content = content_of(train) if is_own and isinstance(train, datasets.Dataset) and len(train) else None
        options = {option.name: getattr(self, option.name) for option in fields(self) if option.name not in _OF_DATA}
        return BuiltStream(Stream(name, train, content=content, **options), evaluation, names, *rows, chosen)

    def _format_of(self, trainer: str, training: Any, rows: Any) -> Format | None:
        """Returns the format that makes rows as a trainer takes them; `None` for rows that it reads itself.

        Raises:
            ValueError: If a format makes other rows.
        """
        if trainer in _READING_COLUMNS:
            if self.format is not None:
                text = f"has no use with {trainer}, which reads columns: leave it out, and choose data.columns."
                raise wrong_value("format", text)
            return None
        is_pair, is_own = trainer != "sft", not isinstance(self.format, Dialogue | None)
        if is_own and is_pair:
            text = f"makes no pairs of answers, which {trainer} learns from: leave out {type(self.format).__name__}."
            raise wrong_value("format", text)
        if is_own or (self.format is None and not is_pair and _is_ready(training, column_names(rows))):
            return self.format
        as_turns = not is_pair and training.assistant_only_loss
        return replace(self.format or Dialogue(), is_pair=is_pair, as_turns=as_turns)  # type: ignore[type-var]

    def _split(self, called: str) -> tuple[Any, Any]:
        """Loads the rows to train on, and those to evaluate on, if there are any: a split, or held out here."""
        train, evaluation = self._load(called)
        if self.validation is not None:
            if evaluation is not None:
                raise wrong_value("validation", "stands beside a validation split: give one of them.")
            own = self.validation if isinstance(self.validation, Validation) else Validation(self.validation)
            train, evaluation = own.carve(train)
        return train, evaluation

    def check_source(self) -> None:
        """Refuses no source of rows, or several; raises a `ValueError`."""
        given = [name for name in ("data", "factory", "generated") if getattr(self, name) is not None]
        expected = "given (path: a name on the hub, a file or a folder), or factory or generated, functions of rows"
        require(len(given) == 1, "data", expected, " and ".join(given) or "none")

    def _load(self, called: str) -> tuple[Any, Any]:
        self.check_source()
        if self.data is not None:
            if self.arguments or (self.train_split, self.validation_split) != ("train", "validation"):
                text = "belongs to factory, as validation_split and arguments: write data.split, data.validation_split."
                raise wrong_value("train_split", text)
            with placed("data"):
                return self.data.load(f"{called}.data", () if self.format is None else self.format.numbers)
        splits = call_by_name("factory", str(self.factory), self.arguments)
        if not isinstance(splits, Mapping):
            return splits, None
        expected = f"one of {list(splits)}, which {self.factory} gives"
        require(self.train_split in splits, "train_split", expected, self.train_split)
        return splits[self.train_split], splits.get(self.validation_split)


def _part_of(dataset: Any, share: float) -> Any:
    check_range("rows_share", share, 1e-6, 1.0, "1 trains on all rows")
    if share == 1.0:
        return dataset
    if not isinstance(dataset, Sized):
        raise wrong_value("rows_share", f"={share}: the data have no number of rows; leave it at 1.")
    # The first of a shuffled order, so that a larger share has the rows of a smaller one.
    order = Permutation(len(dataset), _SHARE_SEED).indices(0, max(1, round(share * len(dataset))))
    return selected(dataset, np.sort(order))


def _by_column(data: Any, train: Any, evaluation: Any) -> dict[str, tuple[Any, Any]]:
    """Splits the rows to train on and to evaluate on by the values of a column."""
    names, trained = split_by_value(train, data.by, data.values, data.min_samples, called="by")
    evaluated = {} if evaluation is None else rows_by_name(evaluation, data.by, names, called="by")
    return {name: (rows, evaluated.get(name)) for name, rows in trained.items()}


def _is_ready(training: Any, columns: Sequence[str]) -> bool:
    """Whether rows are tokens or texts, as SFTTrainer reads them."""
    text, shapes = training.dataset_text_field, shapes_in(columns)
    if "input_ids" not in columns and text in columns and shapes:
        has = f"{text!r} has texts and others are {' and '.join(shapes)}"
        raise wrong_value("data.columns", f"Of {columns}, {has}: choose here which to read.", found=columns)
    is_ready = "input_ids" in columns or text in columns
    has_no_turns = is_ready and training.assistant_only_loss and "labels" not in columns
    require(not has_no_turns, "data", "made of conversations for training.assistant_only_loss", columns)
    return is_ready


def _without(chosen: Format | None, column: str) -> Format | None:
    """Has a format of chats leave a column unread that the recipe names for something else."""
    if not isinstance(chosen, Chat | Dialogue) or column in COLUMNS:
        return chosen
    return replace(chosen, ignored_columns=[*chosen.ignored_columns, column])


def _check_labels(given: Labelled, fitted: Labelled, train: Any, evaluation: Any) -> None:
    """Refuses rows for evaluation whose labels are numbered otherwise than those for training."""
    kind = getattr((evaluation.features or {}).get(given.label), "dtype", None)
    own = (fitted if kind in ("string", "large_string") else given).fitted(evaluation, None).class_names(evaluation)
    parts = {"training": fitted.class_names(train), "evaluation": own}
    check_same_classes(NamedClasses("format", f"the rows for {name}", names or ()) for name, names in parts.items())
