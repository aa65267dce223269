"""Conversations of data sets, in the form that chat templates take."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mixer.tools.recipe.data.formats.base import Row

Message = dict[str, Any]  # with a role, mostly with content

# Columns beside the conversation.
COLUMNS = ("system", "system_prompt", "tools", "functions", "documents", "chat_template_kwargs")
# Fields of a message that say whether to learn it.
_WEIGHTS = ("weight", "train", "training", "loss")
# Other names of roles: ShareGPT's, and those of OpenAI's older functions.
_ROLES = {
    "human": "user",
    **dict.fromkeys(("function", "function_response", "tool_response"), "tool"),
    **dict.fromkeys(("gpt", "chatgpt", "bard", "bot", "model", "ai"), "assistant"),
}
_CALLS = ("function_call", "tool_call")  # roles of turns that are the assistant's calls, in JSON


@dataclass(frozen=True)
class Conversation:
    """A conversation.

    Args:
        messages: Its messages.
        unlearned: Numbers of the messages that their weight excludes from learning.
        arguments: Further arguments of the chat template: tools, documents and its own variables.
    """

    messages: list[Message]
    unlearned: list[int]
    arguments: dict[str, Any]


def conversation_of(row: Row, column: str) -> Conversation:
    """Reads the conversation of a row.

    Args:
        row: The row; columns with other names than `COLUMNS` are not read.
        column: The column of messages.

    Raises:
        ValueError: If a value is of the wrong form, or two columns contradict each other.
    """
    messages = _messages(row[column], column)
    unlearned = [number for number, message in enumerate(messages) if not _is_learned(message, column)]
    system = _only({name: row.get(name) for name in ("system", "system_prompt")})
    if system is not None and messages and _has_no_system(messages, system):
        messages, unlearned = [{"role": "system", "content": system}, *messages], [one + 1 for one in unlearned]
    functions = [tool if "function" in tool else _function(tool) for tool in _schemas(row, "functions")]
    arguments = {
        "tools": _only({"tools": _schemas(row, "tools"), "functions": functions}),
        "documents": _parsed(row.get("documents"), "documents") or None,
        **_variables(row),
    }
    return Conversation(messages, unlearned, {name: value for name, value in arguments.items() if value is not None})


def text_of(content: Any) -> Any:
    """Joins the text parts of a message's content; leaves other contents as they are."""
    return "".join(part.get("text") or "" for part in content) if are_parts(content) else content


def are_parts(content: Any) -> bool:
    """Returns whether a message's content is a list of parts, such as `{"type": "text", "text": ...}`."""
    return isinstance(content, list) and all(isinstance(part, Mapping) and "type" in part for part in content)


def _only(values: Mapping[str, Any]) -> Any:
    """Returns the value of columns that mean the same; `None` without one."""
    given = {name: value for name, value in values.items() if value}
    (first, value), *others = given.items() or [("", None)]
    for name, other in others:
        if other != value:
            raise ValueError(f"columns {first!r} and {name!r} differ, and both mean the same: drop one of them.")
    return value


def _parsed(value: Any, column: str) -> Any:
    """Reads a value that may be written in JSON."""
    if not isinstance(value, str) or not value:
        return value
    try:
        return json.loads(value)
    except ValueError as error:
        raise ValueError(f"column {column!r} has a text that is no JSON ({error}): {value[:80]!r}.") from None


def _schemas(row: Row, column: str) -> list[dict[str, Any]]:
    value = _parsed(row.get(column), column)
    tools = [_parsed(tool, column) for tool in ([value] if isinstance(value, Mapping) else value or [])]
    if not all(isinstance(tool, Mapping) for tool in tools):
        raise ValueError(f"column {column!r} has {tools}, where a list of schemas of functions is expected.")
    return tools


