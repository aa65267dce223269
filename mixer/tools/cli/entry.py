"""The command line: one module per command, imported on first use.

Other packages add commands (`mixer.tools.cli.command`). Exit statuses: 0 for success; 1 for a failure on the way, with
a traceback; 2 for wrong input, with a message; 3 for findings that `--strict` does not allow; 130 for an interrupt; 143
for a SIGTERM (128 + the number of the signal). A run that trains is saved first, after a SIGTERM or a first SIGINT.
With statuses other than 0 and 3, stdout has no JSON.
"""

import argparse
import logging
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from importlib.metadata import version
from pathlib import Path
from typing import Any, NoReturn

import yaml
from jsonargparse import ArgumentParser, Namespace

from mixer.distributed.ending import end_together, import_early
from mixer.distributed.signals import RunInterrupted, RunTerminated
from mixer.tools.cli.command import Command, RecipeParser
from mixer.tools.cli.early_help import early_help
from mixer.tools.cli.registry import WITH_RECIPE, command_names, entry_of, load_command, summaries
from mixer.tools.recipe.early_names import check_names
from mixer.tools.recipe.given import Given, check_recipe, given_in
from mixer.tools.recipe.storage_options import without_values
from mixer.tools.recipe.tiny import tiny
from mixer.utils.hidden_names import hidden
from mixer.utils.text import did_you_mean, print_lines

INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs a command; ends the process unless its status is 0.

    Args:
        arguments: Command and arguments; `None` takes the process's own.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    _quieten()
    try:
        status = _run(words)
    except BrokenPipeError:  # the reader has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return
    except (RunTerminated, RunInterrupted) as ended:
        if int(os.environ.get("RANK", "0")) == 0:
            print_lines(f"mixer {words[0]}: {ended}", file=sys.stderr)
        end_together()  # a signal ends all ranks after the same step
        sys.exit(ended.code if isinstance(ended, RunTerminated) else INTERRUPTED)
    except KeyboardInterrupt:
        print_lines(f"{' '.join(['mixer', *words[:1]])}: interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)
    if status:
        sys.exit(status)


def _quieten() -> None:
    """Leaves out what other packages say of their own future, unless it is asked for, and of machines without a GPU."""
    if not sys.warnoptions:
        warnings.simplefilter("ignore", FutureWarning)
    logging.getLogger("DeepSpeed").addFilter(lambda record: "Setting accelerator to CPU" not in str(record.msg))


def _run(words: list[str]) -> int | None:
    if problem := hidden("mixer"):
        _refuse("mixer", problem)
    words = words or ["--help"]
    name, *rest = words
    if name.startswith("-"):
        _overview().parse_args(words)
    names = command_names()
    if name not in names:
        _refuse("mixer", f"there is no command {name!r}.{did_you_mean(name, names)} mixer --help lists all commands.")
    if rest in (["--help"], ["-h"]) and (text := early_help(entry_of(name))) is not None:
        print_lines(*text.splitlines())
        return None
    import_early()
    title = f"mixer {name}"
    try:
        given = rest
        if name in WITH_RECIPE:
            rest = _of_run(rest)
            check_names(rest)
            _tell_of_wait(title, given)
        loaded = load_command(name)
        with _beside(given if loaded.recipe_class is not None else ()):
            status = _run_command(loaded, name, rest)
        end_together()
    except BrokenPipeError:  # an OSError, but not wrong input
        raise
    except (ValueError, TypeError, OSError) as error:
        _refuse(title, str(error))
    return status


def _tell_of_wait(title: str, words: list[str]) -> None:
    """Says at once that a command has begun, if it has yet to import what takes seconds."""
    if words and "--json" not in words and "torch" not in sys.modules and int(os.environ.get("RANK", "0")) == 0:
        print_lines(f"{title}: reading {words[0]} and loading libraries ...", file=sys.stderr)


def _run_command(loaded: Command, name: str, rest: list[str]) -> int | None:
    with tiny(rest) if name in ("train", "continual") else nullcontext(rest) as rest:
        if (recipe_class := loaded.recipe_class) is None:
            loaded.parser.prog = f"mixer {name}"
            return loaded.run(loaded.parser.parse_args(rest))
        given = given_in(recipe_class, _with_recipe(rest), loaded.parser._option_string_actions)  # noqa: SLF001 argparse
        command = _for_trainer(loaded, recipe_class, given.fields.get("trainer"))
        command.parser.prog = f"mixer {name}"
        if isinstance(command.parser, RecipeParser):
            command.parser.words = rest
        return command.run(_parsed(command.parser, command.recipe_class or recipe_class, given))


@contextmanager
def _beside(words: Sequence[str]) -> Iterator[None]:
    """Lets a recipe name code beside its file, for the time of its command; what is installed goes first.

    The folder of a run is no such place: it may come from others.
    """
    folder = str(Path(words[0]).absolute().parent) if words and Path(words[0]).is_file() else None
    if folder is None or folder in sys.path:
        yield
        return
    sys.path.append(folder)
    try:
        yield
    finally:
        sys.path.remove(folder)


def _overview() -> argparse.ArgumentParser:
    """Makes the parser of what comes without a command; its help lists the commands."""
    parser = argparse.ArgumentParser(
        prog="mixer",
        description="Trains one model on a mixture of data streams, and analyses the runs.",
        epilog="mixer COMMAND --help lists the options of a command, with an example.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"mixer {version('adaptive-mixer')}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for name, summary in summaries().items():
        commands.add_parser(name, help=summary)
    return parser


def _for_trainer(command: Command, recipe_class: type, trainer: Any) -> Command:
    """Makes the command for recipes with the training arguments of a trainer."""
    for_trainer = getattr(recipe_class, "for_trainer", None)
    if for_trainer is None or trainer is None or command.of_recipe is None:
        return command
    return command.of_recipe(for_trainer(str(trainer)))


def _of_run(words: list[str]) -> list[str]:
    """Puts the recipe of a run in the place of its folder."""
    recipe = Path(words[0]) / "recipe.yaml" if words else None
    return words if recipe is None or not recipe.is_file() else [str(recipe), *words[1:]]


def _with_recipe(words: list[str]) -> list[str]:
    return ["--recipe", *words] if words and not words[0].startswith("-") else words


def _parsed(parser: ArgumentParser, recipe_class: type, given: Given) -> Namespace:
    """Parses a command with a recipe.

    Raises:
        ValueError: If a field is wrong; names it.
    """
    check_recipe(recipe_class, given.fields)
    recipe = ["--recipe", yaml.safe_dump(given.fields, sort_keys=False)] if given.fields else []
    parser.exit_on_error = False
    try:
        config = parser.parse_args([*recipe, *given.others])
    except argparse.ArgumentError as error:
        raise ValueError(without_values(" ".join(str(error).split()), given.fields)) from None
    config["recipe"] = given.files
    return config


def _refuse(title: str, problem: str) -> NoReturn:
    print_lines(*f"{title}: {problem}".split("\n"), file=sys.stderr)  # names from files may not be printable
    sys.exit(2)
