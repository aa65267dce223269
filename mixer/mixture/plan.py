"""The plan of one step, the same on every rank."""

import functools
import hashlib
from dataclasses import dataclass, replace

import numpy as np

from mixer.utils.arrays import BoolArray, FloatArray, Int64Array


@dataclass(frozen=True)
class Plan:
    """Which samples a step consists of, over all ranks; `mixer.mixture.sharding` says which rank trains on which.

    Args:
        step: Number of the step, from 1: the Trainer's `global_step` once it is done.
        counts: int64 `[num_streams]`: samples of each stream.
        starts: int64 `[num_streams]`: position of each stream's first sample in that stream.
        weights: `[num_streams]`: the shares that the counts were apportioned by; they sum to 1.
        policy_weights: `[num_streams]`: what the policy, or the user, had decided.
        loss_weights: `[num_streams]` or `None`: factors on the streams' losses.
        batch_size: Samples that were asked for; fewer are planned at the end of an epoch or of the streams.
        staleness: Number of steps that were done when the weights were decided upon but not seen by the policy.
        are_additional: bool `[num_streams]`: whether a stream's samples come on top of the batch size and do not count
            in the clock; `None` if no stream's do.
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
        """Number of steps before this one, by which random draws are keyed."""
        return self.step - 1

    @functools.cached_property
    def total(self) -> int:
        """Number of samples of the step."""
        return int(self.counts.sum())

    def clocked(self, by_stream: Int64Array) -> int:
        """Adds up what counts in the clock of the run.

        Args:
            by_stream: int64 `[num_streams]`: a number of each stream, such as `counts`.

        Returns:
            The sum over the streams whose samples are not additional.
        """
        return int((by_stream if self.are_additional is None else by_stream[~self.are_additional]).sum())

    @property
    def first_stream(self) -> int:
        """The first stream that has samples in it."""
        return int(np.argmax(self.counts > 0))

    def only(self, are_in: BoolArray) -> "Plan":
        """Gives the part of the step that some streams have.

        Args:
            are_in: bool `[num_streams]`: which ones.

        Returns:
            The plan without samples of the others.
        """
        return replace(self, counts=np.where(are_in, self.counts, 0))

    def fingerprint(self) -> int:
        """Gives a 48-bit hash of the plan, by which ranks find out that they disagree.

        Returns:
            A non-negative integer below 2^48.
        """
        digest = hashlib.blake2b(digest_size=6)
        loss_weights = self.weights if self.loss_weights is None else self.loss_weights
        for array in (np.int64(self.step), self.counts, self.starts, self.weights, loss_weights):
            digest.update(array.tobytes())
        return int.from_bytes(digest.digest(), "little")
