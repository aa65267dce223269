"""Prompts and completions by templates over columns."""

import string
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from mixer.data.formats.base import Format, Row, Sample
from mixer.data.formats.tokens import IGNORED, check_max_length, end_of_text, length_limit, without_end


@dataclass(frozen=True)
class Prompt(Format):
    """A prompt and its completion, of which the completion is learned.

    Both are tokenised apart, as they are when a model is asked, and the completion ends with the end-of-text token. For
    a model with an encoder the prompt is what it reads and the completion is what it writes.

    Args:
        prompt: Template of the prompt: text with columns in braces, `{question}`; `{{` and `}}` are braces.
        completion: Template of the completion.
        max_length: The most tokens of a sample, the rest is cut off; of prompt and completion each for a model with an
            encoder. Default: the tokenizer's limit, if it has one.
        train_on_prompt: Whether the prompt is learned too.

    Raises:
        ValueError: If a template cannot be read, or `max_length` is below 2.
    """

    tasks: ClassVar[Sequence[str]] = ("causal-lm", "seq2seq-lm")

    prompt: str
    completion: str
    max_length: int | None = None
    train_on_prompt: bool = False

    def __post_init__(self) -> None:
        check_max_length(self.max_length, "Prompt")
        if not self.columns:
            raise ValueError(
                f"Prompt: neither prompt={self.prompt!r} nor completion={self.completion!r} names a column, as "
                "{question} does."
            )

    @property
    def columns(self) -> Sequence[str]:
        """See `Format.columns`."""
        names = [*_columns_in(self.prompt, "prompt"), *_columns_in(self.completion, "completion")]
        return tuple(dict.fromkeys(names))

    def encode(self, rows: Sequence[Row], tokenizer: Any, task: str) -> list[Sample]:
        """See `Format.encode`."""
        known = [{name: "" if value is None else value for name, value in row.items()} for row in rows]
        prompts = [self.prompt.format_map(row) for row in known]
        completions = [self.completion.format_map(row) for row in known]
        length = length_limit(self.max_length, tokenizer)
        if task == "seq2seq-lm":
            if self.train_on_prompt:
                raise ValueError("a model with an encoder reads its prompt: leave train_on_prompt at False.")
            return _of_two_sides(prompts, completions, tokenizer, length)
        end = end_of_text(tokenizer)
        asked = tokenizer(prompts, verbose=False)["input_ids"]
        answered = tokenizer(completions, add_special_tokens=False, verbose=False)["input_ids"]
        both = zip(asked, answered, strict=True)
        return [self._sample(without_end(prompt, end), [*completion, end], length) for prompt, completion in both]

    def _sample(self, prompt: list[int], completion: list[int], length: int | None) -> Sample:
        ignored = prompt if self.train_on_prompt else [IGNORED] * len(prompt)
        return {"input_ids": (prompt + completion)[:length], "labels": (ignored + completion)[:length]}


def _of_two_sides(prompts: list[str], completions: list[str], tokenizer: Any, length: int | None) -> list[Sample]:
    cut = {"truncation": length is not None, "max_length": length}
    read = tokenizer(prompts, **cut)["input_ids"]
    written = tokenizer(text_target=completions, **cut)["input_ids"]
    return [{"input_ids": tokens, "labels": labels} for tokens, labels in zip(read, written, strict=True)]


def _columns_in(template: str, called: str) -> list[str]:
    try:
        fields = [field for _, field, _, _ in string.Formatter().parse(template) if field is not None]
    except ValueError as error:
        raise ValueError(
            f"Prompt: the template {called}={template!r} cannot be read ({error}). Columns stand in braces, and braces "
            "themselves are doubled: {{ and }}."
        ) from None
    names = [field.partition(".")[0].partition("[")[0] for field in fields]
    if not all(names):
        raise ValueError(f"Prompt: the template {called}={template!r} has braces without the name of a column.")
    return names
