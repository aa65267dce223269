"""Conversations rendered by a tokenizer's chat template, with the assistant's turns as labels."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from mixer.models.labels import IGNORED
from mixer.tools.recipe.data.formats.base import Format, Row, Sample
from mixer.tools.recipe.data.formats.conversation import ALL, COLUMNS, Conversation, check_columns, conversation_of
from mixer.tools.recipe.data.formats.rendering import Rendering, Template
from mixer.tools.recipe.data.formats.template import chat_template_of
from mixer.tools.recipe.data.formats.tokens import IS_PARSED, check_max_length, length_limit, within
from mixer.utils.data_set import DataSet
from mixer.utils.errors import require, wrong_value

# Roles of chat templates.
_KNOWN = ("assistant", "user", "system", "developer", "tool", "ipython", "observation", "environment")


@dataclass(frozen=True)
class Chat(Format):
    """Conversations: lists of `{"role": ..., "content": ...}`, or of `{"from": ..., "value": ...}` as in ShareGPT.

    The text is that of the tokenizer's `apply_chat_template`. It gets the columns `tools` (or OpenAI's older
    `functions`), `documents` and `chat_template_kwargs`, as objects or in JSON, and a column `system` as the first
    message. A turn with `weight: 0` or `train: false` is not learned. OpenAI's `function_call` and ShareGPT's turns of
    that role are tool calls, which the assistant learns. Arguments of calls and parameters of tools that are texts in
    JSON are parsed if the template would put them into quotes.

    A column that says something, and a key of a turn, is read, left unread by `ignored_columns` and `ignored_keys`, or
    refused. Columns such as `id` and `source`, and `name` and `tool_call_id` of a tool's answer, need not be named.

    The chat template's `{% generation %}` marks the assistant's tokens. For a template without it, the assistant's
    turns are located by rendering parts of the conversation. Roles are lower-cased; `gpt`, `model` and `bot` mean
    `assistant`, `human` means `user`, `function` and ShareGPT's `observation` mean `tool`.

    Args:
        column: The column of conversations, such as `conversations` for ShareGPT.
        max_length: Most tokens of a sample; the rest is cut off. Default: the tokenizer's limit, if it has one.
        train_on: Learn the `assistant`'s turns, or `all` turns.
        chat_template: A template in place of the tokenizer's: in Jinja, the path of a file with one, a tokenizer that
            has one, or the name of one that TRL has.
        ignored_columns: Columns to leave unread that would be read or refused; `*` is all that would be refused.
        ignored_keys: Keys of turns to leave unread that would be read or refused.

    Raises:
        ValueError: If `max_length` is below 2, or `train_on` is neither.
    """

    version: ClassVar[int] = 4
    tasks: ClassVar[Sequence[str]] = ("causal-lm",)
    reads_objects: ClassVar[bool] = True

    column: str = "messages"
    max_length: int | None = None
    train_on: Literal["assistant", "all"] = "assistant"
    chat_template: str | None = None
    ignored_columns: Sequence[str] = ()
    ignored_keys: Sequence[str] = ()

    def __post_init__(self) -> None:
        check_max_length(self.max_length, "Chat")
        require(self.train_on in ("assistant", "all"), "train_on", "'assistant' or 'all'", self.train_on)

    @property
    def columns(self) -> Sequence[str]:
        """See `Format.columns`."""
        return (self.column,)

    def fitted(self, dataset: DataSet, tokenizer: Any) -> "Chat":
        """Reads the template, and refuses a tokenizer without one; see `Format.fitted`."""
        template = None if self.chat_template is None else chat_template_of(self.chat_template)
        if template is None and not tokenizer.chat_template:
            text = f"is needed, and {type(tokenizer).__name__} has none: take that of the model's chat variant,"
            raise wrong_value("chat_template", f"{text} or give one, Chat(chat_template=...).")
        return replace(self, chat_template=template)

    def encode(self, rows: Sequence[Row], tokenizer: Any, task: str) -> list[Sample]:
        """See `Format.encode`."""
        length, template = length_limit(self.max_length, tokenizer), Template(tokenizer, self.chat_template)
        return [self._sample(self._read(row), template, length) for row in rows]

    def _read(self, row: Row) -> Conversation:
        own = {name: value for name, value in row.items() if name not in self.ignored_columns}
        if ALL not in self.ignored_columns:
            check_columns(own, (self.column, *COLUMNS), "Chat")
        return conversation_of(own, self.column, self.ignored_keys)

    def _sample(self, conversation: Conversation, template: Template, length: int | None) -> Sample:
        if not conversation.messages:
            return {"input_ids": [], "labels": []}
        rendering = Rendering(conversation, template)
        tokens = rendering.tokens
        is_learned = self._is_learned(rendering, conversation.unlearned)
        labels = (
            tokens
            if is_learned is None
            else [token if learned else IGNORED for token, learned in zip(tokens, is_learned, strict=True)]
        )
        return {**within(length, tokens, labels), IS_PARSED: rendering.is_parsed}

    def _is_learned(self, rendering: Rendering, unlearned: list[int]) -> list[bool] | None:
        """Returns which tokens are learned; `None` for all."""
        if self.train_on == "all" and not unlearned:
            return None
        if not rendering.is_mapped:
            text = "must be 'all', without weights of 0, as the tokenizer maps no tokens to characters: take a fast"
            raise wrong_value("train_on", f"{text} tokenizer, or learn all turns.")
        if self.train_on == "all":
            return [not excluded for excluded in rendering.tokens_of(unlearned)]
        roles = [message["role"] for message in rendering.messages]
        unknown = next((role for role in roles if role not in _KNOWN), None)
        hint = "Rename it in the data, or learn all turns, Chat(train_on='all')."
        require(unknown is None, "role", f"one of {', '.join(_KNOWN)}", unknown, hint)
        turns = [number for number, role in enumerate(roles) if role == "assistant"]
        learned = [number for number in turns if number not in unlearned]
        generated = rendering.generated() if learned else None
        if generated is None or len(learned) == len(turns):
            return generated or rendering.tokens_of(learned)
        chosen = rendering.tokens_of(learned)
        return [marked and turned for marked, turned in zip(generated, chosen, strict=True)]
