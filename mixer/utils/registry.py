"""Policies, schedules and other rules by name."""

import difflib
import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from mixer.utils.errors import InvalidValueError, wrong_type

Rule = TypeVar("Rule")


def choose(name: str, classes: Mapping[str, Callable[..., Rule]], option: str, kind: str) -> Rule:
    """Builds a rule by name; case, `_` and `-` do not matter.

    Args:
        name: The name.
        classes: Classes, or functions that build a rule, by name.
        option: The user's option, for errors.
        kind: A word for such a rule, for errors.

    Returns:
        The rule, built without arguments.

    Raises:
        ValueError: If the name is unknown, or the rule needs arguments.
    """
    key = name.replace("_", "").replace("-", "").lower()
    by_key = {known.lower(): known for known in classes}
    if key not in by_key:
        near = difflib.get_close_matches(key, by_key, n=1)
        hint = f" Did you mean {by_key[near[0]]!r}?" if near else ""
        raise InvalidValueError(
            f"{option}: no {kind} is called {name!r}.{hint} There are {', '.join(classes)}.", option=option
        )
    known = by_key[key]
    rule = classes[known]
    required = [
        parameter.name
        for parameter in inspect.signature(rule).parameters.values()
        if parameter.default is parameter.empty and parameter.kind is not parameter.VAR_KEYWORD
    ]
    if required:
        raise InvalidValueError(f"{option}: {known} needs {required}; give an instance: {known}(...).", option=option)
    return rule()


def as_rule(value: Any, base: Any, classes: Mapping[str, type[Rule]], option: str) -> Rule:
    """Returns a rule as it is, or builds it by name.

    Args:
        value: A rule or the name of one.
        base: The base class of these rules.
        classes: Classes by name.
        option: The user's option and the word for such a rule, for errors.

    Raises:
        ValueError: If the name is unknown, or the rule needs arguments.
        TypeError: If the value is neither a rule nor a name.
    """
    if isinstance(value, base):
        rule: Rule = value
        return rule
    if isinstance(value, str):
        return choose(value, classes, option, option)
    refuse_class(value, base, option)
    raise wrong_type(option, f"must be a {option} or the name of one, got {type(value).__name__}.")


def refuse_class(value: object, base: type, option: str) -> None:
    """Refuses a class in place of an instance.

    Args:
        value: The user's value.
        base: The base class of these rules.
        option: The user's option, for errors.

    Raises:
        TypeError: If the value is a subclass of `base`.
    """
    if inspect.isclass(value) and issubclass(value, base):
        raise wrong_type(option, f"is the class {value.__name__}; give an instance: {option}={value.__name__}(...).")
