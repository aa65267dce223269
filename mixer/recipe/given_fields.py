"""What a user gives of a recipe: the file and the options of the command line together, as plain data."""

import inspect
import json
import shlex
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import yaml

from mixer.recipe.unknown_fields import check_fields, is_mapping_in_mapping, unknown_field
from mixer.utils.yaml_files import load_yaml

_RECIPE = "--recipe"


class _Loader(yaml.SafeLoader):
    """Refuses a key that stands twice in a mapping, of which YAML would keep the last without a word."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node: yaml.MappingNode = super().compose_mapping_node(anchor)
        lines: dict[str, int] = {}
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value != "<<":
                line = key.start_mark.line + 1
                if key.value in lines:
                    raise ValueError(f"the key {key.value!r} stands twice, in line {lines[key.value]} and {line}")
                lines[key.value] = line
        return node


def check_given(recipe_class: type, arguments: Sequence[str], options: Collection[str]) -> None:
    """Refuses fields that the recipe does not have, in the file or on the command line.

    Args:
        recipe_class: The recipe's dataclass.
        arguments: Arguments of the command, the recipe's path behind `--recipe`.
        options: The options that the command's parser knows.

    Raises:
        ValueError: With the field, and the nearest that there is.
        FileNotFoundError: If there is no such file.
    """
    own = sorted({option[2:].partition(".")[0] for option in options if option.startswith("--")})
    given: dict[str, Any] = {}
    for name, value in _named(arguments):
        if f"--{name}" == _RECIPE:
            given.update(_read(value))
        elif name.partition(".")[0] not in own:
            raise ValueError(unknown_field(f"--{name}", name.partition(".")[0], own))
        else:
            _check_reached(recipe_class, name.split("."), value)
            _put(given, name.split("."), value)
    unknown = [name for name in given if name not in own]
    if unknown:
        raise ValueError(unknown_field(unknown[0], unknown[0], own))
    of_recipe = inspect.signature(recipe_class).parameters
    check_fields(recipe_class, {name: value for name, value in given.items() if name in of_recipe})


def _named(arguments: Sequence[str]) -> list[tuple[str, str]]:
    """Gives options with their values."""
    named = []
    for place, argument in enumerate(arguments):
        if argument.startswith("--") and len(argument) > 2:
            name, is_joined, value = argument[2:].partition("=")
            following = "".join(arguments[place + 1 : place + 2])
            named.append((name.removesuffix("+"), value if is_joined else following))
    return named


def _read(path: str) -> dict[str, Any]:
    if not Path(path).is_file():
        raise FileNotFoundError(f"recipe: there is no file {str(Path(path).absolute())!r}.")
    try:
        content = load_yaml(Path(path).read_text(encoding="utf-8"), _Loader)
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ValueError(f"recipe: {path} cannot be read as YAML: {' '.join(str(error).split())}") from None
    return content if isinstance(content, dict) else {}


def _check_reached(kind: type, names: Sequence[str], value: str) -> None:
    """Refuses an option below a mapping, such as `streams.a.arguments.x`, that the parser does not put there."""
    for place in range(1, len(names)):
        if is_mapping_in_mapping(kind, names[:place]):
            content: dict[str, Any] = {}
            _put(content, names[place:], value)
            whole = ".".join(names[:place])
            raise ValueError(
                f"--{'.'.join(names)}: {whole} is a mapping within another one, which no option reaches into: give it "
                f"whole, as JSON: --{whole} {shlex.quote(json.dumps(content, default=str))}."
            )


def _put(content: dict[str, Any], names: Sequence[str], value: str) -> None:
    """Puts an option where it stands in a recipe; a class that was written as a name gets room for its arguments."""
    *path, last = names
    for name in path:
        inner = content.get(name)
        if isinstance(inner, str):
            inner = {"class_path": inner}
        content[name] = content = inner if isinstance(inner, dict) else {}
    try:
        content[last] = load_yaml(value)
    except (ValueError, yaml.YAMLError):
        content[last] = value
