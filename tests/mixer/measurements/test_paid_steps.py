"""When targets are measured, and how much that costs."""

import numpy as np
import pytest

from mixer.measurements.hooks.paid_steps import Measuring, PaidSteps, Price

PRICES = [Price(4.0, 20.0, False), Price(17.0, 42.0, True), Price(3.0, 0.0, False), Price(40.0, 20.0, False)]


def spent(steps: PaidSteps, price: Price, num_steps: int) -> np.ndarray:
    """The work of measurements up to each step."""
    found = [steps.at(step) for step in range(1, num_steps + 1)]
    total: np.ndarray = np.cumsum([price.row * own.num_rows + price.compared * own.compares for own in found])
    return total


@pytest.mark.parametrize("price", PRICES)
@pytest.mark.parametrize(("batch_size", "world_size"), [(8, 1), (32, 1), (512, 4), (96, 6)])
def test_the_share_of_the_work_is_kept_at_every_step(price: Price, batch_size: int, world_size: int) -> None:
    steps, number = PaidSteps(batch_size, price, world_size), np.arange(1, 6_001)
    work = spent(steps, price, 6_000)
    assert (work <= batch_size * (0.03 * number + 0.02 * np.minimum(number, 256)) + 1e-9).all()
    assert work[-1] > 0.5 * batch_size * 0.03 * 6_000  # and used
    for num_steps in (1, 100, 256, 6_000):
        assert steps.share(num_steps) == pytest.approx(work[num_steps - 1] / batch_size / num_steps)
    assert {steps.at(step).num_rows % world_size for step in range(1, 300)} == {0}


def test_the_first_measurements_by_hand() -> None:
    # 100 rows a step: 5 are paid for. Of 4 rows and 20 compared ones, a measurement costs 36: step 8 pays for 40.
    steps = PaidSteps(100, Price(4.0, 20.0, False), 1)
    assert [steps.at(step) for step in range(1, 6)] == [
        Measuring(0, False),
        Measuring(0, False),  # 10
        Measuring(0, False),
        Measuring(5, False),  # 20
        Measuring(0, False),  # 25 − 20
    ]
    assert steps.at(8) == Measuring(5, False)  # 40 − 20
    assert steps.at(11) == Measuring(0, False)  # 55 − 40 = 15: less than 4 rows of 4
    assert steps.at(16) == Measuring(5, True)  # 80 − 40 = 40: 20 are left beside those compared
    assert steps.first == 4


def test_rows_that_must_be_compared_are_never_left_out() -> None:
    price = Price(4.0, 20.0, True)
    steps = PaidSteps(100, price, 1, is_compared_first=True)
    assert steps.at(1) == Measuring(0, True)
    found = [steps.at(step) for step in range(2, 400)]
    assert all(own.compares for own in found if own.num_rows)
    assert spent(steps, price, 256)[-1] <= 5.0 * 256


def test_an_interval_that_is_given_is_kept_whatever_it_costs() -> None:
    steps = PaidSteps(4, Price(40.0, 20.0, True), 2, interval_steps=3)
    assert [step for step in range(1, 13) if steps.at(step).num_rows] == [3, 6, 9, 12]
    assert steps.at(6) == Measuring(4, True)
    assert steps.share(12) == pytest.approx(4 * (4 * 40.0 + 20.0) / 48)


def test_a_run_that_pays_for_no_measurement_knows_when_the_first_one_would_be() -> None:
    steps = PaidSteps(8, Price(8.0, 20.0, False), 1)
    assert steps.first == 90  # 32 of 36
    assert steps.share(89) == 0.0
