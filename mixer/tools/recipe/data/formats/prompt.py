"""Prompts and completions by templates over columns."""

import re
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from mixer.models.labels import IGNORED
from mixer.tools.recipe.data.formats.base import Format, Row, Sample
from mixer.tools.recipe.data.formats.chat import Chat
from mixer.tools.recipe.data.formats.tokens import (
    NUM_CUT,
    WEIGHTS,
    check_max_length,
    end_of_text,
    length_limit,
    text_of,
    within,
    without_end,
)
from mixer.tools.recipe.places import retold
from mixer.utils.data_set import DataSet
from mixer.utils.errors import require, wrong_value


@dataclass(frozen=True)
class Prompt(Format):
    """A prompt and its completion; the completion is learned.

    Both are tokenized separately, as in generation, and the completion ends with the end-of-text token. An
    encoder-decoder model reads the prompt and writes the completion. With `as_chat` they are what the user says and
    what the assistant answers, rendered by the tokenizer's chat template. Columns without a value are empty; rows
    without a value for any column of the completion are left out. Values that can be written in several ways need a
    format, as Python's: `{price:.2f}`, `{day:%Y-%m-%d}`.

    Args:
        prompt: Template of the prompt: text with columns in braces, `{question}`; `{{` and `}}` are braces.
        completion: Template of the completion.
        max_length: Most tokens of a sample; the rest is cut off. An encoder-decoder model has the limit for prompt and
            completion each. Default: the tokenizer's limit, if it has one.
        train_on_prompt: Whether the prompt is learned too.
        as_chat: Whether they are the turns of a chat.
        ignored_columns: Columns to leave unread that would be refused by their names, such as `weight` and `system`.

    Raises:
        ValueError: If a template cannot be read or names no column, or `max_length` is below 2.
    """

    version: ClassVar[int] = 3
    tasks: ClassVar[Sequence[str]] = ("causal-lm", "seq2seq-lm")
    telling_columns: ClassVar[Sequence[str]] = (*WEIGHTS, "system", "system_prompt", "tools", "functions")

    prompt: str
    completion: str
    max_length: int | None = None
    train_on_prompt: bool = False
    as_chat: bool = False
    ignored_columns: Sequence[str] = ()

    def __post_init__(self) -> None:
        check_max_length(self.max_length, "Prompt")
        if not self.columns:
            text = f"{self.prompt!r} names no column, as {{question}} does, nor does completion={self.completion!r}."
            raise wrong_value("prompt", text)

    @property
    def columns(self) -> Sequence[str]:
        """See `Format.columns`."""
        names = [*_columns_in(self.prompt, "prompt"), *_columns_in(self.completion, "completion")]
        return tuple(dict.fromkeys(names))

    def fitted(self, dataset: DataSet, tokenizer: Any) -> "Prompt":
        """Refuses chats without a chat template; see `Format.fitted`."""
        if self.as_chat:
            self._chat.fitted(dataset, tokenizer)
        return self

    @property
    def _chat(self) -> Chat:
        return Chat(max_length=self.max_length, train_on="all" if self.train_on_prompt else "assistant")

    def encode(self, rows: Sequence[Row], tokenizer: Any, task: str) -> list[Sample]:
        """See `Format.encode`."""
        prompts = [_Fill().vformat(self.prompt, (), row) for row in rows]
        completions = [_Fill().vformat(self.completion, (), row) for row in rows]
        samples = self._samples(prompts, completions, tokenizer, task)
        unfilled = _unfilled(self.completion)
        return [
            {"input_ids": [], "labels": []} if completion == unfilled else sample
            for completion, sample in zip(completions, samples, strict=True)
        ]

    def _samples(self, prompts: list[str], completions: list[str], tokenizer: Any, task: str) -> list[Sample]:
        if self.as_chat:
            require(task == "causal-lm", "as_chat", "false for a model with an encoder", True)
            turns = [_turns(*pair) for pair in zip(prompts, completions, strict=True)]
            return self._chat.encode(turns, tokenizer, task)
        length = length_limit(self.max_length, tokenizer)
        if task == "seq2seq-lm":
            require(not self.train_on_prompt, "train_on_prompt", "false for a model with an encoder", True)
            cut = {"truncation": length is not None, "max_length": length}
            inputs = tokenizer(prompts, **cut)["input_ids"]
            labels = tokenizer(text_target=completions, verbose=False)["input_ids"]
            return [
                {"input_ids": read, **_target(completion, learned, tokenizer, length)}
                for read, completion, learned in zip(inputs, completions, labels, strict=True)
            ]
        end = end_of_text(tokenizer)
        inputs = tokenizer(prompts, verbose=False)["input_ids"]
        labels = tokenizer(completions, add_special_tokens=False, verbose=False)["input_ids"]
        return [
            self._sample(without_end(prompt, end), [*completion, end], length)
            for prompt, completion in zip(inputs, labels, strict=True)
        ]

    def _sample(self, prompt: list[int], completion: list[int], length: int | None) -> Sample:
        ignored = prompt if self.train_on_prompt else [IGNORED] * len(prompt)
        return within(length, prompt + completion, ignored + completion)


