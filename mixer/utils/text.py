"""Formatting of numbers, durations and names."""

import contextlib
import difflib
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, TextIO

from mixer.utils.errors import wrong_value

_SUFFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k"))


def shortened(text: str, most_characters: int = 200) -> str:
    """Truncates a long text with an ellipsis.

    Example:
        >>> shortened("mixtures", 3)
        'mix…'
    """
    return text if len(text) <= most_characters else f"{text[:most_characters]}…"


def in_words(error: BaseException) -> str:
    """Returns an error's type, message and notes as one text."""
    notes: list[str] = getattr(error, "__notes__", [])
    text = f"{type(error).__name__}: {error}"
    return " ".join([text if not notes else f"{text.rstrip('.')}.", *notes])


@contextlib.contextmanager
def naming_rule(rule: str, step: int) -> Iterator[None]:
    """Adds a note with a policy or schedule and the step to errors in the context that lack the step."""
    try:
        yield
    except Exception as error:
        if f"at step {step}" not in in_words(error):
            error.add_note(f"Raised by the {rule} at step {step}.")
        raise


def clock_text(done: Mapping[str, float], budget: Mapping[str, float]) -> str:
    """Formats the progress of a budget.

    Args:
        done: Completed epochs, samples, tokens and steps.
        budget: Limits of some of these.

    Returns:
        The furthest of them, such as `1.24M/10M tokens`; samples if there is no budget.

    Example:
        >>> clock_text({"epochs": 0.5, "tokens": 1_240_000}, {"epochs": 3, "tokens": 10_000_000})
        '0.50/3 epochs'
    """
    if not budget:
        return f"{short_number(done['samples'])} samples"
    unit = max(budget, key=lambda name: done[name] / budget[name])
    now = f"{done[unit]:.2f}" if unit == "epochs" else short_number(done[unit])
    return f"{now}/{short_number(budget[unit])} {unit}"


def duration_text(seconds: float | None) -> str:
    """Formats seconds as `MM:SS` or `H:MM:SS`; `?` if unknown or infinite."""
    if seconds is None or not math.isfinite(seconds):
        return "?"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes:02}:{rest:02}"


