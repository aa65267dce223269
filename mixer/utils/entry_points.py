"""Plug-ins of other packages, by entry points."""

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
    """Loads the plug-ins of a group; those that fail to load are skipped with a warning.

    Args:
        group: Group of entry points.
        kind: Kind of plug-in, for warnings.
        load: Loads an entry point, given the names already used, and returns name and plug-in; may raise anything.
        taken: Names already used.
        stacklevel: Stack level of warnings, counted from the caller.

    Returns:
        Plug-ins by name.
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
    """Loads an entry point that is a factory without arguments.

    Args:
        entry: Entry point.
        taken: Names already used.
        kind: Kind of plug-in, for errors.
        expected: Required class.

    Returns:
        Name and plug-in.

    Raises:
        ValueError: If the name is already used.
        TypeError: If the plug-in has another class.
    """
    if entry.name in taken:
        raise ValueError(f"a {kind} {entry.name} exists already; rename it")
    made = entry.load()()
    if not isinstance(made, expected):
        name = f"{expected.__module__}.{expected.__name__}"
        raise TypeError(f"{entry.value} returns a {type(made).__name__}, not a {name}")
    return entry.name, made
