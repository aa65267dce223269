from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mixer.mixture.step_plan import dealt_samples
from tests.mixer.plans import all_samples, make_plan


@pytest.mark.parametrize(("counts", "total", "first"), [([3, 1], 4, 0), ([0, 1, 5], 6, 1), ([0, 0, 2], 2, 2)])
def test_its_numbers(counts: list[int], total: int, first: int) -> None:
    plan = make_plan(counts, step=1)
    assert (plan.total, plan.first_stream) == (total, first)
    assert plan.index == 0  # steps count from one and keys of draws from zero


def test_of_some_streams_only_the_others_give_nothing_and_the_plan_itself_stays() -> None:
    plan = make_plan([3, 4, 5])
    part = plan.only(np.array([True, False, True]))
    assert part.counts.tolist() == [3, 0, 5]
    assert plan.counts.tolist() == [3, 4, 5]
    assert (part.starts.tolist(), part.step) == (plan.starts.tolist(), plan.step)


def test_what_comes_on_top_does_not_count_in_the_clock() -> None:
    plan = make_plan([8, 4, 3])
    assert plan.clocked(plan.counts) == 15
    assert replace(plan, are_additional=np.array([False, True, False])).clocked(plan.counts) == 11


@pytest.mark.parametrize(
    ("step", "expected"),
    [  # samples a0 a1 a2 c0 c1 of the step, in turn from rank `step - 1` on
        (1, [[(0, 7), (2, 2007)], [(0, 8), (2, 2008)], [(0, 9)]]),
        (2, [[(0, 9)], [(0, 7), (2, 2007)], [(0, 8), (2, 2008)]]),
    ],
)
def test_rows_that_ranks_cannot_exchange_are_dealt_in_turn(step: int, expected: list[list[tuple[int, int]]]) -> None:
    plan = make_plan([3, 0, 2], step=step)
    dealt = [[*zip(*(ids.tolist() for ids in dealt_samples(plan, rank, 3)), strict=True)] for rank in range(3)]
    assert dealt == expected
    assert sorted(one for own in dealt for one in own) == all_samples(plan)


class TestFingerprint:
    def test_each_step_has_another_of_48_bits_which_is_the_same_for_the_same_plan(self) -> None:
        found = {make_plan([1, 2], step=step).fingerprint() for step in range(2_000)}
        assert len(found) == 2_000
        assert 0 <= min(found) < max(found) < 2**48
        assert make_plan([1, 2]).fingerprint() == make_plan([1, 2]).fingerprint() == 131_843_367_021_807

    @pytest.mark.parametrize(
        "change",
        [
            {"step": 4},
            {"counts": np.array([2, 1])},
            {"starts": np.array([7, 1_008])},
            {"weights": np.array([1 / 3, np.nextafter(2 / 3, 1)])},
            {"loss_weights": np.array([1.0, 2.0])},
        ],
        ids=lambda change: next(iter(change)),
    )
    def test_it_sees_every_difference(self, change: dict[str, Any]) -> None:
        plan = make_plan([1, 2])
        assert replace(plan, **change).fingerprint() != plan.fingerprint()
