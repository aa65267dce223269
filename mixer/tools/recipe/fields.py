"""Checks the fields of a recipe, in its file and on the command line, before the recipe is parsed.

jsonargparse names neither the entry of a mapping (`streams.NAME`) that holds a wrong field nor the nearest known one.
"""

import importlib
import inspect
import json
import re
import shlex
import types
import typing
from argparse import ArgumentError
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, Union

import yaml
from jsonargparse import ArgumentParser

from mixer.utils.storage_options import STORAGE_OPTIONS, without_values
from mixer.utils.text import did_you_mean, shortened
from mixer.utils.yaml_files import TwiceError, load_yaml

_CLASS, _ARGUMENTS = "class_path", "init_args"
_CLASS_KEYS = (_CLASS, _ARGUMENTS, "dict_kwargs")
_MOST_LISTED = 25
# Lines of jsonargparse's errors without a cause.
_FRAMES = (
    *("Parser key", "Problem with given class_path", "Does not validate against", "Subtypes:", "Errors:"),
    *("Given value type:", "Expected a <class 'NoneType'>", "Expected <class 'NoneType'>"),
)
# Arguments of TRL's trainers that are looked for elsewhere.
_OF_TRL = ("pack", "packing", "packing_strategy", "assistant_only_loss", "completion_only_loss", "dataset_text_field")
# A class without arguments that it needs.
_LACKING = re.compile(r"given class_path '([\w.]+)':\s+the following arguments are required: ([\w, ]+)")


class _FromOptions(dict[str, Any]):
    """A mapping with an entry, its last, from an option of the command line."""


def check_recipe(recipe_class: type, arguments: Sequence[str], options: Iterable[str]) -> dict[str, Any]:
    """Refuses unknown fields, unknown classes and text in place of a number, in the file and in options.

    Args:
        recipe_class: The recipe's dataclass.
        arguments: Arguments of the command, with the recipe's path after `--recipe`.
        options: Options of the command's parser.

    Returns:
        The recipe's fields as plain data.

    Raises:
        ValueError: Names the field and the nearest known one.
        FileNotFoundError: If the recipe's file does not exist.
    """
    known = sorted({option[2:].partition(".")[0] for option in options if option.startswith("--")})
    content: dict[str, Any] = {}
    for option, value in _options_in(arguments):
        first, *_ = names = option.split(".")
        if option == "recipe":
            content.update(read_recipe_file(value))
        elif first not in known:
            within = _field_with(recipe_class, first)
            raise ValueError(f"--{option}: write --{within}." if within else unknown_field(f"--{option}", first, known))
        else:
            put_option(content, names, value)
    for name in content:
        if name not in known:
            within = _field_with(recipe_class, name)
            raise ValueError(f"{name}: write {within}." if within else unknown_field(name, name, known))
    recipe = {name: content[name] for name in inspect.signature(recipe_class).parameters if name in content}
    try:
        check_fields(recipe_class, recipe)
    except ValueError as error:
        raise ValueError(without_values(str(error), recipe)) from None
    return recipe


def _options_in(arguments: Sequence[str]) -> list[tuple[str, str]]:
    return [found for place in range(len(arguments)) if (found := option_at(arguments, place)) is not None]


def trainer_in(arguments: Sequence[str]) -> str | None:
    """Returns the trainer that a recipe's file names, or an option in its place; `None` for none."""
    trainer: Any = None
    for option, value in _options_in(arguments):
        if option == "recipe" and Path(value).is_file():
            trainer = read_recipe_file(value).get("trainer", trainer)
        elif option == "trainer":
            trainer = None if value in ("null", "None") else value
    return None if trainer is None else str(trainer)


def option_at(arguments: Sequence[str], place: int) -> tuple[str, str] | None:
    """Returns the option at a place of a command's arguments, and its value; `None` if there is none."""
    name, equals, value = arguments[place][2:].partition("=")
    if not arguments[place].startswith("--") or not name:
        return None
    return name.removesuffix("+"), value if equals else "".join(arguments[place + 1 : place + 2])


def read_recipe_file(path: str) -> dict[str, Any]:
    """Reads the fields of a recipe's file.

    Raises:
        ValueError: If it cannot be read as YAML.
        FileNotFoundError: If it does not exist.
    """
    if not Path(path).is_file():
        raise FileNotFoundError(f"recipe: there is no file {str(Path(path).absolute())!r}.")
    text = ""
    try:
        text = Path(path).read_text(encoding="utf-8")
        content = load_yaml(text)
    except (OSError, ValueError, yaml.YAMLError) as error:
        for mark in ("context_mark", "problem_mark"):
            if STORAGE_OPTIONS in text and getattr(error, mark, None) is not None:
                getattr(error, mark).buffer = None  # the error would quote the line
        raise ValueError(f"recipe: {path} cannot be read as YAML: {' '.join(str(error).split())}") from None
    return content if isinstance(content, dict) else {}


