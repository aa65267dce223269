"""A first recipe for data that were looked at, in YAML or Python: each guess has a comment with the other choices."""

import contextlib
import json
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, get_args

import yaml
from transformers import AutoConfig

import mixer.tools.recipe.data as data
from mixer.policies.objective import Kind
from mixer.tools.recipe.data.reading import TextRows
from mixer.tools.recipe.looking import Choice, Look
from mixer.tools.recipe.model import load_pretrained
from mixer.tools.recipe.streams import named
from mixer.tools.recipe.tiny import TINY_CONFIG, byte_tokenizer
from mixer.utils.errors import wrong_value
from mixer.utils.text import did_you_mean, listed

_FEWEST_ROWS, _MANY_ROWS = 40, 400  # some of so many are held out, and a smaller share of so many
_BLOCK = 512  # tokens
_WIDTH = 110
TINY = "tiny"
_OF_TINY = (
    "A tiny new model, to try the recipe. For a real one: name_or_path in place of config, tokenizer of the same."
)
_SCRIPT = '''"""{head}"""

from mixer import MixingConfig{objective}
from mixer.tools.recipe.data import {formats}
from mixer.tools.recipe.model import ModelRecipe
from mixer.tools.recipe.recipe import Recipe
from mixer.tools.recipe.streams import {factory}StreamRecipe

recipe = Recipe(
{fields}
)

if __name__ == "__main__":
    trainer = recipe.build()  # a MixingTrainer
    trainer.train()
    trainer.save_model()
'''


class Line(NamedTuple):
    """A field of a recipe.

    Args:
        name: Its name.
        value: Plain data, the choice of a format, or the lines of a section; `None` leaves the comment alone.
        comment: What it goes by, and the other choices.
        kind: Its class in Python; empty for plain data and for names.
    """

    name: str
    value: Any
    comment: str = ""
    kind: str = ""


def first_recipe(looks: Mapping[str, Look], model: str, objective: str | None, output_dir: str) -> list[Line]:
    """Guesses a recipe.

    Args:
        looks: What the data of each stream look like.
        model: See `check_model`.
        objective: What the run is to lower; `None` leaves it open.
        output_dir: Folder of the run.

    Raises:
        ValueError: If the data cannot be read for one task.
    """
    task, why, labels = _task(looks)
    streams = [Line(name, list(_stream(name, look, task)), "", "StreamRecipe") for name, look in looks.items()]
    own, tokenizer = _loaded(model, labels)
    return [
        Line("model", [Line("task", task, why), *own], "", "ModelRecipe"),
        tokenizer,
        Line("streams", streams),
        *_goal(looks, objective),
        Line("training", _training(looks, output_dir), "", "MixingConfig"),
    ]


def check_model(model: str) -> None:
    """Refuses the name of a model that does not exist.

    Args:
        model: `tiny`, a folder, a name on the hub, or the dotted name of a function that returns a folder.

    Raises:
        ValueError: If there is none.
    """
    if _is_function(model):
        named("--model", model)
    elif not _is_tiny(model):
        try:
            with contextlib.suppress(ValueError):  # the dry run says what else is wrong
                load_pretrained(AutoConfig, model)
        except FileNotFoundError as error:
            hint = f"To try the recipe without a model: --model {TINY}."
            raise wrong_value("--model", f": {error} {hint}", found=model, hint=hint) from None


def check_objective(objective: str | None, streams: Sequence[str]) -> None:
    """Refuses an objective that is neither a stream nor a summary of all.

    Args:
        objective: The objective, if there is one.
        streams: Names of the streams.

    Raises:
        ValueError: If it is something else; lists what there is.
    """
    known = [*streams, *get_args(Kind)]
    if objective is not None and objective not in known:
        text = f"must be one of {listed(known)}, got {objective!r}.{did_you_mean(objective, known)}"
        raise wrong_value("--objective", text, expected=f"one of {listed(known)}", found=objective)


def _is_tiny(model: str) -> bool:
    return model == TINY and not Path(model).exists()


def _is_function(model: str) -> bool:
    package, _, rest = model.partition(".")
    is_name = bool(rest) and model.replace(".", "").isidentifier() and not Path(model).exists()
    return is_name and find_spec(package) is not None


