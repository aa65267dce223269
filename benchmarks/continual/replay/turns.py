"""Settings of `benchmarks.continual.replay` in turns, round by round, and the ratios between them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from benchmarks.common import paired_ratio, rotated, show, spread
from benchmarks.continual.replay.subjects import Setting

MIDDLE = 10  # tasks at which capacities are compared
_COLUMNS = 4  # of a table
Take = Callable[[int], float]
Subject = TypeVar("Subject")


def take_turns(takes: Mapping[str, Take], rounds: int) -> dict[str, list[float]]:
    """Has all settings measured in turns.

    Args:
        takes: Measures a turn of each, given its number.
        rounds: Number of turns.

    Returns:
        What was measured, by setting.
    """
    times: dict[str, list[float]] = {name: [] for name in takes}
    for number in range(rounds):
        for name in rotated(list(takes), number):
            times[name].append(takes[name](number))
    return times


def compared(times: Mapping[Setting, Sequence[float]]) -> dict[str, dict[str, float]]:
    """Gives the ratios of which one should be 1: over one task, over the smallest capacity, and of equals.

    Args:
        times: Times of the turns, by setting.

    Returns:
        Paired ratios, by what is compared.
    """
    ratios = {}
    smallest = min(setting.capacity for setting in times)
    for setting, own in times.items():
        bases = {
            "tasks": Setting(setting.capacity, 1),
            "capacity": Setting(smallest, setting.num_tasks),
        }
        if setting.copy:
            ratios["again"] = paired_ratio(own, times[Setting(setting.capacity, setting.num_tasks)])
            continue
        if bases["tasks"] in times and setting.num_tasks > 1:
            ratios[f"{setting.num_tasks} tasks / 1, {setting.capacity:g} slots"] = paired_ratio(
                own, times[bases["tasks"]]
            )
        if setting.capacity > smallest and setting.num_tasks == MIDDLE:
            ratios[f"{setting.capacity:g} slots / {smallest:g}"] = paired_ratio(own, times[bases["capacity"]])
    return ratios


def in_turns(subjects: Mapping[Setting, Subject], rounds: int, turn: Callable[[Subject, int], float]) -> dict[str, Any]:
    """Measures subjects in turns.

    Args:
        subjects: By setting.
        rounds: Number of turns of each.
        turn: Measures one, given the number of the turn.

    Returns:
        See `figures_of`.
    """
    takes: dict[Setting, Take] = {
        setting: lambda number, subject=subject: turn(subject, number)  # type: ignore[misc]
        for setting, subject in subjects.items()
    }
    return figures_of(takes, rounds)


def figures_of(takes: Mapping[Setting, Take], rounds: int) -> dict[str, Any]:
    """Measures settings in turns.

    Args:
        takes: Measures a turn of each, in microseconds a sample.
        rounds: Number of turns of each.

    Returns:
        `microseconds` a sample by setting, and `ratio`, see `compared`.
    """
    by_label = {setting.label: setting for setting in takes}
    times = take_turns({setting.label: take for setting, take in takes.items()}, rounds)
    ratios = compared({by_label[label]: own for label, own in times.items()})
    return {"microseconds": {label: spread(own) for label, own in times.items()}, "ratio": ratios}


def show_rates(title: str, parts: Mapping[str, Any], unit: str = "thousand samples/s") -> None:
    """Prints rates and ratios of what was measured, four to a table.

    Args:
        title: What it is.
        parts: What `figures_of` gave, by what was measured.
        unit: Of the rates.
    """
    names = list(parts)
    for start in range(0, len(names), _COLUMNS):
        some = {name: parts[name] for name in names[start : start + _COLUMNS]}
        show(f"{title}: {unit}", ["", *some], _rows(some, "microseconds", _rate))
        show(f"{title}: ratios of times, which should be 1", ["", *some], _rows(some, "ratio", _ratio))


def _rows(parts: Mapping[str, Any], kind: str, text: Callable[[Mapping[str, float]], str]) -> list[list[str]]:
    labels = list(dict.fromkeys(label for own in parts.values() for label in own[kind]))
    return [
        [label, *(text(own[kind][label]) if label in own[kind] else "" for own in parts.values())] for label in labels
    ]


def _rate(microseconds: Mapping[str, float]) -> str:
    return f"{1e3 / microseconds['median']:,.0f}"


def _ratio(ratio: Mapping[str, float]) -> str:
    return f"{ratio['median']:.3f} ({ratio['low']:.3f}-{ratio['high']:.3f})"
