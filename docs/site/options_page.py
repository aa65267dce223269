"""Writes the page that says what becomes of each option of `TrainingArguments`.

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
# What becomes of each training argument

Of the {total} options of `TrainingArguments` (transformers {version}) {same} mean to a `MixingTrainer` what they
mean to the Trainer, {different} do but for what is said here, and {refused} are refused at construction, most for some
values alone. A test compares the table with the installed version: one with an option more makes it fail. What
subclasses add (`Seq2SeqTrainingArguments`, the configurations of TRL) is not in it.

| option | as by the Trainer? | |
|---|---|---|
"""


def option_names() -> list[str]:
    """Gives the options of the installed version.

    Returns:
        Their names, in its order.
    """
    return [field.name for field in fields(TrainingArguments)]


def page(names: Iterable[str]) -> str:
    """Writes the page.

    Args:
        names: The options, in the order of the table.

    Returns:
        Markdown.

    Raises:
        KeyError: If nothing is known of one of them.
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
        raise KeyError(f"mixer/trainer/argument_support.py does not say what becomes of {name}.")
    verdict = ("with a difference" if name in DIFFERENCES else "yes") + (", or refused" if name in REFUSED else "")
    text = " ".join(texts).replace("|", "\\|")
    return f"| `{name}` | {verdict} | {text} |\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page(option_names()), encoding="utf-8")
