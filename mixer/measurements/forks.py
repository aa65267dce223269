"""Whether the present mixture does the objective good, by short forks of the run within the run."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from mixer.measurements.measurement import Measurement
from mixer.utils.errors import wrong_value


class ForkGain(NamedTuple):
    """How far two forks of a run lie apart that differ by their mixture alone.

    Attributes:
        gain: The objective's loss on development rows after the fork by your weights, less that after the
            fork by the mixture of this step: above 0 that mixture is better.
        error: Its standard error by the differences between the rows.
    """

    gain: float
    error: float


@dataclass(frozen=True)
class Forks(Measurement[ForkGain]):
    """A fork of the run by the present mixture, and one by your weights, at some places of the run.

    Nothing is measured where the two mixtures are the same.

    Args:
        at: Shares of the run after which there are forks.
        share: Share of the run's work that all forks together take at most.
    """

    requires = frozenset({"objective", "gradients between steps"})

    at: tuple[float, ...] = (0.5, 0.75)
    share: float = 0.1

    def cost(self) -> str:
        """Returns what it costs; see `Measurement.cost`."""
        return f"at most {100.0 * self.share:g} % of the run's work, two forks at each of {len(self.at)} places"

    @classmethod
    def merged(cls, requests: Sequence["Forks"]) -> "Forks":
        """Returns the one request of several that are the same.

        Raises:
            ValueError: If they differ.
        """
        if len({*requests}) > 1:
            raise wrong_value("needs", f": a run has forks at the places of one request, but {list(requests)} differ.")
        return requests[0]