def _loaded(model: str, labels: Sequence[Line]) -> tuple[list[Line], Line]:
    """Returns the fields of the model, beside those of its labels, and the tokenizer."""
    if _is_tiny(model):
        tokenizer = {"factory": f"{byte_tokenizer.__module__}.{byte_tokenizer.__name__}"}
        numbers = {name: value for line in labels if line.name == "config" for name, value in line.value.items()}
        others = [line for line in labels if line.name != "config"]
        return [*others, Line("config", {**TINY_CONFIG, **numbers}, _OF_TINY)], Line(
            "tokenizer", tokenizer, "", "Factory"
        )
    source = Line("name_or_path", *(({"factory": model}, "", "Factory") if _is_function(model) else (model,)))
    return [*labels, source], source._replace(name="tokenizer")


def _goal(looks: Mapping[str, Look], objective: str | None) -> list[Line]:
    """Returns the objective and the policy."""
    goal = "What the run is to lower: the loss of a stream, or of several, as their average or the worst."
    if objective is None:
        shares = _flow(dict.fromkeys(looks, 1))
        return [
            Line("objective", None, f"{goal} Left open: objective: average; then mixing: auto."),
            Line("mixing", "Proportional", f"Guess: by their rows. Or Uniform, Temperature, shares {shares}."),
        ]
    target = {"targets": [objective]} if objective in looks else {"kind": objective}
    rows = "development_share: of its held-out rows, these steer; the others judge, the same rows in every run."
    follows = "Guess: follows the objective; a short run often ends before it changes shares. Or Uniform, Proportional."
    return [
        Line("objective", {**target, "development_share": 0.25}, f"{goal} {rows}", "Objective"),
        Line("mixing", "auto", follows),
    ]


def _task(looks: Mapping[str, Look]) -> tuple[str, str, list[Line]]:
    """Returns the task, why it is that, and the model's fields of its labels."""
    if any(look.choices[0].format != "Labelled" for look in looks.values()):
        why = "Guess: the data have texts, chats or prompts. Or seq2seq-lm, masked-lm, by the model."
        return "causal-lm", why, []
    why = "Guess: all data have labels. Or causal-lm, with the format Prompt."
    classes = [look.classes for look in looks.values()]
    if any(others != classes[0] for others in classes):
        heads = {name: {"num_labels": len(look.classes)} for name, look in looks.items()}
        return "encoder", why, [Line("heads", heads, "A head for each stream, since their labels differ.")]
    config = Line("config", {"num_labels": len(classes[0])}, "As many as there are labels in the data.")
    return "sequence-classification", why, [config]


def _stream(name: str, look: Look, task: str) -> Iterator[Line]:
    choice = next((own for own in look.choices if not own.format or task in getattr(data, own.format).tasks), None)
    if choice is None:
        text = f"{name} has labels alone, which a model of the task {task} does not learn: leave it out."
        raise wrong_value("paths", text, found=look.path)
    source = _source(look, choice)
    yield source
    if choice.format:
        yield Line("format", *_format(look, choice), choice.format)
    if source.value.get("validation_split") is None and look.num_rows >= _FEWEST_ROWS:
        yield Line(
            "validation",
            0.05 if look.num_rows >= _MANY_ROWS else 0.1,
            "Guess: this share is held out. Or a number of rows.",
        )


def _source(look: Look, choice: Choice) -> Line:
    found, source = [f"{look.num_rows:,} rows with {listed(look.columns)}."], dict[str, Any](path=look.path)
    if look.splits != ["train"]:
        held_out = next((own for own in look.splits[1:] if own.startswith(("val", "dev", "test"))), None)
        source |= {"split": look.splits[0], "validation_split": held_out}
        found.append(f"Guess: of the splits {listed(look.splits)}.")
    if look.unit is not None:
        source["rows"], others = look.unit, [own for own in get_args(TextRows) if own != look.unit]
        found.append(f"Guess: a row is a {look.unit}. Or {listed(others)}.")
    if choice.format == "Chat" and look.unread:
        source["columns"] = [own for own in look.columns if own not in look.unread]
        found.append(f"Guess: without {listed(look.unread)}.")
    return Line("data", source, " ".join(found), "DataSource")


