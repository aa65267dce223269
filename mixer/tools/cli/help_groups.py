"""Help of a command with a recipe: the options that are used most come first, then all others in groups."""

import inspect
import re
import typing
from argparse import Action
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from jsonargparse import ArgumentParser

_FIRST = (
    *("training.output_dir", "resume", "mixing", "objective", "batch_size", "training.per_device_train_batch_size"),
    *("training.max_steps", "training.learning_rate", "training.logging_steps", "training.seed"),
)
_GROUPS: dict[str, Sequence[str]] = {
    "Data": ("trainer", "streams", "tokenizer", "chat_template"),
    "Mixture": ("groupings", "probe", "budget", "conflict", "methods"),
    "Evaluation": ("evaluation", "targets"),
}
_HEADING, _FIELD = re.compile(r" {4}> ([^\[]+)"), re.compile(r" {4}(\w+) ?\(")


def group_options(parser: ArgumentParser, recipe_class: type) -> None:
    """Groups the options in a command's help, and describes those that have no description.

    Args:
        parser: The command's parser, with the recipe's fields.
        recipe_class: The recipe's dataclass. Its `TrainingArguments` are grouped by the headings of their docstring.
    """
    actions = {action.dest: action for action in parser._actions}  # noqa: SLF001 argparse has no public list
    names = {"Used most": _FIRST, **_GROUPS}
    for field, kind in typing.get_type_hints(recipe_class).items():
        if isinstance(kind, type) and is_dataclass(kind):
            for option in fields(kind):
                action = actions.get(f"{field}.{option.name}")
                if action is not None:
                    action.help = action.help or option.metadata.get("help")
            bases = {base: _sections(field, base) for base in kind.__mro__}
            if any(bases.values()):
                of_mixture = [base.__annotations__ for base in bases if base.__module__.startswith("mixer.")]
                names[f"Mixture, as {field} options"] = [f"{field}.{name}" for part in of_mixture for name in part]
                names |= {f"Trainer: {title}": own for base in bases.values() for title, own in base.items()}
    names["Help on the classes of an option"] = [name for name in actions if name.endswith(".help")]
    for title, own in names.items():
        _move([actions.pop(name) for name in own if name in actions], title, parser)
    groups: Any = parser._action_groups  # noqa: SLF001
    groups.sort(key=lambda group: group.title != "Used most")


def _sections(field: str, kind: type) -> dict[str, list[str]]:
    """Reads the options below each heading (`> Heading`) of a dataclass's docstring."""
    sections: dict[str, list[str]] = {}
    names: list[str] = []
    for line in inspect.cleandoc(kind.__doc__ or "").splitlines():
        if heading := _HEADING.fullmatch(line):
            names = sections.setdefault(heading[1], [])
        elif name := _FIELD.match(line):
            names.append(f"{field}.{name[1]}")
    return sections


def _move(options: list[Action], title: str, parser: ArgumentParser) -> None:
    """Moves options to a new group, which argparse has no public way to do."""
    for group in parser._action_groups:  # noqa: SLF001
        group._group_actions = [action for action in group._group_actions if action not in options]  # noqa: SLF001
    parser.add_argument_group(title)._group_actions.extend(options)  # noqa: SLF001
