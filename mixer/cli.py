"""The command line: `mixer policies`, `mixer schedules`, `mixer compare`, `mixer report`, and what starts the others.

`mixer train RECIPE.yaml` is in `mixer.train_command`, `mixer doremi RECIPE.yaml` in `mixer.doremi_command`, `mixer fit
RUN ...` in `mixer.fit.command`.

Other packages add commands; see `mixer.commands`.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from jsonargparse import ArgumentParser
from rich.console import Console
from rich.table import Table

from mixer.commands import Command, plugged_in_commands
from mixer.compare import compare
from mixer.costs import cost_of
from mixer.doremi_command import doremi
from mixer.ending import end_together, import_early
from mixer.fit.command import fit
from mixer.given_fields import check_given
from mixer.policies import Policy, Wrapper, policy_classes
from mixer.schedules import Schedule, schedule_classes
from mixer.train_command import train

_OWN_COMMANDS = ("policies", "schedules", "compare", "report")
_MORE_COMMANDS: dict[str, Callable[[], Command]] = {"train": train, "doremi": doremi, "fit": fit}


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs a command; ends the process with status 2 and a message when the input is wrong.

    Args:
        arguments: Command and arguments; `None` takes those of the process.
    """
    import_early()
    given = list(sys.argv[1:] if arguments is None else arguments)
    more = _more_commands(given[0] if given else None)
    parser = _parser(more)
    if given and given[0] in more:
        given = _with_recipe_checked(given, more[given[0]])
    config = parser.parse_args(given)
    command = config[config.command]
    try:
        if config.command in more:
            more[config.command].run(command)
        elif config.command == "policies":
            _print_rules("Mixing policies", policy_classes())
        elif config.command == "schedules":
            _print_rules("Batch-size schedules", schedule_classes())
        elif config.command == "report":
            _report(command.runs, command.output)
        else:
            Console(width=None if sys.stdout.isatty() else 120).print(compare([Path(run) for run in command.runs]))
        end_together()
    except (ValueError, TypeError, OSError) as error:
        _refuse(config.command, error)


def _more_commands(asked: str | None) -> dict[str, Command]:
    """Makes the commands that have a file of their own; where one is asked for by name, no more than that is loaded."""
    if asked in _OWN_COMMANDS:
        return {}
    if asked in _MORE_COMMANDS:
        return {asked: _MORE_COMMANDS[asked]()}
    own = {name: make() for name, make in _MORE_COMMANDS.items()}
    return {**own, **plugged_in_commands((*_OWN_COMMANDS, *_MORE_COMMANDS))}


def _parser(more: Mapping[str, Command]) -> ArgumentParser:
    policy_classes()  # imports those of other packages: the parser finds classes that are imported by their names
    parser = ArgumentParser(
        prog="mixer", description="Trains one model on a mixture of data streams.", allow_abbrev=False
    )
    commands = parser.add_subcommands(dest="command")
    for name, command in more.items():
        commands.add_subcommand(name, command.parser, help=command.summary)
    _add_reading_commands(commands)
    return parser


def _add_reading_commands(commands: Any) -> None:
    """Adds the commands that train nothing."""
    policies = ArgumentParser(
        description="Lists the mixing policies, what they need, what that costs and what they do."
    )
    commands.add_subcommand("policies", policies, help="list the mixing policies")
    schedules = ArgumentParser(
        description="Lists the batch-size schedules, what they need, what that costs and what they do."
    )
    commands.add_subcommand("schedules", schedules, help="list the batch-size schedules")
    compared = ArgumentParser(description="Puts finished or running runs side by side.")
    compared.add_argument("runs", nargs="+", type=str, help="Output folders of runs.")
    commands.add_subcommand("compare", compared, help="put runs side by side")
    reported = ArgumentParser(description="Writes one page with a table and plots of finished or running runs.")
    reported.add_argument("runs", nargs="+", type=str, help="Output folders of runs.")
    reported.add_argument(
        "--output", type=str, default=None, metavar="PATH", help="Path of the page. Default: report.html of the first."
    )
    commands.add_subcommand("report", reported, help="write a page with plots of runs")


def _report(runs: list[str], output: str | None) -> None:
    try:
        from mixer.report import write_report  # its libraries are an extra that training does without
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] not in ("plotly", "jinja2"):
            raise
        raise ValueError(
            f"the page needs {error.name}, which is not installed: pip install 'adaptive-mixer[report]'."
        ) from None
    print(write_report(runs, output))  # noqa: T201


def _with_recipe_checked(arguments: list[str], command: Command) -> list[str]:
    """Names the path of a recipe, and ends the process if there is a field that the recipe does not have."""
    if command.recipe_class is None:
        return arguments
    if len(arguments) > 1 and not arguments[1].startswith("-"):
        arguments = [arguments[0], "--recipe", *arguments[1:]]
    try:
        check_given(command.recipe_class, arguments[1:], command.parser._option_string_actions)
    except (ValueError, OSError) as error:
        _refuse(arguments[0], error)
    return arguments


def _refuse(command: str, error: Exception) -> NoReturn:
    print(f"mixer {command}: {error}", file=sys.stderr)  # noqa: T201
    sys.exit(2)


def _print_rules(title: str, rules: Mapping[str, type[Policy] | type[Schedule]]) -> None:
    table = Table(title=title)
    for column in ("name", "needs", "costs", "what it does"):
        table.add_column(column)
    for name, rule in rules.items():
        summary = (rule.__doc__ or "").strip().splitlines()[0]
        if issubclass(rule, Wrapper):
            needs = costs = "its inner policy's"
        else:
            needs, costs = ", ".join(sorted(rule.needs)) or "nothing", cost_of(rule)
        table.add_row(name, needs, costs, summary)
    Console(width=None if sys.stdout.isatty() else 120).print(table)
