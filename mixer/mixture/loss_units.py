"""Units of the streams' losses, in which policies compare them."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mixer.measurements import Results
from mixer.policies.contract import in_order
from mixer.utils.arrays import FloatArray
from mixer.utils.errors import wrong_type, wrong_value
from mixer.utils.saved_state import check_form, to_plain
from mixer.utils.validation import finite_or_missing

KINDS = ("initial", "entropy", "none")
_LEAST = 1e-6  # a unit; less is no loss that others could be compared with


class LossUnits:
    """Divides each stream's losses by its unit before a policy sees them.

    A loss of six classes is not one of two: of a model that knows nothing the first is log 6, the second log 2.

    Args:
        num_streams: Number of streams.
        units: `[num_streams]`: the units; `None` for each stream's first training loss.
    """

    def __init__(self, num_streams: int, units: FloatArray | None = None):
        self._waits = units is None
        self.units: FloatArray = np.full(num_streams, np.nan) if units is None else units

    def start(self) -> None:
        """Forgets first losses, for a new run."""
        if self._waits:
            self.units = np.full(len(self.units), np.nan)

    def take(self, losses: FloatArray) -> None:
        """Takes first training losses as units.

        Args:
            losses: `[num_streams]`: losses of a step, NaN if there is none.
        """
        if self._waits:
            is_first = np.isnan(self.units) & (np.abs(losses) > _LEAST)
            self.units = np.where(is_first, np.abs(losses), self.units)

    def in_units(self, measured: Results) -> Results:
        """Expresses losses among measurements in the streams' units; NaN for a stream without a unit yet."""
        losses = {kind: result for kind, result in measured.items() if kind.is_loss and result is not None}
        for kind, result in losses.items():
            if kind.reads_losses:
                self.take(result)
        return {**measured, **{kind: result / self.units for kind, result in losses.items()}}

    def state_dict(self) -> dict[str, Any]:
        """Returns the units as plain data."""
        return {"units": to_plain(self.units)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores first losses; other units are those of the present run.

        Args:
            state: Result of `state_dict`.

        Raises:
            ValueError: If it does not fit the streams.
        """
        check_form(state, self.state_dict(), "the units of losses")
        if self._waits:
            self.units = finite_or_missing(state["units"], "the units", len(self.units))


def check_loss_units(given: Any, names: Sequence[str]) -> None:
    """Refuses an option `loss_units` that is none.

    Args:
        given: The option.
        names: Names of the streams.

    Raises:
        ValueError: If it is another word, or does not give each stream a positive number.
        TypeError: If it is neither a word nor a mapping.
    """
    if given is None or (isinstance(given, str) and given in KINDS):
        return
    if not isinstance(given, Mapping):
        wrong = wrong_value if isinstance(given, str) else wrong_type
        raise wrong("loss_units", f"must be 'initial', 'entropy', 'none' or losses by stream, got {given!r}.")
    for name, value in zip(names, in_order(given, names, "loss_units"), strict=True):
        if isinstance(value, bool) or not isinstance(value, int | float) or not _LEAST < value < np.inf:
            raise wrong_value("loss_units", f": the unit of {name!r} must be a loss above 0, got {value!r}.")
