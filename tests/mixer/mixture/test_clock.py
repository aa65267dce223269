import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mixer.mixture.clock import Budget, Clock


def totals_of(clock: Clock, num_steps: int) -> list[int]:
    totals = []
    for _ in range(num_steps):
        totals.append(clock.next_total())
        clock.tick()
    return totals


class TestEpoch:
    def test_the_last_step_is_the_remainder(self) -> None:
        assert totals_of(Clock(batch_size=4, epoch_size=10, budget=Budget(epochs=2)), 6) == [4, 4, 2, 4, 4, 2]

    def test_the_remainder_is_dropped(self) -> None:
        clock = Clock(batch_size=4, epoch_size=10, budget=Budget(epochs=2), drop_unit=4)
        assert totals_of(clock, 4) == [4, 4, 4, 4]
        assert clock.dropped_samples == 2

    def test_the_remainder_is_cut_to_whole_units(self) -> None:
        clock = Clock(batch_size=8, epoch_size=23, budget=Budget(epochs=1), drop_unit=2)
        assert totals_of(clock, 3) == [8, 8, 6]
        assert clock.dropped_samples == 1

    @given(
        batch_size=st.integers(1, 50),
        epoch_size=st.integers(1, 400),
        num_epochs=st.integers(1, 4),
        drop_unit=st.integers(0, 20),
    )
    def test_the_steps_of_an_epoch_sum_to_it(self, batch_size, epoch_size, num_epochs, drop_unit) -> None:
        drop_unit = min(drop_unit, epoch_size)
        clock = Clock(batch_size, epoch_size, Budget(epochs=num_epochs), drop_unit=drop_unit)
        for _ in range(num_epochs):
            totals = totals_of(clock, clock.steps_per_epoch)
            assert sum(totals) == clock.epoch_size == epoch_size - clock.dropped_samples
            assert min(totals) >= 1
            assert max(totals) <= batch_size
            assert clock.at_epoch_end
        assert clock.step == clock.max_steps

    def test_one_batch_may_hold_several_epochs(self) -> None:
        assert totals_of(Clock(batch_size=64, epoch_size=10, budget=Budget(epochs=3)), 3) == [10, 10, 10]


class TestProgress:
    def test_it_counts_as_the_trainer_counts(self) -> None:
        clock = Clock(batch_size=4, epoch_size=10, budget=Budget(epochs=2))
        epochs, progress, in_epoch, ends = [], [], [], []
        for _ in range(6):
            clock.tick()
            epochs.append(clock.epoch)
            progress.append(clock.progress)
            in_epoch.append(clock.epoch_coverage)
            ends.append(clock.at_epoch_end)
        assert epochs == pytest.approx([1 / 3, 2 / 3, 1, 4 / 3, 5 / 3, 2])
        assert progress == pytest.approx([1 / 6, 1 / 3, 1 / 2, 2 / 3, 5 / 6, 1])
        assert in_epoch == pytest.approx([0.4, 0.8, 1, 0.4, 0.8, 1])
        assert ends == [False, False, True, False, False, True]

    def test_what_is_dropped_is_not_seen(self) -> None:
        """By steps the epoch is done, of 10 samples 8 were seen."""
        clock = Clock(batch_size=4, epoch_size=10, budget=Budget(epochs=2), drop_unit=4)
        shown = []
        for _ in range(4):
            clock.tick()
            shown.append((clock.epoch, clock.epoch_coverage))
        assert shown == [(0.5, 0.4), (1.0, 0.8), (1.5, 0.4), (2.0, 0.8)]

    def test_before_the_first_step_all_is_zero(self) -> None:
        clock = Clock(batch_size=4, epoch_size=10, budget=Budget(epochs=2))
        assert (clock.step, clock.progress, clock.epoch, clock.epoch_coverage) == (0, 0.0, 0.0, 0.0)
        assert not clock.at_epoch_end

    @given(batch_size=st.integers(1, 9), epoch_size=st.integers(1, 60), num_epochs=st.floats(0.1, 4))
    def test_it_rises_to_one_and_never_above(self, batch_size: int, epoch_size: int, num_epochs: float) -> None:
        clock = Clock(batch_size, epoch_size, Budget(epochs=num_epochs))
        seen = [clock.progress]
        for _ in range(clock.max_steps):
            clock.tick()
            seen.append(clock.progress)
            assert 0 < clock.epoch_coverage <= 1
        assert seen == sorted(set(seen))
        assert seen[-1] == 1.0
        clock.tick()
        assert clock.progress == 1.0


