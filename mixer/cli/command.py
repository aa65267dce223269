"""Commands of other packages, and what they share with those of this one."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from types import MappingProxyType
from typing import Any, TypeVar

from jsonargparse import ArgumentParser, DefaultHelpFormatter, Namespace

from mixer.utils.entry_points import load_plug_ins, made_by

# Status of a command that did what it was asked to and found what `--strict` does not allow.
FOUND = 3

_EXAMPLE = "Example:\n  "

PLUG_IN_GROUP = "adaptive_mixer.commands"

_Recipe = TypeVar("_Recipe")


class HelpFormatter(DefaultHelpFormatter):
    """Keeps an example in one line, so that it can be copied."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if text.startswith(_EXAMPLE):
            return text
        filled: str = super()._fill_text(text, width, indent)
        return filled


@dataclass(frozen=True)
class Command:
    """A command of the command line: `mixer NAME ...`.

    A package adds its own by entry points of the group `adaptive_mixer.commands`: `name = "package.module:function"`,
    where the function takes nothing and gives a `Command`.

    Args:
        parser: The arguments.
        run: What is done with them; input is refused by a `ValueError`, which ends the process with status 2. It may
            give a status of its own, such as `FOUND`.
        summary: A few words for `mixer --help`.
        recipe_class: The dataclass of a recipe whose path may be the first argument; the parser has its fields, and an
            option `--recipe`. `None` for a command without one.
        example: A line that does something useful, for the command's help.
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
    """Loads the commands of other packages.

    Args:
        taken: Names that no other package can have.

    Returns:
        Commands by name; what cannot be loaded is left out with a warning that names it.
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
    """Makes a recipe of what was parsed.

    Args:
        recipe_class: A dataclass.
        parser: The parser with its fields as arguments.
        config: What was parsed, `recipe` beside the fields.
        fields: Fields that are tried one at a time when something is wrong, to name the one that is.
        otherwise: The field that it was where it was none of these.
        given_as: What the user calls fields that were given by another name.

    Returns:
        The recipe.

    Raises:
        ValueError: If a field is wrong; it is named.
    """
    try:
        built = parser.instantiate(config)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{_failing_field(parser, config, fields, otherwise, given_as)}: {_cause(error)}") from None
    return recipe_class(**{name: value for name, value in vars(built).items() if name != "recipe"})


def _cause(error: Exception) -> str:
    """Picks what went wrong out of a list of everything that a value might have been instead."""
    lines = [line.strip().removeprefix("- ") for line in str(error).splitlines() if line.strip().startswith("- ")]
    causes = [line for line in lines if not line.startswith("Expected a")]
    return "; ".join(causes) if causes else str(error)


def _failing_field(
    parser: ArgumentParser, config: Namespace, fields: Sequence[str], otherwise: str, given_as: Mapping[str, str]
) -> str:
    """Finds the field that an error was about by building the others one at a time."""
    for name in fields:
        one: Any = {name: config[name]}
        try:
            parser.instantiate(Namespace(one))  # type: ignore[no-untyped-call]
        except (ValueError, TypeError):
            return given_as.get(name, name)
    return otherwise