def put_option(content: dict[str, Any], names: Sequence[str], value: str) -> None:
    """Puts an option's value in its place; arguments of a class that was written as a name stand beside the name."""
    *path, last = names
    for name in path:
        inner = content.get(name)
        inner = {_CLASS: inner} if isinstance(inner, str) else inner
        content[name] = content = _FromOptions(inner if isinstance(inner, dict) else {})
    content.pop(last, None)
    try:
        content[last] = load_yaml(value)
    except TwiceError as error:
        raise ValueError(f"--{'.'.join(names)}: {error}.") from None
    except (ValueError, yaml.YAMLError):
        content[last] = value


def check_fields(kind: Any, content: Any, field: str = "", in_mapping: bool = False) -> None:
    """Refuses unknown fields, unknown classes and text in place of a number, at any depth.

    jsonargparse refuses all other wrong values.

    Args:
        kind: The expected type: a dataclass, the base class of a written class, or a union, list or dict of these.
        content: Plain data from YAML.
        field: The name of the field, for errors.
        in_mapping: Whether the field is within an entry of a mapping.

    Raises:
        ValueError: Names the field and the nearest known one.
    """
    options = typing.get_args(kind) if typing.get_origin(kind) in (Union, types.UnionType) else (kind,)
    if isinstance(content, str):
        _check_text(options, content, field)
    elif isinstance(content, list):
        for item in (typing.get_args(option)[0] for option in options if typing.get_origin(option) is list):
            for number, part in enumerate(content):
                check_fields(item, part, f"{field}[{number}]")
    elif isinstance(content, Mapping):
        _check_mapping(options, content, field, in_mapping)


def _check_text(options: Collection[Any], text: str, field: str) -> None:
    classes = _classes(options)
    if len(classes) == 1 and inspect.isabstract(classes[0]) and str not in options:
        _find_class(classes, text, field)
    if text in ("None", "null") or not {int, float} & {*options} or {*options} - {int, float, type(None)}:
        return
    try:
        float(text)  # YAML reads 1e-3 as text
    except ValueError:
        raise ValueError(f"{field}: it must be a number, got {text!r}.") from None


def _check_mapping(options: Collection[Any], content: Mapping[str, Any], field: str, in_mapping: bool) -> None:
    classes = _classes(options)
    entries = [typing.get_args(option)[1] for option in options if typing.get_origin(option) is dict]
    if _CLASS in content or _ARGUMENTS in content:
        written = _find_class(classes, str(content.get(_CLASS)), _joined(field, _CLASS))
        if written is not None:
            beside = {name: part for name, part in content.items() if name not in _CLASS_KEYS}
            _check_arguments(written, beside, field, _CLASS_KEYS)
            arguments = content.get(_ARGUMENTS)
            _check_arguments(written, arguments if isinstance(arguments, Mapping) else {}, _joined(field, _ARGUMENTS))
    elif (written := next((one for one in classes if _has_all(one, content)), None)) is not None:
        _check_arguments(written, content, field, in_mapping=in_mapping)
    elif entries:
        if in_mapping and isinstance(content, _FromOptions):
            last = next(reversed(content))
            raise ValueError(
                f"--{field}.{last}: {field} is a mapping within another one, and no option reaches into it: give it "
                f"whole, as JSON: --{field} {shlex.quote(json.dumps(content, default=str))}."
            )
        for name, part in content.items():
            check_fields(entries[0], part, _joined(field, str(name)), in_mapping=True)
    elif classes and not inspect.isabstract(classes[0]):
        _check_arguments(classes[0], content, field, in_mapping=in_mapping)


def _has_all(kind: type, content: Mapping[str, Any]) -> bool:
    """Whether a mapping gives fields of a dataclass, where it could also be one of names."""
    return is_dataclass(kind) and content.keys() <= {own.name for own in fields(kind)}


def _check_arguments(
    kind: type, content: Mapping[str, Any], field: str, more: Sequence[str] = (), in_mapping: bool = False
) -> None:
    known = _parameters(kind)
    if known is None:
        return
    for name, part in content.items():
        if name not in known:
            raise ValueError(unknown_field(_joined(field, str(name)), str(name), [*known, *more]))
        check_fields(known[name], part, _joined(field, name), in_mapping)


def _parameters(kind: type) -> dict[str, Any] | None:
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


