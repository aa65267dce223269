"""Options of the commands that find mixtures, `mixer fit` and `mixer search`."""

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from jsonargparse import Namespace
from yaml import YAMLError

from mixer.tools.analysis.fit.constraints import Constraints
from mixer.tools.analysis.fit.fit_target import parse_numbers
from mixer.tools.recipe.yaml_files import load_yaml
from mixer.utils.errors import InvalidValueError

_BY_NAME = "NAME=number,..."
# By the option's name without dashes.
OPTIONS: dict[str, dict[str, Any]] = {
    "--prior": {"metavar": _BY_NAME, "help": "The mixture to start from and to compare with, such as the natural one."},
    "--least": {"metavar": "SHARE|" + _BY_NAME, "help": "Smallest shares; one number is for all streams."},
    "--most": {"metavar": "SHARE|" + _BY_NAME, "help": "Largest shares; one number is for all streams."},
    "--passes": {"type": float, "metavar": "NUMBER", "help": "Largest number of passes of the real run over a stream."},
    "--budget_samples": {"type": float, "metavar": "NUMBER", "help": "Length of the real run, in the unit of --sizes."},
    "--sizes": {"metavar": _BY_NAME, "help": "Samples (or tokens) of each stream."},
    "--divergence": {"type": float, "metavar": "NATS", "help": "Largest Kullback-Leibler divergence from the prior."},
    "--fixed_groups": {"metavar": "YAML", "help": "Streams with fixed weights in a group: {old: {a: 0.3, b: 0.7}}."},
    "--bounds": {"metavar": _BY_NAME, "help": "Largest predicted losses."},
}


def constraints_of(options: Namespace, streams: Sequence[str], natural: Constraints | None = None) -> Constraints:
    """Makes constraints of the options; what is not given is that of `natural`."""
    given: dict[str, Any] = {
        "prior": _numbers(options, "prior"),
        "least": _shares(options, "least", streams),
        "most": _shares(options, "most", streams),
        "sizes": _numbers(options, "sizes"),
        "bounds": _numbers(options, "bounds"),
        "budget": options.budget_samples,
        "passes": options.passes,
        "divergence": options.divergence,
        "groups": _groups(options.fixed_groups),
    }
    natural = natural or Constraints()
    if given["most"] is not None:  # streams of weight 0 stay out
        given["most"] = {**natural.most, **{n: min(own, natural.most.get(n, own)) for n, own in given["most"].items()}}
    found = replace(natural, **{name: value for name, value in given.items() if value is not None})
    return found if found.passes is not None else replace(found, sizes={}, budget=None)


def _numbers(options: Namespace, name: str) -> dict[str, float] | None:
    text = getattr(options, name)
    return None if text is None else parse_numbers(f"--{name}", text)


def _groups(text: str | None) -> Any:
    try:
        return None if text is None else load_yaml(text)
    except (ValueError, YAMLError) as error:
        raise InvalidValueError.about("--fixed_groups", f"is no YAML: {' '.join(str(error).split())}.") from None


def _shares(options: Namespace, name: str, streams: Sequence[str]) -> Mapping[str, float] | None:
    text = getattr(options, name)
    if text is None or "=" in text:
        return _numbers(options, name)
    return dict.fromkeys(streams, parse_numbers(f"--{name}", f"{name}={text}")[name])


def how_to_train(mixing: Mapping[str, Any], recipe: str = "") -> str:
    """Gives the command that trains on a mixture; the option alone where the recipe is not known."""
    option = f"--mixing {shlex.quote(json.dumps(mixing))}"
    if not recipe:
        return f"To train on it, add this to the command:\n  {option}"
    return f"To train on it, add to this the options that you gave here:\n  mixer train {shlex.quote(recipe)} {option}"
