"""`mixer schema`: the JSON schema of recipes, by which editors complete and check them."""

import json
from pathlib import Path
from typing import Any

from jsonargparse import ArgumentParser, Namespace

from mixer.tools.cli.command import Command, add_json
from mixer.utils.errors import require
from mixer.utils.files import write_text
from mixer.utils.text import print_lines


def schema() -> Command:
    """Write the JSON schema of recipes."""
    parser = ArgumentParser(
        description="Writes the JSON schema of recipes, built from the types that check them, for the versions "
        "that are installed. An editor with yaml-language-server completes and checks a recipe whose first line is "
        "`# yaml-language-server: $schema=recipe.schema.json`."
    )
    parser.add_argument(
        "name", nargs="?", default="train", help="The command whose recipes it describes. Default: train."
    )
    parser.add_argument("--output", type=str, metavar="PATH", help="Where to write it. Default: stdout.")
    add_json(parser)
    return Command(parser, _run, example="mixer schema --output recipe.schema.json")


def _run(config: Namespace) -> None:
    text = text_of(config.name)
    if config.output is None:
        print(text, end="")  # noqa: T201
        return
    write_text(Path(config.output), text)
    print_lines(json.dumps({"schema": config.output}) if config.json else config.output)


def text_of(command: str) -> str:
    """Writes the schema of a command's recipes.

    Raises:
        ValueError: If the command has no recipe.
    """
    from mixer.tools.recipe.schema import schema_of  # transformers

    return json.dumps(schema_of(recipe_class_of(command)), indent=1) + "\n"


def write_recipe(path: Path, text: str) -> None:
    """Writes a recipe whose first line names its schema for editors, and the schema beside it unless it is there."""
    from mixer.tools.recipe.data.row_files import SCHEMA_FILE

    write_text(path, f"# yaml-language-server: $schema={SCHEMA_FILE}\n{text}")
    if not (schema := path.parent / SCHEMA_FILE).exists():
        write_text(schema, text_of("train"))


def recipe_class_of(command: str) -> Any:
    """Returns the dataclass of a command's recipes.

    Raises:
        ValueError: If there is no such command, or it has no recipe.
    """
    from mixer.tools.cli.registry import command_names, load_command

    require(command in command_names(), "name", f"a command, one of {', '.join(command_names())}", command)
    found = load_command(command).recipe_class
    require(found is not None, "name", "a command whose first argument is a recipe, such as train", command)
    return found
