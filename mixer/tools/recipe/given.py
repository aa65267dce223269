"""What a command is given of a recipe: its files and options as one mapping, in which the last one counts."""

import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any

import yaml

from mixer.tools.recipe.fields import ARGUMENTS, CLASS, CLASS_KEYS, check_fields, unknown_field
from mixer.tools.recipe.storage_options import STORAGE_OPTIONS, without_values
from mixer.tools.recipe.yaml_files import TwiceError, load_yaml
from mixer.utils.errors import ErrorFacts, wrong_value


@dataclass
class Given:
    """The words of a command.

    Args:
        fields: The recipe's fields as plain data; numbers of options are texts.
        files: The recipe's files.
        others: The words of all other options.
    """

    fields: dict[str, Any] = field(default_factory=dict)
    files: list[str] = field(default_factory=list)
    others: list[str] = field(default_factory=list)


def read_recipe_file(path: str) -> dict[str, Any]:
    """Reads the fields of a recipe's file.

    Raises:
        InvalidValueError: If it cannot be read as YAML.
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
        cause = " ".join(str(error).split())
        text = f"The file {path} cannot be read as YAML: {cause}"
        raise wrong_value("recipe", text, found=path) from None
    return content if isinstance(content, dict) else {}


def given_in(recipe_class: type, words: Sequence[str], options: Iterable[str]) -> Given:
    """Reads the words of a command.

    Args:
        recipe_class: The recipe's dataclass.
        words: The words, with each path of a recipe after `--recipe`.
        options: Options of the command's parser.

    Raises:
        InvalidValueError: If an option is unknown, or its value cannot be read; names it.
        FileNotFoundError: If a recipe's file does not exist.
    """
    known = sorted({option[2:].partition(".")[0] for option in options if option.startswith("--")})
    kinds = typing.get_type_hints(recipe_class)
    given, rest = Given(), iter(words)
    for word in rest:
        option, equals, value = word.partition("=")
        names = option[2:].removesuffix("+").split(".")
        if option.startswith("--") and names[0]:
            _check_name(recipe_class, names[0], option, known)
        is_field = names[0] in kinds and names[-1] != "help"
        if not option.startswith("--") or not (is_field or option == "--recipe"):
            given.others.append(word)
            continue
        value = value if equals else next(rest, "--")
        if not equals and value.startswith("--"):
            raise wrong_value(option, "It needs a value.")
        if is_field:
            _put_option(given.fields, option, names, value, kinds)
            continue
        given.files.append(value)
        for name, content in read_recipe_file(value).items():
            _check_name(recipe_class, str(name), str(name), known)
            given.fields[name] = _over(given.fields.get(name), content, kinds.get(name))
    return given


def check_recipe(recipe_class: type, content: Mapping[str, Any]) -> None:
    """Refuses a recipe's fields that are not of their types, or unknown, before it is parsed.

    Args:
        recipe_class: The recipe's dataclass.
        content: The fields as plain data.

    Raises:
        InvalidValueError: Names the field, without the values of storage options.
    """
    known = typing.get_type_hints(recipe_class)
    try:
        check_fields(recipe_class, {name: value for name, value in content.items() if name in known})
    except ErrorFacts as error:
        error.args = (without_values(str(error), content),)
        raise


def _check_name(recipe_class: type, name: str, written: str, known: Sequence[str]) -> None:
    """Refuses a name that is no option, and says where a field of that name is, such as `training.nonfinite`."""
    if name in known:
        return
    for section, kind in typing.get_type_hints(recipe_class).items():
        if is_dataclass(kind) and name in {own.name for own in fields(kind)}:
            place = written.replace(name, f"{section}.{name}", 1)
            raise wrong_value(written, f"Write {place}.", hint=place)
    raise unknown_field(written, name, known)


def _put_option(
    content: dict[str, Any], option: str, names: Sequence[str], text: str, kinds: Mapping[str, Any]
) -> None:
    """Puts an option's value in its place; one for an argument of a class leaves the others as they are."""
    value: Any = text
    try:
        loaded = load_yaml(text)
    except TwiceError as error:
        raise wrong_value(option, f"There, {error}.") from None
    except (ValueError, yaml.YAMLError):
        loaded = text
    if isinstance(loaded, dict | list) or text in ("null", "None"):
        value = None if text == "None" else loaded
    *path, last = names
    for name in path:
        content = _arguments_of(content, name)
        inner = content.get(name)
        inner = {CLASS: inner} if isinstance(inner, str) else inner
        content[name] = content = dict(inner) if isinstance(inner, Mapping) else {}
    if last == CLASS:
        content.clear()
    content = _arguments_of(content, last)
    before = content.get(last)
    if option.endswith("+"):
        content[last] = [*(before or []), *(value if isinstance(value, list) else [value])]
    else:
        content[last] = value if path else _over(before, value, kinds[last])


def _arguments_of(content: dict[str, Any], name: str) -> dict[str, Any]:
    """Returns the mapping that has an argument: that of a class stands in one of its own."""
    if CLASS not in content or name in CLASS_KEYS:
        return content
    content[ARGUMENTS] = arguments = dict(content.get(ARGUMENTS) or {})
    return arguments


def _over(before: Any, value: Any, kind: Any) -> Any:
    """Returns a field that is given anew: it starts from its defaults, but a section goes on from the one before."""
    goes_on = is_dataclass(kind) and isinstance(before, Mapping) and isinstance(value, Mapping)
    return {**before, **value} if goes_on else value
