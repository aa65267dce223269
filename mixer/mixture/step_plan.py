"""The plan of one step, identical on every rank."""

import functools
import hashlib
from dataclasses import dataclass, replace

import numpy as np

from mixer.utils.arrays import BoolArray, FloatArray, Int64Array


@dataclass(frozen=True)
class StepPlan:
    """Samples of a step over all ranks; `mixer.mixture.sharding` assigns them to ranks.

    Args:
        step: Number of the step, from 1: the Trainer's `global_step` once it is done.
        counts: int64 `[num_streams]`: samples of each stream.
        starts: int64 `[num_streams]`: position of each stream's first sample in that stream.
        weights: `[num_streams]`: apportioned shares; they sum to 1.
        policy_weights: `[num_streams]`: weights set by the policy or the user.
        loss_weights: `[num_streams]` or `None`: factors on the streams' losses.
        batch_size: Requested samples; fewer are planned at the end of an epoch or of the streams.
        staleness: Steps done but not yet observed by the policy when it set the weights.
        are_additional: bool `[num_streams]`: streams whose samples come on top of the batch size and do not advance the
            clock; `None` for none.
    """

    step: int
    counts: Int64Array
    starts: Int64Array
    weights: FloatArray
    policy_weights: FloatArray
    loss_weights: FloatArray | None
    batch_size: int
    staleness: int
    are_additional: BoolArray | None = None

    @property
    def index(self) -> int:
        """Number of steps before this one; keys random draws."""
        return self.step - 1

    @functools.cached_property
    def total(self) -> int:
        """Number of samples of the step."""
        return int(self.counts.sum())

    def clocked(self, by_stream: Int64Array) -> int:
        """Sums a per-stream number, such as `counts`, over the streams that advance the clock."""
        if self.are_additional is None:
            return self.total if by_stream is self.counts else int(by_stream.sum())
        return int(by_stream[~self.are_additional].sum())

    @property
    def first_stream(self) -> int:
        """First stream with samples in the step."""
        return int(np.argmax(self.counts > 0))

    def only(self, are_in: BoolArray) -> "StepPlan":
        """Returns the plan restricted to the streams in `are_in`, bool `[num_streams]`."""
        return replace(self, counts=np.where(are_in, self.counts, 0))

    def fingerprint(self) -> int:
        """Returns a 48-bit hash of the plan, by which ranks detect that they disagree."""
        digest = hashlib.blake2b(digest_size=6)
        loss_weights = self.weights if self.loss_weights is None else self.loss_weights
        for array in (np.int64(self.step), self.counts, self.starts, self.weights, loss_weights):
            digest.update(array.tobytes())
        return int.from_bytes(digest.digest(), "little")
