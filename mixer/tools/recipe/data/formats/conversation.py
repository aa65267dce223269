"""Conversations of data sets, in the form that chat templates take."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mixer.tools.recipe.data.formats.base import Row
from mixer.utils.errors import InvalidValueError, require, wrong_value
from mixer.utils.turns import is_nothing, unread_columns

Message = dict[str, Any]  # with a role, mostly with content

# Columns beside the conversation.
COLUMNS = ("system", "system_prompt", "tools", "functions", "documents", "chat_template_kwargs")
ALL = "*"  # of the columns to leave unread
# Keys of a message that say whether to learn it.
_WEIGHTS = ("weight", "train", "training", "loss")
# Other names of roles: ShareGPT's, and those of OpenAI's older functions.
_ROLES = {
    "human": "user",
    **dict.fromkeys(("function", "function_response", "tool_response"), "tool"),
    **dict.fromkeys(("gpt", "chatgpt", "bard", "bot", "model", "ai"), "assistant"),
}
_MESSAGES = '{"role": ..., "content": ...} or {"from": ..., "value": ...}'
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


def check_columns(row: Row, read: Sequence[str], called: str) -> None:
    """Refuses a row with columns that are not read, and that may change what is learned.

    Args:
        row: The row, without the columns that the user leaves unread.
        read: The columns that are read.
        called: The format's name.

    Raises:
        InvalidValueError: Names them.
    """
    if unread := unread_columns(row, read):
        others = [name for name in row if name not in read]
        raise InvalidValueError(
            f"the columns {unread} are not read: rename in the data what the chat template is to get, to one of "
            f"{', '.join(COLUMNS)}; choose by data.columns what to read; or leave them unread, "
            f"{called}(ignored_columns={others}).",
            option="ignored_columns",
            found=unread,
        )


def conversation_of(
    row: Row, column: str, ignored_keys: Sequence[str] = (), kinds: Sequence[str] = ("text",)
) -> Conversation:
    """Reads the conversation of a row.

    Args:
        row: The row; columns with other names than `COLUMNS` are not read.
        column: The column of messages.
        ignored_keys: Keys of messages, and of parts of their contents, to leave unread.
        kinds: Types of parts that contents may have.

    Raises:
        ValueError: If a value is of the wrong form, or two columns contradict each other.
    """
    messages = _messages(row[column], column, ignored_keys, kinds)
    unlearned = [number for number, message in enumerate(messages) if not _is_learned(message)]
    system = _only({name: row.get(name) for name in ("system", "system_prompt")})
    if system is not None and messages and _has_no_system(messages, system):
        messages, unlearned = [{"role": "system", "content": system}, *messages], [number + 1 for number in unlearned]
    functions = [
        tool if "function" in tool else _with_function(tool, "functions") for tool in _schemas(row, "functions")
    ]
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
            text = f"and {first} differ, and both mean the same: drop one of the columns."
            raise wrong_value(name, text, found=other)
    return value


def _parsed(value: Any, column: str) -> Any:
    """Reads a value that may be written in JSON."""
    if not isinstance(value, str) or not value:
        return value
    try:
        return json.loads(value)
    except ValueError as error:
        raise wrong_value(column, f"must be JSON, got {value[:80]!r} ({error}).") from None


def _schemas(row: Row, column: str) -> list[dict[str, Any]]:
    value = _parsed(row.get(column), column)
    tools = [_parsed(tool, column) for tool in ([value] if isinstance(value, Mapping) else value or [])]
    require(all(isinstance(tool, Mapping) for tool in tools), column, "a list of schemas of functions", tools)
    return tools


def _with_function(schema: Any, column: str) -> dict[str, Any]:
    """Returns a call, or the schema of a tool, with its function in `function`.

    Raises:
        InvalidValueError: If that is no object with a name.
    """
    made = dict(schema) if isinstance(schema, Mapping) and "function" in schema else {"function": schema}
    made["function"] = function = _parsed(made["function"], column)
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str) or not function["name"]:
        raise InvalidValueError(
            f"column {column!r} has the function call {function!r:.200}, where an object with name and arguments is "
            "expected. Name the role gpt or assistant if it is a text.",
            option=column,
            expected="an object with name and arguments",
            found=function,
        )
    return made if "type" in made else {"type": "function", **made}


def _variables(row: Row) -> dict[str, Any]:
    value = _parsed(row.get("chat_template_kwargs"), "chat_template_kwargs") or {}
    require(isinstance(value, Mapping), "chat_template_kwargs", "arguments by name", value)
    if own := value.keys() & {"messages", "tools", "documents"}:
        raise wrong_value("chat_template_kwargs", f"has {min(own)!r}: put it in a column of its own.")
    return dict(value)


def _has_no_system(messages: list[Message], system: Any) -> bool:
    require(isinstance(system, str), "system", "a text", system)
    said = [text_of(message.get("content")) for message in messages if message["role"] in ("system", "developer")]
    if said and said[0] != system:
        raise wrong_value(
            "system",
            f"is {system[:80]!r}, but the conversation has a system message of its own, {said[0]!r}: drop one of them "
            "in the data, or leave the column unread, Chat(ignored_columns=['system']).",
        )
    return not said


def _messages(value: Any, column: str, ignored_keys: Sequence[str], kinds: Sequence[str]) -> list[Message]:
    if value is None:
        return []
    is_list = isinstance(value, list) and all(isinstance(message, Mapping) for message in value)
    require(is_list, column, f"a conversation, a list of {_MESSAGES}", f"{value!r:.80}")
    return [_message(message, column, ignored_keys, kinds) for message in value]


def _message(value: Mapping[str, Any], column: str, ignored_keys: Sequence[str], kinds: Sequence[str]) -> Message:
    # Fields of other rows are None.
    message = {name: part for name, part in value.items() if part is not None and name not in ignored_keys}
    is_sharegpt = "role" not in message and "from" in message and "value" in value
    if is_sharegpt:
        content = {"content": message.pop("value")} if "value" in message else {}
        message = {"role": message.pop("from"), **content, **message}
    elif "role" not in message or ("content" not in message and message.keys() & {"value", "text", "message"}):
        raise InvalidValueError(option=column, expected=f"a list of {_MESSAGES}", found=sorted(message))
    message["role"] = role = _role(message["role"], is_sharegpt)
    _check_content(message.get("content", ""), role, column, ignored_keys, kinds)
    if type(message.get("content")) is int:
        message["content"] = str(message["content"])
    given = [message.pop(name, None) for name in ("tool_calls", "function_call")]
    calls = [call for value in given if not is_nothing(value) for call in _tool_calls(value, column)]
    if role in _CALLS:
        message["role"] = "assistant"
        calls += _tool_calls(message.pop("content", None), column)
    return {**message, "tool_calls": calls} if calls else message


def _role(value: Any, is_sharegpt: bool) -> str:
    role = str(value).strip().lower()
    return "tool" if is_sharegpt and role == "observation" else _ROLES.get(role, role)


def _check_content(content: Any, role: str, column: str, ignored_keys: Sequence[str], kinds: Sequence[str]) -> None:
    if are_parts(content):
        known = ("type", "text", *ignored_keys)
        unread = [name for part in content for name, own in part.items() if name not in known and not is_nothing(own)]
        others = sorted({str(part["type"]) for part in content} - {*kinds})
        hint = "Remove the other parts in the data; images need trainer: sft and model.task: image-text-to-text."
        require(not others, column, f"of parts of the type {' or '.join(kinds)}", others, hint)
        if unread:
            text = "of a part of a content is not read: move it to its turn, or leave it unread by ignored_keys."
            raise wrong_value(unread[0], text)
    else:
        is_text = type(content) in (str, int) or (role == "tool" and isinstance(content, (float, list, Mapping)))
        require(is_text, column, 'contents that are a text, or parts {"type": "text", "text": ...}', content)


def _tool_calls(value: Any, column: str) -> list[dict[str, Any]]:
    """Reads calls: objects in a list, which stay as they are, or those in JSON and single ones."""
    calls = _parsed(value, column)
    given = calls if isinstance(calls, list) else [calls]
    made = [_with_function(call, column) for call in given]
    if given is not value:  # a single one, or in JSON
        return made
    is_own = [isinstance(call, dict) and not isinstance(call.get("function"), str) for call in given]
    return [call if own else new for call, own, new in zip(given, is_own, made, strict=True)]


def _is_learned(message: Message) -> bool:
    """Takes the weight out of a message."""
    weights = {name: message.pop(name) for name in _WEIGHTS if name in message}
    for name, weight in weights.items():
        hint = "Round it in the data, or put such rows in a stream of its own with a loss_weight."
        require(weight in (0, 1), name, "1 or true, or 0 or false", weight, hint)
    return all(weights.values())