def _turns(prompt: str, completion: str) -> Row:
    return {"messages": [{"role": "user", "content": prompt}, {"role": "assistant", "content": completion}]}


def _target(completion: str, tokens: list[int], tokenizer: Any, length: int | None) -> Sample:
    if length is None or len(tokens) <= length:
        return {"labels": tokens}
    labels = tokenizer(text_target=completion, truncation=True, max_length=length)["input_ids"]
    return {"labels": labels, NUM_CUT: len(tokens) - len(labels)}


class _Fill(string.Formatter):
    """Fills templates; a column or field without a value is empty."""

    def get_field(self, field_name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        column, self._field = _column(field_name), field_name
        return (None, column) if kwargs[column] is None else super().get_field(field_name, args, kwargs)

    def convert_field(self, value: Any, conversion: Any) -> Any:
        return None if value is None else super().convert_field(value, conversion)

    def format_field(self, value: Any, format_spec: str) -> str:
        if not format_spec:
            try:
                return text_of(value)
            except ValueError as error:
                text = f"column {self._field!r} has {error}: write {{{self._field}:.2f}}, {{{self._field}!s}}, another "
                way = "format of Python in the template, or name a part as in {meta[level]}, or store texts"
                raise retold(error, text + way, option=self._field) from None
        if isinstance(value, str) and not _OF_TEXT.fullmatch(format_spec):
            value = _number(value)
        return "" if value is None else str(super().format_field(value, format_spec))


# Formats that a text can have; all others, such as .2f, ask for a number.
_OF_TEXT = re.compile(r"(?:.?[<>^])?(?:[1-9]\d*)?(?:\.\d+)?s?|.*%[a-zA-Z].*", re.DOTALL)


def _number(text: str) -> int | float:
    try:
        return int(text)
    except ValueError:
        return float(text)


def _unfilled(template: str) -> str:
    """Fills a template with empty columns; gives nothing for a template without columns."""
    parts = list(string.Formatter().parse(template))
    return "".join(text for text, *_ in parts) if any(field is not None for _, field, _, _ in parts) else ""


def _column(field: str) -> str:
    return field.partition(".")[0].partition("[")[0]


def _columns_in(template: str, called: str) -> list[str]:
    try:
        fields = [field for _, field, _, _ in string.Formatter().parse(template) if field is not None]
    except ValueError as error:
        hint = "Columns stand in braces, and braces themselves are doubled: {{ and }}."
        raise wrong_value(called, f"{template!r} cannot be read ({error}). {hint}", hint=hint) from None
    names = [_column(field) for field in fields]
    if not all(names):
        raise wrong_value(called, f"{template!r} has braces without the name of a column.")
    return names
