"""Classes written as `{"class_path": ..., "init_args": {...}}` that a parser of commands took for a name.

Where the arguments of such a class do not fit, the parser goes on to the next kind of value that the option may have,
which is a text. What was wrong shows again when the class is made.
"""

import importlib
import inspect
from collections.abc import Mapping
from typing import Any

import yaml

from mixer.utils.yaml_files import load_yaml


def refuse_written(text: str, classes: Mapping[str, type], option: str, kind: str) -> None:
    """Refuses a text that writes a class, with what is wrong about it.

    Args:
        text: What was given.
        classes: Classes by name.
        option: What it was given as.
        kind: What the classes are.

    Raises:
        ValueError: If it begins as a mapping does.
    """
    if not text.lstrip().startswith("{"):
        return
    try:
        written = load_yaml(text)
    except (ValueError, yaml.YAMLError):
        written = None
    if not isinstance(written, Mapping) or "class_path" not in written:
        raise ValueError(
            f"{option}: {text} is no {kind}: write a name, or a class with its arguments, as "
            f'{{"class_path": {next(iter(classes))!r}, "init_args": {{}}}}.'
        )
    try:
        made = _make(written, classes, kind)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{option}: {error}") from error
    takes = inspect.signature(type(made))
    raise ValueError(f"{option}: {text} has an argument of the wrong kind; it is {type(made).__name__}{takes}.")


def _make(written: Any, classes: Mapping[str, type], kind: str) -> Any:
    """Makes what is written, classes within it too."""
    if isinstance(written, list):
        return [_make(part, classes, kind) for part in written]
    if not isinstance(written, Mapping):
        return written
    if "class_path" not in written:
        return {name: _make(part, classes, kind) for name, part in written.items()}
    found = _find(str(written["class_path"]), classes, kind)
    arguments = _make(written.get("init_args") or {}, classes, kind)
    try:
        return found(**arguments)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{found.__name__}: {error}") from error


def _find(path: str, classes: Mapping[str, type], kind: str) -> type:
    module, _, name = path.rpartition(".")
    if name in classes:
        return classes[name]
    try:
        found: type = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError):
        raise ValueError(f"no {kind} is called {path!r}; there are {list(classes)}.") from None
    return found
