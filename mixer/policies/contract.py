"""The policy interface: observations, decisions, and the base class of policies."""

import reprlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from mixer.measurements.measurement import Measurement, Needs, Observed, at_interval
from mixer.policies.objective import Objective
from mixer.utils.arrays import BoolArray, FloatArray, Int64Array
from mixer.utils.errors import InvalidValueError, require, wrong_value
from mixer.utils.ranges import check_options
from mixer.utils.recorded_arguments import KeepsArguments
from mixer.utils.saved_state import HasState
from mixer.utils.text import did_you_mean, safe_names
from mixer.utils.validation import finite_numbers

Terms = Mapping[str, FloatArray | float]
Unit = Literal["samples", "tokens", "labels"]
UNITS: tuple[Unit, ...] = get_args(Unit)
Weights = Mapping[str, float] | Sequence[float] | FloatArray


def no_decay() -> float:
    """Refuses the moment `"decay"` where no learning-rate schedule is known.

    Raises:
        ValueError: Always.
    """
    raise wrong_value(
        "decay", "'decay' is a moment of the Trainer's learning-rate schedule; elsewhere, give a share of the run."
    )


@dataclass(frozen=True)
class Mixture:
    """The streams of a run, as a policy sees them at the start.

    Args:
        names: Names of the streams, in order.
        num_samples: int64 `[num_streams]`: size of each data set; 0 if unknown.
        weights: `[num_streams]`: your weights, with a sum of 1.
        memories: Indices of the replay buffers, in order.
        has_weights: Whether the user set weights; otherwise `weights` are uniform.
        active: bool `[num_streams]`: streams that are present in the first step, as in `Observation`; `None` for all.
        objective: What the run is to lower, with its targets by name; `None` if the user declared nothing.
        decay_begins: Returns the progress at which the learning rate begins to fall; raises a `ValueError` if there is
            no such moment.
        ends: `[num_streams]`: samples after which each stream is used up, infinite for one that is repeated without
            end; `None` if all are.
    """

    names: tuple[str, ...]
    num_samples: Int64Array
    weights: FloatArray
    memories: tuple[int, ...] = ()
    has_weights: bool = True
    active: BoolArray | None = None
    objective: Objective | None = None
    decay_begins: Callable[[], float] = field(default=no_decay, compare=False, repr=False)
    ends: FloatArray | None = None

    @property
    def is_active(self) -> BoolArray:
        """Streams that are present in the first step, bool `[num_streams]`."""
        return np.ones(len(self.names), dtype=np.bool_) if self.active is None else self.active


@dataclass(frozen=True)
class Observation(Observed):
    """What a step has shown, from which a policy decides on the next one.

    What the policy asked for in `needs` is read by the class of the request: `observation[Loss]`.

    Args:
        step: Number of completed steps: the index of the step that is decided on.
        progress: Completed share of the run, in [0, 1].
        weights: `[num_streams]`: the decided weights of the last step, including absent streams.
        counts: int64 `[num_streams]`: samples of each stream in the last step.
        tokens: int64 `[num_streams]`: tokens of each stream in the last step (labels, if the policy's unit is labels);
            0 for data without.
        seen: int64 `[num_streams]`: samples of each stream so far.
        shares: `[num_streams]`: the effective weights of the last step, 0 for absent streams, in the unit of `weights`;
            `None` if unknown.
        batch_size: Planned samples of the last step, which may have had fewer at the end of an epoch; `None` for the
            actual number.
        active: bool `[num_streams]`: streams that can provide a sample in the next step: they have started, have not
            ended, and neither they nor their groups are used up; a replay buffer needs an entry. This is independent of
            weights: a stream of weight 0 may be active, and so may one with samples on top of the batch size. `None`
            for all. For the streams of the last step, see `counts`.
        tokens_per_sample: `[num_streams]`: mean tokens (labels, if the policy's unit is labels) of a sample of each
            stream so far, that of the others for a stream without, to convert shares of tokens to shares of samples;
            `None` if weights are shares of samples.
        measured: Results by the class of their request.
    """

    step: int
    progress: float
    weights: FloatArray
    counts: Int64Array
    tokens: Int64Array
    seen: Int64Array
    shares: FloatArray | None = None
    batch_size: int | None = None
    active: BoolArray | None = None
    tokens_per_sample: FloatArray | None = None

    @property
    def is_active(self) -> BoolArray:
        """Streams that can provide a sample in the next step, bool `[num_streams]`."""
        return np.ones(len(self.weights), dtype=np.bool_) if self.active is None else self.active

    def by_stream(self, kind: type[Measurement[FloatArray]]) -> FloatArray:
        """The result of a request for a number of each stream, `[num_streams]`; NaN where nothing was measured."""
        result = self[kind]
        return np.full(len(self.weights), np.nan) if result is None else result


