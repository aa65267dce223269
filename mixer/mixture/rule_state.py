"""Checks of policies and schedules: the form of a saved state, and their names in errors."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from mixer.policies.contract import Policy
from mixer.schedules.base import Schedule
from mixer.utils.text import in_words, shortened
from mixer.utils.user_code import library_of

_MOST_LEVELS, _LONGEST = 8, 80
_OWN = ("mixer", "replay", "tasks")


@contextlib.contextmanager
def naming(rule: str, step: int) -> Iterator[None]:
    """Adds a note with the rule and the step to errors in the context that lack the step."""
    try:
        yield
    except Exception as error:
        if f"at step {step}" not in in_words(error):
            error.add_note(f"Raised by the {rule} at step {step}.")
        raise


def is_known(rule: Any) -> bool:
    """Whether the form of a policy's or schedule's state is known: not for users' own classes and wrappers of them.

    A user's class may start with a number that becomes a list in the first step, and restores its own state.
    """
    parts = (part for part in vars(rule).values() if isinstance(part, Policy | Schedule))
    return library_of(type(rule)) in _OWN and all(map(is_known, parts))


def check_form(saved: Any, own: Any, name: str) -> None:
    """Refuses saved data of another form than the initial state: text for a number, a number for a list.

    Args:
        saved: Saved data.
        own: Initial state. `None` and an empty list match anything of their kind.
        name: Name for errors.

    Raises:
        ValueError: If the form differs.
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
        description = sorted(saved) if isinstance(saved, Mapping) else _kind(saved)
        raise ValueError(f"{name} has the state {sorted(own)}, but the saved state has {description}")
    for key, part in own.items():
        check_form(saved[key], part, f"{name}: {key}")


def arrays_of(rule: Any, length: int, levels: int = _MOST_LEVELS) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of per-stream arrays in a policy or schedule, including its parts, by attribute path.

    Args:
        rule: Policy or schedule.
        length: Number of streams.
        levels: Levels of parts to look into.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    for name, value in vars(rule).items():
        if isinstance(value, np.ndarray) and value.ndim and value.shape[0] == length:
            shapes[name] = value.shape[:1]
        elif levels and hasattr(value, "__dict__") and library_of(type(value)) in _OWN:
            parts = arrays_of(value, length, levels - 1)
            shapes |= {f"{name}.{path}": shape for path, shape in parts.items()}
    return shapes


def _kind(value: Any) -> str:
    return "nothing" if value is None else f"{type(value).__name__} {shortened(repr(value), _LONGEST)}"
