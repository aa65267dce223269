"""Checks the fields of a recipe by their types, before it is parsed, and names the one that is wrong.

jsonargparse names neither the entry of a mapping (`streams.NAME`) that holds a wrong field nor the nearest known one.
"""

import functools
import importlib
import inspect
import operator
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, Literal, NoReturn, Union

from mixer.utils.errors import InvalidValueError, require, wrong_value
from mixer.utils.text import did_you_mean

CLASS, ARGUMENTS = "class_path", "init_args"
CLASS_KEYS = (CLASS, ARGUMENTS, "dict_kwargs")
_MOST_LISTED = 25
# Arguments of TRL's trainers that are looked for elsewhere.
_OF_TRL = ("pack", "packing", "packing_strategy", "assistant_only_loss", "completion_only_loss", "dataset_text_field")
_WORDS: Mapping[Any, str] = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a text",
    type(None): "null",
    list: "a list",
    dict: "a mapping",
}


def check_fields(kind: Any, content: Any, field: str = "") -> None:
    """Refuses unknown fields, unknown classes, and values of other types, at any depth.

    What it does not know of types is left to jsonargparse.

    Args:
        kind: The expected type: a dataclass, the base class of a written class, or a union, list or dict of these.
        content: Plain data from YAML.
        field: The name of the field, for errors.

    Raises:
        InvalidValueError: Names the field, and what was expected or the nearest known name.
    """
    options = options_of(kind)
    classes = [own for own in options if isinstance(own, type) and own.__module__ not in ("builtins", "types")]
    is_taken = not field or any(_takes(option, content) for option in options)
    require(is_taken, field, " or ".join(dict.fromkeys(map(_in_words, options))), content)
    if isinstance(content, str) and len(classes) == 1 and str not in options:
        written = _find_class(classes, content, field) if inspect.isabstract(classes[0]) else None
        if written is not None:
            _check_arguments(written, {}, field)
    elif isinstance(content, list):
        for number, part in enumerate(content):
            check_fields(_parts(options, list, 0), part, f"{field}[{number}]")
    elif isinstance(content, Mapping):
        _check_mapping(options, classes, content, field)


def _check_mapping(options: Sequence[Any], classes: Sequence[type], content: Mapping[str, Any], field: str) -> None:
    if CLASS in content or ARGUMENTS in content:
        written = _find_class(classes, str(content.get(CLASS)), field)
        if written is not None:
            beside = {name: part for name, part in content.items() if name not in CLASS_KEYS}
            arguments = content.get(ARGUMENTS)
            own = arguments if isinstance(arguments, Mapping) else {}
            _check_arguments(written, {**beside, **own}, field, CLASS_KEYS)
    elif (written := next((own for own in classes if content and _has_all(own, content)), None)) is not None:
        _check_arguments(written, content, field)
    elif any(typing.get_origin(option) is dict for option in options):
        for name, part in content.items():
            check_fields(_parts(options, dict, 1), part, _joined(field, str(name)))
    elif classes and not inspect.isabstract(classes[0]):
        _check_arguments(classes[0], content, field)


def options_of(kind: Any) -> tuple[Any, ...]:
    """Returns the types of a union, or the type itself."""
    return typing.get_args(kind) if typing.get_origin(kind) in (Union, types.UnionType) else (kind,)


def _parts(options: Iterable[Any], origin: type, place: int) -> Any:
    """Returns the type of the parts of a list, or a mapping."""
    kinds = tuple(typing.get_args(option)[place] for option in options if typing.get_origin(option) is origin)
    return functools.reduce(operator.or_, kinds) if kinds else Any


def _takes(kind: Any, content: Any) -> bool:
    """Whether a type takes a value, whose own parts are not looked at; numbers may be written as texts."""
    origin = typing.get_origin(kind) or kind
    if origin is Literal:
        return str(content) in map(str, typing.get_args(kind))
    if origin in (int, float, bool):
        return _is_number(origin, content)
    if origin is type(None):
        return content in (None, "None", "null")
    if origin in (str, list, dict):
        return isinstance(content, origin)
    if is_dataclass(kind):
        return isinstance(content, Mapping)
    is_written = inspect.isclass(kind) and inspect.isabstract(kind) and kind.__module__ != "collections.abc"
    return not is_written or isinstance(content, Mapping | str)


def _is_number(kind: type, content: Any) -> bool:
    if not isinstance(content, str):
        return isinstance(content, bool) if kind is bool else type(content) in (int, kind)
    if kind is bool:
        return content.lower() in ("true", "false")
    try:
        kind(content)  # YAML reads 1e-3 as text
    except ValueError:
        return False
    return True


