"""`mixer completion SHELL`: a script that lets a shell complete commands and options."""

import argparse
from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args, get_origin

import shtab
from jsonargparse import ArgumentParser, Namespace

from mixer.cli.command import Command
from mixer.cli.registry import all_commands, summaries
from mixer.policies import policy_classes
from mixer.schedules import schedule_classes

SHELLS = ("bash", "zsh", "tcsh")

_RULES: dict[str, Callable[[], Mapping[str, type]]] = {"mixing": policy_classes, "batch_size": schedule_classes}
_PATHS = ("recipe", "run", "runs", "output", "losses", "pictures", "tables", "training.output_dir")


def completion() -> Command:
    """Complete commands in a shell."""
    description = "Prints a script that lets a shell complete commands, options and their choices."
    parser = ArgumentParser(description=description)
    parser.add_argument("shell", choices=SHELLS, help="The shell.")
    example = "mixer completion bash > ~/.local/share/bash-completion/completions/mixer"
    return Command(parser, _complete, example=example)


def _complete(config: Namespace) -> None:
    print(_script(all_commands(), summaries(), config.shell))  # noqa: T201


def _script(commands: Mapping[str, Command], summaries: Mapping[str, str], shell: str) -> str:
    """Writes the completion script of a shell.

    jsonargparse can write one too, but looks into every class that every option accepts: gigabytes and minutes for the
    options of a trainer.

    Args:
        commands: All commands, by name.
        summaries: A line on each.
        shell: One of `SHELLS`.
    """
    parser = argparse.ArgumentParser(prog="mixer")
    subparsers = parser.add_subparsers(dest="command")
    for name, command in commands.items():
        own = subparsers.add_parser(name, help=summaries.get(name), add_help=False)
        for action in command.parser._actions:  # noqa: SLF001 argparse has no public list
            _add(own, action)
        if command.recipe_class is not None:
            own.add_argument("recipe_path", nargs="?").complete = shtab.FILE  # type: ignore[attr-defined]
    script: str = shtab.complete(parser, shell)
    return script


def _add(parser: argparse.ArgumentParser, action: Any) -> None:
    """Adds an option: its names, whether it takes a value, and the choices."""
    if action.help == argparse.SUPPRESS:
        return
    options: dict[str, Any] = {"help": " ".join(str(action.help or "").split()).replace("%", "%%")}
    kind = getattr(action, "_typehint", None)
    choices = list(get_args(kind)) if get_origin(kind) is Literal else action.choices
    if action.dest in _RULES:
        choices = list(_RULES[action.dest]())
    if not action.option_strings:
        options |= {"nargs": action.nargs}
    elif action.nargs == 0:
        options |= {"action": "store_true"}
    if choices and action.nargs != 0:
        options |= {"choices": [str(choice) for choice in choices]}
    added = parser.add_argument(*(action.option_strings or [action.dest]), **options)
    if action.dest in _PATHS:
        added.complete = shtab.FILE  # type: ignore[attr-defined]
