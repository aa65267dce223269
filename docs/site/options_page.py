"""Writes the page "How each TrainingArguments option behaves".

Run as `python -m docs.site.options_page docs/training_arguments.md`.
"""

import sys
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path

from transformers import TrainingArguments

from mixer.trainer.argument_support import AS_BY_THE_TRAINER, DIFFERENCES, REFUSED, TRANSFORMERS

_HEAD = """\
<!-- Made by `python -m docs.site.options_page docs/training_arguments.md` from mixer/trainer/argument_support.py. -->
# How each TrainingArguments option behaves

`TrainingArguments` (transformers {version}) has {total} options. With a `MixingTrainer`, {same} of them behave
as in the Trainer, {different} behave with the difference given here, and {refused} refuse some values at construction
(some options do both). A test fails if the installed version has an option that the table lacks. Options of subclasses
(`Seq2SeqTrainingArguments`, TRL's configurations) are not listed.

| option | as in the Trainer | |
|---|---|---|
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
    rows = [_row(name) for name in names]
    head = _HEAD.format(
        total=len(rows),
        version=TRANSFORMERS,
        same=len(AS_BY_THE_TRAINER),
        different=len(DIFFERENCES),
        refused=len(REFUSED),
    )
    return head + "".join(rows)


def _row(name: str) -> str:
    if name in AS_BY_THE_TRAINER:
        return f"| `{name}` | yes | |\n"
    texts = []
    if name in DIFFERENCES:
        texts.append(DIFFERENCES[name])
    if name in REFUSED:
        texts.append(f"**Refused:** {REFUSED[name]}")
    if not texts:
        raise KeyError(f"mixer/trainer/argument_support.py does not say how {name} behaves.")
    verdict = ("with a difference" if name in DIFFERENCES else "yes") + (", or refused" if name in REFUSED else "")
    text = " ".join(texts).replace("|", "\\|")
    return f"| `{name}` | {verdict} | {text} |\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page(option_names()), encoding="utf-8")
