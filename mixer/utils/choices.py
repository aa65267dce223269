"""Rules chosen by name."""

import difflib
import inspect
from collections.abc import Mapping
from typing import Any, TypeVar

from mixer.utils.written_class import refuse_written

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
