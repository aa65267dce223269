"""What a command of the command line is, and how commands with a recipe are made."""

import re
from argparse import Action
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from jsonargparse import ArgumentParser, DefaultHelpFormatter, Namespace

from mixer.tools.recipe.storage_options import without_credentials
from mixer.utils.errors import InvalidValueError

# Exit status of a command that is done, with findings that `--strict` does not allow.
FOUND = 3

EXAMPLE = "Example:\n  "
_FIELDS = (
    "Each field of the recipe is an option, too: --mixing Uniform, --training.max_steps 100, --streams.NAME.weight 2. "
    "`mixer help FIELD` explains one and its values; `mixer help` lists them."
)
_Recipe = TypeVar("_Recipe")


class HelpFormatter(DefaultHelpFormatter):
    """Keeps an example on one line, ready to copy, and lists no classes, which have commands of their own."""

    def _get_help_string(self, action: Action) -> str:
        return re.sub(r", known subclasses: [^)]*", "", super()._get_help_string(action))

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if text.startswith(EXAMPLE):
            return text
        filled: str = super()._fill_text(text, width, indent)
        return filled


class RecipeParser(ArgumentParser):
    """Parses recipes, writes them without the values of `storage_options`, and has a help without their fields."""

    groups_of_fields: Any = ()
    words: Sequence[str] = ()  # what the user gave, from the recipe on

    def format_help(self, *arguments: Any, **options: Any) -> str:
        """Writes the help; fields of recipes have one of their own, `mixer help`."""
        groups: Any = self._action_groups
        self._action_groups = [group for group in groups if group not in self.groups_of_fields]
        try:
            text: str = super().format_help(*arguments, **options)
        finally:
            self._action_groups = groups
        return text.replace(" \b[", "[")  # jsonargparse's --print_config[=flags]

    def dump(self, *arguments: Any, **options: Any) -> str:
        """Writes a recipe as YAML; see `ArgumentParser`."""
        text: str = super().dump(*arguments, **options)
        return without_credentials(text)


@dataclass(frozen=True)
class Command:
    """A command of the command line: `mixer NAME ...`.

    Other packages add commands by entry points of the group `adaptive_mixer.commands`: `name =
    "package.module:function"`. The function takes no arguments and returns a `Command`. `mixer --help` shows the first
    line of its docstring, which is read without an import of the module.

    Args:
        parser: The command's arguments.
        run: Runs the command. A `ValueError` refuses the input and ends the process with status 2. It may return an
            exit status, such as `FOUND`.
        recipe_class: The dataclass of the recipe whose path is the first argument; the parser has its fields and an
            option `--recipe`. `None` for a command without a recipe.
        example: An example for the command's help.
        of_recipe: Makes the command for a subclass of the recipe's class, whose training arguments differ.
    """

    parser: ArgumentParser
    run: Callable[[Namespace], int | None]
    recipe_class: type | None = None
    example: str = ""
    of_recipe: "Callable[[type], Command] | None" = None

    def __post_init__(self) -> None:
        self.parser.formatter_class = HelpFormatter
        if self.example:
            self.parser.epilog = f"{EXAMPLE}{self.example}"


def parser_of_run(description: str, text: str = "Output folder of a run.") -> ArgumentParser:
    """Makes the parser of a command whose first argument is a run."""
    parser = ArgumentParser(description=description)
    parser.add_argument("run", type=str, help=text)
    return parser


def parser_of_runs(description: str) -> ArgumentParser:
    """Makes the parser of a command whose arguments are runs."""
    parser = ArgumentParser(description=description)
    parser.add_argument("runs", nargs="+", type=str, help="Output folders of runs.")
    return parser


def add_json(parser: ArgumentParser) -> None:
    """Adds the option `--json` to a command's parser."""
    parser.add_argument("--json", action="store_true", help="Print one JSON document, and nothing else, on stdout.")


