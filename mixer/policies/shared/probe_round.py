"""Aioli's probes of one stream after the other, and the effect of each stream on all losses."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from mixer.utils.arrays import BoolArray, FloatArray
from mixer.utils.saved_state import from_plain
from mixer.utils.validation import whole_number


class ProbeRound:
    """Sweeps over some streams, every second sweep backwards; a round without streams is over.

    Args:
        streams: Indices of the streams, in the order of a sweep.
        num_streams: Number of all streams.
        num_sweeps: Probes per stream.
        share: Share of the probed stream in its probe; see `probe_mixture`.
    """

    def __init__(self, streams: list[int], num_streams: int, num_sweeps: int, share: float):
        self.streams, self._num_sweeps, self._share = streams, num_sweeps, share
        self._phase = 0
        self._falls = np.zeros((num_streams, len(streams)))
        self._num_falls = np.zeros((num_streams, len(streams)), dtype=np.int64)

    @property
    def is_over(self) -> bool:
        """Whether no probe is left."""
        return self._phase >= self._num_sweeps * len(self.streams)

    @property
    def stream(self) -> int:
        """The present probe's stream."""
        sweep, position = divmod(self._phase, len(self.streams))
        return self.streams[-1 - position if sweep % 2 else position]

    @property
    def among(self) -> BoolArray:
        """The streams of the round, bool `[num_streams]`."""
        return np.isin(np.arange(len(self._falls)), self.streams)

    def mixture(self) -> FloatArray:
        """Returns the mixture of the present probe, `[num_streams]`."""
        mixture = np.zeros(len(self._falls))
        mixture[self.streams] = probe_mixture(len(self.streams), self.streams.index(self.stream), self._share)
        return mixture

    def take(self, falls: FloatArray) -> None:
        """Records the fall of the losses in the present probe.

        Args:
            falls: `[num_streams]`; NaN if unknown.
        """
        known, column = np.isfinite(falls), self.streams.index(self.stream)
        self._falls[known, column] += falls[known]
        self._num_falls[known, column] += 1

    def move_on(self, active: BoolArray) -> bool:
        """Moves to the next probe of an active stream.

        Args:
            active: bool `[num_streams]`.

        Returns:
            Whether the round is over now.
        """
        self._phase += 1
        while not self.is_over and not active[self.stream]:
            self._phase += 1
        return self.is_over

    def interactions(self) -> tuple[FloatArray, BoolArray]:
        """Solves for the effect of training on one stream on all losses; see `interactions_of`.

        Returns:
            `[num_known, num_probed]`: A; and the streams with a known probe, bool `[num_probed]`.
        """
        has_falls: BoolArray = self._num_falls > 0
        falls = np.full(self._falls.shape, np.nan)
        np.divide(self._falls, self._num_falls, out=falls, where=has_falls)
        return interactions_of(falls, self._share), np.asarray(has_falls.any(axis=0))

    def state_dict(self) -> dict[str, Any]:
        """Returns the progress of the round as plain data."""
        return {
            "probed": list(self.streams),
            "phase": self._phase,
            "falls": self._falls.tolist(),
            "num_falls": self._num_falls.tolist(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Loads the progress of a round with as many streams."""
        num_streams = len(self._falls)
        last = num_streams - 1
        self.streams = [whole_number(k, "a stream that is probed", 0, last) for k in state["probed"]]
        self._phase = whole_number(state["phase"], "phase")
        self._falls = from_plain(state["falls"], num_streams, -1)
        self._num_falls = from_plain(state["num_falls"], num_streams, -1).astype(np.int64)


def probe_mixture(num_streams: int, index: int, share: float) -> FloatArray:
    """Returns a smoothed one-hot mixture.

    Args:
        num_streams: K.
        index: The probed stream.
        share: Its share, h; the others have `o = (1 − h) / (K − 1)` each.

    Returns:
        `[num_streams]` on the simplex.
    """
    mixture = np.full(num_streams, (1.0 - share) / (num_streams - 1))
    mixture[index] = share
    return mixture


def interactions_of(falls: FloatArray, share: float) -> FloatArray:
    """Solves `fall_ij = Σ_l A_il p^(j)_l` for A, where `p^(j)` is the probe mixture of stream j.

    With `p^(j) = (h − o) e_j + o`, the sum of a row of falls is that of the row of A, so
    `A_ij = (fall_ij − o Σ_l fall_il) / (h − o)`.

    Args:
        falls: `[num_streams, num_streams]`: fall of loss i under the probe mixture of j; NaN if unknown, which counts
            as the mean of its row, neutral about j.
        share: h, above 1/K.

    Returns:
        `[num_known, num_streams]`: A, without unknown rows.
    """
    falls = falls[np.isfinite(falls).any(axis=1)]
    known = np.isfinite(falls)
    means = np.where(known, falls, 0.0).sum(axis=1, keepdims=True) / known.sum(axis=1, keepdims=True)
    falls = np.where(known, falls, means)
    other = (1.0 - share) / (falls.shape[1] - 1)
    solved: FloatArray = (falls - other * falls.sum(axis=1, keepdims=True)) / (share - other)
    return solved


def normalised(interactions: FloatArray) -> FloatArray:
    """Shifts a matrix to be non-negative, and scales it to a sum of 1; zeros if all entries become 0."""
    if interactions.size == 0:
        return interactions
    shifted = interactions - min(float(interactions.min()), 0.0)
    total = shifted.sum()
    return shifted / total if total > 0.0 else shifted
