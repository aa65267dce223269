"""How much rows are learned by heart: rates of streams, and what a further pass is then worth."""

from dataclasses import replace

import numpy as np
import pytest

from mixer.measurements.alignment import TargetStatistics
from mixer.policies import MarginalValue
from mixer.policies.objective import Objective
from mixer.policies.shared.memory import Memory
from mixer.policies.shared.repeated import planned
from tests.mixer.policies.observed import NAN, decided, measurement, mixture

RATE = 1.0 / 15.0


def taken(development: list[float], *seen: tuple[list[float], list[int]]) -> Memory:
    """Memory of streams of 100 samples, a and b, of which b is no target."""
    objective = Objective({"a": 3.0, "outside": 1.0})
    memory = Memory(mixture((1.0, 1.0)), objective, 15.0)
    for stream_losses, samples in seen:
        unknown = np.full((2, 2), NAN)
        targets = TargetStatistics(np.array(development), unknown, unknown, stream_losses=np.array(stream_losses))
        memory.take(targets, np.array([0.75, 0.25]), np.array(samples))
    return memory


def test_rates_are_a_least_squares_fit_of_the_gaps_after_the_first_pass_by_hand() -> None:
    # Gaps to the own development rows: 0 and then 1 at the third pass, 2 at the fourth one, where half of the first is
    # left; the prior is a measurement at the second.
    seen = [([2.0, 4.0], [50, 50]), ([2.0 / np.e, 4.0], [300, 90]), ([2.0 / np.e**2, 4.0], [400, 95])]
    memory = taken([2.0, 2.0], *seen)
    assert memory.rates == pytest.approx([(RATE + 0.5 * 2.0 * 1.0 + 3.0 * 2.0) / (1.0 + 0.5 * 4.0 + 9.0), RATE])
    # A stream that is no target is compared with the objective: ¾ · 2 + ¼ · 6 = 3, of which a third is left.
    memory = taken([2.0, 6.0], ([2.0, 3.0], [50, 50]), ([2.0, 1.0], [90, 300]))
    assert memory.rates == pytest.approx([RATE, (RATE + 2.0 * np.log(3.0)) / (1.0 + 4.0)])


def test_rows_that_are_as_hard_as_new_ones_lose_nothing() -> None:
    seen = [([2.0, 3.0], [50, 50]), *[([2.0, 3.0], [1_000, 1_000])] * 9]  # noisy labels are harder, from the start
    assert taken([2.0, 2.0], *seen).rates.max() < 0.001
    assert taken([2.0, 2.0], ([2.0, 2.0], [50, 50]), ([9.0, 9.0], [900, 900])).rates.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("losses", [[0.0, NAN], [-1.0, np.inf]])
def test_losses_without_a_logarithm_say_nothing(losses: list[float]) -> None:
    memory = taken([2.0, 2.0], ([2.0, 2.0], [50, 50]), (losses, [300, 300]))
    assert memory.rates.tolist() == [RATE, RATE]
    # Nor does a later pass, without a measurement in the first one.
    assert taken([2.0, 2.0], ([1.0, 1.0], [300, 300])).rates.tolist() == [RATE, RATE]


def test_repeated_rows_are_worth_less_each_time() -> None:
    memory = taken([2.0, 2.0], ([2.0, 2.0], [50, 50]), ([2.0, 1.0], [90, 300]))
    rate = memory.rates[1]
    for scores, rates in (([1.0, 0.5], [RATE, rate]), ([-1.0, -0.5], [0.0, 2.0 * np.log(2.0) / 5.0])):
        found = memory.discounted(np.array(scores), np.array([16.0, 11.0]))
        np.testing.assert_allclose(found, np.array(scores) * np.exp(-np.array(rates) * [15.0, 10.0]))
    assert memory.discounted(np.array([NAN, 1.0]), np.zeros(2)).tolist() == pytest.approx([NAN, 1.0], nan_ok=True)


def test_the_passes_of_the_whole_run_count() -> None:
    seen = measurement([1.0, 1.0, 0.0], seen=np.array([3000, 10, 10]))  # of 100 samples each
    assert decided(MarginalValue(), seen)[0] < decided(MarginalValue(), seen)[1]
    # At a tenth of the run, ten times those so far.
    early = replace(seen, seen=seen.seen // 10, progress=0.1)
    np.testing.assert_allclose(decided(MarginalValue(), early), decided(MarginalValue(), seen))


def test_planned_passes_are_those_that_discounts_on_the_way_would_leave() -> None:
    wanted, rates, steps = np.array([0.0, 0.5, 1.0, 4.0, 60.0, 60.0]), np.array([0.1, 0.1, 0.1, 0.1, 0.1, 1.0]), 100_000
    passes = np.zeros(6)
    for _ in range(steps):
        passes += wanted * np.exp(-rates * np.maximum(passes - 1.0, 0.0)) / steps
    np.testing.assert_allclose(planned(wanted, rates) * wanted, passes, rtol=1e-3)
    assert planned(np.zeros(1), rates[:1]) == 1.0
    assert planned(wanted, np.zeros(6)) == pytest.approx(np.ones(6))
