"""What a policy observes, what it decides, and what every policy is."""

import reprlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from mixer.policies.gradient_statistics import GradientStatistics
from mixer.policies.shared.terms import Terms, terms_of
from mixer.utils.arrays import BoolArray, FloatArray, Int64Array
from mixer.utils.recorded_arguments import KeepsArguments
from mixer.utils.validation import finite_numbers


@dataclass(frozen=True)
class Mixture:
    """What a policy knows before the run.

    Args:
        names: Names of the streams, in order.
        num_samples: int64 `[num_streams]`: size of each data set; 0 where it is not known.
        weights: `[num_streams]`: the streams' own weights to start from; they sum to 1.
        memories: Indices of the streams that are replay buffers, in order.
        has_weights: Whether the streams were given weights; without, `weights` are uniform.
        active: bool `[num_streams]`: which streams are there in the first step, as in `Observation`; `None` for all.
    """

    names: tuple[str, ...]
    num_samples: Int64Array
    weights: FloatArray
    memories: tuple[int, ...] = ()
    has_weights: bool = True
    active: BoolArray | None = None

    @property
    def is_active(self) -> BoolArray:
        """Which streams are there in the first step, bool `[num_streams]`."""
        return np.ones(len(self.names), dtype=np.bool_) if self.active is None else self.active


@dataclass(frozen=True)
class Observation:
    """What a policy sees after a step. It rules the next one with what it concludes.

    Args:
        step: Number of steps done, which is the index of the step that the decision rules.
        progress: Share of the run that is done, in [0, 1].
        weights: `[num_streams]`: the weights that ruled the last step, before streams that were not there left.
        counts: int64 `[num_streams]`: samples of each stream in the last step.
        tokens: int64 `[num_streams]`: tokens of each stream in the last step; 0 where the data has none.
        seen: int64 `[num_streams]`: samples of each stream so far.
        losses: `[num_streams]`: mean loss per item in the last step, NaN where there is none (no sample, or a loss
            that is not finite) and everywhere for a policy that does not need `"loss"`.
        evaluation_losses: `[num_streams]`: losses of an evaluation that came since the last observation, NaN for a
            stream without; `None` if there was none.
        gradients: The streams' gradients in the last step, if they were measured.
        shares: `[num_streams]`: what `weights` came to in the last step, in the same unit, once streams that were not
            there had left: 0 for those; `None` where it is not known.
        batch_size: Samples that were asked for in the last step, which had fewer if it was the rest of an epoch;
            `None` takes those it had.
        excess_losses: `[num_streams]`: mean per item in the last step of what the loss exceeds that of a reference
            model on the same item, 0 where it is below; NaN where there is none, `None` where it was not measured.
        losses_after: `[num_streams]`: mean loss per item of the last step's own samples after the optimizer step;
            NaN where there is none, `None` where it was not measured.
        update_norm: `||θ_{t+1} - θ_t||`: how far the last step moved the trainable parameters; NaN where it was not
            measured.
        active: bool `[num_streams]`: which streams can give a sample in the next step, the one that is decided upon:
            they have entered, have not left, and neither they nor their groups are used up. A memory is there once it
            holds something. It says nothing about weights: one of weight 0 is there, and so is one whose samples come
            on top of the batch size. `None` for all. Which streams had samples in the last step, `counts` says.
        tokens_per_sample: `[num_streams]`: mean of each stream so far, that of the others for a stream without tokens,
            by which shares of tokens become shares of samples; `None` where weights and shares are of samples.
    """

    step: int
    progress: float
    weights: FloatArray
    counts: Int64Array
    tokens: Int64Array
    seen: Int64Array
    losses: FloatArray
    evaluation_losses: FloatArray | None = None
    gradients: GradientStatistics | None = None
    shares: FloatArray | None = None
    batch_size: int | None = None
    excess_losses: FloatArray | None = None
    losses_after: FloatArray | None = None
    update_norm: float = float("nan")
    active: BoolArray | None = None
    tokens_per_sample: FloatArray | None = None

    @property
    def is_active(self) -> BoolArray:
        """Which streams can give a sample in the next step, bool `[num_streams]`."""
        return np.ones(len(self.weights), dtype=np.bool_) if self.active is None else self.active


@dataclass(frozen=True)
class Decision:
    """What a policy decides for the next step.

    Args:
        weights: `[num_streams]`: share of each stream; any non-negative numbers, not all 0.
        loss_weights: `[num_streams]`: factor on the loss of each stream's samples; `None` leaves the losses as they
            are.
        additional: `[num_streams]`: samples of each stream on top of the batch size, as multiples of it; they do not
            count in the clock of the run. A stream that has some must have weight 0. `None` for none.
    """

    weights: FloatArray
    loss_weights: FloatArray | None = None
    additional: FloatArray | None = None

    def state_dict(self) -> dict[str, list[float] | None]:
        """Gives the decision as plain data."""
        values = {name: getattr(self, name) for name in ("weights", "loss_weights", "additional")}
        return {name: None if value is None else np.asarray(value).tolist() for name, value in values.items()}

    @classmethod
    def from_state(cls, state: Mapping[str, Sequence[float] | None]) -> "Decision":
        """Takes a decision from plain data.

        Args:
            state: What `state_dict` gave.

        Returns:
            The decision.
        """
        weights = finite_numbers(state["weights"], "the weights of a decision")
        given = {name: state[name] for name in ("loss_weights", "additional")}
        rest = {
            name: None if values is None else finite_numbers(values, f"{name} of a decision", len(weights))
            for name, values in given.items()
        }
        return cls(weights, **rest)


