"""Fields of a recipe that do not exist, found before it is parsed, so that the nearest one that does can be named."""

import importlib
import inspect
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Union

from mixer.utils.text import did_you_mean

_CLASS, _ARGUMENTS = "class_path", "init_args"
_OF_CLASSES = (_CLASS, _ARGUMENTS, "dict_kwargs")
_MOST_LISTED = 25


def check_fields(kind: Any, content: Any, field: str = "") -> None:
    """Refuses content with a field, at any depth, that its type does not have.

    Refuses words for a number too. What is wrong otherwise is left to whoever parses it, who does not name the field.

    Args:
        kind: The type: a dataclass, a class that is written by its path, a union, a list or a mapping of them.
        content: Plain data, as YAML gives it.
        field: Where it stands, for errors.

    Raises:
        ValueError: With the field, and the nearest that there is.
    """
    if isinstance(content, str):
        _check_class_name(kind, content, field)
        _check_number(kind, content, field)
    elif isinstance(content, list):
        for own in _options(kind):
            for number, part in enumerate(content if typing.get_origin(own) is list else ()):
                check_fields(typing.get_args(own)[0], part, f"{field}[{number}]")
    elif isinstance(content, Mapping):
        _check_mapping(kind, content, field)


def is_mapping_in_mapping(kind: Any, names: Sequence[str]) -> bool:
    """Says whether a field is a mapping of free content in an entry of another mapping.

    Args:
        kind: The type of the outermost content.
        names: The way to the field.

    Returns:
        Whether it is.
    """
    within = False
    for name in names:
        mapping = _mapping_of(kind)
        classes = [own for own in _options(kind) if inspect.isclass(own) and not _is_plain(own)]
        if mapping is not None:
            within, kind = True, typing.get_args(mapping)[1]
        elif classes:
            kind = _hints(classes[0]).get(name)
        else:
            return False
    return within and _mapping_of(kind) is not None


def _mapping_of(kind: Any) -> Any:
    return next((own for own in _options(kind) if typing.get_origin(own) is dict), None)


def _check_mapping(kind: Any, content: Mapping[str, Any], field: str) -> None:
    classes = [own for own in _options(kind) if inspect.isclass(own) and not _is_plain(own)]
    if _CLASS in content or _ARGUMENTS in content:
        found = _class_of(classes, str(content.get(_CLASS)), f"{_joined(field, _CLASS)}")
        if found is not None:
            _check_written_class(found, content, field)
        return
    mapping = _mapping_of(kind)
    if mapping is not None:
        for name, part in content.items():
            check_fields(typing.get_args(mapping)[1], part, _joined(field, str(name)))
    elif classes and not inspect.isabstract(classes[0]):
        _check_arguments(classes[0], content, field)


def _check_written_class(kind: type, content: Mapping[str, Any], field: str) -> None:
    """Checks `class_path` and `init_args`; on a command line, arguments stand beside them too."""
    beside = {name: part for name, part in content.items() if name not in _OF_CLASSES}
    _check_arguments(kind, beside, field, _OF_CLASSES)
    arguments = content.get(_ARGUMENTS)
    if isinstance(arguments, Mapping):
        _check_arguments(kind, arguments, _joined(field, _ARGUMENTS))


def _check_arguments(kind: type, content: Mapping[str, Any], field: str, more: tuple[str, ...] = ()) -> None:
    parameters = _parameters(kind)
    if parameters is None:
        return
    hints = _hints(kind)
    for name, part in content.items():
        if name not in parameters:
            raise ValueError(unknown_field(_joined(field, str(name)), str(name), [*parameters, *more]))
        check_fields(hints.get(name, Any), part, _joined(field, name))


def _parameters(kind: type) -> list[str] | None:
    """Gives the names that a class can be called with; `None` where it takes any."""
    names: list[str] = []
    for parameter in inspect.signature(kind).parameters.values():
        if parameter.kind is not parameter.VAR_KEYWORD:
            names.append(parameter.name)
        elif typing.get_origin(parameter.annotation) is typing.Unpack:
            names += typing.get_type_hints(typing.get_args(parameter.annotation)[0])
        else:
            return None
    return names


def unknown_field(field: str, name: str, known: list[str]) -> str:
    """Says that there is no such field.

    Args:
        field: Where it stands, with its name.
        name: Its name.
        known: The fields that there are.

    Returns:
        The message, with the nearest one; where none is near, with all if they are few.
    """
    near = did_you_mean(name, known)
    listed = f" There are {', '.join(known)}." if len(known) <= _MOST_LISTED else ""
    return f"{field}: there is no field {name!r}.{near or listed}"


def _check_class_name(kind: Any, name: str, field: str) -> None:
    """Refuses a name that is none of the classes', where a text can be nothing else."""
    options = _options(kind)
    classes = [own for own in options if inspect.isclass(own) and not _is_plain(own)]
    if len(classes) == 1 and inspect.isabstract(classes[0]) and str not in options:
        _class_of(classes, name, field)


def _check_number(kind: Any, text: str, field: str) -> None:
    """Refuses a text that is no number, where nothing else can stand; YAML takes `1e-3` for a text."""
    options = set(_options(kind))
    if text in ("None", "null") or not options & {int, float} or options - {int, float, type(None)}:
        return
    try:
        float(text)
    except ValueError:
        raise ValueError(f"{field}: it must be a number, got {text!r}.") from None


def _class_of(classes: list[Any], path: str, field: str) -> type | None:
    """Finds the class that is written; `None` where it cannot be known here."""
    if not classes:
        return None
    known = {own.__name__: own for base in classes for own in (base, *_subclasses(base))}
    if "." not in path:
        concrete = [name for name, own in known.items() if not inspect.isabstract(own) and not name.startswith("_")]
        if path not in known and path != "None":
            listed = f" There are {', '.join(sorted(concrete))}." if len(concrete) <= _MOST_LISTED else ""
            kind = classes[0].__name__
            raise ValueError(f"{field}: there is no {kind} {path!r}.{did_you_mean(path, concrete) or listed}")
        return known.get(path)
    module, _, name = path.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError):
        return None
    return found if inspect.isclass(found) else None


def _subclasses(kind: type) -> Iterator[type]:
    own: type
    for own in kind.__subclasses__():
        yield own
        yield from _subclasses(own)


def _options(kind: Any) -> tuple[Any, ...]:
    """Gives what a value of a type may be."""
    return typing.get_args(kind) if typing.get_origin(kind) in (Union, types.UnionType) else (kind,)


def _is_plain(kind: type) -> bool:
    return typing.get_origin(kind) is not None or kind.__module__ == "builtins" or kind is type(None)


def _hints(kind: type) -> Mapping[str, Any]:
    try:
        return typing.get_type_hints(kind.__init__)  # type: ignore[misc]
    except (NameError, TypeError):  # annotations of other packages that cannot be told here
        return {}


def _joined(field: str, name: str) -> str:
    return f"{field}.{name}" if field else name
