"""Policies, schedules and other rules by name: those that a package exports, and those of other packages."""

import difflib
import inspect
import sys
from collections.abc import Callable, Collection, Mapping
from functools import cache
from importlib.metadata import EntryPoint
from typing import Any, TypeVar

from mixer.utils.entry_points import load_plug_ins
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


def built_in_rules(package: str, base: Any) -> dict[str, type[Any]]:
    """Returns the rules of a package by name: its imports are the one list of them.

    A rule is a class that stands in a file of its own in the package, or in its folder `wrappers`; abstract classes and
    shared ones are none.

    Args:
        package: Name of the package, which is imported.
        base: The base class of these rules.
    """
    folders = (package, f"{package}.wrappers")
    classes = {name: value for name, value in vars(sys.modules[package]).items() if inspect.isclass(value)}
    rules = {name: value for name, value in classes.items() if value.__module__.rpartition(".")[0] in folders}
    return {name: rule for name, rule in rules.items() if issubclass(rule, base) and not inspect.isabstract(rule)}


def known_rules(package: str, base: Any, kinds: str) -> dict[str, type[Any]]:
    """Returns the rules of a package and those of other packages, by name.

    A package adds its own by entry points of the group `adaptive_mixer.KINDS`, one per class: `Name =
    "package.module:Name"`. Plug-ins that cannot be loaded are left out with a warning.

    Args:
        package: Name of the package, which is imported.
        base: The base class of these rules.
        kinds: A word for such rules, in the plural.
    """
    built_in = built_in_rules(package, base)
    return {**built_in, **_plugged_in(kinds, base, frozenset(built_in))}


@cache
def _plugged_in(kinds: str, base: Any, used_names: frozenset[str]) -> dict[str, type[Any]]:
    """Loads the plug-ins once: importing them takes time, and one warning is enough."""
    kind = base.__name__.lower()

    def load(entry: EntryPoint, used_names: Collection[str]) -> tuple[str, type[Any]]:
        rule = entry.load()
        if not (inspect.isclass(rule) and issubclass(rule, base)):
            raise TypeError(f"{entry.value} is no class of {kinds}; derive it from {base.__name__}")
        if rule.__name__ in used_names:
            raise ValueError(f"there already is a {kind} {rule.__name__}; give the class another name")
        return rule.__name__, rule

    return load_plug_ins(f"adaptive_mixer.{kinds}", kind, load, used_names, stacklevel=4)
