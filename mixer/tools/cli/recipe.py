"""`mixer recipe from FILE`: writes a recipe from a configuration of Axolotl, LLaMA-Factory or TRL."""

import sys
from pathlib import Path

from jsonargparse import ArgumentParser, Namespace

from mixer.tools.cli.command import Command, add_json
from mixer.tools.console import print_json
from mixer.tools.recipe.coming_from.convert import KINDS, convert
from mixer.utils.files import write_text
from mixer.utils.text import print_lines


def recipe() -> Command:
    """Write a recipe from a configuration of another tool."""
    parser = ArgumentParser(
        description="Writes a recipe from a configuration of Axolotl, LLaMA-Factory or TRL, and lists on stderr "
        "the keys that it does not carry over, each with a reason. Run it where the tool runs: paths stay as they are."
    )
    parser.add_argument("action", choices=["from"], help="`from`: read the configuration of another tool.")
    parser.add_argument("file", type=str, help="The configuration, a YAML file.")
    parser.add_argument("--kind", choices=list(KINDS), help="The tool. Default: its keys tell it.")
    parser.add_argument("--output", type=str, metavar="PATH", help="Where to write the recipe. Default: stdout.")
    add_json(parser)
    return Command(parser, _run, example="mixer recipe from axolotl.yml --output recipe.yaml")


def _run(config: Namespace) -> None:
    made = convert(config.file, config.kind)
    if config.output is not None:
        write_text(Path(config.output), made.text)
    if config.json:
        print_json({"kind": made.kind, "recipe": made.recipe, "not_carried": made.left})
        return
    if config.output is None:
        print(made.text, end="")  # noqa: T201
    title = f"mixer recipe: read as a configuration of {KINDS[made.kind]}; not carried over:"
    lines = [f"  {key}: {reason}" for key, reason in made.left.items()]
    print_lines(title, *(lines or ["  nothing"]), file=sys.stderr)
