"""Absolute amounts of the streams: what they say of the mixture and of the length of a run."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from mixer.mixture.clock import Budget
from mixer.mixture.stream import Stream, total_samples
from mixer.policies.contract import UNITS, Unit


class Amounts(NamedTuple):
    """Amounts of all streams of a run.

    Attributes:
        unit: What they count.
        by_stream: Amounts by name.
    """

    unit: Unit
    by_stream: Mapping[str, int]

    @property
    def total(self) -> int:
        """Their sum."""
        return sum(self.by_stream.values())

    @property
    def budget(self) -> Budget:
        """The length of a run that takes all of them."""
        return Budget(**{self.unit: self.total})


def amounts_of(streams: Sequence[Stream]) -> Amounts | None:
    """Returns the amounts of all streams, or `None` unless each stream that is no memory has one of the same unit."""
    lasting = [stream for stream in streams if not stream.is_memory]
    for unit in UNITS:
        found = {stream.name: getattr(stream, f"max_{unit}") for stream in lasting}
        has_other = any(set(stream.amounts) - {unit} for stream in lasting)
        if found and None not in found.values() and not has_other:
            return Amounts(unit, found)
    return None


def check_amounts(streams: Sequence[Stream], budget: Budget, batch_size: int | None) -> None:
    """Refuses amounts that do not go with the length of a run.

    Args:
        streams: The streams.
        budget: The length.
        batch_size: Samples of every step; `None` if it varies.

    Raises:
        ValueError: If a stream's amount is more than the budget, or all amounts together are less.
    """
    if not any(stream.amounts for stream in streams):
        return
    by_steps = None if budget.steps is None or batch_size is None else budget.steps * batch_size
    limits = {"samples": [budget.samples, by_steps], "tokens": [budget.tokens], "labels": [budget.labels]}
    amounts = amounts_of(streams)
    totals = {"samples": total_samples([stream for stream in streams if not stream.is_memory])}
    if amounts is not None and amounts.unit != "samples":
        totals[amounts.unit] = amounts.total
    for unit, given in limits.items():
        limit = min((value for value in given if value is not None), default=None)
        if limit is not None:
            _check_against(streams, unit, limit, totals.get(unit))


def _check_against(streams: Sequence[Stream], unit: str, limit: int, total: int | None) -> None:
    for stream in streams:
        amount = getattr(stream, f"max_{unit}")
        if amount is not None and amount > limit:
            raise ValueError(
                f"Stream {stream.name!r}: max_{unit}={amount:,} is more than the whole run, which has {limit:,} "
                f"{unit}. Make the run longer (budget, max_steps), or the amount smaller."
            )
    if total is not None and total < limit:
        raise ValueError(
            f"The streams give {total:,} {unit} together (by max_{unit} or max_epochs), but the run has {limit:,}. Set "
            f"the budget to {total:,} {unit}, raise an amount, or leave one stream without a limit."
        )
