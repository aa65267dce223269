"""A given share of the mixture for the memories."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from mixer.policies import Decision, Mixture, Observation, Policy
from mixer.policies.contract import weights_array
from replay.policies.base import Replay, ReplayPolicy
from replay.policies.ratios import Ratio, as_ratio


class ReplayRatio(ReplayPolicy):
    """Replays a given part of the final mix: `n_replay = ρ / (1 - ρ) · n_new`; see `ReplayPolicy`.

    Args:
        ratio: `ρ` in [0, 1): a number; a course over the run, as a list of (progress, ratio) or `f(progress) -> ratio`;
            `"tasks"` for `1 - 1/T` with T tasks seen so far, `"samples"` for the share of old samples among all seen
            (see `OfSeen`); or a `Ratio`.
        policy: The policy of the other streams; see `ReplayPolicy`.
        additional: Whether replayed samples are added to the batch size instead of being a part of it.
        shares: Weights of the memories among themselves, by name; `None` for equal shares.

    Raises:
        ValueError: If the ratio is outside [0, 1), or there is no policy of that name; at the start of the run if the
            mixture has no replay buffer, or shares do not fit.

    Example:
        >>> policy = ReplayRatio(0.25, {"math": 3, "code": 1})
        >>> start = Mixture(("math", "code", "memory"), np.array([9, 9, 0]), np.full(3, 1 / 3), memories=(2,))
        >>> policy.start(start).weights.tolist()
        [0.5625, 0.1875, 0.25]
    """

    def __init__(
        self,
        ratio: float | str | Sequence[tuple[float, float]] | Callable[[float], float] | Ratio = 0.1,
        policy: Policy | str | dict[str, float] | None = None,
        *,
        additional: bool = False,
        shares: Mapping[str, float] | None = None,
    ):
        super().__init__(policy, additional=additional)
        self.ratio = as_ratio(ratio)
        self.shares = shares

    def start(self, mixture: Mixture) -> Decision:
        """Finds out whether anything can change, and decides; see `Policy.start`."""
        decision = super().start(mixture)
        # Several streams may enter, leave or run out one by one, and the memories' part has to follow.
        nothing_moves = len(self.memories) == 1 and (self.additional or len(self.others) == 1)
        self.is_static = nothing_moves and self.ratio.is_constant and self.policy.is_static
        return decision

    def start_replay(self, mixture: Mixture) -> Replay:
        """Returns the first ratio; see `ReplayPolicy.start_replay`."""
        names = [mixture.names[k] for k in mixture.memories]
        shares = np.ones(len(names)) if self.shares is None else weights_array(self.shares, names, "ReplayRatio.shares")
        self._shares = shares / max(shares.sum(), 1e-300)
        earlier = {} if self.past is None else self.past.num_samples
        return Replay(self.ratio.start(mixture, earlier), self._shares)

    def update_replay(self, observation: Observation) -> Replay:
        """Returns the present ratio; see `ReplayPolicy.update_replay`."""
        return Replay(self.ratio.update(observation), self._shares)
