import json
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from mixer.schedules import (
    AdaBatch,
    BatchDecision,
    BatchObservation,
    Constant,
    CriticalBatchWarmup,
    Function,
    GradientNoise,
    LossChange,
    NoiseScale,
    NormTest,
    Ramp,
    Schedule,
    Seesaw,
    SmoothedLossChange,
)


def observe(step: int = 1, batch_size: int = 8, **shown: Any) -> BatchObservation:
    place = {"progress": 0.0, "num_epochs_done": 0, "num_samples": 0, "num_tokens": 0}
    return BatchObservation(step=step, batch_size=batch_size, **{**place, **shown})


def sizes_of(schedule: Schedule, shown: Sequence[dict[str, Any]], initial: int = 8) -> list[int]:
    """Sizes as they rule, the first one included."""
    sizes = [schedule.limits.apply(schedule.start(initial).batch_size, initial)]
    for step, given in enumerate(shown, start=1):
        decision = schedule.update(observe(step, sizes[-1], **given))
        sizes.append(schedule.limits.apply(decision.batch_size, sizes[-1]))
    return sizes


def losses(*values: float) -> list[dict[str, Any]]:
    return [{"loss": value} for value in values]


class TestConstant:
    def test_it_holds_and_leaves_a_size_that_was_set_by_hand(self) -> None:
        schedule = Constant(8)
        assert schedule.start(8) == BatchDecision(8)
        assert schedule.update(observe(3, 8)) == BatchDecision(8)
        assert schedule.update(observe(4, 24)) == BatchDecision(24)

    @pytest.mark.parametrize(
        ("given", "error"), [(0, ValueError), (8.0, TypeError), (True, TypeError), ("8", TypeError)]
    )
    def test_what_is_no_size_is_refused(self, given: object, error: type[Exception]) -> None:
        with pytest.raises(error, match="batch_size must be"):
            Constant(given)


