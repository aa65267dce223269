"""Probes of streams, one after the other, and what the losses fell by under each."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from mixer.policies.shared.interactions import interactions_of, probe_mixture
from mixer.policies.shared.plain import from_plain
from mixer.utils.arrays import BoolArray, FloatArray
from mixer.utils.validation import whole_number


class ProbeRound:
    """Sweeps over some streams, every second one backwards; a round of no stream is over.

    Args:
        streams: Indices of the streams, in the order of a sweep.
        num_streams: How many there are in all.
        num_sweeps: Probes of each.
        share: Share of the probed stream in its probe; see `probe_mixture`.
    """

    def __init__(self, streams: list[int], num_streams: int, num_sweeps: int, share: float):
        self.streams, self._num_sweeps, self._share = streams, num_sweeps, share
        self._phase = 0
        self._falls = np.zeros((num_streams, len(streams)))
        self._num_falls = np.zeros((num_streams, len(streams)), dtype=np.int64)

    @property
    def is_over(self) -> bool:
        """Whether there is no probe left."""
        return self._phase >= self._num_sweeps * len(self.streams)

    @property
    def stream(self) -> int:
        """The stream that is being probed."""
        sweep, position = divmod(self._phase, len(self.streams))
        return self.streams[-1 - position if sweep % 2 else position]

    @property
    def among(self) -> BoolArray:
        """Which streams take part, bool `[num_streams]`."""
        return np.isin(np.arange(len(self._falls)), self.streams)

    def mixture(self) -> FloatArray:
        """Gives the mixture of the probe, `[num_streams]`."""
        mixture = np.zeros(len(self._falls))
        mixture[self.streams] = probe_mixture(len(self.streams), self.streams.index(self.stream), self._share)
        return mixture

    def take(self, falls: FloatArray) -> None:
        """Takes what the losses fell by in the probe.

        Args:
            falls: `[num_streams]`; NaN where it is not known.
        """
        known, column = np.isfinite(falls), self.streams.index(self.stream)
        self._falls[known, column] += falls[known]
        self._num_falls[known, column] += 1

    def move_on(self, active: BoolArray) -> bool:
        """Goes on to the next probe of a stream that is there; one that left is passed over.

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
        """Solves for what training on one stream does to the losses; see `interactions_of`.

        Returns:
            `[num_known, num_probed]`: A; and of which streams a probe told something, bool `[num_probed]`.
        """
        has_falls: BoolArray = self._num_falls > 0
        falls = np.full(self._falls.shape, np.nan)
        np.divide(self._falls, self._num_falls, out=falls, where=has_falls)
        return interactions_of(falls, self._share), np.asarray(has_falls.any(axis=0))

    def state_dict(self) -> dict[str, Any]:
        """Gives how far the round is, as plain data."""
        return {
            "probed": list(self.streams),
            "phase": self._phase,
            "falls": self._falls.tolist(),
            "num_falls": self._num_falls.tolist(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes up how far a round of as many streams in all was."""
        num_streams = len(self._falls)
        last = num_streams - 1
        self.streams = [whole_number(k, "a stream that is probed", 0, last) for k in state["probed"]]
        self._phase = whole_number(state["phase"], "phase")
        self._falls = from_plain(state["falls"], num_streams, -1)
        self._num_falls = from_plain(state["num_falls"], num_streams, -1).astype(np.int64)
