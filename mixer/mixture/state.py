"""Whether what a rule is said to have remembered has the form of what it remembers."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from mixer.policies.contract import Policy
from mixer.schedules.base import Schedule
from mixer.utils.text import shortened

_MOST_LEVELS, _LONGEST = 8, 80
_OWN = ("mixer", "replay", "tasks")


def is_known(rule: Any) -> bool:
    """Whether it is known here what a rule remembers: of a user's own, and what wraps one, it is not.

    A user's rule may begin with a number that becomes a list with the first step, and takes up itself what it saved.

    Args:
        rule: The rule.

    Returns:
        Whether all that it is made of is of this toolkit.
    """
    parts = (part for part in vars(rule).values() if isinstance(part, Policy | Schedule))
    return type(rule).__module__.split(".")[0] in _OWN and all(map(is_known, parts))


def check_form(saved: Any, own: Any, name: str) -> None:
    """Refuses saved data of another form than a rule's own: a text for a number, a number for a list.

    Args:
        saved: What was saved.
        own: What the rule remembers at the start. `None`, and a list without elements, stand for anything of their
            kind.
        name: Whose they are, for errors.

    Raises:
        ValueError: If the form is another; where, is said.
    """
    if own is None:
        return
    if isinstance(own, Mapping):
        _check_mapping(saved, own, name)
    elif isinstance(own, list | tuple):
        if not isinstance(saved, list | tuple):
            raise ValueError(f"{name} must be a list, but {_kind(saved)} was saved")
        for place, part in enumerate(saved):
            check_form(part, own[0] if own else None, f"{name}[{place}]")
    elif isinstance(own, bool | str):
        if type(saved) is not type(own):
            raise ValueError(f"{name} must be {_kind(own)}, but {_kind(saved)} was saved")
    elif isinstance(own, int | float) and (isinstance(saved, bool) or not isinstance(saved, int | float)):
        raise ValueError(f"{name} must be a number, but {_kind(saved)} was saved")


def _check_mapping(saved: Any, own: Mapping[str, Any], name: str) -> None:
    if not isinstance(saved, Mapping) or sorted(saved) != sorted(own):
        found = sorted(saved) if isinstance(saved, Mapping) else _kind(saved)
        raise ValueError(f"{name} remembers {sorted(own)}, but the saved state has {found}")
    for key, part in own.items():
        check_form(saved[key], part, f"{name}: {key}")


def arrays_of(rule: Any, length: int) -> dict[str, tuple[int, ...]]:
    """Gives the shapes of a rule's arrays that have a place for each stream.

    Args:
        rule: The rule; what it is made of is looked at, too.
        length: Number of streams.

    Returns:
        Shapes by where they stand.
    """
    found: dict[str, tuple[int, ...]] = {}
    _collect(rule, length, "", found, _MOST_LEVELS)
    return found


def _collect(rule: Any, length: int, place: str, found: dict[str, tuple[int, ...]], levels: int) -> None:
    for name, value in vars(rule).items():
        if isinstance(value, np.ndarray):
            if value.ndim and value.shape[0] == length:
                found[place + name] = value.shape[:1]
        elif levels and hasattr(value, "__dict__") and type(value).__module__.split(".")[0] in _OWN:
            _collect(value, length, f"{place}{name}.", found, levels - 1)


def _kind(value: Any) -> str:
    return "nothing" if value is None else f"{type(value).__name__} {shortened(repr(value), _LONGEST)}"
