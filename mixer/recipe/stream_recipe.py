"""A recipe's stream: where its data come from, what makes samples of them, and how it takes part in the mixture."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import datasets

from mixer.mixture.bad_samples import OnSampleError
from mixer.mixture.stream import Stream
from mixer.recipe.called_by_name import call_by_name
from mixer.recipe.data.fingerprint import content_of
from mixer.recipe.data.formats import Format
from mixer.recipe.data.formatting import column_names, fitted, formatted
from mixer.recipe.data.source import DataSource
from mixer.recipe.data.validation import Validation

# Fields of a stream's recipe that are those of `Stream`.
_STREAM_OPTIONS = (
    *("weight", "max_epochs", "shuffle", "seed", "enters_at", "leaves_at", "is_random", "groups"),
    *("head", "loss_weight", "on_sample_error"),
)


class BuiltStream(NamedTuple):
    """A stream that was built.

    Args:
        stream: The stream.
        evaluation: Its data set for evaluation, or `None`.
        class_names: The names of its labels' classes, or `None`.
        rows: What the format made the stream's samples of; `None` without a format.
        evaluation_rows: Likewise for evaluation.
        format: The format, with nothing left open; or `None`.
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
        factory: Dotted name of a function that gives a data set, or a mapping of splits: `package.module.function`.
        arguments: What to call it with.
        train_split: The split to train on, where the function gives several.
        validation_split: The split to evaluate on, if the function gives it.
        data: Data by name or path, in place of a function.
        format: What makes samples of rows: `Text`, `Prompt`, `Chat`, `Labelled` with their arguments, or a class of
            your own; `None` for data that are tokenised. Needs the recipe's tokenizer.
        validation: What is held out for evaluation: a share of the rows, a number of them, or `Validation`.
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
        on_sample_error: See `Stream`.
    """

    factory: str | None = None
    arguments: dict[str, Any] = field(default_factory=dict)
    train_split: str = "train"
    validation_split: str = "validation"
    data: DataSource | None = None
    format: Format | None = None
    validation: int | float | Validation | None = None
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
    on_sample_error: OnSampleError | None = None

    def build(self, name: str, tokenizer: Any = None, task: str = "causal-lm") -> BuiltStream:
        """Loads the data, holds some out, and makes samples of them.

        Args:
            name: The stream's name.
            tokenizer: The recipe's tokenizer, for a format, and to fill batches up.
            task: The model's task, for a format.

        Returns:
            The stream, its data set for evaluation, and what its classes are called.

        Raises:
            ValueError: If a part cannot be built, or parts do not go together; the stream is named.
            OSError: If there are no such data, or the hub cannot be reached.
        """
        called = f"streams.{name}"
        train, validation = self._load(called)
        if self.validation is not None:
            if validation is not None:
                raise ValueError(f"{called}: it has a validation split already: give that or validation, not both.")
            own = self.validation if isinstance(self.validation, Validation) else Validation(self.validation)
            train, validation = own.carve(train, f"{called}.validation")
        names, rows, chosen = None, (None, None), None
        if self.format is not None:
            rows = train, validation
            train, validation, names, chosen = self._formatted(train, validation, tokenizer, task, called)
        elif self.data is not None:
            _check_is_tokenised(train, called)
        is_own = self.data is not None or self.format is not None or self.validation is not None
        content = content_of(train) if is_own and isinstance(train, datasets.Dataset) and len(train) else None
        stream = Stream(name, train, content=content, **{option: getattr(self, option) for option in _STREAM_OPTIONS})
        return BuiltStream(stream, validation, names, *rows, chosen)

    def _load(self, called: str) -> tuple[Any, Any]:
        if (self.factory is None) == (self.data is None):
            found = "neither" if self.data is None else "both"
            raise ValueError(
                f"{called}: give data (path: a name on the hub, a file or a folder) or factory, a function that gives "
                f"a data set; it has {found}."
            )
        if self.data is None:
            return self._call(called)
        if self.arguments or (self.train_split, self.validation_split) != ("train", "validation"):
            raise ValueError(
                f"{called}: arguments, train_split and validation_split belong to factory; of data the splits are "
                "data.split and data.validation_split."
            )
        return self.data.load(f"{called}.data")

    def _call(self, called: str) -> tuple[Any, Any]:
        splits = call_by_name(f"{called}.factory", str(self.factory), self.arguments)
        if not isinstance(splits, Mapping):
            return splits, None
        if self.train_split not in splits:
            raise ValueError(
                f"{called}.train_split: {self.factory} gives the splits {list(splits)}, not {self.train_split!r}."
            )
        return splits[self.train_split], splits.get(self.validation_split)

    def _formatted(self, train: Any, validation: Any, tokenizer: Any, task: str, called: str) -> tuple[Any, ...]:
        assert self.format is not None, "the caller has looked"  # noqa: S101
        if tokenizer is None:
            raise ValueError(f"{called}.format: {type(self.format).__name__} needs a tokenizer: give the recipe one.")
        chosen = fitted(train, self.format, tokenizer, task, called)
        names, train = chosen.class_names(train), formatted(train, chosen, tokenizer, task, called)
        if validation is not None:
            validation = formatted(validation, chosen, tokenizer, task, f"{called} (validation)")
        return train, validation, names, chosen


def _check_is_tokenised(dataset: Any, called: str) -> None:
    columns = column_names(dataset)
    if "input_ids" not in columns:
        raise ValueError(
            f"{called}: the data have the columns {columns}, and nothing makes tokens of them: give format, one of "
            "Text, Prompt, Chat and Labelled."
        )
