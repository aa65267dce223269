"""Conversations rendered by a tokenizer's chat template, and where their turns are in the text."""

import itertools
import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from os.path import commonprefix as _common  # of characters
from typing import Any

from jinja2 import Environment, TemplateError, meta

from mixer.tools.recipe.data.formats.conversation import Conversation, Message, are_parts, text_of
from mixer.utils.errors import InvalidValueError, require, wrong_value
from mixer.utils.turns import try_to_render, unread_keys

_OBJECTS = ("arguments", "parameters")
# A template that writes a text into JSON, or into an object of Python, escapes one of the two kinds of quotes.
_JSON_MARK = '{{"it\'s text {}.": 0}}'


def parsed(conversation: Conversation, render: Callable[[Conversation], Any]) -> Conversation:
    """Parses the texts in JSON that a template would quote once more, as OpenAI's arguments of calls.

    Args:
        conversation: The conversation.
        render: Applies the template.

    Returns:
        The same conversation if there is nothing to parse.

    Raises:
        InvalidValueError: If such a text is no object in JSON.
    """
    numbers = itertools.count()
    probe = _changed(conversation, lambda _: _JSON_MARK.format(next(numbers)))
    if not next(numbers):
        return conversation
    rendered = try_to_render(lambda _: render(probe), []) or ""
    numbers = itertools.count()

    def objects(text: str) -> Any:
        is_printed = _JSON_MARK.format(next(numbers)) in rendered
        return text if is_printed else _object(text, is_refused=not rendered)

    made = _changed(conversation, objects)
    return conversation if made == conversation else made


def _changed(conversation: Conversation, change: Callable[[str], Any]) -> Conversation:
    """Changes the texts in place of objects in calls and tools."""

    def changed(schema: Any) -> Any:
        if not isinstance(schema, dict):
            return schema
        own = {name: change(schema[name]) for name in _OBJECTS if isinstance(schema.get(name), str)}
        inner = {"function": changed(schema["function"])} if "function" in schema else {}
        return {**schema, **own, **inner}

    messages = []
    for message in conversation.messages:
        calls = {"tool_calls": [changed(call) for call in message["tool_calls"]]} if "tool_calls" in message else {}
        messages.append({**message, **calls})
    tools = conversation.arguments.get("tools")
    own = {} if tools is None else {"tools": [changed(tool) for tool in tools]}
    return replace(conversation, messages=messages, arguments={**conversation.arguments, **own})


def _object(text: str, is_refused: bool) -> Any:
    """Parses a text; leaves one that is no object as it is where the template refuses texts, or something else."""
    try:
        value = json.loads(text or "{}")
    except ValueError:
        value = None
    if isinstance(value, dict | list):
        return value
    if is_refused:
        return text
    raise wrong_value(
        "arguments",
        f"of a call, or parameters of a tool, are {text!r:.200}, no object in JSON, and the chat template "
        "would put them into quotes: write an object in the data.",
        expected="an object in JSON",
        found=text,
    )


_GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")
_MARKERS = re.compile(r"\{%-?\s*(end)?generation\s*-?%\}")
_BEGUN = re.compile(r"<[^<>]*$")  # a special token of which only the beginning is the same
_MARK = "\ue000"  # of Unicode's private use: it stands for a content


@dataclass
class Template:
    """A chat template.

    Args:
        tokenizer: The tokenizer.
        own: A template in place of the tokenizer's; `None` takes that one.
    """

    tokenizer: Any
    own: str | None = None
    _tried: dict[tuple[str, bool], str | None] = field(default_factory=dict)  # by role, and whether in parts

    def render(self, messages: list[Message], arguments: dict[str, Any], **options: Any) -> Any:
        """Applies the template.

        Raises:
            ValueError: If it refuses the messages.
        """
        options = {"chat_template": self.own, "tokenize": False, **arguments, **options}
        try:
            return self.tokenizer.apply_chat_template(messages, **options)
        except TemplateError as error:
            roles = [message.get("role") for message in messages]
            text = f"the chat template refuses a conversation of {roles}: {error}"
            raise InvalidValueError(text, option="chat_template", found=roles) from error

    def text(self, arguments: dict[str, Any]) -> str:
        """Returns the template itself."""
        read = getattr(self.tokenizer, "get_chat_template", None)  # processors have none
        return str(read(self.own, arguments.get("tools")) if read else self.own or self.tokenizer.chat_template)

    def reads(self, role: str) -> bool:
        """Returns whether it renders messages of a role, as far as a short conversation tells."""
        rendered = self._try(role, is_parts=False)
        return rendered is None or _MARK in rendered or self.reads_parts(role)

    def reads_parts(self, role: str) -> bool:
        """Returns whether it reads contents of a role in parts, such as `{"type": "text", "text": ...}`."""
        rendered = self._try(role, is_parts=True)
        return rendered is not None and _MARK in rendered and "type" not in rendered

    def _try(self, role: str, is_parts: bool) -> str | None:
        """Renders a short conversation with a message of a role; `None` if the template refuses it."""
        if (role, is_parts) not in self._tried:
            content = [{"type": "text", "text": _MARK}] if is_parts else _MARK
            message, user = {"role": role, "content": content}, {"role": "user", "content": "a"}
            try:
                rendered = str(self.render([message, user] if role in ("system", "developer") else [user, message], {}))
            except (ValueError, TypeError, LookupError, AttributeError):
                rendered = None
            self._tried[role, is_parts] = rendered
        return self._tried[role, is_parts]


