"""The command line: `mixer train RECIPE.yaml`, `mixer policies`, `mixer schedules`, `mixer compare`, `mixer report`.

`mixer doremi RECIPE.yaml` is in `mixer.doremi_command`, `mixer fit RUN ...` in `mixer.fit.command`.

Other packages add commands; see `mixer.commands`.
"""

import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from jsonargparse import ArgumentParser, Namespace
from rich.console import Console
from rich.table import Table

from mixer.commands import Command, build_recipe, plugged_in_commands
from mixer.compare import compare
from mixer.costs import cost_of
from mixer.data.preview import preview
from mixer.doremi_command import doremi
from mixer.ending import end_together
from mixer.fit.command import fit
from mixer.given_fields import check_given
from mixer.policies import Policy, Wrapper, policy_classes
from mixer.recipe import RECIPE_FIELDS, Recipe
from mixer.schedules import Schedule, schedule_classes
from mixer.trainer import MixingTrainer

_OWN_COMMANDS = ("train", "policies", "schedules", "compare", "report")
_MORE_COMMANDS: dict[str, Callable[[], Command]] = {"doremi": doremi, "fit": fit}


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs a command; ends the process with status 2 and a message when the input is wrong.

    Args:
        arguments: Command and arguments; `None` takes those of the process.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    more = _more_commands(given[0] if given else None)
    parser, train_parser = _parsers(more)
    recipes = {"train": (Recipe, train_parser)} | {
        name: (command.recipe_class, command.parser) for name, command in more.items() if command.recipe_class
    }
    given = _with_recipe_option(given, recipes)
    if given and given[0] in recipes:
        _check_given(given, *recipes[given[0]])
    config = parser.parse_args(given)
    command = config[config.command]
    try:
        if config.command in more:
            more[config.command].run(command)
        elif config.command == "train":
            _train(train_parser, command)
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


def _parsers(more: Mapping[str, Command]) -> tuple[ArgumentParser, ArgumentParser]:
    policy_classes()  # imports those of other packages: the parser finds classes that are imported by their names
    parser = ArgumentParser(
        prog="mixer", description="Trains one model on a mixture of data streams.", allow_abbrev=False
    )
    commands = parser.add_subcommands(dest="command")
    train = ArgumentParser(
        description="Trains by a recipe. Every field can be overridden: --training.learning_rate 1e-3.",
        usage="mixer train RECIPE.yaml [--dry_run] [--resume auto|must|never|PATH] [--FIELD VALUE ...]",
        allow_abbrev=False,
    )
    train.add_argument("--recipe", action="config", help="Path of the recipe, a YAML file.")
    train.add_argument(
        "--resume",
        type=str,
        default=None,
        metavar="auto|must|never|PATH",
        help="Go on from the newest whole checkpoint in training.output_dir and start anew where there is none (auto) "
        "or refuse to (must), start anew in any case (never), or go on from a checkpoint's folder. Default: "
        "training.resume_from_checkpoint.",
    )
    train.add_argument(
        "--dry_run", action="store_true", help="Build everything, show the streams and a sample of each, train nothing."
    )
    train.add_class_arguments(Recipe)
    commands.add_subcommand("train", train, help="train by a recipe")
    _add_reading_commands(commands)
    for name, command in more.items():
        commands.add_subcommand(name, command.parser, help=command.summary)
    return parser, train


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


def _with_recipe_option(arguments: list[str], with_recipe: Collection[str]) -> list[str]:
    if len(arguments) > 1 and arguments[0] in with_recipe and not arguments[1].startswith("-"):
        return [arguments[0], "--recipe", *arguments[1:]]
    return arguments


def _check_given(arguments: Sequence[str], recipe_class: type, parser: ArgumentParser) -> None:
    try:
        check_given(recipe_class, arguments[1:], parser._option_string_actions)
    except (ValueError, OSError) as error:
        _refuse(arguments[0], error)


def _refuse(command: str, error: Exception) -> NoReturn:
    print(f"mixer {command}: {error}", file=sys.stderr)  # noqa: T201
    sys.exit(2)


def _train(parser: ArgumentParser, config: Namespace) -> None:
    resume, is_dry = config.pop("resume"), config.pop("dry_run")  # how it was launched is no part of what is trained
    trainer = build_recipe(Recipe, parser, config, RECIPE_FIELDS, otherwise="training").build()
    if is_dry:
        _show(trainer)
        return
    if trainer.is_world_process_zero():
        path = Path(str(trainer.args.output_dir)) / "recipe.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        parser.save(config, str(path), overwrite=True, skip_validation=True)
    trainer.train(resume_from_checkpoint=_checkpoint(trainer, resume))
    trainer.save_model()


def _show(trainer: MixingTrainer) -> None:
    if trainer.is_world_process_zero():
        evaluation = trainer.eval_dataset if isinstance(trainer.eval_dataset, Mapping) else {}
        shown = preview(trainer.streams, evaluation, trainer.mixing.weights, trainer.processing_class)
        Console(width=None if sys.stdout.isatty() else 120).print(shown)


def _checkpoint(trainer: MixingTrainer, resume: str | None) -> str | bool | None:
    configured: str | None = trainer.args.resume_from_checkpoint
    if resume is None:
        return True if configured in ("true", "True") else configured
    if configured is not None:
        raise ValueError(
            f"--resume {resume} and training.resume_from_checkpoint={configured} both say from where to go on: give "
            "one of the two."
        )
    if resume in ("must", "never"):
        return resume == "must"
    if resume != "auto":
        return resume
    checkpoint = trainer.newest_checkpoint()
    if trainer.is_world_process_zero():
        found = "No whole checkpoint yet: starts anew" if checkpoint is None else f"Goes on from {checkpoint}"
        print(f"mixer train: {found} (--resume auto, {trainer.args.output_dir}).", file=sys.stderr)  # noqa: T201
    return checkpoint


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
