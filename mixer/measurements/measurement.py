"""What a policy or a schedule may ask a run to measure: requests, each with the type of its result."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Generic, Literal, TypeVar

import numpy as np

from mixer.utils.arrays import FloatArray
from mixer.utils.errors import InvalidTypeError, wrong_type

Result = TypeVar("Result")
Asked = TypeVar("Asked", bound="Measurement[Any]")
Requirement = Literal[
    "objective",
    "evaluations",
    "an evaluation before the first step",
    "whole gradients",
    "gradients between steps",
    "several streams in a step",
    "generated completions",
]


@dataclass(frozen=True)
class Measurement(Generic[Result]):
    """A request to measure something in the steps of a run; it is a frozen dataclass of its options.

    A policy or a schedule lists requests in `needs` and reads the result by the class, `observation[Kind]`.

    Attributes:
        requires: What the run must have for it: an objective, evaluations of every stream, whole gradients on each
            rank, gradients of other rows than those of its steps, steps of several streams, or prompts to complete.
        is_loss: Whether its result is losses of the streams, which policies may see in the units of `loss_units`.
        reads_losses: Whether it reads the step's losses off the device, which waits for it.
        shown_by: Another measurement whose result may show this one too, by `shown`.
        costs: What it costs a run, in words; empty for nothing.
    """

    requires: ClassVar[frozenset[Requirement]] = frozenset()
    is_loss: ClassVar[bool] = False
    reads_losses: ClassVar[bool] = False
    shown_by: ClassVar["Kind | None"] = None
    costs: ClassVar[str] = ""

    def requirements(self) -> frozenset[Requirement]:
        """Returns what the run must have for it with its options; by default `requires`."""
        return self.requires

    def cost(self) -> str:
        """Returns what it costs with its options, in words; by default `costs`."""
        return self.costs

    @staticmethod
    def shown(result: Any) -> "Result | None":
        """Returns its result as that of `shown_by` shows it; `None` if it does not."""

    @staticmethod
    def part(result: Result, streams: Sequence[int]) -> Result:  # noqa: ARG004 for results by stream
        """Returns the result for some of the streams, as if the others were absent.

        Args:
            result: The result for all.
            streams: Indices of the streams, in order.
        """
        return result

    @staticmethod
    def reported(result: Any, streams: Sequence[str]) -> "Result | None":  # noqa: ARG004 for results by stream
        """Returns what a training loop of one's own reports, in the form of the result; `None` if that says nothing.

        Args:
            result: The report.
            streams: Names of the streams.

        Raises:
            ValueError: If it is of other streams.
            TypeError: If it is no such result.
        """
        checked: Result = result
        return checked


class ByStream(Measurement[FloatArray]):
    """A request whose result is a number for each stream, `[num_streams]`; NaN for a stream without one."""

    @staticmethod
    def part(result: FloatArray, streams: Sequence[int]) -> FloatArray:
        """Returns the numbers of some of the streams; see `Measurement.part`."""
        return result[np.asarray(streams, dtype=np.int64)]


Kind = type[Measurement[Any]]
Needs = tuple[Measurement[Any], ...]
Results = Mapping[Kind, Any]


@dataclass(frozen=True, kw_only=True)
class Observed:
    """Measurements of a step: `observation[Kind]` is the result of the request `Kind()`.

    Args:
        measured: Results by the class of their request.
    """

    measured: Results = field(default_factory=dict)

    def __getitem__(self, kind: type[Measurement[Result]]) -> Result | None:
        """The result of a request; `None` where nothing was measured in this step."""
        result: Result | None = self.measured.get(kind)
        if result is None and not (isinstance(kind, type) and issubclass(kind, Measurement)):
            raise wrong_type(
                "measured",
                f"An observation has results by classes of mixer.measurements, not by {kind!r}.",
            )
        return result

    def number(self, kind: type[Measurement[float]]) -> float:
        """The result of a request for a number; NaN where nothing was measured in this step."""
        result = self[kind]
        return float("nan") if result is None else result


def asked(needs: Needs, *kinds: type[Asked]) -> list[Asked]:
    """Returns the requests of some kinds among the needs of a policy or a schedule."""
    return [need for need in needs if isinstance(need, kinds)]


def with_shown(measured: Results, needs: Needs) -> Results:
    """Returns the results of a step, with those of requests that nothing measured but others show."""
    missing = {type(need) for need in needs if measured.get(type(need)) is None}
    if not missing:
        return measured
    others = {kind: measured.get(kind.shown_by) for kind in missing if kind.shown_by is not None}
    shown = {kind: kind.shown(other) for kind, other in others.items() if other is not None}
    return {**measured, **{kind: result for kind, result in shown.items() if result is not None}}


def names_of(needs: Iterable[Measurement[Any]]) -> list[str]:
    """Returns the names of the classes of some requests, in order of the alphabet."""
    return sorted({type(need).__name__ for need in needs})


def required(needs: Needs) -> set[Requirement]:
    """Returns what a run must have for all of some requests."""
    return {requirement for need in needs for requirement in need.requirements()}


def evaluated_sets(needs: Needs) -> list[str]:
    """Returns the evaluation sets, beside those of streams, that some requests name by an option `sets`."""
    return [name for need in needs for name in getattr(need, "sets", ())]


def at_interval(needs: Needs, rule: object) -> Needs:
    """Returns the requests of a rule, at its interval where it has the option `interval_steps` and they have one."""
    options = {"interval_steps": rule.interval_steps} if hasattr(rule, "interval_steps") else {}
    return tuple(replace(need, **options) if hasattr(need, "interval_steps") else need for need in needs)


def check_requests(who: str, needs: object) -> None:
    """Refuses needs that are no requests.

    Args:
        who: Whose they are.
        needs: The attribute `needs`.

    Raises:
        TypeError: If they are no collection of measurements.
    """
    wrong = [needs]
    if isinstance(needs, Collection) and not isinstance(needs, str):
        wrong = [need for need in needs if not isinstance(need, Measurement)]
    if wrong:
        text = f"{who}: needs must be a tuple of instances of measurements (mixer.measurements), got {wrong[0]!r}."
        raise InvalidTypeError(text, option="needs")
