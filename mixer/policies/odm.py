"""ODM (online data mixing): a bandit on the losses, with less and less exploration."""

import math
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np

from mixer.measurements import Loss
from mixer.policies.contract import Decision, Mixture, Observation, PolicyWithOptions, Terms
from mixer.policies.shared.exponentiated import HUGE
from mixer.policies.shared.shares import share_out
from mixer.policies.shared.stream_average import StreamAverage
from mixer.utils.arrays import BoolArray, FloatArray
from mixer.utils.ranges import check_count

_LARGEST_EXPONENT = math.log(HUGE)


@dataclass(eq=False, repr=False)
class ODM(PolicyWithOptions):
    """Samples a stream by its average loss, as a bandit with exploration `ε_t`: online data mixing.

    Albalak et al. 2023, "Efficient Online Data Mixing For Language Model Pre-Training", arXiv:2312.02406. With `ε_t =
    min(1/K, √(ln K / (K t)))` at the t-th step, for each stream with samples in it:

    - `"paper"`: reward `R_k ← αR_k + (1 − α) L_k/π_k` and mixture `π = (1 − Kε_t) softmax(ε_{t−1} R) + ε_t`.
    - `"code"`, as the public code computes for mixed batches: `R_k ← αR_k + (1 − α) exp(L_k)`, without importance
      weights, and `π = (1 − Kε_t) R/ΣR + ε_t`, so shares follow perplexities.

    The two differ. As `R` is an average and no sum, `ε_{t−1} R` tends to 0: the paper's form is uniform until `t > K ln
    K` and uniform again in the long run. The code's form tends to shares in proportion to perplexity.

    `π_k` is the actual share of the stream in the samples. Ours: rewards are averaged without the bias of a start at 0,
    during the warm-up too, and a stream without a loss yet counts as the mean of the others; absent streams count
    neither in `K` nor in the softmax.

    Args:
        form: `"paper"` or `"code"`.
        decay: `α` in [0, 1); 0.9, and 0.5 in the authors' scripts for a model of a billion parameters.
        num_warmup_steps: Initial steps with your weights.
        unit: Whether the weights are shares of samples or of tokens.

    Raises:
        ValueError: If a value is outside its range.
    """

    remembered = ("_rewards",)

    needs = (Loss(),)
    compares_losses = True

    form: Literal["paper", "code"] = "paper"
    decay: float = 0.9
    num_warmup_steps: Annotated[int, check_count, 0, "0 begins at once"] = 2000

    def __post_init__(self) -> None:
        super().__post_init__()
        self._rewards = StreamAverage(self.decay)

    def start(self, mixture: Mixture) -> Decision:
        """Discards all losses and returns the first mixture; see `Policy.start`."""
        self._own = mixture.weights
        self._rewards.start(len(mixture.names))
        return self._decide(0, mixture.is_active)

    def update(self, observation: Observation) -> Decision:
        """Updates the average rewards and computes new weights; see `Policy.update`."""
        self._rewards.take(self._new_rewards(observation))
        return self._decide(observation.step, observation.is_active)

    def _new_rewards(self, observation: Observation) -> FloatArray:
        losses = observation.by_stream(Loss)
        drawn = observation.weights if observation.shares is None else observation.shares
        rewards = np.full(len(losses), np.nan)
        if self.form == "code":
            new = np.isfinite(losses)
            rewards[new] = np.exp(np.minimum(losses[new], _LARGEST_EXPONENT))
        else:
            new = np.isfinite(losses) & (drawn > 0.0)
            with np.errstate(over="ignore"):
                rewards[new] = np.clip(losses[new] / drawn[new], -HUGE, HUGE)
        return rewards

    def _decide(self, step: int, active: BoolArray) -> Decision:
        num_active, time = int(active.sum()), step + 1  # the paper counts from 1
        if step < self.num_warmup_steps or num_active == 0:
            return Decision(self._own)
        explored = num_active * exploration(num_active, time)
        weights = np.zeros(len(active))
        weights[active] = (1.0 - explored) * self._exploited(active, exploration(num_active, time - 1))
        weights[active] += explored / num_active
        return Decision(share_out(weights, self._own, active, 0.0))

    def _exploited(self, active: BoolArray, rate: float) -> FloatArray:
        """The shares by reward among the active streams."""
        rewards = self._rewards.values[active]
        known = np.isfinite(rewards)
        if not known.any():
            return np.full(len(rewards), 1.0 / len(rewards))
        rewards[~known] = rewards[known].mean()
        gains = np.exp(rate * (rewards - rewards.max())) if self.form == "paper" else rewards
        # All perplexities may underflow.
        gains = gains if gains.sum() > 0.0 else np.ones(len(gains))
        shares: FloatArray = gains / gains.sum()
        return shares

    def explain(self) -> Terms:
        """Returns the average reward of each stream; see `Policy.explain`."""
        return {"reward": self._rewards.values}


def exploration(num_streams: int, time: int) -> float:
    """Returns each stream's exploration share, in [0, 1/K]: `ε_t = min(1/K, √(ln K / (K t)))`.

    Args:
        num_streams: `K`.
        time: `t`; 0 is the time before the first step.
    """
    if time < 1:
        return 1.0 / num_streams
    return min(1.0 / num_streams, math.sqrt(math.log(num_streams) / (num_streams * time)))