class TestFunction:
    def test_it_is_called_with_the_step_and_the_last_size(self) -> None:
        calls = []
        schedule = Function(lambda step, batch_size: calls.append((step, batch_size)) or batch_size + 1)
        assert sizes_of(schedule, [{}, {}]) == [9, 10, 11]
        assert calls == [(0, 8), (1, 9), (2, 10)]

    def test_it_is_not_called_when_the_run_is_over(self) -> None:
        calls = []
        schedule = Function(lambda step, batch_size: calls.append(step) or 12)
        schedule.start(8)
        assert schedule.update(observe(1, 12, progress=0.99)).batch_size == 12
        assert schedule.update(observe(2, 10, progress=1.0)).batch_size == 10
        assert calls == [0, 1]

    @pytest.mark.parametrize("returned", [16, 16.0, np.int64(16), np.float32(16.0), np.uint8(16)])
    def test_whole_numbers_of_any_kind_are_taken(self, returned: object) -> None:
        size = Function(lambda step, batch_size: returned).start(8).batch_size
        assert (size, type(size)) == (16, int)

    @pytest.mark.parametrize(
        ("returned", "error"),
        [
            (0, ValueError),
            (-8, ValueError),
            (math.nan, ValueError),
            (math.inf, ValueError),
            (8.5, ValueError),
            (0.5, ValueError),
            (np.float32("nan"), ValueError),
            (True, TypeError),
            (np.True_, TypeError),
            (None, TypeError),
            ("16", TypeError),
            ([16], TypeError),
            (np.array([16]), TypeError),
            (16 + 0j, TypeError),
        ],
        ids=repr,
    )
    def test_what_is_no_size_is_refused_with_the_step(self, returned: object, error: type[Exception]) -> None:
        schedule = Function(lambda step, batch_size: 8 if step < 5 else returned)
        schedule.start(8)
        schedule.update(observe(4))
        with pytest.raises(error, match="at step 5: expected a whole number of samples, 1 or more, got") as caught:
            schedule.update(observe(5))
        assert repr(returned) in str(caught.value)

    def test_what_it_raised_passes_with_the_step(self) -> None:
        schedule = Function(lambda step, batch_size: 8 // (3 - step))
        schedule.start(8)
        with pytest.raises(ZeroDivisionError) as caught:
            schedule.update(observe(3, 8))
        assert caught.value.__notes__ == ["The batch-size function raised this at step 3, given batch_size=8."]

    def test_only_what_can_be_called_is_taken(self) -> None:
        with pytest.raises(TypeError, match=r"callable as f\(step, batch_size\), got int"):
            Function(3)


class TestAdaBatch:
    @pytest.mark.parametrize(
        ("num_epochs", "expected"), [(0, 128), (19, 128), (20, 256), (39, 256), (40, 512), (99, 512)]
    )
    def test_at_given_points(self, num_epochs: int, expected: int) -> None:
        schedule = AdaBatch([20, 40])
        schedule.start(128)
        assert schedule.update(observe(num_epochs_done=num_epochs)).batch_size == expected

    def test_the_learning_rate_over_the_batch_decays_as_the_run_says(self) -> None:
        """The paper's figures: 0.375 for a fixed batch is 2 times the batch and 0.75 for the learning rate."""
        schedule = AdaBatch(every=20)
        schedule.start(128)
        for num_cuts in range(5):
            batch_size = schedule.update(observe(num_epochs_done=20 * num_cuts)).batch_size
            assert batch_size == 128 * 2**num_cuts
            factor = schedule.learning_rate_factor(int(batch_size), 128)
            assert 0.375**num_cuts * factor == pytest.approx(0.75**num_cuts)

    @pytest.mark.parametrize("unit", ["steps", "epochs", "samples", "tokens", "progress"])
    def test_in_any_unit(self, unit: str) -> None:
        name = {"steps": "step", "progress": "progress"}.get(unit, f"num_{unit}")
        name = "num_epochs_done" if unit == "epochs" else name
        scale = 0.1 if unit == "progress" else 1
        schedule = AdaBatch([3 * scale], unit=unit)
        assert schedule.needs == ({"tokens"} if unit == "tokens" else set())
        schedule.start(8)
        assert [schedule.update(observe(**{name: at * scale})).batch_size for at in (2, 3, 4)] == [8, 16, 16]

    @pytest.mark.parametrize(("progress", "expected"), [(0.09, 8), (0.1, 16), (0.2, 32), (0.3, 64), (0.6, 512)])
    def test_an_interval_that_ends_by_rounding_alone_counts(self, progress: float, expected: int) -> None:
        schedule = AdaBatch(every=0.1, unit="progress")
        schedule.start(8)
        assert schedule.update(observe(progress=progress)).batch_size == expected

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({}, "Give points or every, one of them, got points=None and every=None"),
            ({"points": [1], "every": 1}, r"got points=\[1\] and every=1"),
            ({"points": []}, "points must be epochs above 0, at least one"),
            (
                {"points": [0, 2]},
                "points must be epochs above 0, at least one, got .*; initial= applies before the first",
            ),
            ({"points": [math.nan]}, "above 0"),
            ({"points": [1, math.inf]}, "above 0"),
            ({"points": [0.5, 1.5], "unit": "progress"}, r"points must be progress in \(0, 1\]"),
            ({"points": [2, 1]}, "points must ascend"),
            ({"points": [2, 2]}, "points must ascend"),
            ({"every": 0}, "every must be a number of epochs above 0, got 0"),
            ({"every": math.nan}, "got nan"),
            ({"every": 1, "factor": 1.0}, "factor must be above 1, got 1.0"),
            ({"every": 1, "factor": math.inf}, "got inf"),
            ({"every": 1, "unit": "days"}, "unit must be 'steps', .*'tokens' or .*, got 'days'"),
        ],
    )
    def test_arguments_that_cannot_be_are_refused(self, arguments: dict, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            AdaBatch(**arguments)


class TestRamp:
    @pytest.mark.parametrize(
        ("initial", "final", "over", "tokens", "expected"),
        [
            (2304, 9216, 225e9, 0, 2304),
            (2304, 9216, 225e9, 75_000_000_000, 4608),
            (2304, 9216, 225e9, 112_500_000_000, 5760),
            (2304, 9216, 225e9, 225_000_000_000, 9216),
            (2304, 9216, 225e9, 8_100_000_000_000, 9216),
            (3072, 15360, 469e9, 234_500_000_000, 9216),
            (3072, 15360, 469e9, 469_000_000_000, 15360),
        ],
    )
    def test_deepseek(self, initial: int, final: int, over: float, tokens: int, expected: int) -> None:
        schedule = Ramp(final, over)
        assert schedule.needs == {"tokens"}
        assert schedule.start(initial).batch_size == initial
        assert schedule.update(observe(num_tokens=tokens)).batch_size == expected

    def test_in_steps_of_the_granularity(self) -> None:
        schedule = Ramp(32, 8, unit="steps", granularity=8)
        assert sizes_of(schedule, [{}] * 9) == [8, 8, 16, 16, 24, 24, 24, 32, 32, 32]

    def test_down(self) -> None:
        assert sizes_of(Ramp(2, 3, unit="steps"), [{}] * 4) == [8, 6, 4, 2, 2]

    @pytest.mark.parametrize(
        ("arguments", "error", "message"),
        [
            ((64, 0), ValueError, "over must be a number of tokens above 0, got 0"),
            ((64, math.inf), ValueError, "over must be .* got inf"),
            ((0, 1), ValueError, "final must be at least 1 sample, got 0"),
            ((64.0, 1), TypeError, "final must be a whole number of samples, got 64.0"),
            ((66, 1), ValueError, "final=66 is not a batch size within the bounds"),
            ((128, 1), ValueError, "final=128 is not .* maximum=64"),
        ],
    )
    def test_arguments_that_cannot_be_are_refused(self, arguments: tuple, error: type[Exception], message: str) -> None:
        with pytest.raises(error, match=message):
            Ramp(*arguments, maximum=64, granularity=4)


class TestCriticalBatchWarmup:
    @pytest.mark.parametrize("sizes", [{100: 16, 300: 32}, [(100, 16), (300, 32)]])
    def test_at_given_token_counts(self, sizes: Any) -> None:
        schedule = CriticalBatchWarmup(sizes)
        assert schedule.needs == {"tokens"}
        found = sizes_of(schedule, [{"num_tokens": tokens} for tokens in (99, 100, 299, 300, 10**12)])
        assert found == [8, 8, 16, 16, 32, 32]
        assert schedule.learning_rate_factor(32, 8) == 2.0

    @pytest.mark.parametrize(
        ("sizes", "error", "message"),
        [
            ({}, ValueError, "points must be tokens above 0, at least one"),
            ({0: 16}, ValueError, "initial= applies before the first"),
            ([(2, 16), (1, 32)], ValueError, "points must ascend"),
            ({1: 16, 2: 16}, ValueError, r"sizes must grow from point to point, got \[8, 16, 16\]"),
            ({1: 32, 2: 16}, ValueError, r"got \[8, 32, 16\]"),
            ({1: 8, 2: 16}, ValueError, r"got \[8, 8, 16\]; initial=8 is the first one"),
            ({1e9: 16.0}, TypeError, r"size at 1e\+09 tokens must be a whole number of samples, got 16.0"),
            ({1: 128}, ValueError, "size at 1 tokens=128 is not a batch size within the bounds"),
        ],
    )
    def test_arguments_that_cannot_be_are_refused(self, sizes: Any, error: type[Exception], message: str) -> None:
        with pytest.raises(error, match=message):
            CriticalBatchWarmup(sizes, initial=8, maximum=64)

    def test_a_default_first_size_above_the_others_is_refused(self) -> None:
        schedule = CriticalBatchWarmup({1: 16})
        schedule.start(64)
        with pytest.raises(ValueError, match=r"sizes must grow from point to point, got \[64, 16\]"):
            schedule.update(observe(1, 64))


def by_steps(*arguments: Any, **options: Any) -> LossChange:
    return LossChange(*arguments, **{"unit": "steps", "interval": 1, "maximum": 512, **options})


def epochs_of(*epochs: Sequence[float]) -> list[dict[str, Any]]:
    """What is shown of steps with these losses, by epoch; the last step of each ends it."""
    return [
        {"loss": loss, "num_epochs_done": epoch + (number == len(values))}
        for epoch, values in enumerate(epochs)
        for number, loss in enumerate(values, start=1)
    ]


class TestLossChange:
    def test_the_published_rule(self) -> None:
        """At each epoch's end: 1.1 with fewer than five losses, and at a mean change of 0.01 or more, else half."""
        schedule = LossChange(interval=1, maximum=512)
        few = [[5.0], [4.0], [3.0], [2.0]]
        moving = [[1.0], [1.0], [1.0], [1.0]]  # mean changes of 1, 0.75, 0.5 and 0.25
        still = [[1.0], [1.039], [1.080]]  # 0, 0.00975 and 0.02
        # 100 · 1.1^k: 110, 121, 133.1, 146.41; 161.05, 177.16, 194.87, 214.36; halves 107.18, 53.59; 58.95.
        sizes = [110, 121, 133, 146, 161, 177, 195, 214, 107, 54, 59]
        assert sizes_of(schedule, epochs_of(*few, *moving, *still), 100) == [100, *sizes]
        assert schedule.state_dict()["size"] == pytest.approx(100 * 1.1**9 / 4)

    def test_the_loss_of_an_epoch_is_the_mean_of_its_steps(self) -> None:
        """Means of 2 and 2 stand still, whatever the steps did; those of 2 and 2.5 do not."""
        still, moving = epochs_of([1.0, 3.0], [2.5, 2.5, 1.0]), epochs_of([1.0, 3.0], [2.5, 2.5, 2.5])
        assert sizes_of(LossChange(2, interval=1, maximum=512), still, 100) == [100, 100, 110, 110, 110, 55]
        assert sizes_of(LossChange(2, interval=1, maximum=512), moving, 100) == [100, 100, 110, 110, 110, 121]

    def test_it_decides_every_so_many_epochs(self) -> None:
        """The losses are those of two epochs together: 2, then 2."""
        shown = epochs_of([1.0], [3.0], [0.0], [4.0], [9.0])
        schedule = LossChange(2, maximum=512)
        assert sizes_of(schedule, shown, 100) == [100, 100, 110, 110, 55, 55]
        assert sizes_of(LossChange(2, interval=3, maximum=512), shown, 100) == [100, 100, 100, 110, 110, 110]

    def test_the_state_goes_on_in_the_midst_of_an_epoch(self) -> None:
        shown = epochs_of(*[[1 / epoch, 2 / epoch, 3.0] for epoch in range(1, 9)])
        first = LossChange(3, maximum=512)
        sizes = sizes_of(first, shown, 100)
        for step in range(1, len(shown)):
            first.start(100)
            for number, given in enumerate(shown[:step], start=1):
                first.update(observe(number, sizes[number - 1], **given))
            second = LossChange(3, maximum=512)
            second.start(100)
            second.load_state_dict(json.loads(json.dumps(first.state_dict())))
            decision = second.update(observe(step + 1, sizes[step], **shown[step]))
            assert second.limits.apply(decision.batch_size, sizes[step]) == sizes[step + 1]

    def test_the_published_rule_at_every_step(self) -> None:
        falling = losses(5.0, 4.0, 3.0, 2.0, 1.0, 0.5)  # few losses; mean changes of 1 and 0.875
        still = losses(*[0.5] * 4)  # 0.625, 0.375, 0.125, 0
        assert sizes_of(by_steps(), [*falling, *still], 100) == [
            *[100, 110, 121, 133, 146, 161, 177],
            *[195, 214, 236, 118],
        ]

    def test_the_defaults_are_the_published_ones(self) -> None:
        schedule = LossChange(maximum=512)
        assert (schedule.window, schedule.threshold, schedule.shrink, schedule.growth) == (5, 0.01, 0.5, 1.1)
        assert (schedule.interval, schedule.unit) == (2, "epochs")

    @pytest.mark.parametrize(("change", "expected"), [(0.009, 4), (0.011, 10)])
    def test_the_threshold(self, change: float, expected: int) -> None:
        assert sizes_of(by_steps(2), losses(1.0, 1.0 + change))[-1] == expected

    def test_small_sizes_grow_in_the_end(self) -> None:
        """4 · 1.1 rounds to 4, 4 · 1.21 to 5."""
        assert sizes_of(by_steps(2), losses(5, 4, 3, 2), 4) == [4, 4, 5, 5, 6]

    def test_it_does_not_wind_up_at_the_bounds(self) -> None:
        rising = losses(*range(40))
        assert sizes_of(by_steps(2, maximum=16), [*rising, *losses(39.0)])[-2:] == [16, 8]
        falling = losses(*[1.0] * 40)
        assert sizes_of(by_steps(2, minimum=8, maximum=16), [*falling, *losses(2.0)])[-2:] == [8, 9]

    def test_it_does_not_wind_up_where_growth_is_bounded(self) -> None:
        schedule = by_steps(2, growth=2.0, maximum=4096, max_growth=1.25)
        assert sizes_of(schedule, losses(0, 1, 2, 3, 3), 16) == [16, 20, 25, 31, 38, 19]

    def test_it_goes_on_from_a_size_that_was_set_by_hand(self) -> None:
        schedule = by_steps(2)
        schedule.start(8)
        schedule.update(observe(1, 8, loss=1.0))
        assert schedule.update(observe(2, 100, loss=2.0)).batch_size == pytest.approx(110)

    def test_losses_that_are_not_finite_are_skipped(self) -> None:
        shown = losses(2.0, math.nan, math.inf, 1.0, math.nan)
        assert sizes_of(by_steps(2), shown, 10) == [10, 11, 11, 11, 12, 12]

    def test_the_mean_of_finite_losses_is_finite(self) -> None:
        schedule = LossChange(2, interval=1, maximum=512)
        sizes_of(schedule, epochs_of([1.7e308, 1.7e308, 1.7e308]))
        assert schedule.state_dict()["losses"] == [pytest.approx(1.7e308)]

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"window": 1}, "window must be at least 2 losses"),
            ({"threshold": -1.0}, "threshold must be a change of 0 or more, got -1.0"),
            ({"threshold": math.nan}, "got nan"),
            ({"shrink": 0.0}, "0 < shrink <= 1 <= growth must hold, got 0.0 and 1.1"),
            ({"shrink": 1.5}, "got 1.5 and 1.1"),
            ({"growth": 0.9}, "got 0.5 and 0.9"),
            ({"interval": 0}, "interval must be at least 1 of the epochs, got 0"),
            ({"interval": 1.5}, "got 1.5"),
            ({"interval": True}, "got True"),
            ({"unit": "epoch"}, "unit must be 'steps' or 'epochs', got 'epoch'"),
        ],
    )
    def test_arguments_that_cannot_be_are_refused(self, arguments: dict, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            LossChange(**arguments, maximum=64)


def smoothed(**arguments: Any) -> SmoothedLossChange:
    return SmoothedLossChange(
        **{"threshold": 0.1, "decay": 0.5, "interval": 1, "maximum": 512, "factor": 2.0, **arguments}
    )


class TestSmoothedLossChange:
    def test_by_hand(self) -> None:
        """The newest loss weighs 1, 2/3 and 4/7 in the average."""
        first = 4.0
        second = first / 3 + 3.7 * 2 / 3  # 3.8, a change of 0.05
        third = second * 3 / 7 + 1.0 * 4 / 7  # 2.2, a change of 0.42
        schedule = smoothed()
        assert sizes_of(schedule, losses(4.0, 3.7, 1.0)) == [8, 8, 16, 16]
        assert schedule.state_dict()["trends"]["loss"]["value"] == pytest.approx(third)

    def test_shrinking_on_a_plateau_and_growing_otherwise_is_the_published_direction(self) -> None:
        schedule = smoothed(on_plateau="shrink", otherwise=1.5, decay=0.0)
        assert sizes_of(schedule, losses(4.0, 4.0, 1.0, 1.0)) == [8, 8, 4, 6, 3]

    def test_the_threshold_is_relative(self) -> None:
        for scale in (1.0, 1e-6, 1e6):
            course = losses(*[scale * loss for loss in (4.0, 3.7, 1.0)])
            assert sizes_of(smoothed(), course) == [8, 8, 16, 16]

    def test_a_rising_loss_is_no_plateau(self) -> None:
        assert sizes_of(smoothed(decay=0.0), losses(1.0, 2.0)) == [8, 8, 8]

    def test_a_decision_every_so_many_steps(self) -> None:
        assert sizes_of(smoothed(interval=3), losses(*[1.0] * 9)) == [8, 8, 8, 8, 8, 8, 16, 16, 16, 32]

    def test_a_decision_every_so_many_epochs(self) -> None:
        epochs = [0, 1, 1, 2, 3, 4, 4]
        course = [{"loss": 1.0, "num_epochs_done": epoch} for epoch in epochs]
        assert sizes_of(smoothed(interval=2, unit="epochs"), course) == [8, 8, 8, 8, 8, 8, 16, 16]

    def test_an_interval_without_a_loss_decides_nothing(self) -> None:
        assert sizes_of(smoothed(), losses(1.0, math.nan, math.nan, 1.0)) == [8, 8, 8, 8, 16]
        assert sizes_of(smoothed(), losses(1.0, 1.0, math.nan, math.inf)) == [8, 8, 16, 16, 16]

    def test_the_gradient_norm_has_to_stand_still_too(self) -> None:
        schedule = smoothed(gradient_norm=True, decay=0.0)
        assert schedule.needs == {"loss", "gradient_norm"}
        norms = (1.0, 2.0, 2.1, math.nan, 2.0, 2.0)
        assert sizes_of(schedule, [{"loss": 1.0, "gradient_norm": norm} for norm in norms]) == [8, 8, 8, 16, 16, 32, 64]

    def test_no_decision_while_the_learning_rate_rises(self) -> None:
        schedule = smoothed(after_warmup=True)
        assert schedule.needs == {"loss", "learning_rate"}
        rates = (0.25, 0.5, 0.75, 1.0, 1.0, 0.9)
        assert sizes_of(schedule, [{"loss": 1.0, "learning_rate": rate} for rate in rates]) == [8] * 5 + [16, 32]

    def test_a_learning_rate_that_is_not_needed_stops_nothing(self) -> None:
        course = [{"loss": 1.0, "learning_rate": rate} for rate in (0.25, 0.5)]
        assert sizes_of(smoothed(), course) == [8, 8, 16]

    def test_fractions_are_kept(self) -> None:
        assert sizes_of(smoothed(factor=1.1), losses(*[1.0] * 4), 4) == [4, 4, 4, 5, 5]

    def test_the_state_of_other_criteria_is_refused(self) -> None:
        one, other = smoothed(), smoothed(gradient_norm=True)
        one.start(8), other.start(8)
        expected = r"must have values of \['gradient_norm', 'loss'\], got \['loss'\]"
        with pytest.raises(ValueError, match=expected):
            other.load_state_dict(one.state_dict())

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"threshold": -0.1}, "threshold must be a relative change of 0 or more, got -0.1"),
            ({"decay": 1.0}, r"decay must be in \[0, 1\), got 1.0"),
            ({"interval": 0}, "interval must be at least 1 of the steps, got 0"),
            ({"unit": "tokens"}, "unit must be 'steps' or 'epochs', got 'tokens'"),
            ({"on_plateau": "hold"}, "on_plateau must be 'grow' or 'shrink', got 'hold'"),
            ({"factor": 0.5}, "factor must be 1 or more and otherwise above 0, got 0.5 and 1.0"),
            ({"otherwise": 0.0}, "got 2.0 and 0.0"),
        ],
    )
    def test_arguments_that_cannot_be_are_refused(self, arguments: dict, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            smoothed(**arguments)


def seesaw_course(schedule: Seesaw, rates: Sequence[float], initial: int = 8) -> tuple[list[float], list[float]]:
    """Sizes and learning rates (the run's own times the factor) for each of the run's own rates."""
    schedule.start(initial)
    decisions = [schedule.update(observe(step, learning_rate=rate)) for step, rate in enumerate(rates, start=1)]
    followed = [rate * (decision.learning_rate_factor or 0.0) for rate, decision in zip(rates, decisions, strict=True)]
    return [decision.batch_size for decision in decisions], followed


class TestSeesaw:
    def test_where_a_step_schedule_halves_the_rate(self) -> None:
        sizes, rates = seesaw_course(Seesaw(maximum=512), [1.0, 1.0, 0.5, 0.5, 0.25, 0.125])
        assert sizes == [8, 8, 16, 16, 32, 64]
        assert rates == pytest.approx([1.0, 1.0, 0.5**0.5, 0.5**0.5, 0.5, 0.125**0.5])

    def test_between_cuts_the_rate_is_constant(self) -> None:
        sizes, rates = seesaw_course(Seesaw(maximum=512), [1.0, 0.8, 0.51, 0.5, 0.3, 0.2])
        assert sizes == [8, 8, 8, 16, 16, 32]
        assert rates == pytest.approx([1.0, 1.0, 1.0, 0.5**0.5, 0.5**0.5, 0.5])

    def test_a_cosine(self) -> None:
        """Cuts where (1 + cos πt)/2 is 1/2, 1/4, ...: t = 1/2, 2/3, 0.7699, and the maximum at 1/16: t = 0.8391."""
        times = np.arange(1_001) / 1_000
        own = 0.5 + 0.5 * np.cos(math.pi * times)
        sizes, rates = seesaw_course(Seesaw(maximum=128), own.tolist())
        cuts = [int(np.argmax(np.array(sizes) >= size)) for size in (16, 32, 64, 128)]
        assert cuts == [500, 667, 770, 840]
        np.testing.assert_allclose(rates[:840], (np.array(sizes[:840]) / 8) ** -0.5)
        np.testing.assert_allclose(rates[840:], 4 * own[840:], atol=1e-15)
        assert np.diff(rates).max() <= 1e-12

    def test_a_warm_up_is_left_alone(self) -> None:
        sizes, rates = seesaw_course(Seesaw(maximum=512), [0.0, 0.25, 0.5, 1.0, 0.5, 0.25])
        assert sizes == [8, 8, 8, 8, 16, 32]
        assert rates == pytest.approx([0.0, 0.25, 0.5, 1.0, 0.5**0.5, 0.5])
        assert Seesaw(maximum=512).start(8) == BatchDecision(8, 1.0)

    def test_a_rate_of_nothing_stays_nothing(self) -> None:
        assert seesaw_course(Seesaw(maximum=512), [0.0, 0.0]) == ([8, 8], [0.0, 0.0])
        sizes, rates = seesaw_course(Seesaw(maximum=512), [1.0, 0.0])
        assert (sizes, rates) == ([8, 512], [1.0, 0.0])

    def test_a_maximum_between_two_cuts_is_reached_by_a_smaller_one(self) -> None:
        """The maximum is 3 times the initial size: its cut is at 1/3, where the rate begins at 3^(-1/2)."""
        sizes, rates = seesaw_course(Seesaw(maximum=24), [1.0, 0.5, 0.34, 1 / 3, 0.3, 0.03])
        assert sizes == [8, 16, 16, 24, 24, 24]
        assert rates == pytest.approx([1.0, 0.5**0.5, 0.5**0.5, 3**-0.5, 0.3 * 3**0.5, 0.03 * 3**0.5])

    def test_no_room_to_grow_leaves_the_run_its_own_rate(self) -> None:
        assert seesaw_course(Seesaw(maximum=8), [1.0, 0.5, 0.1]) == ([8, 8, 8], [1.0, 0.5, 0.1])

    def test_restarts_take_nothing_back(self) -> None:
        sizes, rates = seesaw_course(Seesaw(maximum=32), [1.0, 0.5, 1.0, 0.5, 0.1, 1.0, 0.1])
        assert sizes == [8, 16, 16, 16, 32, 32, 32]
        assert rates == pytest.approx([1.0, 0.5**0.5, 0.5**0.5, 0.5**0.5, 0.2, 0.5, 0.2])

    def test_smooth_multiplies_the_run_s_own_rate_by_the_root(self) -> None:
        sizes, rates = seesaw_course(Seesaw(maximum=32, smooth=True), [0.5, 1.0, 0.6, 0.5, 0.4, 0.25, 0.0])
        assert sizes == [8, 8, 8, 16, 16, 32, 32]
        assert rates == pytest.approx([0.5, 1.0, 0.6, 0.5 * 2**0.5, 0.4 * 2**0.5, 0.5, 0.0])

    @pytest.mark.parametrize("factor", [1.1, 1.5, 3.0, 10.0])
    def test_cuts_that_fall_on_a_step_are_not_put_off_by_rounding(self, factor: float) -> None:
        own = [factor**-k for k in range(8)]
        sizes, rates = seesaw_course(Seesaw(factor, maximum=2**50), own)
        assert sizes == pytest.approx([8 * factor**k for k in range(8)])
        assert rates == pytest.approx([factor ** (-k / 2) for k in range(8)])

    def test_a_rate_that_is_not_known_changes_no_size(self) -> None:
        sizes, _ = seesaw_course(Seesaw(maximum=64), [1.0, 0.5, math.nan, -1.0, math.inf, 0.5])
        assert sizes == [8, 16, 16, 16, 16, 16]

    def test_arguments_that_cannot_be_are_refused(self) -> None:
        for factor in (1.0, 0.5, math.nan, math.inf):
            with pytest.raises(ValueError, match=f"factor must be above 1, got {factor}"):
                Seesaw(factor, maximum=64)
        with pytest.raises(TypeError, match="maximum"):
            Seesaw()


def noise(squared_norm: float, variance: float) -> dict[str, Any]:
    return {"noise": GradientNoise(squared_norm, variance)}


class TestNoiseScale:
    def test_smoothed_first_then_divided(self) -> None:
        """Weights of the newest 1 and 2/3: (1/3 · 1 + 2/3 · 4) = 3 and (1/3 · 30 + 2/3 · 120) = 90."""
        schedule = NoiseScale(decay=0.5, interval_steps=1, powers_of_two=False, max_growth=None)
        assert sizes_of(schedule, [noise(1.0, 24.0), noise(4.0, 123.0)]) == [8, 24, 30]

    def test_a_share_of_it(self) -> None:
        assert sizes_of(NoiseScale(0.5, interval_steps=1, powers_of_two=False), [noise(2.0, 40.0)]) == [8, 10]

    @pytest.mark.parametrize(("scale", "expected"), [(1e-9, 1), (11.3, 8), (11.4, 16), (16.0, 16), (22.7, 32)])
    def test_powers_of_two_are_the_nearest_by_ratio(self, scale: float, expected: int) -> None:
        schedule = NoiseScale(interval_steps=1, max_growth=None)
        assert sizes_of(schedule, [noise(1.0, scale)]) == [8, expected]

    def test_never_more_than_twice_at_once(self) -> None:
        assert sizes_of(NoiseScale(interval_steps=1), [noise(1.0, 1000.0)] * 4) == [8, 16, 32, 64, 128]

    def test_a_decision_every_so_many_steps(self) -> None:
        assert sizes_of(NoiseScale(interval_steps=2), [noise(1.0, 64.0)] * 5) == [8, 8, 16, 16, 32, 32]

    def test_steps_without_a_measurement_count_for_the_interval_only(self) -> None:
        assert sizes_of(NoiseScale(interval_steps=2), [{}, {}, noise(1.0, 64.0), {}]) == [8, 8, 8, 8, 16]

    def test_measured_only_when_it_decides_it_decides_by_that_measurement(self) -> None:
        """Averages as in the test of smoothing: 24, then 90 / 3; what is not measured does not fade them."""
        schedule = NoiseScale(decay=0.5, interval_steps=3, powers_of_two=False, max_growth=None)
        course = [{}, {}, noise(1.0, 24.0), {}, {}, noise(4.0, 123.0), {}]
        assert sizes_of(schedule, course) == [8, 8, 8, 24, 24, 24, 30, 30]

    @pytest.mark.parametrize("squared_norm", [0.0, -1.0, math.nan, math.inf])
    def test_it_holds_where_there_is_no_estimate(self, squared_norm: float) -> None:
        assert sizes_of(NoiseScale(interval_steps=1), [noise(squared_norm, 64.0)] * 2) == [8, 8, 8]

    def test_a_negative_estimate_counts_in_the_average(self) -> None:
        schedule = NoiseScale(decay=0.5, interval_steps=1, powers_of_two=False, max_growth=None)
        assert sizes_of(schedule, [noise(4.0, 40.0), noise(-0.5, 40.0)]) == [8, 10, 40]

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"share": 0.0}, "share must be above 0, got 0.0"),
            ({"share": math.nan}, "share must be above 0, got nan"),
            ({"decay": 1.0}, r"decay must be in \[0, 1\), got 1.0"),
            ({"interval_steps": 0}, "interval_steps must be at least 1, got 0"),
        ],
    )
    def test_arguments_that_cannot_be_are_refused(self, arguments: dict, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            NoiseScale(**arguments)


class TestNormTest:
    @pytest.mark.parametrize(
        ("squared_norm", "variance", "expected"),
        [
            (1.0, 2.0, 8),
            (1.0, 2.01, 9),
            (1.0, 10.0, 40),
            (0.25, 10.0, 160),
            (1.0, 10.1, 41),
            (1.0, 0.0, 8),
            (-1.0, 9.0, 8),
        ],
    )
    def test_it_grows_until_the_test_passes(self, squared_norm: float, variance: float, expected: int) -> None:
        assert sizes_of(NormTest(0.5, max_growth=None), [noise(squared_norm, variance)]) == [8, expected]

    def test_it_never_shrinks(self) -> None:
        course = [noise(1.0, 10.0), noise(1.0, 1.0), {}, noise(1.0, 12.0)]
        assert sizes_of(NormTest(0.5, max_growth=None), course) == [8, 40, 40, 40, 48]

    def test_smoothed(self) -> None:
        """After the second measurement the variance is (1/3 · 0 + 2/3 · 15) = 10."""
        assert sizes_of(NormTest(0.5, 0.5, max_growth=None), [noise(1.0, 0.0), noise(1.0, 15.0)]) == [8, 8, 40]

    def test_how_often_it_wants_to_be_measured(self) -> None:
        assert NormTest().interval_steps == 20
        assert sizes_of(NormTest(0.5), [noise(1.0, 1000.0)] * 3) == [8, 16, 32, 64]
        assert NormTest(interval_steps=5).interval_steps == 5
        with pytest.raises(ValueError, match="interval_steps must be at least 1, got 0"):
            NormTest(interval_steps=0)

    @pytest.mark.parametrize("eta", [0.0, -1.0, math.nan, math.inf])
    def test_an_eta_that_cannot_be_is_refused(self, eta: float) -> None:
        with pytest.raises(ValueError, match="eta must be above 0"):
            NormTest(eta)


@pytest.mark.parametrize("make", [LossChange, SmoothedLossChange, Seesaw])
def test_rules_without_an_end_of_their_own_need_a_maximum(make: Callable[..., Schedule]) -> None:
    with pytest.raises(TypeError, match="maximum"):
        make()