def parser_of_recipes(
    description: str, usage: str, example: str, options: Mapping[str, Mapping[str, Any]]
) -> tuple["RecipeParser", list[str]]:
    """Makes the parser of a command with a recipe, still without the recipe's fields, which its help does not list.

    Args:
        description: See `recipe_command`.
        usage: See `recipe_command`.
        example: See `Command`.
        options: See `recipe_command`.

    Returns:
        The parser, and the names of its own options.
    """
    usage = f"mixer {example.split()[1]} RECIPE.yaml {usage} [--FIELD VALUE ...]"
    parser = RecipeParser(description=description, usage=usage, allow_abbrev=False)
    parser.add_argument("--recipe", action="config", help="Path of the recipe, a YAML file.")
    own = [parser.add_argument(option, **arguments).dest for option, arguments in options.items()]
    add_json(parser)
    parser.add_argument_group("Fields of the recipe", _FIELDS)
    return parser, own


def recipe_command(
    recipe_class: type,
    run: Callable[[ArgumentParser, Namespace, Namespace], int | None],
    description: str,
    usage: str,
    example: str,
    options: Mapping[str, Mapping[str, Any]],
) -> Command:
    """Creates a command whose first argument is the path of a recipe.

    Args:
        recipe_class: The recipe's dataclass.
        run: Runs the command with its parser, the recipe's fields, and its other options with `json`.
        description: Description for the command's help.
        usage: Usage after `mixer NAME RECIPE.yaml`, without `[--FIELD VALUE ...]`.
        example: See `Command`.
        options: Arguments of `add_argument`, by option.
    """
    parser, own = parser_of_recipes(description, usage, example, options)
    before = len(parser._action_groups)  # noqa: SLF001 argparse has no public way to leave options out of a help
    parser.add_class_arguments(recipe_class)
    parser.groups_of_fields = parser._action_groups[before:]  # noqa: SLF001

    def split(config: Namespace) -> int | None:
        options: Any = {option: config.pop(option) for option in (*own, "json")}
        for name in vars(config.training).keys() & vars(config).keys():  # one place for commands that change them
            if config[name] is None:
                config[name], config.training[name] = config.training[name], None
        from mixer.tools.recipe.stream_checks import in_words_of_recipes  # transformers: not every command has a recipe

        with in_words_of_recipes([field.name for field in fields(recipe_class)]):
            return run(parser, config, Namespace(options))  # type: ignore[no-untyped-call]

    def of_recipe(other: type) -> Command:
        return recipe_command(other, run, description, usage, example, options)

    return Command(parser, split, recipe_class, example, of_recipe)


def build_recipe(recipe_class: type[_Recipe], parser: ArgumentParser, config: Namespace) -> _Recipe:
    """Builds a recipe from parsed arguments.

    Args:
        recipe_class: The recipe's dataclass.
        parser: The parser of the recipe's fields.
        config: The parsed arguments: the fields, and `recipe`.

    Raises:
        ValueError: If a field is wrong; names it.
    """
    names = [field.name for field in fields(recipe_class) if field.name != "training"]  # type: ignore[arg-type]
    try:
        built = parser.instantiate(config)
    except (ValueError, TypeError) as error:
        wrong = next((name for name in names if _fails(parser, config, name)), "training")
        raise InvalidValueError(f"{wrong}: {_cause(error)}", option=wrong) from None
    return recipe_class(**{name: value for name, value in vars(built).items() if name != "recipe"})


def _cause(error: Exception) -> str:
    """Extracts the causes from an error that lists all types of a union."""
    lines = [line.strip().removeprefix("- ") for line in str(error).splitlines() if line.strip().startswith("- ")]
    return "; ".join(line for line in lines if not line.startswith("Expected a")) or str(error)


def _fails(parser: ArgumentParser, config: Namespace, field: str) -> bool:
    try:
        parser.instantiate(Namespace({field: config[field]}))  # type: ignore[no-untyped-call]
    except (ValueError, TypeError):
        return True
    return False
