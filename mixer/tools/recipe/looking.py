"""Looks at the rows of a file or a folder: how a recipe could read them, the likeliest way first."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mixer.tools.recipe.data.formats.conversation import COLUMNS
from mixer.tools.recipe.data.local import is_pattern, splits_of
from mixer.tools.recipe.data.reading import Reading, TextRows
from mixer.tools.recipe.data.suffixes import suffix_of
from mixer.utils.errors import wrong_value
from mixer.utils.turns import unread_columns

_NUM_ROWS = 100  # to look at
_MOST_CLASSES = 200
_TURNS = ({"role", "content"}, {"from", "value"})
_PAIRS = (
    *(("instruction", "output"), ("instruction", "response"), ("prompt", "completion"), ("prompt", "response")),
    *(("question", "answer"), ("input", "output"), ("input", "target"), ("source", "target"), ("document", "summary")),
    *(("prompt", "chosen"), ("text", "code")),
)
_LABELS = ("label", "labels", "class", "category", "intent", "topic", "sentiment")
_TEXTS = ("text", "content", "document", "sentence", "review")


class Choice(NamedTuple):
    """A way to read rows.

    Args:
        format: Name of the format; empty for rows of tokens.
        arguments: Its arguments.
        why: What it goes by.
    """

    format: str
    arguments: dict[str, Any]
    why: str


class Look(NamedTuple):
    """What data look like.

    Args:
        path: Their path.
        splits: Names of their splits, the one to train on first.
        num_rows: Number of its rows.
        columns: Their columns.
        choices: Ways to read them, the likeliest first.
        unread: Columns that say something, which no chat has.
        classes: Values of the column of labels, if there is one.
        unit: What a row of text files is; `None` for other files.
    """

    path: str
    splits: list[str]
    num_rows: int
    columns: list[str]
    choices: list[Choice]
    unread: list[str]
    classes: list[Any]
    unit: TextRows | None


def look_at(path: str) -> Look:
    """Reads data and finds ways to read their rows.

    Args:
        path: A file, a folder or a pattern of files.

    Raises:
        FileNotFoundError: If there is none.
        ValueError: If they cannot be read, or a recipe has no format for them.
    """
    if not (Path(path).exists() or is_pattern(path)):
        raise FileNotFoundError(f"there is no file or folder {str(Path(path).absolute())!r}.")
    texts = [file for file in Path(path).rglob("*") if suffix_of(file) == ".txt"]
    unit: TextRows | None = (
        "document" if len(texts) > 1 else "line" if texts or suffix_of(Path(path)) == ".txt" else None
    )
    parts, load = splits_of(path, Reading(path, path, rows=unit or "line"))
    splits = sorted(parts, key=lambda name: not name.startswith("train"))
    rows = load(splits[0])
    first = rows[:_NUM_ROWS]
    columns = {name: next((value for value in values if value is not None), None) for name, values in first.items()}
    numbers = {name for name, values in first.items() if _are_numbers(values)}
    choices = list(_choices(columns, numbers))
    label = next((choice.arguments["label"] for choice in choices if choice.format == "Labelled"), None)
    classes = [] if label is None else [value for value in rows.unique(label) if value is not None]
    if len(classes) > min(_MOST_CLASSES, len(rows) // 2):  # texts or numbers
        choices = [choice for choice in choices if choice.format != "Labelled"]
    if not choices:
        has = f"The columns of {path!r} are {rows.column_names}: none has texts, chats or tokens"
        prompt, completion = f"{{{rows.column_names[0]}}}", f"{{{rows.column_names[-1]}}}"
        way = f"format: {{class_path: Prompt, init_args: {{prompt: {prompt!r}, completion: {completion!r}}}}}"
        text = f"{has}. Write its stream by hand with a format that makes texts of them, such as {way}."
        raise wrong_value("paths", text, found=rows.column_names)
    chat = next((choice.arguments.get("column", "messages") for choice in choices if choice.format == "Chat"), None)
    unread = [] if chat is None else unread_columns(columns, [chat, *COLUMNS])
    return Look(path, splits, len(rows), rows.column_names, choices, unread, sorted(classes, key=str), unit)


def _are_numbers(values: Sequence[Any]) -> bool:
    """Whether all texts are numbers, as CSV has them."""
    try:
        return all(value is None or isinstance(float(value), float) for value in values)
    except (TypeError, ValueError):
        return False


def _choices(columns: Mapping[str, Any], numbers: Collection[str]) -> Iterator[Choice]:
    """Lists the ways to read rows with these columns, each with its first value; some columns have only numbers."""
    if "input_ids" in columns:
        yield Choice("", {}, "the column input_ids has tokens")
    for name, value in columns.items():
        if isinstance(value, list) and value and all(_is_turn(turn) for turn in value):
            yield Choice("Chat", {} if name == "messages" else {"column": name}, f"the column {name} has turns")
    for asked, answered in _PAIRS:
        if {asked, answered} <= columns.keys():
            beside = "{input}\n" if asked == "instruction" and "input" in columns else ""
            yield _prompt(f"{{{asked}}}\n{beside}", answered, columns[answered])
    says = unread_columns(dict(columns), ())  # not those that tell rows apart
    texts = [name for name in says if isinstance(columns[name], str) and name not in {*_LABELS, *numbers}]
    texts.sort(key=lambda name: (name not in _TEXTS, -len(columns[name])))
    label = next((name for name in _LABELS if not isinstance(columns.get(name, []), list | Mapping)), None)
    if texts and label is not None:
        yield Choice("Labelled", {"text": texts[0], "label": label}, f"the column {label} has labels")
        yield _prompt(f"{{{texts[0]}}}\n", label, columns[label])
    for name in texts:
        yield Choice("Text", {} if name == "text" else {"column": name}, f"the column {name} has texts")


def _prompt(prompt: str, answered: str, value: Any) -> Choice:
    part = f"{answered}[0]" if isinstance(value, list) else answered  # one of several answers
    return Choice("Prompt", {"prompt": prompt, "completion": f"{{{part}}}"}, f"{part} is learned")


def _is_turn(value: Any) -> bool:
    return isinstance(value, Mapping) and any(keys <= value.keys() for keys in _TURNS)