__all__ = [
    "BoolArray",
    "Decision",
    "FloatArray",
    "Int64Array",
    "Mixture",
    "Observation",
    "Policy",
    "Terms",
    "Unit",
    "Weights",
    "Wrapped",
    "check_weights",
    "weights_array",
]
Unit = Literal["samples", "tokens"]
Weights = Mapping[str, float] | Sequence[float] | FloatArray


class Policy(KeepsArguments, ABC):
    """A mixing policy.

    It knows no model, trainer, file or global random state: only K numbers at a time. A subclass says in `needs`
    what has to be observed for it: `"loss"` (training losses), `"evaluation_loss"`, `"gradient"` (the streams'
    gradients, every `interval_steps` steps: after steps whose number is a multiple), `"gradient_variance"` (these
    with their variance, which costs more), `"excess_loss"` (training losses above those of the trainer's reference
    model), `"loss_after"` (training losses once more after each optimizer step) or `"update_norm"` (how far each step
    moves the parameters). One that never changes its first decision says so by `is_static` and is not asked again. One
    that goes by so many samples of each stream in a batch says how many in `min_samples`. One that plans mixtures only
    to see what they do says so by `plans_probes`; wrappers that would put others in their place refuse it. What it
    takes beside what is observed for it, with its default arguments, it says in words in `own_cost`.

    Args:
        unit: Whether the weights are shares of samples or of tokens.

    Raises:
        ValueError: If the unit is another word.
    """

    needs: frozenset[str] = frozenset()
    is_static: bool = False
    interval_steps: int = 1
    min_samples: int = 0
    plans_probes: bool = False
    own_cost: str = ""

    def __init__(self, *, unit: Unit = "samples"):
        if unit not in ("samples", "tokens"):
            raise ValueError(f"unit must be 'samples' or 'tokens', got {unit!r}.")
        self.unit: Unit = unit

    @property
    def name(self) -> str:
        """What the policy is called in checkpoints and ledgers."""
        return type(self).__name__

    @abstractmethod
    def start(self, mixture: Mixture) -> Decision:
        """Forgets any earlier run and decides for the first step.

        Args:
            mixture: The streams of the run.

        Returns:
            The decision for step 0.
        """

    @abstractmethod
    def update(self, observation: Observation) -> Decision:
        """Decides for the next step.

        Args:
            observation: What the last step showed.

        Returns:
            The decision for step `observation.step`.
        """

    def wrapped(self) -> "Wrapped | None":
        """Gives the policy inside this one with its last decision; `None` for a policy that wraps none."""
        return None

    def explain(self) -> Terms:
        """Gives the terms of the last decision, for `mixer explain`.

        Returns:
            `[num_streams]` or one number each, by name; without a method of the policy's own, what `state_dict` holds.
        """
        return terms_of(self.state_dict())

    def state_dict(self) -> dict[str, Any]:
        """Gives everything that `update` remembers, as plain data that JSON can hold.

        Returns:
            The state; empty for a policy that remembers nothing.
        """
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes up a saved state, after `start`.

        Args:
            state: What `state_dict` gave.

        Raises:
            ValueError: If the state is of a policy that remembers other things.
        """
        own = sorted(self.state_dict())
        if sorted(state) != own:
            raise ValueError(f"{type(self).__name__} remembers {own}, but the saved policy state has {sorted(state)}.")


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
    """Checks weights and brings them into the order of the streams.

    Args:
        weights: One weight a stream: by name or in order.
        names: Names of the streams.
        where: What to call the weights in an error, such as `"mixing"`.

    Returns:
        float64 `[num_streams]`, as given (not normalised).

    Raises:
        ValueError: If names or the length do not fit, or a weight is negative, not finite, or all are 0.
    """
    if isinstance(weights, Mapping):
        missing, unknown = [n for n in names if n not in weights], [n for n in weights if n not in names]
        if missing or unknown:
            raise ValueError(
                f"{where}: weights must name each of the streams {list(names)} once; "
                f"missing: {missing}, unknown: {unknown}."
            )
        weights = [weights[name] for name in names]
    try:
        array = np.asarray(weights, dtype=np.float64)
    except (TypeError, ValueError):
        raise ValueError(f"{where}: weights must be numbers, got {weights!r}.") from None
    if array.shape != (len(names),):
        raise ValueError(
            f"{where}: expected {len(names)} weights, one for each of {list(names)}, got shape {list(array.shape)}: "
            f"{reprlib.repr(weights)}."
        )
    check_weights(array, names, where)
    return array


def check_weights(weights: FloatArray, names: Sequence[str], where: str) -> None:
    """Refuses weights that no mixture can have.

    Args:
        weights: `[num_streams]`.
        names: Names of the streams.
        where: What to call the weights in an error.

    Raises:
        ValueError: If a weight is negative or not finite, or all are 0.
    """
    # One comparison for the usual case: NaN fails it, and so do a negative weight, an infinite one, and zeros alone.
    if weights.min() >= 0.0 and 0.0 < weights.sum() < np.inf:
        return
    for name, weight in zip(names, weights, strict=True):
        if not (np.isfinite(weight) and weight >= 0):
            raise ValueError(f"{where}: weights must be finite and 0 or more, but {name!r} has {weight}.")
    raise ValueError(f"{where}: the weights of all streams are 0 (or overflow); at least one must be positive.")
