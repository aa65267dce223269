"""A configuration of another tool, of which every key is carried over, or left with a reason."""

import re
from collections.abc import Collection, Mapping
from fnmatch import fnmatchcase
from typing import Any

from mixer.utils.errors import require
from mixer.utils.nested import flat

_UNKNOWN = "nothing here has this name: if it matters, look for it in mixer train --help"
_NEEDLESS = "it has no place here"
_REFERENCE = re.compile(r"\$\{([\w.]+)\}")  # to another key, as Hydra has it
_EXPONENT = re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+")  # YAML reads 1e-4 as a text


class LeftKeys(dict[str, str]):
    """Why keys are not carried over, by their names.

    Attributes:
        harmless: The keys without which the same is learned. All others may change it, unknown ones too.
    """

    def __init__(self) -> None:
        super().__init__()
        self.harmless: set[str] = set()


class Source:
    """A mapping of a configuration. A key that is taken is carried over; every other one is left.

    Args:
        content: The mapping.
        left: Where to write the reasons of keys that are left, by their names.
        field: The name of the mapping before those of its keys, such as `datasets[0].`.

    Raises:
        ValueError: If it is no mapping.
    """

    def __init__(self, content: Any, left: LeftKeys, field: str = "") -> None:
        require(isinstance(content, Mapping), field.removesuffix("."), "a mapping", f"{content!r:.80}")
        self.left, self.field = left, field
        self._open = {str(key): value for key, value in content.items()}
        for key in [key for key, value in self._open.items() if value is None]:
            self.leave(key, "it has no value", is_harmless=True)
        self.content = dict(self._open)

    def take(self, key: str, default: Any = None) -> Any:
        """Returns the value of a key, or the default without one."""
        self._open.pop(key, None)
        return self.value(key, default)

    def value(self, key: str, default: Any = None) -> Any:
        """Returns the value of a key, or the default without one, and takes nothing."""
        value = self.content.get(key, default)
        return float(value) if isinstance(value, str) and _EXPONENT.fullmatch(value) else value

    def named(self, names: Mapping[str, str]) -> dict[str, Any]:
        """Takes the keys of a table that are there, under its names."""
        return {ours: self.take(key) for key, ours in names.items() if key in self.content}

    def number(self, key: str, default: float = 0) -> Any:
        """Takes a number of 0 or more.

        Raises:
            ValueError: If the value is none.
        """
        value = self.take(key, default)
        is_number = isinstance(value, int | float) and not isinstance(value, bool) and value >= 0
        require(is_number, f"{self.field}{key}", "a number of 0 or more", value)
        return value

    def texts(self, key: str) -> list[str]:
        """Takes a list, or a text with commas."""
        value = self.take(key, "")
        return [str(part).strip() for part in (value if isinstance(value, list) else str(value).split(","))]

    def part(self, key: str) -> "Source":
        """Takes a mapping; an empty one without the key."""
        return Source(self.take(key, {}), self.left, f"{self.field}{key}.")

    def parts(self, key: str) -> list["Source"]:
        """Takes a list of mappings; an empty one without the key.

        Raises:
            ValueError: If the value is none.
        """
        value = self.take(key, [])
        require(isinstance(value, list), f"{self.field}{key}", "a list of mappings", f"{value!r:.80}")
        return [Source(part, self.left, f"{self.field}{key}[{place}].") for place, part in enumerate(value)]

    def leave(self, key: str, reason: str, is_harmless: bool = False) -> None:
        """Leaves a key with the reason, unless it is not there or was taken.

        Args:
            key: The key.
            reason: Why.
            is_harmless: Whether the same is learned without it.
        """
        if key in self._open:
            del self._open[key]
            self.left[f"{self.field}{key}"] = reason
            if is_harmless:
                self.left.harmless.add(f"{self.field}{key}")

    @property
    def open(self) -> list[str]:
        """The keys that are neither carried over nor left."""
        return list(self._open)

    def close(self, reasons: Mapping[str, Any], other: str = _UNKNOWN, harmless: Collection[str] = ()) -> None:
        """Leaves all open keys.

        Args:
            reasons: Why, by key or pattern: a sentence, or `why` with the values that need nothing here, `fits`.
            other: The reason of all other keys.
            harmless: Keys, or patterns, without which the same is learned.
        """
        for key, value in list(self._open.items()):
            is_harmless = _pattern_of(key, harmless) is not None
            reason = reasons.get(_pattern_of(key, reasons) or key, _NEEDLESS if is_harmless else other)
            if isinstance(reason, Mapping) and value in reason["fits"]:
                self.take(key)
            else:
                self.leave(key, reason["why"] if isinstance(reason, Mapping) else reason, is_harmless)


def flattened(content: Mapping[str, Any], roots: Collection[str] = ()) -> dict[str, Any]:
    """Returns the values of keys within keys by names with dots; references to other keys are filled in.

    Args:
        content: The configuration.
        roots: Keys whose own keys stand for themselves.
    """
    parts = {field[1:] if field[0] in roots else field: value for field, value in flat(content).items()}
    values = {".".join(part.lstrip("-").replace("-", "_") for part in field): value for field, value in parts.items()}
    for key, value in values.items():
        if isinstance(value, str):
            values[key] = _with_references(value, values, key.rpartition(".")[0])
    return values


def _with_references(text: str, values: Mapping[str, Any], parent: str) -> Any:
    def value_of(reference: re.Match[str]) -> Any:
        name = reference[1]
        return values.get(f"{parent}{name}" if name.startswith(".") else name, reference[0])

    whole = _REFERENCE.fullmatch(text)
    return value_of(whole) if whole else _REFERENCE.sub(lambda reference: str(value_of(reference)), text)


def _pattern_of(key: str, patterns: Collection[str]) -> str | None:
    """Returns the first of some patterns that a key has, such as `*_parallel_size`; the key itself goes first."""
    return key if key in patterns else next((one for one in patterns if "*" in one and fnmatchcase(key, one)), None)
