"""Values that are given anew on the command line, or in a second recipe: they start from their defaults.

jsonargparse keeps those arguments of the former class that the new one has too: `--mixing Uniform` would go on with the
`unit` of a recipe's `Fixed`.
"""

import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, Union

from mixer.tools.recipe.fields import option_at, put_option, read_recipe_file


def overriding(recipe_class: type, arguments: Sequence[str]) -> list[str]:
    """Empties each field before an option that gives it anew: a class, a mapping or a list.

    Args:
        recipe_class: The recipe's dataclass.
        arguments: Arguments of the command, with the recipe's path after `--recipe`; checked by `check_recipe`.

    Returns:
        The arguments, and those that empty fields. An option for one argument of a class, such as `--mixing.unit`,
        changes nothing else.
    """
    words: list[str] = []
    content: dict[str, Any] = {}
    for place, argument in enumerate(arguments):
        if (found := option_at(arguments, place)) is not None:
            option, value = found
            given = read_recipe_file(value) if option == "recipe" else {option.removesuffix(".class_path"): value}
            for name in given:
                empty = _emptied(recipe_class, name.split("."))
                if (
                    empty is not None
                    and _has(content, name.split("."))
                    and not argument.partition("=")[0].endswith("+")
                ):
                    words += [f"--{name}", empty]
            if option == "recipe":
                content.update(given)
            else:
                put_option(content, option.split("."), value)
        words.append(argument)
    return words


def _has(content: Any, names: Sequence[str]) -> bool:
    for name in names:
        content = content.get(name) if isinstance(content, Mapping) else None
    return content is not None


def _emptied(kind: Any, names: Sequence[str]) -> str | None:
    """Returns the text that empties a field; `None` for a plain value, or a field that cannot be empty."""
    options = typing.get_args(kind) if typing.get_origin(kind) in (Union, types.UnionType) else (kind,)
    if not names:
        origins = {typing.get_origin(option) for option in options}
        is_class = any(isinstance(own, type) and own.__module__ != "builtins" for own in options)
        if type(None) in options:
            return "null" if is_class or origins & {dict, list} else None
        return "{}" if dict in origins else "[]" if list in origins else None
    for option in options:
        if typing.get_origin(option) is dict:
            return _emptied(typing.get_args(option)[1], names[1:])
        hints = typing.get_type_hints(option) if isinstance(option, type) else {}
        if names[0] in hints:
            return _emptied(hints[names[0]], names[1:])
    return None
