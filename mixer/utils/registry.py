"""Rules and classes looked up by name."""

import difflib
import importlib
import inspect
from collections.abc import Mapping
from typing import Any, TypeVar

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


Rule = TypeVar("Rule")


def choose(name: str, classes: Mapping[str, type[Rule]], option: str, kind: str) -> Rule:
    """Makes the rule that a name stands for, however it is cased, with `_`, `-` or none of them.

    Args:
        name: The name.
        classes: Classes by name.
        option: What the name was given as, for errors.
        kind: What the rules are, for errors.

    Returns:
        The rule, made without arguments.

    Raises:
        ValueError: If there is none of that name, or it needs arguments, or a class is written that cannot be made.
    """
    refuse_written(name, classes, option, kind)
    key = name.replace("_", "").replace("-", "").lower()
    by_key = {known.lower(): rule for known, rule in classes.items()}
    if key not in by_key:
        near = difflib.get_close_matches(key, by_key, n=1)
        hint = f" Did you mean {by_key[near[0]].__name__!r}?" if near else ""
        raise ValueError(f"{option}: no {kind} is called {name!r}; there are {list(classes)}.{hint}")
    rule = by_key[key]
    required = [
        parameter.name
        for parameter in inspect.signature(rule).parameters.values()
        if parameter.default is parameter.empty and parameter.kind is not parameter.VAR_KEYWORD
    ]
    if required:
        raise ValueError(f"{option}: {rule.__name__} needs {required}; give an instance: {rule.__name__}(...).")
    return rule()


def as_rule(given: Any, base: Any, classes: Mapping[str, type[Rule]], option: str) -> Rule:
    """Makes a rule of what a user gives as an option that is called after its kind.

    Args:
        given: A rule, or the name of one.
        base: The class that the rules derive from, an abstract one too.
        classes: Classes by name.
        option: The option, and what the rules are, for errors.

    Returns:
        The rule.

    Raises:
        ValueError: If there is none of that name, or it needs arguments.
        TypeError: If it is neither.
    """
    if isinstance(given, base):
        rule: Rule = given
        return rule
    if isinstance(given, str):
        return choose(given, classes, option, option)
    refuse_class(given, base, option)
    raise TypeError(f"{option} must be a {option} or the name of one, got {type(given).__name__}.")


def refuse_class(given: object, base: type, option: str) -> None:
    """Refuses a class where an instance belongs.

    Args:
        given: What was given.
        base: What the rules derive from.
        option: What it was given as.

    Raises:
        TypeError: If it is a class of such rules.
    """
    if inspect.isclass(given) and issubclass(given, base):
        raise TypeError(f"{option} is the class {given.__name__}; give an instance: {option}={given.__name__}(...).")
