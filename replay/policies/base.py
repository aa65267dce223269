"""The interface of a replay policy: the replay ratio, around a policy for the other streams."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from mixer.policies import Decision, Fixed, Mixture, Observation, Policy, Proportional, as_policy
from mixer.policies.contract import Wrapped
from mixer.policies.shared.part import part_of_mixture, part_of_observation
from mixer.utils.arrays import BoolArray, FloatArray
from mixer.utils.errors import InvalidValueError


class Replay(NamedTuple):
    """How much to replay.

    Attributes:
        ratio: `ρ`, in [0, 1): the share of all memories together in the mixture.
        shares: `[num_memories]`: its division among the memories; they sum to 1.
    """

    ratio: float
    shares: FloatArray


class Past(NamedTuple):
    """What came before a run that continues earlier ones, as a task of a continual run does.

    Attributes:
        num_samples: Sizes of the streams of the earlier runs, by name.
        sources: By name of a memory that holds one earlier stream: the name of that stream.
        state: The policy's own `lasting_state` at the end of the last run.
    """

    num_samples: Mapping[str, int]
    sources: Mapping[str, str]
    state: Mapping[str, Any]


class ReplayPolicy(Policy):
    """Gives the memories a part `ρ` of the final mix and leaves the rest to a policy that sees the other streams only.

    With `v` the inner policy's weights and `p` the memories' shares, `w_k = (1 - ρ) v_k` and `w_m = ρ p_m`, so that
    `n_replay = ρ / (1 - ρ) · n_new`. With `additional=True` the same samples come on top of the batch size, as in most
    published protocols: 10 new samples and 10 of memory are a batch size of 10 and `ρ = 0.5`.

    `ρ` is a part of what is there: where streams have not entered yet or have left, the memories get `ρ / (1 - ρ)`
    times the weights of the others, and a memory that is still empty leaves its part to the other memories.

    Wrappers of the other streams' mixture belong inside, `ReplayRatio(policy=Floor(PiKE()))`: around it they take
    memories for streams like the others.

    Args:
        policy: The inner policy: a policy, its name, or weights by name; `None` takes your weights, and
            shares by size where they have none.
        additional: Whether replayed samples are added to the batch size instead of being a part of it.

    Raises:
        ValueError: If there is no policy of that name; at the start of the run if the mixture has no replay buffer, or
            nothing else.
    """

    remembered: ClassVar[tuple[str, ...]] = ("policy",)
    limits_mixture = True
    needs_memory_per_task: ClassVar[bool] = False  # in a continual run
    past: Past | None = None  # in a run that continues others

    def __init__(self, policy: Policy | str | Mapping[str, float] | None = None, *, additional: bool = False):
        self._has_default = policy is None
        self.policy: Policy = Fixed() if policy is None else as_policy(policy)
        self._inner_decision: Decision | None = None
        super().__init__(unit=self.policy.unit)
        self.additional = additional
        self.needs = tuple(dict.fromkeys((*type(self).needs, *self.policy.needs)))
        self.min_samples, self.compares_losses = self.policy.min_samples, self.policy.compares_losses
        self.holds_bounds = self.policy.holds_bounds

    @property
    def name(self) -> str:
        """The policy's name and the inner one's; see `Policy.name`."""
        return f"{type(self).__name__}({self.policy.name})"

    @abstractmethod
    def start_replay(self, mixture: Mixture) -> Replay:
        """Forgets any earlier run and decides for the first step.

        Args:
            mixture: All streams of the run; at least one is a memory.

        Returns:
            How much is replayed.
        """

    @abstractmethod
    def update_replay(self, observation: Observation) -> Replay:
        """Decides how much is replayed in the next step.

        Args:
            observation: What the last step showed of all streams.

        Returns:
            How much is replayed.
        """

    def replayed(self, mixture: Mixture) -> Sequence[int]:
        """Returns the indices of what is replayed: the replay buffers, unless a subclass says otherwise.

        Args:
            mixture: All streams of the run.
        """
        return mixture.memories

    def lasting_state(self) -> dict[str, Any]:
        """Returns the state with which the policy of the next run continues (`Past.state`), as JSON-compatible data."""
        return {}

    def start(self, mixture: Mixture) -> Decision:
        """Separates memories from other streams and starts the inner policy on these; see `Policy.start`."""
        names, replayed = mixture.names, self.replayed(mixture)
        self.memories = np.array(replayed, dtype=np.int64)
        self.others = np.array([k for k in range(len(names)) if k not in replayed], dtype=np.int64)
        if not len(self.memories) and self.past is None:
            text = f"none of the streams {list(names)} is a ReplayBuffer; add one, or mix by the inner policy alone."
            raise InvalidValueError(f"{type(self).__name__}: {text}", option="train_dataset", found=list(names))
        if not len(self.others):
            text = f"{type(self).__name__}: all streams, {list(names)}, are replayed; add one with new samples."
            raise InvalidValueError(text, option="train_dataset", found=list(names))
        others = part_of_mixture(mixture, self.others.tolist())
        if self._has_default:
            self.policy = Fixed() if others.has_weights else Proportional()
        self._inner_decision = inner = self.policy.start(others)
        return self._mix(inner, self.start_replay(mixture), mixture.is_active)

    def update(self, observation: Observation) -> Decision:
        """Shows the inner policy its streams and mixes the memories in; see `Policy.update`."""
        inner = self.policy.update(part_of_observation(observation, self.others.tolist()))
        self._inner_decision = inner
        return self._mix(inner, self.update_replay(observation), observation.is_active)

    def wrapped(self) -> Wrapped | None:
        """Returns the inner policy, which sees all but the memories; see `Policy.wrapped`."""
        if self._inner_decision is None:
            return None
        return Wrapped(self.policy, self._inner_decision, self.others.tolist())

    def _mix(self, inner: Decision, replay: Replay, active: BoolArray) -> Decision:
        weights = inner.weights / np.sum(inner.weights)
        replayed = replay.ratio / (1.0 - replay.ratio) * _renormalised(replay.shares, active[self.memories])
        loss_weights = None if inner.loss_weights is None else self._join(inner.loss_weights, 1.0)
        more = np.zeros(len(weights)) if inner.additional is None else inner.additional
        if self.additional:
            return Decision(self._join(weights, 0.0), loss_weights, self._join(more, replayed))
        # With none of the others there, memories are all that the planner can draw.
        joined = self._join(weights, replayed * (float(weights[active[self.others]].sum()) or 1.0))
        part = joined[self.others].sum() / joined.sum()
        additional = None if inner.additional is None else self._join(more * part, 0.0)
        return Decision(joined / joined.sum(), loss_weights, additional)

    def _join(self, of_others: FloatArray, of_memories: FloatArray | float) -> FloatArray:
        joined = np.zeros(len(self.others) + len(self.memories))
        joined[self.others], joined[self.memories] = of_others, of_memories
        return joined


def _renormalised(shares: FloatArray, active: BoolArray) -> FloatArray:
    """Renormalises the shares of active memories; inactive ones keep theirs."""
    total = float(shares[active].sum())
    return np.where(active, shares / total, shares) if total > 0.0 else shares
