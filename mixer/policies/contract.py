"""What a policy sees and what it gives back: K numbers at a time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mixer.policies.gradient_statistics import GradientStatistics
from mixer.utils.arrays import BoolArray, FloatArray, Int64Array
from mixer.utils.bounded import finite_numbers


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
