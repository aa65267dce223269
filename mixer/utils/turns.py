"""Turns of conversations: what a chat template reads of them."""

from collections.abc import Callable, Sequence
from typing import Any

from jinja2 import TemplateError

Turn = dict[str, Any]
Render = Callable[[list[Turn]], Any]

# Columns that tell rows apart, and say where they come from.
_OF_ROWS = ("id", "idx", "index", "uuid", "hash", "source", "dataset", "url")
# Keys of a tool's answer that say which call it answers.
_LINKS = ("tool_call_id", "name")
# Errors of templates about a conversation that they do not take.
_REFUSALS = (TemplateError, ValueError, TypeError, LookupError, AttributeError)


def is_nothing(value: Any) -> bool:
    """Returns whether a value says nothing: `None`, or an empty text, list or object."""
    return value is None or (isinstance(value, str | list | dict) and not value)


def unread_columns(row: Turn, read: Sequence[str]) -> list[str]:
    """Lists the columns of a row that say something and are not read; those that tell rows apart are none.

    Args:
        row: The row.
        read: The columns that are read.
    """
    return [
        name
        for name, value in row.items()
        if not (name in read or name in _OF_ROWS or name.endswith("_id") or is_nothing(value))
    ]


def unread_keys(render: Render, turns: list[Turn]) -> list[tuple[int, str]]:
    """Lists the keys beside role and content that a template does not read, each after the number of its turn.

    Args:
        render: Applies the template.
        turns: The turns; keys without a value are `None` or not there.
    """
    return [
        (number, key)
        for number, turn in enumerate(turns)
        for key, value in turn.items()
        if key not in ("role", "content")
        and not is_nothing(value)
        and not (turn["role"] == "tool" and key in _LINKS)
        and not _reads(render, turns, number, key)
    ]


def try_to_render(render: Render, turns: list[Turn]) -> str | None:
    """Renders turns; gives `None` if the template refuses them."""
    try:
        return str(render(turns))
    except _REFUSALS:
        return None


def _reads(render: Render, turns: list[Turn], number: int, key: str) -> bool:
    """Returns whether the text differs without the key, or with another value: of `tool_calls`, without any of them.

    Some templates read a key in the last turn alone, as Qwen3's reads reasoning, so the turn also stands last.
    """
    turn, value = turns[number], turns[number][key]
    parts = range(len(value)) if key == "tool_calls" and isinstance(value, list) else range(0)
    without = [{name: part for name, part in turn.items() if name != key}]
    if isinstance(value, bool | int | float):
        changes = [[*without, {**turn, key: not value}]]
    elif len(parts) > 1:
        changes = [[{**turn, key: [*value[:place], *value[place + 1 :]]}] for place in parts]
    else:
        changes = [without]
    whole, last = turns, turns[: number + 1]
    texts = [(shown, try_to_render(render, shown)) for shown in ([whole] if whole == last else [whole, last])]
    return all(
        any(
            try_to_render(render, [*shown[:number], other, *shown[number + 1 :]]) != text
            for shown, text in texts
            for other in others
        )
        for others in changes
    )