@dataclass(frozen=True)
class Decision:
    """A policy's decision for the next step.

    Args:
        weights: `[num_streams]`: share of each stream; any non-negative numbers, not all 0.
        loss_weights: `[num_streams]`: factor on the loss of each stream's samples; `None` for none.
        additional: `[num_streams]`: samples of each stream on top of the batch size, as multiples of it; they do not
            count in the clock of the run. A stream with such samples must have weight 0. `None` for none.
    """

    weights: FloatArray
    loss_weights: FloatArray | None = None
    additional: FloatArray | None = None

    def state_dict(self) -> dict[str, list[float] | None]:
        """Returns the decision as plain data."""
        values = {name: getattr(self, name) for name in ("weights", "loss_weights", "additional")}
        return {name: None if value is None else np.asarray(value).tolist() for name, value in values.items()}

    @classmethod
    def from_state(cls, state: Mapping[str, Sequence[float] | None]) -> "Decision":
        """Creates a decision from plain data.

        Args:
            state: The result of `state_dict`.
        """
        weights = finite_numbers(state["weights"], "the weights of a decision")
        rest = {
            name: None
            if (values := state[name]) is None
            else finite_numbers(values, f"{name} of a decision", len(weights))
            for name in ("loss_weights", "additional")
        }
        return cls(weights, **rest)


class Policy(KeepsArguments, HasState, ABC):
    """Base class of mixing policies.

    A policy knows no model, trainer, file or global random state, only K numbers at a time. A subclass lists what must
    be measured for it in `needs`, such as `(Loss(), Gradients(variance=True, interval_steps=20))`: requests of
    `mixer.measurements`, or of your own. It may set `needs` in its constructor too.

    Further class attributes: `is_static` for a policy that never changes its first decision, `min_samples` for the
    samples of each stream that a batch should have, `own_cost` for its cost besides the measurements, in words,
    `holds_bounds` for a policy that acts on the objective's bounds, `limits_mixture` for a wrapper that keeps any inner
    policy within limits, so that a search for fixed mixtures keeps it too, and `compares_losses` for one that compares
    losses between streams: it sees them in the units that the trainer's option `loss_units` names.

    Args:
        unit: Whether the weights are shares of samples, of tokens or of labels: the tokens that the loss learns.

    Raises:
        ValueError: If the unit is another word.
    """

    _state_name = "policy state"

    needs: Needs = ()
    is_static: bool = False
    min_samples: int = 0
    own_cost: str = ""
    holds_bounds: bool = False
    limits_mixture: bool = False
    compares_losses: bool = False

    def __init__(self, *, unit: Unit = "samples"):
        require(unit in UNITS, "unit", f"one of {list(UNITS)}", unit)
        self.unit: Unit = unit

    @property
    def name(self) -> str:
        """Name of the policy in checkpoints and ledgers."""
        return type(self).__name__

    @abstractmethod
    def start(self, mixture: Mixture) -> Decision:
        """Starts a new run.

        Args:
            mixture: The streams of the run.

        Returns:
            The decision for step 0.
        """

    @abstractmethod
    def update(self, observation: Observation) -> Decision:
        """Decides for the next step.

        Args:
            observation: Measurements of the last step.

        Returns:
            The decision for step `observation.step`.
        """

    def hold(self) -> None:
        """Keeps the first decision from now on, as a simulation that measures nothing needs it."""
        self.is_static = True

    def wrapped(self) -> "Wrapped | None":
        """Gives the policy inside this one with its last decision; `None` for a policy that wraps none."""
        return None

    def explain(self) -> Terms:
        """Returns the terms of the last decision.

        Returns:
            `[num_streams]` or one number each, by name; by default the numbers of `state_dict`.
        """
        return terms_of(self.state_dict())


@dataclass(eq=False, repr=False)
class PolicyWithOptions(Policy):
    """Base class of the policies of this package, which declare their arguments; see `check_options`.

    An argument `interval_steps` is the interval of what is measured.
    """

    unit: Unit = field(default="samples", kw_only=True)

    def __post_init__(self) -> None:
        super().__init__(unit=self.unit)
        check_options(self)
        self.needs = at_interval(self.needs, self)


class Wrapped(NamedTuple):
    """A policy inside another one.

    Attributes:
        policy: The inner policy.
        decision: Its last decision.
        streams: Indices of the streams that it sees; `None` for all.
    """

    policy: Policy
    decision: Decision
    streams: Sequence[int] | None = None


