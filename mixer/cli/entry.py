"""The command line: one module per command, imported on first use.

Other packages add commands (`mixer.cli.command`). Exit statuses: 0 for success; 1 for a failure on the way, with a
traceback; 2 for wrong input, with a message; 3 for findings that `--strict` does not allow; 130 for an interrupt; 143
for a SIGTERM (128 + the number of the signal). A run that trains is saved first, after a SIGTERM or a first SIGINT.
With statuses other than 0 and 3, stdout has no JSON.
"""

import importlib
import os
import sys
from argparse import ArgumentError
from collections.abc import Mapping, Sequence
from typing import NoReturn

from jsonargparse import ArgumentParser, Namespace

from mixer.cli.command import Command, HelpFormatter, plugged_in_commands
from mixer.cli.completion import completion_script
from mixer.distributed.ending import end_together, import_early
from mixer.distributed.signals import RunInterrupted, RunTerminated
from mixer.policies import policy_classes
from mixer.recipe.fields import check_recipe, explained
from mixer.utils.text import printable

INTERRUPTED = 130

# Each is a function of the module of its name, but for the lists.
_COMMANDS = (
    *("train", "inspect", "policies", "schedules", "compare", "report", "watch"),
    *("doremi", "fit", "headroom", "simulate", "explain", "completion"),
)
_MODULES = {"policies": "listings", "schedules": "listings"}


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs a command; ends the process unless its status is 0.

    Args:
        arguments: Command and arguments; `None` takes the process's own.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        status = _run(words)
    except BrokenPipeError:  # the reader has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return
    except (RunTerminated, RunInterrupted) as ended:
        if int(os.environ.get("RANK", "0")) == 0:
            print(f"mixer {words[0]}: {ended}", file=sys.stderr)  # noqa: T201
        end_together()  # a signal ends all ranks after the same step
        sys.exit(ended.code if isinstance(ended, RunTerminated) else INTERRUPTED)
    except KeyboardInterrupt:
        print(f"{' '.join(['mixer', *words[:1]])}: interrupted", file=sys.stderr)  # noqa: T201
        sys.exit(INTERRUPTED)
    if status:
        sys.exit(status)


def _run(words: list[str]) -> int | None:
    import_early()
    name = words[0] if words else None
    commands = _commands(name)
    parser = _parser(commands)
    recipe_class = commands[name].recipe_class if name in commands else None
    config = parser.parse_args(words) if recipe_class is None else _parsed(parser, words, commands, recipe_class)
    name = config.command
    if name == "completion":
        print(completion_script(commands, config.completion.shell))  # noqa: T201
        return None
    try:
        status = commands[name].run(config[name])
        end_together()
    except BrokenPipeError:  # an OSError, but not wrong input
        raise
    except (ValueError, TypeError, OSError) as error:
        _refuse(name, str(error))
    return status


def _commands(name: str | None) -> dict[str, Command]:
    """Creates the commands; one of our own alone if it is named, since all of them take long to import."""
    if name in _COMMANDS and name != "completion":
        return {name: _made(name)}
    return {**{own: _made(own) for own in _COMMANDS}, **plugged_in_commands(_COMMANDS)}


def _made(name: str) -> Command:
    module = importlib.import_module(f"mixer.cli.{_MODULES.get(name, name)}")
    command: Command = getattr(module, name)()
    return command


def _parser(made: Mapping[str, Command]) -> ArgumentParser:
    if any(command.recipe_class for command in made.values()):
        policy_classes()  # imports policies of other packages: the parser knows imported classes by name
    parser = ArgumentParser(
        prog="mixer",
        description="Trains one model on a mixture of data streams, and analyses the runs.",
        epilog="mixer COMMAND --help lists the options of a command, with an example.",
        allow_abbrev=False,
        formatter_class=HelpFormatter,  # of all commands
    )
    commands = parser.add_subcommands(dest="command")
    for name, command in made.items():
        commands.add_subcommand(name, command.parser, help=command.summary)
        command.parser.prog = f"mixer {name}"  # not "mixer [options] ...": there are no such options
    return parser


def _parsed(parser: ArgumentParser, words: list[str], commands: Mapping[str, Command], recipe_class: type) -> Namespace:
    """Parses a command with a recipe; ends the process with one line if a field is wrong."""
    name, command = words[0], commands[words[0]].parser
    if len(words) > 1 and not words[1].startswith("-"):
        words = [name, "--recipe", *words[1:]]
    try:
        recipe = check_recipe(recipe_class, words[1:], command._option_string_actions)  # noqa: SLF001 argparse
    except (ValueError, OSError) as error:
        _refuse(name, str(error))
    parser.exit_on_error = command.exit_on_error = False
    try:
        return parser.parse_args(words)
    except ArgumentError as error:
        _refuse(name, explained(error, recipe_class, recipe).replace(f" {name}.", " "))


def _refuse(command: str, problem: str) -> NoReturn:
    lines = (printable(line) for line in problem.split("\n"))  # names from files may not be printable
    print(f"mixer {command}: " + "\n".join(lines), file=sys.stderr)  # noqa: T201
    sys.exit(2)
