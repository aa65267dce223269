"""Arguments of calls, and parameters of tools, that are texts in JSON where a chat template takes objects."""

import itertools
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from mixer.tools.recipe.data.formats.conversation import Conversation
from mixer.utils.errors import wrong_value
from mixer.utils.turns import try_to_render

_OBJECTS = ("arguments", "parameters")
# A template that writes a text into JSON, or into an object of Python, escapes one of the two kinds of quotes.
_MARK = '{{"it\'s text {}.": 0}}'


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
    probe = _changed(conversation, lambda _: _MARK.format(next(numbers)))
    if not next(numbers):
        return conversation
    rendered = try_to_render(lambda _: render(probe), []) or ""
    numbers = itertools.count()

    def objects(text: str) -> Any:
        is_printed = _MARK.format(next(numbers)) in rendered
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
