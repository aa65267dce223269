"""Which steps a measurement follows, and of how many rows it is, within a share of the run's work."""

import math
from typing import NamedTuple

LEAST_ROWS, MOST_ROWS = 4, 64  # of each stream and target in a measurement
SHARE, EARLY_SHARE = 0.03, 0.05  # of a run's work that measurements take
EARLY_STEPS = 256  # a mixture matters most while the model learns most
_COUNTED_STEPS = 10_000  # of a long run, whose cost is told


class Price(NamedTuple):
    """What a measurement costs, in rows that go forward and back.

    Attributes:
        row: A row of each stream and target.
        compared: The rows whose losses are compared from one measurement to the next.
        must_compare: Whether no measurement goes without these.
    """

    row: float
    compared: float
    must_compare: bool


class Measuring(NamedTuple):
    """A measurement.

    Attributes:
        num_rows: Rows of each stream and target over all ranks; 0 for none.
        compares: Whether the losses of the rows that are the same each time are measured.
    """

    num_rows: int
    compares: bool


class PaidSteps:
    """Plans measurements within a share of the work of the steps so far: 5 % of the first 256, and 3 % of later ones.

    They may follow steps 2, 4, 5, 8, 11, 16, ..., growing apart by √2, and take as many rows as are paid for, 4 to 64;
    a step at which fewer are paid for is passed over. In the end, measurements of 64 rows are regular. An interval that
    is given is kept whatever it costs. All this is known before the run, so ranks and resumed runs agree.

    Args:
        batch_size: Rows of a step.
        price: What a measurement costs.
        world_size: Number of ranks, of which each takes as many rows.
        interval_steps: Steps between regular measurements; 0 chooses them by their cost.
        is_compared_first: Whether the losses after step 1 are measured too.
        least_rows: Rows of each stream and target in the smallest measurement.
    """

    def __init__(
        self,
        batch_size: int,
        price: Price,
        world_size: int,
        interval_steps: int = 0,
        is_compared_first: bool = False,
        least_rows: int = LEAST_ROWS,
    ):
        self._batch_size, self._price, self._world_size = batch_size, price, world_size
        self._is_given, self._least, most = interval_steps > 0, self._whole(least_rows), self._whole(MOST_ROWS)
        self.interval_steps = interval_steps or math.ceil((price.row * most + price.compared) / (SHARE * batch_size))
        self._planned = {1: Measuring(0, True)} if is_compared_first else {}
        self._spent = price.compared if is_compared_first else 0.0
        growing = (math.floor(2 ** (number / 2)) for number in range(2, 64))
        for step in (*(step for step in dict.fromkeys(growing) if step < self.interval_steps), self.interval_steps):
            found = self._affordable(self._paid(step) - self._spent, step == interval_steps)
            if found.num_rows:
                self._planned[step] = found
                self._spent += self._cost(found)

    @property
    def first(self) -> int:
        """The first step that streams are measured after."""
        planned = (step for step, measuring in self._planned.items() if measuring.num_rows)
        return min(planned, default=2 * self.interval_steps)

    def at(self, step: int) -> Measuring:
        """Gives the measurement after a step, by its number from 1."""
        if step <= self.interval_steps or step % self.interval_steps:
            return self._planned.get(step, Measuring(0, False))
        return self._affordable(self._paid(step) - self._paid(step - self.interval_steps), self._is_given)

    def share(self, num_steps: int) -> float:
        """Returns the work of the measurements of a run as a part of its steps' work."""
        num_steps = min(num_steps, _COUNTED_STEPS + 10 * self.interval_steps)
        regular = range(self.interval_steps, num_steps + 1, self.interval_steps)
        due = {*(step for step in self._planned if step <= num_steps), *regular}
        return sum(self._cost(self.at(step)) for step in due) / (num_steps * self._batch_size)

    def _affordable(self, paid: float, is_forced: bool) -> Measuring:
        """Chooses the largest measurement that is paid for; the least one if there has to be one."""
        price, least = self._price, self._price.row * self._least
        compares = price.must_compare or (price.compared > 0.0 and (is_forced or paid >= least + price.compared))
        rest = paid - price.compared * compares
        if rest < least:
            return Measuring(self._least, compares) if is_forced else Measuring(0, False)
        per_rank = math.floor(rest / price.row / self._world_size)
        return Measuring(min(max(per_rank * self._world_size, self._least), self._whole(MOST_ROWS)), compares)

    def _cost(self, measuring: Measuring) -> float:
        return self._price.row * measuring.num_rows + self._price.compared * measuring.compares

    def _paid(self, step: int) -> float:
        early = (EARLY_SHARE - SHARE) * min(step, EARLY_STEPS)
        return self._batch_size * (SHARE * step + early)

    def _whole(self, rows: int) -> int:
        """Returns at least so many rows, as many on each rank."""
        return self._world_size * math.ceil(rows / self._world_size)