def unknown_field(field: str, name: str, known: Sequence[str]) -> str:
    """Says that there is no such field, and which one is near.

    Args:
        field: The field with its sections.
        name: Its last name.
        known: The fields that there are.
    """
    hint = _nearest(name, known)
    if name in _OF_TRL:
        training = "{packing: true}" if name == "pack" else f"{{{name}: ...}}"
        hint = f" It is an argument of TRL's trainers: give the recipe trainer, such as sft, and training: {training}."
    return f"{field}: there is no field {name!r}.{hint}"


def _field_with(recipe_class: type, name: str) -> str | None:
    """Finds the field of a recipe whose dataclass has a field of this name, such as `training.nonfinite`."""
    kinds = typing.get_type_hints(recipe_class).items()
    has = (field for field, kind in kinds if is_dataclass(kind) and name in {own.name for own in fields(kind)})
    return next((f"{field}.{name}" for field in has), None)


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
    known = {own.__name__: own for base in classes for own in _subclasses(base)}
    if path not in known:
        from mixer.policies.registry import policy_classes  # imports other packages' policies, which are known then

        policy_classes()
        known |= {own.__name__: own for base in classes for own in _subclasses(base)}
    if path not in known and path != "None":
        usable = sorted(name for name, own in known.items() if not (inspect.isabstract(own) or name.startswith("_")))
        raise ValueError(f"{field}: there is no {classes[0].__name__} {path!r}.{_nearest(path, usable)}")
    return known.get(path)


def _subclasses(kind: type) -> list[type]:
    children: list[type] = kind.__subclasses__()
    return [kind, *(own for child in children for own in _subclasses(child))]


def _classes(options: Iterable[Any]) -> list[type]:
    """Lists the options that are written as a class or a dataclass."""
    return [own for own in options if isinstance(own, type) and own.__module__ not in ("builtins", "types")]


def _joined(field: str, name: str) -> str:
    return f"{field}.{name}" if field else name


def check_written_classes(recipe_class: type, values: Any) -> None:
    """Refuses a class with wrong arguments in a field that also takes a name: jsonargparse keeps the text as a name.

    Args:
        recipe_class: The recipe's dataclass.
        values: Parsed values by field, a namespace or a mapping.

    Raises:
        ValueError: Names the argument, the expected type and the value.
    """
    for name, kind in typing.get_type_hints(recipe_class).items():
        text, classes = values.get(name), _classes(typing.get_args(kind))
        if isinstance(text, str) and text.lstrip().startswith("{") and classes:
            parser = ArgumentParser(exit_on_error=False)
            parser.add_argument(f"--{name}", type=classes[0])
            try:
                parser.parse_args([f"--{name}", text])
            except ArgumentError as error:
                raise ValueError(_in_short(error)) from None


def explain_parser_error(error: ArgumentError, recipe_class: type, content: Mapping[str, Any]) -> str:
    """Explains why jsonargparse refused a recipe, in one line.

    Args:
        error: The error, which names a mapping such as `streams`, but not its entry.
        recipe_class: The recipe's dataclass.
        content: The recipe as `check_recipe` returns it; its entries are parsed one by one to find the wrong one.
    """
    error = ArgumentError(None, without_values(str(error), content))
    for field, kind in typing.get_type_hints(recipe_class).items():
        entries = content.get(field)
        if typing.get_origin(kind) is dict and isinstance(entries, Mapping) and f'"{field}"' in str(error):
            parser = ArgumentParser(exit_on_error=False)
            parser.add_argument("--entry", type=typing.get_args(kind)[1])
            for name, part in entries.items():
                try:
                    parser.parse_object({"entry": part})
                except ArgumentError as own:
                    own = ArgumentError(None, without_values(str(own), content))
                    return _in_short(own).replace("entry", f"{field}.{name}", 1)
    return _in_short(error)


def _in_short(error: ArgumentError) -> str:
    """Shortens a nested error to the field, the causes and the value."""
    if (lacking := _LACKING.search(str(error))) is not None:
        field, name = _field_in(str(error)[: lacking.start()]), lacking[1].rpartition(".")[2]
        arguments = ", ".join(f"{argument}: ..." for argument in lacking[2].split(", "))
        return f"{field}: {name} needs {lacking[2]}: write {{class_path: {name}, init_args: {{{arguments}}}}}."
    lines = [line.strip().removeprefix("- ") for line in str(error).splitlines()]
    lines = [line.partition("; Given value: NestedArg")[0] for line in lines if not line.startswith(_FRAMES)]
    causes = "; ".join(shortened(line) for line in lines)
    field = _field_in(str(error))
    return f"{field}: {causes}" if field else causes


def _field_in(text: str) -> str:
    return ".".join(re.findall(r'Parser key "(.+?)"', text))