@cache
def _variables_of(template: str) -> set[str]:
    """Lists the variables that a template reads."""
    environment = Environment(extensions=["jinja2.ext.loopcontrols"])  # noqa: S701  # it renders nothing
    return meta.find_undeclared_variables(environment.parse(_MARKERS.sub("", template)))


class Rendering:
    """A conversation as a template renders it.

    Args:
        conversation: The conversation, with one or more messages.
        template: The template.

    Raises:
        ValueError: If the template refuses the conversation, or does not read a part of it.
    """

    def __init__(self, conversation: Conversation, template: Template):
        self._template = template
        readable = replace(conversation, messages=[self._readable(message) for message in conversation.messages])
        typed = parsed(readable, lambda probe: template.render(probe.messages, probe.arguments))
        self.is_parsed, self.messages, self.arguments = typed is not readable, typed.messages, typed.arguments
        self.text = str(self._render(self.messages))
        self._check_arguments()
        self._check_keys()
        for number, message in enumerate(self.messages):
            if self._is_left_out(number):
                text = f"leaves out messages of the role {message['role']!r}: rename it, or give one that reads it."
                raise wrong_value("chat_template", text, found=message["role"])

    @property
    def tokens(self) -> list[int]:
        """The tokens of the text."""
        return list(self._encoded["input_ids"])

    @property
    def is_mapped(self) -> bool:
        """Whether the tokenizer maps tokens to characters, so that messages can be located."""
        return bool(self._template.tokenizer.is_fast)

    @cached_property
    def _encoded(self) -> Any:
        tokenizer = self._template.tokenizer
        options = {"return_offsets_mapping": self.is_mapped, "verbose": False}
        return tokenizer(self.text, add_special_tokens=False, **options)

    def generated(self) -> list[bool] | None:
        """Returns which tokens the template's `{% generation %}` marks; `None` if it marks none."""
        if _GENERATION.search(self._template.text(self.arguments)) is None:
            return None
        options = {"tokenize": True, "return_dict": True, "return_assistant_tokens_mask": True}
        encoded = self._render(self.messages, **options)
        return [bool(learned) for learned in encoded["assistant_masks"]]

    def tokens_of(self, numbers: Iterable[int]) -> list[bool]:
        """Returns which tokens belong to some of the messages.

        Raises:
            ValueError: If a message cannot be located.
        """
        spans = [self._span(number) for number in numbers]
        offsets = self._encoded["offset_mapping"]
        return [any(start <= first < last <= end for start, end in spans) for first, last in offsets]

    def _readable(self, message: Message) -> Message:
        """Joins the parts of a content where the template does not read them.

        Raises:
            ValueError: If there are others than texts among them.
        """
        content = message.get("content")
        if not isinstance(content, list) or not are_parts(content) or self._template.reads_parts(message["role"]):
            return message
        others = [part["type"] for part in content if part["type"] != "text"]
        require(not others, "chat_template", f"one that reads parts of the turns of the {message['role']}", others)
        return {**message, "content": text_of(content)}

    def _render(self, messages: list[Message], **options: Any) -> Any:
        return self._template.render(messages, self.arguments, **options)

    def _is_left_out(self, number: int) -> bool:
        """Returns whether the text lacks a message's content, which may be found in it by chance."""
        message = self.messages[number]
        content = message.get("content")
        plain = str(text_of(content or "")).strip()
        if not plain or (plain in self.text and self._template.reads(message["role"])):
            return False
        marked = {**message, "content": [{"type": "text", "text": _MARK}] if are_parts(content) else _MARK}
        return _MARK not in str(self._render([*self.messages[:number], marked, *self.messages[number + 1 :]]))

    def _check_arguments(self) -> None:
        """Refuses arguments that the template does not read: tools, documents, and its variables."""
        variables = _variables_of(self._template.text(self.arguments))
        for name in self.arguments:
            is_read = name in variables
            if is_read and name in ("tools", "documents"):
                others = {other: value for other, value in self.arguments.items() if other != name}
                without = try_to_render(partial(self._template.render, arguments=others), self.messages)
                is_read = without != self.text
            if not is_read:
                text = "is not read by the chat template: give one that does, Chat(chat_template=...), remove it in the"
                raise wrong_value(name, f"{text} data, or leave it unread, ignored_columns=[{name!r}].")

    def _check_keys(self) -> None:
        """Refuses keys of messages that the template does not read."""
        for number, key in unread_keys(self._render, self.messages):
            value = self.messages[number][key]
            raise wrong_value(
                key,
                f"of message {number + 1}, {value!r:.80}, is not read by the chat template: give one that does, "
                "Chat(chat_template=...); rename it in the data, as train: false if the message is not to be learned; "
                f"or leave it unread, ignored_keys=[{key!r}].",
                found=value,
            )

    def _span(self, number: int) -> tuple[int, int]:
        """Locates a message: from the end of the prompt that it continues to its end, in characters."""
        before, after = self._before(number), str(self._render(self.messages[: number + 1]))
        if after.startswith(before) and self.text.startswith(after):
            return len(before), len(after)
        span = self._span_among_others(number, before)
        if span is None:
            raise InvalidValueError(
                f"the chat template renders the first {number + 1} messages of a conversation differently from the "
                "whole, so the assistant's turns cannot be located. Give a template with {% generation %} around "
                "them, Chat(chat_template=...), or learn all turns, Chat(train_on='all').",
                option="chat_template",
            )
        return span

    def _before(self, number: int) -> str:
        """Renders the text that a message continues."""
        is_prompt = self.messages[number]["role"] == "assistant"
        if number or not is_prompt:
            messages = self.messages[:number]
            return str(self._render(messages, add_generation_prompt=is_prompt)) if messages else ""
        # Templates do not render zero messages, so the text before the first is cut from the first itself.
        first = str(self._render(self.messages[:1]))
        opening = str(self._render(self.messages[:1], add_generation_prompt=True)).removeprefix(first)
        return first[: first.index(opening) + len(opening)] if opening in first else first + opening

    def _span_among_others(self, number: int, before: str) -> tuple[int, int] | None:
        """Locates a message where a mark in its place is rendered.

        Some templates render a turn differently once others follow, as Qwen3's, which drops its reasoning then.
        """
        messages = list(self.messages)
        messages[number] = self._marked(number)
        opening, _, rest = str(self._render(messages)).partition(_MARK)
        closing = self._closing(number)
        context = str(self._render(self.messages[:number])) if number else ""
        header, prompt = opening.removeprefix(context), before.removeprefix(context)
        if not opening.startswith(context):  # earlier messages are rendered differently too
            messages[number - 1] = self._marked(number - 1)
            between = str(self._render(messages)).split(_MARK)[1]
            header = between.removeprefix(_common([between, self._closing(number - 1)]))  # noqa: RUF071
        begin = len(opening) - len(header)
        start = begin + len(_common([header, prompt, self.text[begin:]]))  # noqa: RUF071
        if opening.startswith(before) and self.text.startswith(before):
            start = len(before)
        closing = closing if rest.startswith(closing) else _BEGUN.sub("", _common([rest, closing]))  # noqa: RUF071
        end = len(self.text) - len(rest) + len(closing)
        is_found = start <= end and self.text.startswith(opening[:start]) and self.text.endswith(rest)
        return (start, end) if is_found and prompt else None

    def _marked(self, number: int) -> Message:
        return {"role": self.messages[number]["role"], "content": _MARK}

    def _closing(self, number: int) -> str:
        """Returns what the template puts after a message that is the last."""
        rendered = str(self._render([*self.messages[:number], self._marked(number)]))
        return rendered.rpartition(_MARK)[2]
