"""What other packages add, by entry points."""

import warnings
from collections.abc import Callable, Collection
from importlib.metadata import EntryPoint, entry_points
from typing import TypeVar

_PlugIn = TypeVar("_PlugIn")


def load_plug_ins(
    group: str,
    kind: str,
    load: Callable[[EntryPoint, Collection[str]], tuple[str, _PlugIn]],
    taken: Collection[str],
    stacklevel: int = 1,
) -> dict[str, _PlugIn]:
    """Loads what other packages add to a group.

    Args:
        group: Name of the group of entry points.
        kind: What one is called in warnings.
        load: Loads an entry point, given the names that are taken, and gives its name with it; it may raise anything.
        taken: Names that are taken beforehand.
        stacklevel: Of warnings, counted from the caller.

    Returns:
        By name; what cannot be loaded is left out with a warning that names it.
    """
    loaded: dict[str, _PlugIn] = {}
    for entry in entry_points(group=group):
        try:
            name, plug_in = load(entry, {*taken, *loaded})
        except Exception as error:  # a broken package must not break runs that do not use it
            package = "an unknown package" if entry.dist is None else entry.dist.name
            reason = f"{type(error).__name__}: {error}"
            warnings.warn(f"{kind} {entry.name} of {package} is skipped ({reason}).", stacklevel=stacklevel + 1)
        else:
            loaded[name] = plug_in
    return loaded


def made_by(entry: EntryPoint, taken: Collection[str], kind: str, expected: type[_PlugIn]) -> tuple[str, _PlugIn]:
    """Loads an entry point that is a function without arguments, which makes what is added.

    Args:
        entry: The entry point.
        taken: Names that are taken.
        kind: What one is called in errors.
        expected: The class of what it makes.

    Returns:
        Its name, and what it made.

    Raises:
        ValueError: If the name is taken.
        TypeError: If it makes something else.
    """
    if entry.name in taken:
        raise ValueError(f"a {kind} {entry.name} exists already; rename it")
    made = entry.load()()
    if not isinstance(made, expected):
        name = f"{expected.__module__}.{expected.__name__}"
        raise TypeError(f"{entry.value} returns a {type(made).__name__}, not a {name}")
    return entry.name, made
