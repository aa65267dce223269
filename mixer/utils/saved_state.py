"""Saved state: a rule names the attributes that it remembers, and takes back what has their form."""

import reprlib
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from mixer.utils.errors import InvalidTypeError, InvalidValueError, wrong_value
from mixer.utils.text import shortened
from mixer.utils.user_code import library_of

# Kinds of arrays that JSON gives for an array of a kind; objects are numbers with `None`.
_KINDS = {"f": "iufO", "i": "iu", "b": "b"}
_MOST_LEVELS, _LONGEST = 8, 80
_OWN = ("mixer", "replay", "tasks")


class HasState:
    """Saves and restores the attributes that a class and its bases name in `remembered`, as JSON-compatible data.

    Arrays become nested lists with `None` for NaN. An attribute that has a state of its own saves that, as
    does each value of a dictionary. An attribute of a class with `from_state` is replaced by a new object.
    """

    remembered: ClassVar[tuple[str, ...]] = ()
    _state_name: ClassVar[str] = "state"

    def state_dict(self) -> dict[str, Any]:
        """Returns the state, by attribute without leading underscores."""
        return {name.lstrip("_"): _saved(getattr(self, name)) for name in self._remembered_names()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Loads a saved state, after `start`, into attributes of the same kind.

        Args:
            state: The result of `state_dict`.

        Raises:
            ValueError: If the state is that of another class, or an array is saved as something else.
        """
        own, kind = sorted(self.state_dict()), self._state_name
        if sorted(state) != own:
            raise InvalidValueError(
                f"{type(self).__name__} remembers {own}, but the saved {kind} has {sorted(state)}.", option="state"
            )
        for name in self._remembered_names():
            setattr(self, name, _loaded(getattr(self, name), state[name.lstrip("_")]))

    def check_remembered(self) -> None:
        """Refuses names in `remembered` that are no attributes after `start`: no checkpoint could be written.

        Raises:
            TypeError: With the class and the names.
        """
        missing = [name for name in self._remembered_names() if not hasattr(self, name)]
        if missing:
            text = f"{type(self).__name__}: remembered must name attributes that start sets; {missing} are none."
            raise InvalidTypeError(text, option="remembered")

    @classmethod
    def _remembered_names(cls) -> list[str]:
        return [name for kind in reversed(cls.__mro__) for name in vars(kind).get("remembered", ())]


def _saved(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _saved(part) for name, part in value.items()}
    if hasattr(value, "state_dict"):
        return value.state_dict()
    return to_plain(value) if isinstance(value, np.ndarray) else value


def _loaded(current: Any, saved: Any) -> Any:
    if isinstance(current, dict) and current:  # an empty one is filled as it was
        if sorted(saved) != sorted(current):
            text = f"the saved state must have values of {sorted(current)}, got {sorted(saved)}."
            raise InvalidValueError(text, option="state")
        return {name: _loaded(part, saved[name]) for name, part in current.items()}
    if hasattr(current, "from_state"):
        return current.from_state(saved)
    if isinstance(current, HasState):
        current.load_state_dict(saved)
        return current
    if isinstance(current, np.ndarray):  # the first axis may have grown since the start
        return from_plain(saved, -1, *current.shape[1:], dtype=current.dtype)
    if not isinstance(current, bool | int | float):
        return saved
    kinds: Any = bool if isinstance(current, bool) else int if isinstance(current, int) else int | float
    if not isinstance(saved, kinds) or isinstance(saved, bool) != isinstance(current, bool):
        text = f"the saved state must have a {type(current).__name__}, got {reprlib.repr(saved)}."
        raise InvalidValueError(text, option="state")
    return type(current)(saved)


def is_known(rule: Any) -> bool:
    """Whether the form of a rule's state is known: not for users' own classes and wrappers of them.

    A user's class may start with a number that becomes a list in the first step, and restores its own state.
    """
    parts = (part for part in vars(rule).values() if isinstance(part, HasState))
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
            raise wrong_value(name, f"must be a list, but {_kind(saved)} was saved")
        for place, part in enumerate(saved):
            check_form(part, own[0] if own else None, f"{name}[{place}]")
    elif isinstance(own, bool | str):
        if type(saved) is not type(own):
            raise wrong_value(name, f"must be {_kind(own)}, but {_kind(saved)} was saved")
    elif isinstance(own, int | float) and (isinstance(saved, bool) or not isinstance(saved, int | float)):
        raise wrong_value(name, f"must be a number, but {_kind(saved)} was saved")


def _check_mapping(saved: Any, own: Mapping[str, Any], name: str) -> None:
    if not isinstance(saved, Mapping) or sorted(saved) != sorted(own):
        description = sorted(saved) if isinstance(saved, Mapping) else _kind(saved)
        raise wrong_value(name, f"has the state {sorted(own)}, but the saved state has {description}")
    for key, part in own.items():
        check_form(saved[key], part, f"{name}: {key}")


def arrays_of(rule: Any, length: int, levels: int = _MOST_LEVELS) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of per-stream arrays in a rule, including its parts, by attribute path.

    Args:
        rule: The rule.
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


def to_plain(values: NDArray[Any]) -> Any:
    """Converts an array to nested lists, with `None` for NaN."""
    is_missing = np.isnan(values)
    if not is_missing.any():
        return values.tolist()
    plain = values.astype(object)
    plain[is_missing] = None
    return plain.tolist()


def from_plain(values: Sequence[Any], *shape: int, dtype: Any = np.float64) -> NDArray[Any]:
    """Converts nested lists of `to_plain` to an array of the shape, which empty lists do not determine."""
    try:
        found, kind = np.array(values), np.dtype(dtype).kind
        if found.size and found.dtype.kind not in _KINDS.get(kind, kind):  # such as texts, or fractions: they were cut
            raise TypeError
        return np.array(values, dtype=dtype).reshape(shape)
    except (ValueError, TypeError, OverflowError):
        text = f"the saved state must have lists of numbers of the shape {list(shape)}, got {reprlib.repr(values)}."
        raise InvalidValueError(text, option="state") from None
