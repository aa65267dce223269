"""The command line: each command has a file of its own, which is loaded when it is asked for.

Other packages add commands (`mixer.cli.command`). A command ends with status 0 when it is done, 1 when it failed on the
way (with a traceback), 2 when its input is wrong (with a message), 3 when it found what `--strict` does not allow, 130
when it was interrupted, and 143 when a SIGTERM ended it (128 + the number of the signal; one that trains has saved the
run then, as after a first SIGINT). Where the status is none of 0 and 3, stdout has no JSON.
"""

import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from typing import NoReturn

from jsonargparse import ArgumentParser

from mixer.cli.command import Command, HelpFormatter, plugged_in_commands
from mixer.cli.completion import completion_script
from mixer.distributed.launch import end_together, import_early
from mixer.distributed.signals import RunInterrupted, RunTerminated
from mixer.policies import policy_classes
from mixer.recipe.fields import check_recipe
from mixer.utils.text import printable

INTERRUPTED = 130

# Where each command is made.
_COMMANDS = {
    "train": "mixer.cli.train:train",
    "inspect": "mixer.cli.inspect:inspect",
    "policies": "mixer.cli.listings:policies",
    "schedules": "mixer.cli.listings:schedules",
    "compare": "mixer.cli.compare:compare",
    "report": "mixer.cli.report:report",
    "watch": "mixer.cli.watch:watch",
    "doremi": "mixer.cli.doremi:doremi",
    "fit": "mixer.cli.fit:fit",
    "simulate": "mixer.cli.simulate:simulate",
    "explain": "mixer.cli.explain:explain",
    "completion": "mixer.cli.completion:completion",
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs a command; ends the process with a status other than 0 where it is not simply done.

    Args:
        arguments: Command and arguments; `None` takes those of the process.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        status = _run(given)
    except BrokenPipeError:  # whoever read the output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return
    except (RunTerminated, RunInterrupted) as ended:
        if int(os.environ.get("RANK", "0")) == 0:
            print(f"mixer {given[0]}: {ended}", file=sys.stderr)  # noqa: T201
        end_together()  # a signal ends all ranks at the same step
        sys.exit(ended.code if isinstance(ended, RunTerminated) else INTERRUPTED)
    except KeyboardInterrupt:
        print(f"{' '.join(['mixer', *given[:1]])}: interrupted", file=sys.stderr)  # noqa: T201
        sys.exit(INTERRUPTED)
    if status:
        sys.exit(status)


def _run(given: list[str]) -> int | None:
    import_early()
    commands = _commands(given[0] if given else None)
    parser = _parser(commands)
    if given and given[0] in commands:
        given = _with_recipe_checked(given, commands[given[0]])
    config = parser.parse_args(given)
    name = config.command
    if name == "completion":
        print(completion_script(commands, config.completion.shell))  # noqa: T201
        return None
    try:
        status = commands[name].run(config[name])
        end_together()
    except BrokenPipeError:  # an `OSError` that is nobody's wrong input
        raise
    except (ValueError, TypeError, OSError) as error:
        _refuse(name, error)
    return status


def _commands(asked: str | None) -> dict[str, Command]:
    """Makes the commands; where one of our own is asked for by name, no more than that is loaded."""
    if asked in _COMMANDS and asked != "completion":
        return {asked: _made(asked)}
    return {**{name: _made(name) for name in _COMMANDS}, **plugged_in_commands(tuple(_COMMANDS))}


def _made(name: str) -> Command:
    module, _, function = _COMMANDS[name].partition(":")
    command: Command = getattr(importlib.import_module(module), function)()
    return command


def _parser(made: Mapping[str, Command]) -> ArgumentParser:
    if any(command.recipe_class for command in made.values()):
        policy_classes()  # imports those of other packages: the parser finds classes that are imported by their names
    parser = ArgumentParser(
        prog="mixer",
        description="Trains one model on a mixture of data streams, and shows what that did.",
        epilog="mixer COMMAND --help says what a command takes, with an example.",
        allow_abbrev=False,
        formatter_class=HelpFormatter,  # of the commands, too
    )
    commands = parser.add_subcommands(dest="command")
    for name, command in made.items():
        commands.add_subcommand(name, command.parser, help=command.summary)
        command.parser.prog = f"mixer {name}"  # and not "mixer [options] ...", of which there are none
    return parser


def _with_recipe_checked(arguments: list[str], command: Command) -> list[str]:
    """Names the path of a recipe, and ends the process if there is a field that the recipe does not have."""
    if command.recipe_class is None:
        return arguments
    if len(arguments) > 1 and not arguments[1].startswith("-"):
        arguments = [arguments[0], "--recipe", *arguments[1:]]
    try:
        check_recipe(command.recipe_class, arguments[1:], command.parser._option_string_actions)
    except (ValueError, OSError) as error:
        _refuse(arguments[0], error)
    return arguments


def _refuse(command: str, error: Exception) -> NoReturn:
    lines = (printable(line) for line in str(error).split("\n"))  # names out of files are in it
    print(f"mixer {command}: " + "\n".join(lines), file=sys.stderr)  # noqa: T201
    sys.exit(2)
