"""Writes the page "How each TrainingArguments option behaves".

Run as `python -m docs.site.options_page docs/training_arguments.md`.
"""

import re
import sys
from collections.abc import Iterable
from dataclasses import Field, fields
from pathlib import Path
from textwrap import wrap
from typing import Any

from transformers import TrainingArguments

from docs.site.argument_behaviour import AS_BY_THE_TRAINER, DIFFERENCES, TRANSFORMERS
from mixer.run.argument_support import REFUSED
from mixer.run.config import MixingOptions

_HEAD = """\
<!-- Made by `python -m docs.site.options_page docs/training_arguments.md` from mixer/trainer. -->
# How each TrainingArguments option behaves

`TrainingArguments` (transformers {version}) has {total} options. With a `MixingTrainer`, {same} of them behave
as in the Trainer, {different} behave with the difference given here, and {refused} refuse some values at construction
(some do both; `optim` and `ddp_static_graph` also where a step turns out to have several micro-batches).

## Options of a mixture

`MixingConfig` is `TrainingArguments` with these fields. `HfArgumentParser((MixingConfig,))` reads them from a command
line, YAML or JSON; a recipe has them under `training`, `mixer train` as `--training.NAME`. `MixingSeq2SeqConfig` and
`MixingSFTConfig` have them too; for any other class, write `@dataclass class MyConfig(MixingOptions, OtherConfig)`.
Objects go to the trainer: `mixing`, `batch_size`, `objective`, `conflict` (in one of both places), `budget`,
`groupings`, `methods`, `probe`.

{own}

`mixer help training` and [the class](../mixer/run/config.py) say what each does.

## Options of the Trainer

| option | with a `MixingTrainer` |
|---|---|
"""
_SAME = """
All other options are as in the Trainer.
"""


def option_names() -> list[str]:
    """Lists the options of the installed version, in its order."""
    return [field.name for field in fields(TrainingArguments)]


def page(names: Iterable[str]) -> str:
    """Writes the page.

    Args:
        names: The options, in the order of the table.

    Returns:
        Markdown.

    Raises:
        KeyError: If an option is in none of the tables.
    """
    names = list(names)
    rows: dict[str, list[str]] = {}
    for name in names:
        if name not in AS_BY_THE_TRAINER or name in REFUSED:
            rows.setdefault(_told(name), []).append(f"`{name}`")  # options of which the same is said share a row
    head = _HEAD.format(
        total=len(names),
        version=TRANSFORMERS,
        same=len(AS_BY_THE_TRAINER),
        different=len(DIFFERENCES),
        refused=len(REFUSED),
        own="\n".join(wrap(", ".join(map(_own, fields(MixingOptions))) + ".", 120, break_on_hyphens=False)),
    )
    return head + "".join(f"| {', '.join(alike)} | {told} |\n" for told, alike in rows.items()) + _SAME


def _own(option: Field[Any]) -> str:
    return f"`{option.name}`" if option.default is None else f"`{option.name}={option.default!r}`"


def _first_sentence(text: str) -> str:
    return re.split(r"(?<=[.]) (?=[A-Z])", text)[0]


def _told(name: str) -> str:
    texts = [DIFFERENCES[name]] if name in DIFFERENCES else []
    if name in REFUSED:
        texts.append(f"**Refused:** {_first_sentence(REFUSED[name])}")
    if not texts:
        raise KeyError(f"docs/site/argument_behaviour.py does not say how {name} behaves.")
    return " ".join(texts).replace("|", "\\|")


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page(option_names()), encoding="utf-8")