def weights_array(weights: Weights, names: Sequence[str], where: str) -> FloatArray:
    """Validates weights and sorts them in the order of the streams.

    Args:
        weights: One weight per stream: by name or in order.
        names: Names of the streams.
        where: Name of the weights in an error, such as `"mixing"`.

    Returns:
        float64 `[num_streams]`, not normalised.

    Raises:
        ValueError: If names or the length do not fit, or a weight is negative, not finite, or all are 0.
    """
    if isinstance(weights, Mapping):
        weights = in_order(weights, names, f"{where}: weights")
    try:
        numbers = np.asarray(without_graph(weights))
        array = numbers.astype(np.float64)
    except (TypeError, ValueError, RuntimeError):
        numbers = np.array("")
    has_truth = isinstance(weights, list | tuple) and any(isinstance(weight, bool) for weight in weights)
    if numbers.dtype.kind in "USb" or has_truth:  # numpy takes the text "1" and `True` for numbers
        raise InvalidValueError(f"{where}: weights must be numbers, got {weights!r}.", option=where, found=weights)
    if array.shape != (len(names),):
        text = f"{where}: one weight is needed for each of {list(names)}, got {reprlib.repr(weights)}."
        raise InvalidValueError(text, option=where, found=list(array.shape))
    check_weights(array, names, where)
    return array


def without_graph(values: Any) -> Any:
    """Returns a tensor of any device, or a sequence of such, as plain numbers without its graph; others unchanged."""
    if isinstance(values, list | tuple):
        return [without_graph(value) for value in values]
    return values.detach().tolist() if hasattr(values, "detach") else values


def in_order(values: Mapping[str, float], names: Sequence[str], where: str) -> list[float]:
    """Sorts values by the name of the stream in the order of the streams.

    Raises:
        ValueError: If a stream has none, or a name is that of no stream.
    """
    values = safe_names(values, where)
    missing, unknown = [name for name in names if name not in values], [name for name in values if name not in names]
    if missing or unknown:
        hint = "".join(did_you_mean(str(name), missing or names) for name in unknown)
        raise InvalidValueError(
            f"{where} must name each of the streams {list(names)} once; missing: {missing}, unknown: {unknown}.{hint}",
            option=where,
            expected=f"one number for each of {list(names)}",
            found=list(values),
            hint=hint.strip() or None,
        )
    return [values[name] for name in names]


def check_weights(weights: FloatArray, names: Sequence[str], where: str) -> None:
    """Refuses weights that no mixture can have.

    Args:
        weights: `[num_streams]`.
        names: Names of the streams.
        where: Name of the weights in an error.

    Raises:
        ValueError: If a weight is negative or not finite, or all are 0.
    """
    # One comparison for the usual case: it fails for NaN, negative and infinite weights, and for all zeros.
    if weights.min() >= 0.0 and 0.0 < weights.sum() < np.inf:
        return
    for name, weight in zip(names, weights, strict=True):
        if not (np.isfinite(weight) and weight >= 0):
            raise InvalidValueError(
                f"{where}: weights must be finite and 0 or more, but {name!r} has {weight}.", option=where, stream=name
            )
    raise InvalidValueError(
        f"{where}: the weights of all streams are 0 (or overflow); at least one must be positive.", option=where
    )


def terms_of(state: Mapping[str, Any]) -> dict[str, FloatArray | float]:
    """Extracts the numbers of a policy's state.

    Args:
        state: The result of `Policy.state_dict`.

    Returns:
        Arrays and numbers by name, with NaN for `None`. Names of nested states are joined, except `values`. An inner
        policy's state is left out, for it explains itself; so is everything but numbers and lists of numbers.

    Example:
        >>> terms_of({"fast": [1.0, 2.0], "count": 3, "gains": {"values": [0.5, None]}, "policy": {"slow": [0.0]}})
        {'fast': array([1., 2.]), 'count': 3.0, 'gains': array([0.5, nan])}
    """
    terms: dict[str, FloatArray | float] = {}
    for name, value in state.items():
        if isinstance(value, Mapping) and name != "policy":
            inner = terms_of(value)
            terms |= {name if own == "values" else f"{name} {own}": term for own, term in inner.items()}
        elif isinstance(value, int | float):
            terms[name] = float(value)
        elif isinstance(value, list) and value and all(isinstance(entry, int | float | None) for entry in value):
            terms[name] = np.array(value, dtype=np.float64)
    return terms
