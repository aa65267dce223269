"""Conversations rendered by a tokenizer's chat template, with the assistant's turns as labels."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

from jinja2 import TemplateError

from mixer.recipe.data.formats.base import Format, Row, Sample
from mixer.recipe.data.formats.tokens import IGNORED, check_max_length, length_limit

Message = dict[str, Any]  # with a role, mostly with content

# Other names of roles, as in ShareGPT.
_ROLES = {
    "human": "user",
    "function": "tool",
    **dict.fromkeys(("gpt", "chatgpt", "bard", "bot", "model", "ai"), "assistant"),
}
# Roles of chat templates.
_KNOWN = ("assistant", "user", "system", "developer", "tool", "ipython", "observation", "environment")
_GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")


@dataclass(frozen=True)
class Chat(Format):
    """Conversations: lists of `{"role": ..., "content": ...}`, or of `{"from": ..., "value": ...}` as in ShareGPT.

    The chat template's `{% generation %}` marks the assistant's tokens. For a template without it, the conversation is
    rendered up to each turn of the assistant, and must begin with that text. Roles are lower-cased; `gpt`, `model` and
    `bot` mean `assistant`, `human` means `user`.

    Args:
        column: The column of conversations, such as `conversations` for ShareGPT.
        max_length: Most tokens of a sample; the rest is cut off. Default: the tokenizer's limit, if it has one.
        train_on: Learn the `assistant`'s turns, or `all` turns.
        chat_template: A template in Jinja, or the path of a file with one, in place of the tokenizer's. A text without
            `{{` and `{%` is a path.

    Raises:
        ValueError: If `max_length` is below 2, or `train_on` is neither.
    """

    version: ClassVar[int] = 2
    tasks: ClassVar[Sequence[str]] = ("causal-lm",)

    column: str = "messages"
    max_length: int | None = None
    train_on: Literal["assistant", "all"] = "assistant"
    chat_template: str | None = None

    def __post_init__(self) -> None:
        check_max_length(self.max_length, "Chat")
        if self.train_on not in ("assistant", "all"):
            raise ValueError(f"Chat: train_on must be 'assistant' or 'all', got {self.train_on!r}.")

    @property
    def columns(self) -> Sequence[str]:
        """See `Format.columns`."""
        return (self.column,)

    def fitted(self, dataset: Any, tokenizer: Any) -> "Chat":
        """Reads the template from its file, and refuses a tokenizer without one; see `Format.fitted`."""
        template = self.chat_template
        if template is not None and not ("{{" in template or "{%" in template):
            path = Path(template)
            if not path.is_file():
                raise FileNotFoundError(
                    f"Chat: chat_template: there is no file {str(path.absolute())!r}, and a template in Jinja has "
                    "{{ or {%."
                )
            template = path.read_text(encoding="utf-8")
        if template is None and not tokenizer.chat_template:
            raise ValueError(
                f"Chat: the tokenizer ({type(tokenizer).__name__}) has no chat template. Take the tokenizer of the "
                "model's chat or instruct variant, or give a template in Jinja or the path of its file: "
                "Chat(chat_template=...)."
            )
        return replace(self, chat_template=template)

    def encode(self, rows: Sequence[Row], tokenizer: Any, task: str) -> list[Sample]:
        """See `Format.encode`."""
        length = length_limit(self.max_length, tokenizer)
        return [self._sample(_messages(row[self.column], self.column), tokenizer, length) for row in rows]

    def why_nothing(self, rows: Sequence[Row]) -> str:
        """See `Format.why_nothing`."""
        roles = {message["role"] for row in rows for message in _messages(row[self.column], self.column)}
        if not roles or "assistant" in roles or self.train_on == "all":
            return super().why_nothing(rows)
        return f"the assistant says nothing in them, their roles are {sorted(roles)}"

    def _sample(self, messages: list[Message], tokenizer: Any, length: int | None) -> Sample:
        if not messages:
            return {"input_ids": [], "labels": []}
        if self.train_on == "all":
            text = _rendered(messages, tokenizer, self.chat_template)
            tokens: list[int] = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
            return {"input_ids": tokens[:length], "labels": tokens[:length]}
        unknown = [message["role"] for message in messages if message["role"] not in _KNOWN]
        if unknown:
            raise ValueError(
                f"there is no role {unknown[0]!r}, and it is not clear whether to learn its turns: the roles are "
                f"{', '.join(_KNOWN)}. Rename it in the data, or learn all turns, Chat(train_on='all')."
            )
        if not tokenizer.is_fast:
            raise ValueError(
                f"{type(tokenizer).__name__} does not map tokens to characters: take a fast tokenizer, or learn all "
                "turns, Chat(train_on='all')."
            )
        is_marked = _GENERATION.search(tokenizer.get_chat_template(self.chat_template)) is not None
        mask = _mask_by_template if is_marked else _mask_by_prefixes
        tokens, is_assistant = mask(messages, tokenizer, self.chat_template)
        labels = [token if learned else IGNORED for token, learned in zip(tokens, is_assistant, strict=True)]
        return {"input_ids": tokens[:length], "labels": labels[:length]}


def _mask_by_template(messages: list[Message], tokenizer: Any, template: str | None) -> tuple[list[int], list[bool]]:
    encoded = _rendered(
        messages, tokenizer, template, tokenize=True, return_dict=True, return_assistant_tokens_mask=True
    )
    return list(encoded["input_ids"]), [bool(learned) for learned in encoded["assistant_masks"]]


def _mask_by_prefixes(messages: list[Message], tokenizer: Any, template: str | None) -> tuple[list[int], list[bool]]:
    """Locates the assistant's turns by rendering the conversation up to the start and the end of each."""
    whole, spans = _rendered(messages, tokenizer, template), []
    for number, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        before = _rendered_before(messages, number, tokenizer, template)
        with_turn = _rendered(messages[: number + 1], tokenizer, template)
        if not (with_turn.startswith(before) and whole.startswith(with_turn)):
            raise ValueError(
                f"the chat template renders the first {number + 1} messages of a conversation differently from the "
                "whole, so the assistant's turns cannot be located. Give a template with {% generation %} around "
                "them, Chat(chat_template=...), or learn all turns, Chat(train_on='all')."
            )
        spans.append((len(before), len(with_turn)))
    encoded = tokenizer(whole, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    offsets = encoded["offset_mapping"]
    is_learned = [any(start <= first < last <= end for start, end in spans) for first, last in offsets]
    return list(encoded["input_ids"]), is_learned


def _rendered_before(messages: list[Message], number: int, tokenizer: Any, template: str | None) -> str:
    """Renders the text that a turn of the assistant continues."""
    if number:
        return str(_rendered(messages[:number], tokenizer, template, add_generation_prompt=True))
    # Templates do not render zero messages, so the text before the first is cut from the first itself.
    first = _rendered(messages[:1], tokenizer, template)
    opening = _rendered(messages[:1], tokenizer, template, add_generation_prompt=True).removeprefix(first)
    return str(first[: first.index(opening) + len(opening)] if opening in first else first + opening)


def _rendered(messages: list[Message], tokenizer: Any, template: str | None, **options: Any) -> Any:
    try:
        return tokenizer.apply_chat_template(messages, chat_template=template, **{"tokenize": False, **options})
    except TemplateError as error:
        roles = [message.get("role") for message in messages]
        raise ValueError(f"the chat template refuses a conversation of {roles}: {error}") from error


def _messages(value: Any, column: str) -> list[Message]:
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(message, Mapping) for message in value):
        raise ValueError(
            f"column {column!r} has a {type(value).__name__} where a conversation is expected: a list of "
            '{"role": ..., "content": ...} or {"from": ..., "value": ...}.'
        )
    return [_message(message, column) for message in value]


def _message(value: Mapping[str, Any], column: str) -> Message:
    message = {name: part for name, part in value.items() if part is not None}  # fields of other rows are None
    if "role" in message:
        return {**message, "role": _role(message["role"])}
    if "from" not in message or "value" not in message:
        raise ValueError(
            f"column {column!r} has a message with the fields {sorted(message)}: it needs role and content, or from "
            "and value."
        )
    return {"role": _role(message["from"]), "content": message["value"]}


def _role(value: Any) -> str:
    role = str(value).strip().lower()
    return _ROLES.get(role, role)
