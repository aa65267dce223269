"""The clock's numbers, by hand: how many steps, epochs and samples there are, and where the learning rate stands."""

import pytest

from mixer.mixture.clock import Budget, Clock
from tests.refusals import refused


def data_clock(batch_size: int = 4, epoch_size: int = 10, drop_unit: int = 0, **options: object) -> Clock:
    budget = options.pop("budget", Budget(epochs=3))
    return Clock(batch_size, epoch_size, budget, drop_unit, is_constant=False, **options)


class TestLayout:
    @pytest.mark.parametrize(
        ("budget", "planned_steps", "planned_epochs"),
        [
            (Budget(epochs=2.5), 8, 3),
            (Budget(epochs=2), 6, 2),
            (Budget(steps=7), 7, 3),
            (Budget(steps=6), 6, 2),
            (Budget(steps=4, epochs=3), 4, 3),
            (Budget(samples=21), 7, 3),
        ],
    )
    def test_steps_and_epochs_of_a_run(self, budget: Budget, planned_steps: int, planned_epochs: int) -> None:
        clock = Clock(batch_size=4, epoch_size=10, budget=budget)
        assert (clock.planned_steps, clock.max_steps, clock.planned_epochs) == (
            planned_steps,
            planned_steps,
            planned_epochs,
        )
        assert (clock.steps_per_epoch, clock.steps_left_in_epoch) == (3, 3)
        assert clock.is_step_based == (budget.samples is None)

    def test_a_pass_of_the_trainer_may_be_smaller_than_a_step(self) -> None:
        clock = Clock(batch_size=8, epoch_size=20, budget=Budget(epochs=2), pass_size=3)
        clock.tick()
        assert (clock.epoch, clock.epoch_coverage) == (3 / 7, 8 / 20)
        clock.tick()
        assert (clock.epoch, clock.steps_left_in_epoch) == (6 / 7, 1)
        clock.tick()
        assert (clock.epoch, clock.epoch_coverage, clock.num_samples) == (1.0, 1.0, 20)


class TestDropping:
    @pytest.mark.parametrize(
        ("is_constant", "epoch_size", "drop_unit", "needed"), [(False, 3, 1, 4), (True, 3, 5, 5), (True, 5, 6, 6)]
    )
    def test_what_would_leave_nothing_is_refused(self, is_constant, epoch_size, drop_unit, needed) -> None:
        with refused("dataloader_drop_last") as error:
            Clock(4, epoch_size, Budget(epochs=1), drop_unit, is_constant=is_constant)
        assert f"fewer than the {needed} of a batch" in str(error.value)

    def test_a_rest_is_dropped_once_a_step_of_the_epoch_is_done(self) -> None:
        clock = data_clock(drop_unit=1)
        assert data_clock(batch_size=4, epoch_size=4, drop_unit=1).next_total() == 4
        assert clock.drop_rest() == 0
        clock.tick(4)
        assert clock.drop_rest() == 0
        clock.tick(4)
        assert (clock.steps_left_in_epoch, clock.steps_per_epoch) == (0, 2)
        assert (clock.drop_rest(), clock.dropped_samples) == (2, 2)
        assert (clock.num_epochs_done, clock.step_in_epoch, clock.samples_in_epoch) == (1, 0, 0)
        clock.resize(9)
        clock.tick(9)
        assert (clock.drop_rest(), clock.dropped_samples) == (1, 2)  # the largest rest, of all epochs
        whole = data_clock(batch_size=5, drop_unit=1)
        whole.tick(5)
        assert whole.drop_rest() == 0


class TestEstimate:
    @pytest.mark.parametrize(
        ("budget", "expected"),
        [
            (Budget(samples=100), 30),
            (Budget(samples=8), 2),
            (Budget(samples=9), 3),
            (Budget(tokens=70), 3),
            (Budget(tokens=71), 4),
            (Budget(tokens=700), 30),
            (Budget(samples=100, steps=11), 11),
            (Budget(samples=50, tokens=140), 6),
        ],
    )
    def test_steps_that_are_left_if_the_size_stays(self, budget: Budget, expected: int) -> None:
        assert data_clock(budget=budget, tokens_per_sample=7.0).max_steps == expected

    def test_tokens_are_guessed_until_they_were_counted(self) -> None:
        clock = data_clock(budget=Budget(tokens=700), tokens_per_sample=7.0)
        clock.tick(4, 4 * 10)
        assert clock.max_steps == 1 + 20  # 66 samples of 10 tokens: 2 steps, 6 epochs of 3
        assert clock.progress == 40 / 700
        clock = data_clock(epoch_size=100, budget=Budget(tokens=40))
        assert clock.max_steps == 10  # a sample is a token where nothing is said
        clock.tick()
        assert clock.num_tokens == 0


