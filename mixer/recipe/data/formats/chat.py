"""Conversations through a tokenizer's chat template."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

from mixer.recipe.data.formats.assistant_turns import (
    Message,
    has_generation_mask,
    mask_by_prefixes,
    mask_by_template,
    render,
)
from mixer.recipe.data.formats.base import Format, Row, Sample
from mixer.recipe.data.formats.tokens import IGNORED, check_max_length, length_limit

# Other names of roles, ShareGPT's among them.
_ROLES = {
    "human": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bard": "assistant",
    "bot": "assistant",
    "model": "assistant",
    "ai": "assistant",
    "function": "tool",
}
# Those that templates know, of which the assistant's turns are learned.
_KNOWN = ("assistant", "user", "system", "developer", "tool", "ipython", "observation", "environment")


@dataclass(frozen=True)
class Chat(Format):
    """Conversations: lists of `{"role": ..., "content": ...}`, or of `{"from": ..., "value": ...}` as in ShareGPT.

    What of a conversation the assistant says is found by the template's `{% generation %}` where it has one; else by
    rendering what comes before each turn of the assistant, and checking that the whole conversation begins so. Roles
    are read in small letters, and `gpt`, `model`, `bot`, `human` and such as what they stand for.

    Args:
        column: The column of conversations, such as `conversations` for ShareGPT.
        max_length: The most tokens of a sample, the rest is cut off. Default: the tokenizer's limit, if it has one.
        train_on: Whether the `assistant`'s turns are learned, or `all` that is said.
        chat_template: A template in Jinja, or the path of a file of one, in place of the tokenizer's own. What has
            neither `{{` nor `{%` is a path.

    Raises:
        ValueError: If `max_length` is below 2.
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
        """Reads the template if it is in a file, and makes sure that there is one; see `Format.fitted`."""
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
                f"Chat: the tokenizer ({type(tokenizer).__name__}) has no chat template. Take that of the model's "
                "variant for instructions or chat, or give one: Chat(chat_template=...), in Jinja or the path of a "
                "file."
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
            text = render(messages, tokenizer, self.chat_template)
            tokens: list[int] = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
            return {"input_ids": tokens[:length], "labels": tokens[:length]}
        unknown = [message["role"] for message in messages if message["role"] not in _KNOWN]
        if unknown:
            raise ValueError(
                f"there is no role {unknown[0]!r}, so that it cannot be told whether its turns are learned: the roles "
                f"are {', '.join(_KNOWN)}. Rename it in the data, or learn all that is said, Chat(train_on='all')."
            )
        by_template = has_generation_mask(tokenizer, self.chat_template)
        find = mask_by_template if by_template else mask_by_prefixes
        tokens, is_assistant = find(messages, tokenizer, self.chat_template)
        labels = [token if said else IGNORED for token, said in zip(tokens, is_assistant, strict=True)]
        return {"input_ids": tokens[:length], "labels": labels[:length]}


def _messages(given: Any, column: str) -> list[Message]:
    if given is None:
        return []
    if not isinstance(given, list) or not all(isinstance(message, Mapping) for message in given):
        raise ValueError(
            f"column {column!r} has a {type(given).__name__} where a conversation is expected: a list of "
            '{"role": ..., "content": ...} or {"from": ..., "value": ...}.'
        )
    return [_message(message, column) for message in given]


def _message(given: Mapping[str, Any], column: str) -> Message:
    message = {name: value for name, value in given.items() if value is not None}  # what other rows have
    if "role" in message:
        return {**message, "role": _role(message["role"])}
    if "from" not in message or "value" not in message:
        raise ValueError(
            f"column {column!r} has a message with the fields {sorted(message)}: it needs role and content, or from "
            "and value."
        )
    return {"role": _role(message["from"]), "content": message["value"]}


def _role(given: Any) -> str:
    role = str(given).strip().lower()
    return _ROLES.get(role, role)
