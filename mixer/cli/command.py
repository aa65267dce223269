"""The commands of the command line, plug-ins of other packages included."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from types import MappingProxyType
from typing import Any, TypeVar

from jsonargparse import ArgumentParser, DefaultHelpFormatter, Namespace

from mixer.recipe.fields import check_written_classes
from mixer.utils.entry_points import load_plug_ins, made_by

# Exit status of a command that is done, with findings that `--strict` does not allow.
FOUND = 3

PLUG_IN_GROUP = "adaptive_mixer.commands"

_EXAMPLE = "Example:\n  "
_Recipe = TypeVar("_Recipe")


class HelpFormatter(DefaultHelpFormatter):
    """Keeps an example on one line, ready to copy."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if text.startswith(_EXAMPLE):
            return text
        filled: str = super()._fill_text(text, width, indent)
        return filled


@dataclass(frozen=True)
class Command:
    """A command of the command line: `mixer NAME ...`.

    Other packages add commands by entry points of the group `adaptive_mixer.commands`: `name =
    "package.module:function"`. The function takes no arguments and returns a `Command`.

    Args:
        parser: The command's arguments.
        run: Runs the command. A `ValueError` refuses the input and ends the process with status 2. It may return an
            exit status, such as `FOUND`.
        summary: A few words for `mixer --help`.
        recipe_class: The dataclass of the recipe whose path is the first argument; the parser has its fields and an
            option `--recipe`. `None` for a command without a recipe.
        example: An example for the command's help.
    """

    parser: ArgumentParser
    run: Callable[[Namespace], int | None]
    summary: str
    recipe_class: type | None = None
    example: str = ""

    def __post_init__(self) -> None:
        if self.example:
            self.parser.epilog = f"{_EXAMPLE}{self.example}"


def plugged_in_commands(taken: Sequence[str]) -> dict[str, Command]:
    """Loads the commands of other packages by name; warns of each that cannot be loaded.

    Args:
        taken: Names that are reserved.
    """
    return load_plug_ins(PLUG_IN_GROUP, "command", _load, taken, stacklevel=2)


def _load(entry: EntryPoint, taken: Collection[str]) -> tuple[str, Command]:
    return made_by(entry, taken, "command", Command)


def build_recipe(
    recipe_class: type[_Recipe],
    parser: ArgumentParser,
    config: Namespace,
    fields: Sequence[str],
    otherwise: str,
    given_as: Mapping[str, str] = MappingProxyType({}),
) -> _Recipe:
    """Builds a recipe from parsed arguments.

    Args:
        recipe_class: The recipe's dataclass.
        parser: The parser of the recipe's fields.
        config: The parsed arguments: the fields, and `recipe`.
        fields: Fields to build one at a time after an error, to find the wrong one.
        otherwise: The field to name if the error comes from none of `fields`.
        given_as: Names of the options that set fields of another name, for errors.

    Raises:
        ValueError: If a field is wrong; names it.
    """
    check_written_classes(recipe_class, config, given_as)
    try:
        built = parser.instantiate(config)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{_failing_field(parser, config, fields, otherwise, given_as)}: {_cause(error)}") from None
    return recipe_class(**{name: value for name, value in vars(built).items() if name != "recipe"})


def _cause(error: Exception) -> str:
    """Extracts the causes from an error that lists all types of a union."""
    lines = [line.strip().removeprefix("- ") for line in str(error).splitlines() if line.strip().startswith("- ")]
    causes = [line for line in lines if not line.startswith("Expected a")]
    return "; ".join(causes) if causes else str(error)


def _failing_field(
    parser: ArgumentParser, config: Namespace, fields: Sequence[str], otherwise: str, given_as: Mapping[str, str]
) -> str:
    for name in fields:
        one: Any = {name: config[name]}
        try:
            parser.instantiate(Namespace(one))  # type: ignore[no-untyped-call]
        except (ValueError, TypeError):
            return given_as.get(name, name)
    return otherwise