class TestLearningRate:
    def test_after_a_warm_up_in_steps_it_goes_by_progress(self) -> None:
        clock = data_clock(budget=Budget(samples=100), num_warmup_steps=2)
        assert clock.planned_steps == 30
        positions = []
        for size in (4, 4, 2, 45, 45):
            clock.resize(size)
            clock.tick(size)
            positions.append(clock.schedule_position)
        assert positions[:2] == [1.0, 2.0]
        # 8 % are done with the warm-up; 28 steps stand for the other 92 %.
        assert positions[2:] == pytest.approx([2 + 28 * 2 / 92, 2 + 28 * 47 / 92, 30.0])

    @pytest.mark.parametrize(
        ("budget", "num_warmup_steps", "expected"),
        [
            (Budget(samples=8), 5, 2 + 5),
            (Budget(samples=8, steps=9), 5, 2),
            (Budget(samples=8), 2, 4),
            (Budget(samples=8), 1, 2),
        ],
    )
    def test_a_warm_up_beyond_the_run_has_an_end(self, budget: Budget, num_warmup_steps: int, expected: int) -> None:
        assert data_clock(budget=budget, num_warmup_steps=num_warmup_steps).planned_steps == expected


def test_other_epochs_are_counted_from_the_step() -> None:
    saved = Clock(4, 10, Budget(epochs=9))
    for _ in range(7):
        saved.tick(num_tokens=3)
    with refused("epoch_size"):
        Clock(4, 20, Budget(epochs=9)).load_state_dict(saved.state_dict())
    clock = Clock(4, 20, Budget(epochs=9))
    clock.load_state_dict(saved.state_dict(), allow_inexact=True)
    assert (clock.step, clock.num_samples, clock.num_tokens) == (7, 24, 21)
    assert (clock.num_epochs_done, clock.step_in_epoch, clock.samples_in_epoch) == (1, 2, 8)


class TestOneEpochOfTheWholeRun:
    """Streams of unknown length: the run is one epoch, unless something ends one."""

    def test_a_finished_run_that_is_made_longer_goes_on_in_its_epoch(self) -> None:
        done, longer = (Clock(4, None, Budget(steps=steps)) for steps in (2, 4))
        done.tick()
        done.tick()
        assert (done.epoch, done.progress) == (1.0, 1.0)
        longer.load_state_dict(done.state_dict())
        assert (longer.num_epochs_done, longer.step_in_epoch, longer.samples_in_epoch) == (0, 2, 8)

    def test_an_epoch_that_is_ended_is_as_long_as_the_run_as_in_the_trainer(self) -> None:
        clock, epochs = Clock(4, None, Budget(steps=10)), []
        for step in range(7):
            clock.tick()
            if step in (2, 4):
                clock.end_epoch()
            epochs.append(clock.epoch)
        assert epochs == [0.1, 0.2, 0.3, 1.1, 1.2, 2.1, 2.2]

    def test_one_that_was_stopped_within_it_stays_where_it_is(self) -> None:
        begun, again = (Clock(4, None, Budget(steps=3)) for _ in range(2))
        begun.tick()
        again.load_state_dict(begun.state_dict())
        assert (again.num_epochs_done, again.step_in_epoch, again.samples_in_epoch, again.epoch) == (0, 1, 4, 1 / 3)


def test_the_learning_rate_begins_to_fall_at_a_share_of_the_planned_steps() -> None:
    assert Clock(4, 10, Budget(steps=8), decay_step=lambda num_steps: num_steps - 2).decay_begins() == 0.75
    with refused("decay"):
        Clock(4, 10, Budget(steps=8)).decay_begins()