def _function(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": dict(schema)}


def _variables(row: Row) -> dict[str, Any]:
    value = _parsed(row.get("chat_template_kwargs"), "chat_template_kwargs") or {}
    if not isinstance(value, Mapping):
        raise ValueError(f"column 'chat_template_kwargs' has {value!r}, where arguments by name are expected.")
    if own := value.keys() & {"messages", "tools", "documents"}:
        raise ValueError(f"column 'chat_template_kwargs' has {min(own)!r}: put it in a column of its own.")
    return dict(value)


def _has_no_system(messages: list[Message], system: Any) -> bool:
    if not isinstance(system, str):
        raise ValueError(f"column 'system' has {system!r}, a {type(system).__name__}, where a text is expected.")
    said = [text_of(message.get("content")) for message in messages if message["role"] in ("system", "developer")]
    if said and said[0] != system:
        raise ValueError(
            f"column 'system' has {system[:80]!r}, but the conversation has a system message of its own, {said[0]!r}: "
            "drop one of them in the data, or leave the column unread, Chat(ignored_columns=['system'])."
        )
    return not said


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
    is_sharegpt = "role" not in message and "from" in message and "value" in value
    if is_sharegpt:
        content = {"content": message.pop("value")} if "value" in message else {}
        message = {"role": message.pop("from"), **content, **message}
    elif "role" not in message or ("content" not in message and message.keys() & {"value", "text", "message"}):
        raise ValueError(
            f"column {column!r} has a message with the fields {sorted(message)}: it needs role and content, or from "
            "and value."
        )
    message["role"] = role = _role(message["role"], is_sharegpt)
    _check_content(message.get("content", ""), role, column)
    if type(message.get("content")) is int:
        message["content"] = str(message["content"])
    calls = [message.pop("function_call", None)]
    if role in _CALLS:
        message["role"] = "assistant"
        calls.append(message.pop("content", None))
    if isinstance(message.get("tool_calls"), str):
        calls.append(message.pop("tool_calls"))
    if written := [call for one in calls if one for call in _tool_calls(one, column)]:
        message["tool_calls"] = [*message.get("tool_calls", ()), *written]
    return message


def _role(value: Any, is_sharegpt: bool) -> str:
    role = str(value).strip().lower()
    return "tool" if is_sharegpt and role == "observation" else _ROLES.get(role, role)


def _check_content(content: Any, role: str, column: str) -> None:
    if are_parts(content):
        others = sorted({str(part["type"]) for part in content} - {"text"})
        if others:
            raise ValueError(
                f"column {column!r} has a content with parts of the type {', '.join(others)}: Chat reads parts of the "
                "type text. Remove the others in the data, or train a model of images with its own processor."
            )
    elif type(content) not in (str, int) and not (role == "tool" and isinstance(content, (float, list, Mapping))):
        raise ValueError(
            f"column {column!r} has a content that is a {type(content).__name__}, {str(content)[:80]}, where a text "
            'or a list of parts {"type": "text", "text": ...} is expected.'
        )


def _tool_calls(value: Any, column: str) -> list[dict[str, Any]]:
    calls = _parsed(value, column)
    calls = [calls] if isinstance(calls, Mapping) else calls
    if not isinstance(calls, list) or not all(isinstance(call, Mapping) for call in calls):
        raise ValueError(
            f"column {column!r} has the function call {value!r}, where an object with name and arguments is expected. "
            "Name the role gpt or assistant if it is a text."
        )
    return [dict(call) if "function" in call else _function(call) for call in calls]


def _is_learned(message: Message, column: str) -> bool:
    """Takes the weight out of a message."""
    weights = {name: message.pop(name) for name in _WEIGHTS if name in message}
    for name, weight in weights.items():
        if weight not in (0, 1):
            raise ValueError(
                f"column {column!r} has a turn with {name}={weight!r}: a turn is learned (1, true) or not (0, false). "
                "Round it in the data, or put such rows in a stream of its own with a loss_weight."
            )
    return all(weights.values())
