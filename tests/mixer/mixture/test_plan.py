from dataclasses import replace

import numpy as np
import pytest

from tests.mixer.plans import make_plan, samples_of


class TestTotal:
    def test_it_is_the_sum_of_the_counts(self) -> None:
        assert make_plan([3, 0, 4]).total == 7


class TestFirstStream:
    @pytest.mark.parametrize(("counts", "expected"), [([3, 1], 0), ([0, 1, 5], 1), ([0, 0, 2], 2)])
    def test_it_is_the_first_that_has_samples(self, counts: list[int], expected: int) -> None:
        assert make_plan(counts).first_stream == expected


class TestIndex:
    def test_steps_count_from_one_and_keys_of_draws_from_zero(self) -> None:
        assert make_plan([1], step=1).index == 0


class TestOnly:
    def test_other_streams_give_nothing_and_the_plan_itself_stays(self) -> None:
        plan = make_plan([3, 4, 5])
        part = plan.only(np.array([True, False, True]))
        assert part.counts.tolist() == [3, 0, 5]
        assert plan.counts.tolist() == [3, 4, 5]
        np.testing.assert_array_equal(part.starts, plan.starts)
        assert part.step == plan.step


class TestFingerprint:
    def test_it_fits_into_48_bits(self) -> None:
        assert all(0 <= make_plan([1, 2], step=step).fingerprint() < 2**48 for step in range(200))

    def test_the_same_plan_has_the_same(self) -> None:
        assert make_plan([1, 2]).fingerprint() == make_plan([1, 2]).fingerprint()

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
    def test_it_sees_every_difference(self, change: dict) -> None:
        plan = make_plan([1, 2])
        assert replace(plan, **change).fingerprint() != plan.fingerprint()

    def test_plans_of_many_steps_do_not_collide(self) -> None:
        assert len({make_plan([1, 2], step=step).fingerprint() for step in range(2_000)}) == 2_000

    @pytest.mark.parametrize("world_size", range(1, 9))
    def test_asking_for_a_share_does_not_change_it(self, world_size: int) -> None:
        plan = make_plan([4, 5, 6])
        before = plan.fingerprint()
        samples_of(plan, 0, world_size)
        assert plan.fingerprint() == before