def _format(look: Look, choice: Choice) -> tuple[Choice, str]:
    """Returns a format and its comment."""
    read = look.columns if choice.format == "Chat" else getattr(data, choice.format)(**choice.arguments).columns
    rest = ", ".join(own for own in look.columns if own not in read)
    beside = [own for own in look.choices if own.format not in ("", choice.format)]
    others = "; ".join(f"{own.format} {_flow(own.arguments)}".removesuffix(" {}") for own in beside)
    parts = [f"Guess: {choice.why}", f"Not read: {rest}" if rest else "", f"Or {others}" if others else ""]
    limit = {"max_length": _BLOCK} if choice.format == "Text" else {}
    return choice._replace(arguments={**choice.arguments, **limit}), " ".join(f"{part}." for part in parts if part)


def _training(looks: Mapping[str, Look], output_dir: str) -> list[Line]:
    is_evaluated = any(look.num_rows >= _FEWEST_ROWS or len(look.splits) > 1 for look in looks.values())
    return [
        Line("output_dir", output_dir),
        Line("num_train_epochs", 1, "Guess: all rows once. Or max_steps: 1000."),
        Line("per_device_train_batch_size", 8, "Guess: as memory allows."),
        Line("learning_rate", 2e-5, "Guess: of whole models; ten times that for adapters (model.lora)."),
        Line("logging_steps", 10),
        *([Line("eval_strategy", "steps"), Line("eval_steps", 0.1, "Guess: ten times.")] if is_evaluated else []),
        Line("report_to", "none", "Or tensorboard, wandb."),
    ]


def as_yaml(lines: Sequence[Line], head: Sequence[str]) -> str:
    """Writes a recipe as YAML, below comments."""
    return "\n".join([*(f"# {line}" for line in head), *_written(lines, "", is_python=False)]) + "\n"


def as_python(lines: Sequence[Line], head: str) -> str:
    """Writes a recipe as a Python script with a docstring."""
    text = "\n".join(_written(lines, "    ", is_python=True))
    formats = ", ".join(own for own in data.__all__ if f"{own}(" in text)
    objective, factory = (", Objective" if "=Objective(" in text else ""), ("Factory, " if "=Factory(" in text else "")
    return _SCRIPT.format(head=head, fields=text, formats=formats, objective=objective, factory=factory)


def _written(lines: Sequence[Line], indent: str, is_python: bool, has_names: bool = False) -> Iterator[str]:
    for name, value, comment, kind in lines:
        yield from (f"{indent}# {part}" for part in textwrap.wrap(comment, _WIDTH, break_on_hyphens=False))
        key = f"{name!r}: " if is_python and has_names else f"{name}=" if is_python else f"{_flow(name)}: "
        if isinstance(value, list) and isinstance(value[0], Line):
            opened, closed = (f"{kind}(", "),") if kind else ("{", "},")
            yield f"{indent}{key}{opened if is_python else ''}".rstrip()
            yield from _written(value, f"{indent}{'    ' if is_python else '  '}", is_python, has_names=not kind)
            yield from [indent + closed] if is_python else []
        elif value is not None:
            yield f"{indent}{key}{_in_python(value, kind) + ',' if is_python else _flow(value)}"


def _in_python(value: Any, kind: str) -> str:
    arguments = value.arguments if isinstance(value, Choice) else value
    return f"{kind}({', '.join(f'{name}={own!r}' for name, own in arguments.items())})" if kind else repr(value)


def _flow(value: Any) -> str:
    """Writes a value as YAML on a line."""
    if isinstance(value, Choice):
        return _flow({"class_path": value.format, "init_args": value.arguments}) if value.arguments else value.format
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_flow(name)}: {_flow(own)}" for name, own in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_flow, value)) + "]"
    text: str = yaml.safe_dump([value], default_flow_style=True, allow_unicode=True, width=10**6).strip()[1:-1]
    return json.dumps(value, ensure_ascii=False) if "\n" in text else text
