"""Rules by name: those that a package exports, and those of other packages."""

import inspect
import sys
from collections.abc import Collection
from functools import cache
from importlib.metadata import EntryPoint
from typing import Any

from mixer.utils.entry_points import load_plug_ins


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