def short_number(number: float) -> str:
    """Formats a non-negative number with at most four digits, such as `950`, `9,500`, `95k`, `1.24M`."""
    for size, suffix in _SUFFIXES:
        if number >= size:
            unit = 1e3 if suffix == "k" else size
            return f"{number / unit:.3g}{suffix}" if number / unit < 1e3 else f"{number / unit:.0f}{suffix}"
    return f"{number:,.0f}" if number == int(number) else f"{number:,.2f}"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Suggests the most similar known name: a sentence with a leading space, or an empty string.

    Example:
        >>> did_you_mean("lerning_rate", ["learning_rate", "seed"])
        " Did you mean 'learning_rate'?"
    """
    near = difflib.get_close_matches(name, list(known), n=1)
    return f" Did you mean {near[0]!r}?" if near else ""


def safe_name(name: Any) -> Any:
    """Returns the form of a stream's name that log keys, columns and files have: whole numbers and `/` are replaced.

    Example:
        >>> safe_name("org/name"), safe_name(3)
        ('org--name', '3')
    """
    if isinstance(name, int) and not isinstance(name, bool):
        return str(name)
    return name.replace("/", "--") if isinstance(name, str) else name


def safe_names(values: Any, called: str) -> Any:
    """Returns a mapping by safe names, in the same order, or a name, or a list of names; anything else unchanged.

    Args:
        values: Values by name, or names.
        called: What they are, for the error.

    Raises:
        ValueError: If two names have the same safe form.
    """
    if isinstance(values, list | tuple | str):
        return safe_name(values) if isinstance(values, str) else [safe_name(name) for name in values]
    if not isinstance(values, Mapping) or all(safe_name(name) == name for name in values):
        return values
    given: dict[Any, Any] = {}
    for name in values:
        if (other := given.setdefault(safe_name(name), name)) != name:
            raise wrong_value(called, f": {other!r} and {name!r} are both {safe_name(name)!r} in logs; rename one.")
    return {safe_name(name): value for name, value in values.items()}


def printable(text: str) -> str:
    r"""Escapes non-printable characters as Python does: line ends, escapes, direction marks.

    Example:
        >>> print(printable("a\n\x1b[31mb"))
        a\n\x1b[31mb
    """
    return "".join(character if character.isprintable() else repr(character)[1:-1] for character in text)


def as_code(text: Any) -> str:
    """Writes text from outside for Markdown, as a code span: nothing in it becomes a link, an image or HTML.

    Example:
        >>> as_code("![x](y)"), as_code("a`b")
        ('`![x](y)`', '`` a`b ``')
    """
    line = printable(" ".join(str(text).split()))
    longest = max(map(len, re.findall("`+", line)), default=0)
    return f"`{line}`" if not longest else f"{'`' * (longest + 1)} {line} {'`' * (longest + 1)}"


def listed(parts: Sequence[str]) -> str:
    """Joins at least one part to a list.

    Example:
        >>> listed(["a", "b", "c"])
        'a, b and c'
    """
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)


def first_of(parts: Sequence[str], most: int = 3) -> list[str]:
    """Abbreviates a long list.

    Args:
        parts: Parts.
        most: Maximum number of parts to keep; one more is kept rather than counted.

    Returns:
        The parts, or the first ones and the number of others.

    Example:
        >>> first_of(["a", "b", "c", "d"]), first_of(["a", "b", "c", "d", "e"])
        (['a', 'b', 'c', 'd'], ['a', 'b', 'c', '2 more'])
    """
    return list(parts) if len(parts) <= most + 1 else [*parts[:most], f"{len(parts) - most:,} more"]


def between(values: Mapping[str, float], write: Callable[[float], str]) -> str:
    """Describes the range of values.

    Args:
        values: Values by name, at least one, none of them NaN.
        write: Formats a value.

    Example:
        >>> between({"math": 0.25, "code": 0.75}, "{:.0%}".format)
        'between 25% (math) and 75% (code)'
    """
    least, greatest = min(values, key=values.__getitem__), max(values, key=values.__getitem__)
    if write(values[least]) == write(values[greatest]):
        return f"{write(values[least])} ({'each' if len(values) > 1 else least})"
    return f"between {write(values[least])} ({least}) and {write(values[greatest])} ({greatest})"


def known(values: Mapping[str, float]) -> dict[str, float]:
    """Returns the values that are not NaN."""
    return {name: value for name, value in values.items() if not math.isnan(value)}


def rule_in_words(rule: Any) -> str:
    """Names a policy or schedule, and its inner ones, from the result of `as_data`.

    Example:
        >>> rule_in_words({"class_path": "Floor", "init_args": {"policy": {"class_path": "PiKE"}, "minimum": 0.1}})
        'Floor(PiKE)'
        >>> rule_in_words({"class_path": "Fixed", "init_args": {"weights": {"a": 1}, "unit": "tokens"}})
        'Fixed (tokens)'
    """
    return f"{_rule_in_words(rule)}{unit_beside(rule)}"


def unit_beside(rule: Any) -> str:
    """Returns the unit of a policy's weights in brackets, after a space; empty for samples, or if it is unknown."""
    unit = mixing_unit({"mixing": rule})
    return "" if unit == "samples" else f" ({unit})"


def mixing_unit(description: Mapping[str, Any]) -> Literal["samples", "tokens", "labels"]:
    """Returns the unit of a run's weights by its description (see `describe_run`); samples if it is unknown."""
    unit = unit_in(description.get("mixing"))
    return "tokens" if unit == "tokens" else "labels" if unit == "labels" else "samples"


def unit_in(rule: Any) -> str | None:
    """Returns the unit of a policy's weights, or of the innermost one's, from the result of `as_data`."""
    arguments = rule.get("init_args") if isinstance(rule, Mapping) else None
    if not isinstance(arguments, Mapping):
        return None
    unit = unit_in(arguments["policy"]) if isinstance(arguments.get("policy"), Mapping) else arguments.get("unit")
    return unit if isinstance(unit, str) else None


def _rule_in_words(rule: Any) -> str:
    if not isinstance(rule, Mapping) or "class_path" not in rule:
        return "a function" if isinstance(rule, Mapping) else str(rule)
    arguments = rule.get("init_args")
    parts = arguments.values() if isinstance(arguments, Mapping) else ()
    rules = [part for value in parts for part in (value if isinstance(value, list) else [value])]
    inner = [_rule_in_words(part) for part in rules if isinstance(part, Mapping) and "class_path" in part]
    return f"{rule['class_path']}({', '.join(inner)})" if inner else str(rule["class_path"])


def duration(seconds: float) -> str:
    """Formats seconds in suitable units.

    Example:
        >>> duration(4.21), duration(754.0), duration(7560.0)
        ('4.2 s', '12 min 34 s', '2 h 6 min')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    if seconds < 3600:
        return f"{int(seconds // 60)} min {int(seconds % 60)} s"
    return f"{int(seconds // 3600)} h {int(seconds % 3600 // 60)} min"


def print_lines(*lines: object, file: TextIO | None = None) -> None:
    """Prints texts and paths, a line each, with escapes in place of what is not printable.

    Args:
        *lines: The lines.
        file: Where to; `None` for the standard output.
    """
    for line in lines:
        print(printable(str(line)), file=file)
