"""Plug-ins of other packages, by entry points."""

import ast
import warnings
from collections.abc import Callable, Collection
from importlib.abc import InspectLoader
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from typing import TypeVar

from mixer.utils.errors import InvalidValueError
from mixer.utils.hidden_names import check_found

_PlugIn = TypeVar("_PlugIn")


def load_plug_ins(
    group: str,
    kind: str,
    load: Callable[[EntryPoint, Collection[str]], tuple[str, _PlugIn]],
    used_names: Collection[str],
    stacklevel: int = 1,
) -> dict[str, _PlugIn]:
    """Loads the plug-ins of a group; those that fail to load are skipped with a warning.

    Args:
        group: Group of entry points.
        kind: Kind of plug-in, for warnings.
        load: Loads an entry point, given the names already used, and returns name and plug-in; may raise anything.
        used_names: Names already used.
        stacklevel: Stack level of warnings, counted from the caller.

    Returns:
        Plug-ins by name.
    """
    loaded: dict[str, _PlugIn] = {}
    for entry in entry_points(group=group):
        try:
            check_found(entry.module)  # before the file that hides it is run
            name, plug_in = load(entry, {*used_names, *loaded})
        except Exception as error:  # a broken package must not break runs that do not use it
            warnings.warn(_failure(entry, kind, "is skipped", error), stacklevel=stacklevel + 1)
        else:
            loaded[name] = plug_in
    return loaded


def load_plug_in(group: str, kind: str, name: str, expected: type[_PlugIn]) -> _PlugIn:
    """Loads the plug-in of a name, whose entry point is a factory without arguments.

    Args:
        group: Group of entry points.
        kind: Kind of plug-in, for errors.
        name: Name of the entry point, which exists.
        expected: Required class.

    Raises:
        ValueError: If it cannot be loaded; names the package and the cause.
    """
    entry = entry_point(group, name)
    try:
        check_found(entry.module)  # before the file that hides it is run
        return made_by(entry, (), kind, expected)[1]
    except Exception as error:
        raise InvalidValueError(_failure(entry, kind, "cannot be loaded", error), option=kind) from error


def entry_point(group: str, name: str) -> EntryPoint:
    """Returns a group's entry point of a name that exists."""
    return next(entry for entry in entry_points(group=group) if entry.name == name)


def plug_in_names(group: str) -> list[str]:
    """Lists the names of a group's entry points, without importing anything."""
    return [entry.name for entry in entry_points(group=group)]


def made_by(entry: EntryPoint, used_names: Collection[str], kind: str, expected: type[_PlugIn]) -> tuple[str, _PlugIn]:
    """Loads an entry point that is a factory without arguments.

    Args:
        entry: Entry point.
        used_names: Names already used.
        kind: Kind of plug-in, for errors.
        expected: Required class.

    Returns:
        Name and plug-in.

    Raises:
        ValueError: If the name is already used.
        TypeError: If the plug-in has another class.
    """
    _check_name(entry, used_names, kind)
    made = entry.load()()
    if not isinstance(made, expected):
        name = f"{expected.__module__}.{expected.__name__}"
        raise TypeError(f"{entry.value} returns a {type(made).__name__}, not a {name}")
    return entry.name, made


def summarised(entry: EntryPoint, used_names: Collection[str], kind: str) -> tuple[str, str]:
    """Reads what a factory makes from the first line of its docstring, without importing its module.

    Args:
        entry: Entry point of a function.
        used_names: Names already used.
        kind: Kind of plug-in, for errors.

    Returns:
        Name, and the line without its full stop: empty if the source does not have it.

    Raises:
        ValueError: If the name is already used.
        ModuleNotFoundError: If there is no such module.
    """
    _check_name(entry, used_names, kind)
    functions = (node for node in parsed_source(entry.module) if isinstance(node, ast.FunctionDef))
    docstrings = (ast.get_docstring(function) for function in functions if function.name == entry.attr)
    return entry.name, (next(docstrings, None) or "").partition("\n")[0].removesuffix(".")


def parsed_source(module: str) -> list[ast.stmt]:
    """Parses a module, of which only the packages above it are imported; nothing if it has no source.

    Raises:
        ModuleNotFoundError: If there is no such module.
    """
    spec = find_spec(module)
    if spec is None:
        raise ModuleNotFoundError(f"No module named {module!r}")
    source = spec.loader.get_source(module) if isinstance(spec.loader, InspectLoader) else None
    return ast.parse(source or "").body


def _check_name(entry: EntryPoint, used_names: Collection[str], kind: str) -> None:
    if entry.name in used_names:
        raise InvalidValueError(f"a {kind} {entry.name} exists already; rename it", option=kind, found=entry.name)


def _failure(entry: EntryPoint, kind: str, outcome: str, error: Exception) -> str:
    package = "an unknown package" if entry.dist is None else entry.dist.name
    return f"{kind} {entry.name} of {package} {outcome} ({type(error).__name__}: {error})."
