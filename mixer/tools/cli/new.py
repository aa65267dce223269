"""`mixer new FILE ...`: writes a first recipe for files and folders."""

import sys
import tempfile
from pathlib import Path

from jsonargparse import ArgumentParser, Namespace

from mixer.tools.cli.command import FOUND, Command, add_json
from mixer.tools.cli.entry import main
from mixer.tools.cli.schema import write_recipe
from mixer.tools.console import only_json, print_json
from mixer.utils.errors import InvalidValueError, require
from mixer.utils.files import write_text
from mixer.utils.text import print_lines, safe_name

_HEAD = "Written by mixer new: what follows `Guess:` was found by looking at the data; other choices stand beside it."
_MODEL = "A folder, a name on the hub, a function that returns a folder, or tiny: random weights, to try."
_RESUME = "Ctrl-C saves the run, and `mixer train {} --resume auto` continues it."


def new() -> Command:
    """Write a first recipe for files and folders."""
    parser = ArgumentParser(
        description="Writes a recipe for files and folders, one stream for each. Formats are inferred from "
        "columns, splits, labels and chats; each guess is a comment with the other choices. `mixer train RECIPE "
        f"--dry_run` then checks it; if it is refused, the exit status is {FOUND}. Beside a recipe lies "
        "recipe.schema.json, by which editors check and complete it."
    )
    parser.add_argument("paths", nargs="+", type=str, metavar="PATH", help="Files, folders, and patterns in quotes.")
    parser.add_argument("--model", type=str, required=True, help=_MODEL)
    parser.add_argument("--objective", type=str, help="What to lower: average, worst, or the name of a stream.")
    parser.add_argument("--output", type=str, metavar="FILE", help="Default: recipe.yaml, or train.py.")
    parser.add_argument("--overwrite", action="store_true", help="Replace an existing file.")
    parser.add_argument("--python", action="store_true", help="Write a Python script in place of a recipe.")
    add_json(parser)
    return Command(parser, _run, example="mixer new chats.jsonl reviews.csv docs/ --model Qwen/Qwen3-0.6B")


def _run(config: Namespace) -> int:
    import mixer.tools.recipe.first_recipe as first  # transformers, datasets
    from mixer.tools.recipe.looking import look_at

    output = Path(config.output or ("train.py" if config.python else "recipe.yaml"))
    if output.exists() and not config.overwrite:
        raise InvalidValueError(
            f"output: {str(output)!r} exists already: give --overwrite, or another path.", option="output"
        )
    with only_json(config.json):
        paths = _by_name(config.paths)
        first.check_objective(config.objective, [*paths])
        first.check_model(config.model)
        looks = {name: look_at(path) for name, path in paths.items()}
        lines = first.first_recipe(looks, config.model, config.objective, f"runs/{output.stem}")
        recipe = first.as_yaml(lines, [_HEAD, _RESUME.format(output)])
        if config.python:
            write_text(output, first.as_python(lines, _HEAD))
        else:
            write_recipe(output, recipe)
        is_accepted = _is_accepted(recipe)
    if config.json:
        streams = {name: look._asdict() for name, look in looks.items()}
        print_json({"output": output, "is_accepted": is_accepted, "streams": streams})
    way = f"python {output}" if config.python else f"mixer train {output}"
    next_step = f"To train: {way}" if is_accepted else "The dry run refuses it for the reason above: correct it there."
    print_lines(f"mixer new: wrote {output}. {next_step}", file=sys.stderr)
    return 0 if is_accepted else FOUND


def _by_name(paths: list[str]) -> dict[str, str]:
    """Names a stream for each path."""
    names: dict[str, str] = {}
    for path in paths:
        place = Path(path)
        name = safe_name(place.name.partition(".")[0].strip("*-_") or place.parent.name or "data")
        require(name not in names, "paths", f"files of other names than {names.get(name)!r}, a stream each", path)
        names[name] = path
    return names


def _is_accepted(recipe: str) -> bool:
    """Runs `mixer train RECIPE --dry_run`, which says what it refuses."""
    with tempfile.TemporaryDirectory() as folder:
        (path := Path(folder) / "recipe.yaml").write_text(recipe, encoding="utf-8")
        try:
            main(["train", str(path), "--dry_run"])
        except SystemExit as end:
            if end.code != 2:
                raise
            return False
    return True
