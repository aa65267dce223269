"""Losses that are assumed: a power law for each stream."""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from mixer.analysis.simulate.seen import Seen, mean_loss
from mixer.mixture.plan import Plan
from mixer.utils.arrays import FloatArray, Int64Array

ALL = "default"
EXAMPLE = """'{"default": {"start": 4.0, "end": 1.5}}'"""
_GIVEN = frozenset({"loss", "evaluation_loss"})


@dataclass(frozen=True)
class Course:
    """How a stream's loss is assumed to fall: `end + (start - end) * (1 + seen / scale) ** -exponent`.

    Args:
        start: Loss before the first sample.
        end: Loss that it comes to.
        scale: Samples after which it begins to fall as a power of them; above 0.
        exponent: Of the power, 0 or more.

    Raises:
        ValueError: If a number is outside its range.
    """

    start: float = 4.0
    end: float = 1.0
    scale: float = 1000.0
    exponent: float = 0.5

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if isinstance(value, bool) or not isinstance(value, int | float) or not np.isfinite(value):
                raise ValueError(f"assumed_losses: {name} must be a finite number, got {value!r}.")
        if self.scale <= 0 or self.exponent < 0:
            raise ValueError(
                f"assumed_losses: scale must be above 0 and exponent 0 or more, got {self.scale} and {self.exponent}."
            )


@dataclass(frozen=True)
class AssumedLosses:
    """Losses by a law for each stream; evaluation losses are the same.

    Args:
        names: Names of the streams.
        by_stream: For streams, or for `default`, what their course has in place of `Course()`'s numbers.

    Raises:
        ValueError: If a name or a number is unknown, or outside its range, or `default` may mean a stream.
    """

    names: Sequence[str]
    by_stream: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.by_stream, Mapping):
            raise ValueError(f"assumed_losses must be a mapping such as {EXAMPLE}, got {self.by_stream!r}.")
        if ALL in self.names and ALL in self.by_stream:
            raise ValueError(
                f"assumed_losses: {ALL!r} stands for all streams, and one is called so too. Give that stream another "
                "name in the recipe, or leave the entry out: without it all begin from the same numbers."
            )
        unknown = [name for name in self.by_stream if name not in (*self.names, ALL)]
        if unknown:
            raise ValueError(f"assumed_losses: the streams are {list(self.names)} ({ALL!r} is for all), got {unknown}.")
        for name, given in self.by_stream.items():
            known = list(vars(Course()))
            if not isinstance(given, Mapping) or not set(given) <= set(known):
                raise ValueError(f"assumed_losses: {name!r} must be a mapping with some of {known}, got {given!r}.")
        _ = self._courses  # their numbers are checked where they are made

    @functools.cached_property
    def _courses(self) -> list[Course]:
        return [self._course(name) for name in self.names]

    @functools.cached_property
    def _numbers(self) -> list[FloatArray]:
        return [np.array([vars(course)[name] for course in self._courses]) for name in vars(Course())]

    def _course(self, name: str) -> Course:
        given: dict[str, Any] = {**self.by_stream.get(ALL, {}), **self.by_stream.get(name, {})}
        return replace(Course(), **given)

    @property
    def gives(self) -> frozenset[str]:
        """What it can show."""
        return _GIVEN

    @property
    def note(self) -> str:
        """Says that losses are assumed."""
        return (
            "Losses are assumed, not measured: end + (start - end) * (1 + seen / scale) ** -exponent. What adaptive "
            "rules do with those of the trained run is another matter."
        )

    def after(self, plan: Plan, seen: Int64Array, tokens: Int64Array) -> Seen:
        """Shows the losses where the streams stand, of those that have samples; see `Source.after`."""
        losses = np.where(plan.counts > 0, self._at(seen), np.nan)
        return Seen(losses, loss=mean_loss(losses, plan.counts, tokens))

    def evaluation(self, step: int, seen: Int64Array) -> Mapping[str, float]:
        """Shows the same losses; see `Source.evaluation`."""
        return dict(zip(self.names, self._at(seen).tolist(), strict=True))

    def _at(self, seen: Int64Array) -> FloatArray:
        start, end, scale, exponent = self._numbers
        losses: FloatArray = end + (start - end) * (1.0 + seen / scale) ** -exponent
        return losses