class TestBudget:
    @pytest.mark.parametrize(
        ("num_epochs", "max_steps", "expected"), [(2, -1, 6), (1.5, -1, 5), (0.1, -1, 1), (2, 4, 4), (2, 100, 100)]
    )
    def test_steps_rule_epochs(self, num_epochs: float, max_steps: int, expected: int) -> None:
        assert Clock(4, 10, Budget(num_epochs) if max_steps < 0 else Budget(steps=max_steps)).max_steps == expected

    @pytest.mark.parametrize(
        ("max_samples", "expected"), [(1, 1), (4, 1), (5, 2), (10, 3), (11, 4), (20, 6), (900, 30)]
    )
    def test_the_run_ends_with_the_samples(self, max_samples: int, expected: int) -> None:
        assert Clock(4, 10, Budget(epochs=10), max_samples=max_samples).max_steps == expected

    @pytest.mark.parametrize(("max_samples", "expected"), [(8, 2), (9, 2), (10, 2), (11, 3), (18, 4), (19, 4), (20, 4)])
    def test_dropped_samples_count_as_given(self, max_samples: int, expected: int) -> None:
        assert Clock(4, 10, Budget(epochs=10), drop_unit=4, max_samples=max_samples).max_steps == expected

    def test_samples_also_bound_a_budget_in_steps(self) -> None:
        assert Clock(4, 10, Budget(steps=50), max_samples=10).max_steps == 3


class TestState:
    @given(step=st.integers(0, 50))
    def test_it_goes_on_where_it_was(self, step: int) -> None:
        clock, resumed = Clock(4, 30, Budget(epochs=3)), Clock(4, 30, Budget(epochs=3))
        totals_of(clock, step)
        resumed.load_state_dict(json.loads(json.dumps(clock.state_dict())))
        assert resumed.progress == clock.progress
        assert totals_of(resumed, 20) == totals_of(clock, 20)

    @pytest.mark.parametrize(
        ("other", "message"),
        [
            (Clock(5, 30, Budget(epochs=3)), "batch_size was 4 when the run was saved and is 5 now"),
            (Clock(4, 31, Budget(epochs=3)), "epoch_size was 30 when the run was saved and is 31 now"),
        ],
    )
    def test_another_epoch_is_refused(self, other: Clock, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            other.load_state_dict(Clock(4, 30, Budget(epochs=3)).state_dict())

    @pytest.mark.parametrize(("is_constant", "field"), [(True, "step_in_epoch"), (False, "samples_in_epoch")])
    def test_what_is_beyond_the_end_of_an_epoch_is_refused(self, is_constant: bool, field: str) -> None:
        clock = Clock(4, 30, Budget(epochs=3), is_constant=is_constant)
        end = {"step_in_epoch": 8, "samples_in_epoch": 30}[field]
        clock.load_state_dict({**clock.state_dict(), field: end})
        with pytest.raises(ValueError, match=r"of an epoch, but an epoch has 8 steps and 30 samples"):
            clock.load_state_dict({**clock.state_dict(), field: end + 1})

    def test_a_longer_budget_is_taken(self) -> None:
        clock, longer = Clock(4, 30, Budget(epochs=3)), Clock(4, 30, Budget(epochs=6))
        totals_of(clock, 12)
        longer.load_state_dict(clock.state_dict())
        assert longer.step == 12


class TestArguments:
    def test_an_empty_epoch_is_refused(self) -> None:
        with pytest.raises(ValueError, match="epoch_size must be at least 1 sample, got 0"):
            Clock(4, 0, Budget(epochs=1))

    def test_dropping_everything_is_refused(self) -> None:
        with pytest.raises(ValueError, match="drops everything: an epoch has 10 samples, fewer than the 16"):
            Clock(16, 10, Budget(epochs=1), drop_unit=16)
