"""Learnability: more prompts of the tasks that are neither solved nor hopeless."""

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from mixer.measurements import Rewards
from mixer.policies.contract import Decision, Mixture, Observation, PolicyWithOptions, Terms
from mixer.policies.shared.shares import share_out
from mixer.policies.shared.stream_average import StreamAverage
from mixer.utils.arrays import BoolArray
from mixer.utils.ranges import check_range


@dataclass(eq=False, repr=False)
class Learnability(PolicyWithOptions):
    """Draws prompts of a stream in proportion to the spread of rewards within its groups.

    Foster et al. 2025, "Learning to Reason at the Frontier of Learnability", arXiv:2502.12272, draw prompts by the
    variance of their success, `p (1 − p)`: a prompt that is always or never solved teaches nothing. They choose prompts
    by extra generations. Here the figure is that of a stream, free with each round: `w_k ∝ own_k · s_k`, where `s_k` is
    the average over rounds of the standard deviation within a group; of rewards 0 and 1 that estimates the mean of
    `√(p (1 − p))`. Of single prompts `replay.selection.Learnable` keeps those with a spread.

    A stream without a group so far counts as the mean of the others; without any all keep their own weights.

    Args:
        decay: Share of the old average that stays at each round, in [0, 1).
        least: Share that is given out by your weights, in [0, 1], so that no prompt is forgotten.
        unit: Whether the weights are shares of samples or of tokens; prompts are samples.

    Raises:
        ValueError: If a value is outside its range.
    """

    remembered = ("_spreads",)

    needs = (Rewards(),)

    decay: float = 0.7
    least: Annotated[float, check_range, 0, 1, "1 keeps your weights"] = 0.2

    def __post_init__(self) -> None:
        super().__post_init__()
        self._spreads = StreamAverage(self.decay)

    def start(self, mixture: Mixture) -> Decision:
        """Discards all rewards and starts with your weights; see `Policy.start`."""
        self._own = mixture.weights
        self._spreads.start(len(mixture.names))
        return self._decide(mixture.is_active)

    def update(self, observation: Observation) -> Decision:
        """Takes the spreads of the last round; see `Policy.update`."""
        if (found := observation[Rewards]) is not None:
            self._spreads.take(found.spread)
        return self._decide(observation.is_active)

    def _decide(self, active: BoolArray) -> Decision:
        spreads, among = self._spreads.values, active & (self._own > 0)
        known = among & np.isfinite(spreads)
        if not known.any():
            return Decision(self._own)
        spreads = np.where(np.isfinite(spreads), spreads, spreads[known].mean())
        parts, own = np.where(among, self._own * spreads, 0.0), np.where(among, self._own, 0.0)
        total, own = parts.sum(), own / own.sum()
        shares = own if total <= 0.0 else self.least * own + (1.0 - self.least) * parts / total
        return Decision(share_out(shares, self._own, active, 0.0))

    def explain(self) -> Terms:
        """Returns the average spread of each stream; see `Policy.explain`."""
        return {"spread": self._spreads.values}
