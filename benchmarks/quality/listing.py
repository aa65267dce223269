"""What `python -m benchmarks quality --list` says: how each policy is set, and which are not there."""

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.quality.policies import ENTRIES, NO_COMPETITORS, Entry, competitors, make, parameters_of, settings_of
from mixer.policies import Policy
from mixer.policies.registry import built_in_policies

_LONG = 50  # a default that counts something and is at least this may be meant for longer runs


def describe(num_steps: int, entries: Mapping[str, Entry] | None = None) -> list[list[str]]:
    """Says of every competitor, and of every policy that is none, how it is set.

    Args:
        num_steps: Steps of the run.
        entries: The competitors of a mixture that has its own.

    Returns:
        Rows of name, class, settings, and what is to be known: that the class is not there, that the settings do not
        fit, which counts are not by the rule.
    """
    classes, rows = built_in_policies(), []
    for name, entry in (ENTRIES | competitors() if entries is None else entries).items():
        if entry.class_name not in classes:
            rows.append([name, entry.class_name, "", "there is no such policy (yet)"])
            continue
        reason = why_not(entry, num_steps)
        if reason is None:
            settings = settings_of(entry, num_steps)
            remark = "" if entries is not None or name in ENTRIES else "not in the table: by the rule alone"
            unset = _long_counts(classes[entry.class_name], settings)
            remark = "; ".join(filter(None, [remark, f"not by the rule: {unset}" if unset else ""]))
        else:
            settings, remark = dict(entry.settings), f"cannot be made: {reason}"
        rows.append(
            [name, entry.class_name, ", ".join(f"{key}={_short(value)}" for key, value in settings.items()), remark]
        )
    return rows + [[name, name, "", f"no competitor: {reason}"] for name, reason in NO_COMPETITORS.items()]


def why_not(entry: Entry, num_steps: int) -> str | None:
    """Says why a competitor cannot be made.

    Args:
        entry: The competitor, of a class that is there.
        num_steps: Steps of the run.

    Returns:
        The reason; `None` if it can, as far as is known before a run.
    """
    try:
        settings = settings_of(entry, num_steps)
        stand_in = dict.fromkeys(("a", "b"), 1.0)
        make(entry.class_name, settings, 1_000, stand_in)
    except (TypeError, ValueError) as error:
        return str(error)
    return None


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _long_counts(policy_class: type[Policy], settings: Mapping[str, Any]) -> str:
    defaults = {name: parameter.default for name, parameter in parameters_of(policy_class).items()}
    long = {
        name: default
        for name, default in defaults.items()
        if type(default) is int and default >= _LONG and name not in settings
    }
    return ", ".join(f"{name}={default}" for name, default in long.items())


def names_among(wanted: Sequence[str], there: Sequence[str]) -> list[str]:
    """Checks names.

    Args:
        wanted: Names that were asked for; none for all.
        there: Names that there are.

    Returns:
        The names.

    Raises:
        ValueError: If one is not there.
    """
    unknown = [name for name in wanted if name not in there]
    if unknown:
        raise ValueError(f"There are no {unknown} among {list(there)}; --list says how each is set.")
    return list(wanted) or list(there)