def _in_words(kind: Any) -> str:
    origin = typing.get_origin(kind) or kind
    if origin is Literal:
        return f"one of {', '.join(map(str, typing.get_args(kind)))}"
    return _WORDS.get(origin, getattr(origin, "__name__", str(origin)))


def _has_all(kind: type, content: Mapping[str, Any]) -> bool:
    """Whether a mapping gives fields of a dataclass, where it could also be one of names."""
    return is_dataclass(kind) and content.keys() <= {own.name for own in fields(kind)}


def _check_arguments(kind: type, content: Mapping[str, Any], field: str, more: Sequence[str] = ()) -> None:
    known = parameters_of(kind)
    if known is None:
        return
    for name, part in content.items():
        if name not in known:
            raise unknown_field(_joined(field, str(name)), str(name), [*known, *more])
        check_fields(known[name], part, _joined(field, name))
    parameters = inspect.signature(kind).parameters.values()
    lacking = [own.name for own in parameters if own.default is own.empty and own.name in known.keys() - content.keys()]
    if lacking and field:
        _refuse_lacking(kind, lacking, field)


def _refuse_lacking(kind: type, lacking: Sequence[str], field: str) -> NoReturn:
    arguments = ", ".join(f"{name}: ..." for name in lacking)
    written = f"{{{CLASS}: {kind.__name__}, {ARGUMENTS}: {{{arguments}}}}}"
    text = f"{kind.__name__} needs {', '.join(lacking)}: write {written}."
    raise InvalidValueError(f"{field}: {text}", option=field, expected=lacking[0])


def parameters_of(kind: type) -> dict[str, Any] | None:
    """Returns the types of a class's arguments by name; `None` if it takes any."""
    try:
        hints = typing.get_type_hints(kind.__init__)  # type: ignore[misc]
    except (NameError, TypeError):  # annotations of other packages may not resolve
        hints = {}
    known: dict[str, Any] = {}
    for name, parameter in inspect.signature(kind).parameters.items():
        if parameter.kind is not parameter.VAR_KEYWORD:
            known[name] = hints.get(name, Any)
        elif typing.get_origin(parameter.annotation) is typing.Unpack:
            known |= dict.fromkeys(typing.get_type_hints(typing.get_args(parameter.annotation)[0]), Any)
        else:
            return None
    return known


def unknown_field(field: str, name: str, known: Sequence[str]) -> InvalidValueError:
    """Makes the error of a field that there is not, with the nearest one.

    Args:
        field: The field with its sections.
        name: Its last name.
        known: The fields that there are.
    """
    hint = _nearest(name, known)
    if name in _OF_TRL:
        training = "{packing: true}" if name == "pack" else f"{{{name}: ...}}"
        hint = f" It is an argument of TRL's trainers: give the recipe trainer, such as sft, and training: {training}."
    return wrong_value(field, f"There is no field {name!r}.{hint}", found=name, hint=hint.strip())


def _nearest(name: str, known: Sequence[str]) -> str:
    """Names the nearest known name; all of a few if none is near."""
    return did_you_mean(name, known) or (f" There are {', '.join(known)}." if len(known) <= _MOST_LISTED else "")


def _find_class(classes: Sequence[type], path: str, field: str) -> type | None:
    """Finds a class by its path or, if it is imported, by its name; `None` if that is left to jsonargparse."""
    module, _, name = path.rpartition(".")
    if not classes:
        return None
    if module:
        try:
            written = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError, ValueError):
            return None
        return written if inspect.isclass(written) else None
    known = {own.__name__: own for base in classes for own in subclasses_of(base)}
    if path not in known:
        from mixer.policies.registry import policy_classes  # imports other packages' policies, which are known then

        policy_classes()
        known |= {own.__name__: own for base in classes for own in subclasses_of(base)}
    if path not in known and path != "None":
        usable = sorted(name for name, own in known.items() if not (inspect.isabstract(own) or name.startswith("_")))
        hint = _nearest(path, usable)
        text = f"there is no {classes[0].__name__} {path!r}.{hint}"
        raise InvalidValueError(f"{field}: {text}", option=field, found=path, hint=hint.strip())
    return known.get(path)


def subclasses_of(kind: type) -> list[type]:
    """Lists a class and all imported ones derived from it."""
    children: list[type] = kind.__subclasses__()
    return [kind, *(own for child in children for own in subclasses_of(child))]


def _joined(field: str, name: str) -> str:
    return f"{field}.{name}" if field else name
