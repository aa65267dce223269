"""`mixer recipe from FILE`: writes a recipe from a configuration of another tool."""

import sys
from pathlib import Path

from jsonargparse import ArgumentParser, Namespace

from mixer.tools.cli.command import FOUND, Command, add_json
from mixer.tools.cli.schema import write_recipe
from mixer.tools.console import print_json
from mixer.tools.recipe.coming_from.convert import KINDS, convert
from mixer.utils.text import print_lines


def recipe() -> Command:
    """Write a recipe from a configuration of another tool."""
    parser = ArgumentParser(
        description=f"Writes a recipe from a configuration of {', '.join(KINDS.values())}, and lists on stderr "
        f"the keys that it does not carry over, each with a reason; the status is {FOUND} if one of them may change "
        "what is learned. Run it where the tool runs: paths stay as they are."
    )
    parser.add_argument("action", choices=["from"], help="`from`: read the configuration of another tool.")
    parser.add_argument("file", type=str, help="The configuration: YAML, JSON, TOML, a shell script, a model's card.")
    parser.add_argument("--kind", choices=list(KINDS), help="The tool. Default: recognised by its keys.")
    parser.add_argument("--output", type=str, metavar="PATH", help="Where to write the recipe. Default: stdout.")
    add_json(parser)
    return Command(parser, _run, example="mixer recipe from axolotl.yml --output recipe.yaml")


def _run(config: Namespace) -> int:
    made = convert(config.file, config.kind)
    if config.output is not None:
        write_recipe(Path(config.output), made.text)
    status = FOUND if made.changing else 0
    if config.json:
        own = {"not_carried": made.left, "changing": made.changing}
        print_json({"kind": made.kind, "recipe": made.recipe, **own})
        return status
    if config.output is None:
        print(made.text, end="")  # noqa: T201
    title = f"mixer recipe: read as a configuration of {KINDS[made.kind]}; "
    harmless = [key for key in made.left if key in made.left.harmless]
    parts = {"not carried over, and it may change what is learned": made.changing}
    parts["not carried over, and it changes nothing that is learned"] = harmless
    shown = {words: keys for words, keys in parts.items() if keys} or {"everything is carried over.": []}
    for words, keys in shown.items():
        lines = [f"  {key}: {made.left[key]}" for key in keys]
        print_lines(title + words + (":" if keys else ""), *lines, file=sys.stderr)
    return status
