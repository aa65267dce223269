"""What each schedule decides, by hand."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest

from mixer.measurements import Noise, Rates
from mixer.schedules import AdaBatch, Constant, CriticalBatchWarmup, Function, LossChange, NoiseScale, NormTest, Ramp
from mixer.schedules.base import BatchDecision, BatchObservation, Schedule
from mixer.schedules.seesaw import Seesaw
from mixer.schedules.smoothed_loss_change import SmoothedLossChange
from tests.mixer.kinds import parted
from tests.refusals import refused

Shown = list[dict[str, Any]]


def observe(step: int = 1, batch_size: int = 8, **shown: Any) -> BatchObservation:
    place = dict.fromkeys(("progress", "num_epochs_done", "num_samples", "num_tokens"), 0)
    if "learning_rate" in shown:
        shown["learning_rate"] = Rates(shown["learning_rate"], shown.pop("last_learning_rate", math.nan))
    shown, measured = parted(shown)
    return BatchObservation(step=step, batch_size=batch_size, **{**place, **shown}, measured=measured)


def sizes_of(schedule: Schedule, shown: Shown, initial: int = 8) -> list[int]:
    """Sizes as they rule, the first one included."""
    sizes = [schedule.limits.apply(schedule.start(initial).batch_size, initial)]
    for step, given in enumerate(shown, start=1):
        decision = schedule.update(observe(step, sizes[-1], **given))
        sizes.append(schedule.limits.apply(decision.batch_size, sizes[-1]))
    return sizes


def each(name: str, *values: float, **rest: float) -> Shown:
    return [{name: value, **rest} for value in values]


losses = partial(each, "loss")


def epochs_of(*epochs: Sequence[float]) -> Shown:
    """Steps with these losses, by epoch; the last step of each ends it."""
    return [
        {"loss": loss, "num_epochs_done": epoch + (number == len(values))}
        for epoch, values in enumerate(epochs)
        for number, loss in enumerate(values, start=1)
    ]


def noise(squared_norm: float, variance: float) -> dict[str, Any]:
    return {"noise": Noise(squared_norm, variance)}


def by_epochs(*given: Any, **options: Any) -> LossChange:
    return LossChange(*given, **{"interval": 1, "maximum": 512, **options})


by_steps = partial(by_epochs, unit="steps")


def smoothed(**options: Any) -> SmoothedLossChange:
    usual = {"threshold": 0.1, "decay": 0.5, "interval": 1, "maximum": 512, "factor": 2.0}
    return SmoothedLossChange(**{**usual, **options})


def noisy(*given: Any, **options: Any) -> NoiseScale:
    return NoiseScale(*given, **{"interval_steps": 1, "powers_of_two": False, **options})


PLAIN: dict[str, Any] = {"max_growth": None, "decay": 0.5}
COURSES: dict[str, list[tuple[Schedule, Shown, list[int]]]] = {
    "Function": [(Function(lambda step, size: size + 1), [{}, {}], [9, 10, 11])],
    "AdaBatch": [
        (AdaBatch([20, 40]), each("num_epochs_done", 0, 19, 20, 39, 40, 99), [128] * 3 + [256] * 2 + [512] * 2),
        # An interval that ends by rounding alone counts.
        (AdaBatch(every=0.1, unit="progress"), each("progress", 0.09, 0.1, 0.2, 0.3, 0.6), [8, 8, 16, 32, 64, 512]),
        *[(AdaBatch([3], unit=u), each(f"num_{u}", 2, 3, 4), [8, 8, 16, 16]) for u in ("samples", "tokens")],
        (AdaBatch([3], unit="steps"), [{}] * 4, [8, 8, 8, 16, 16]),
    ],
    "Ramp": [
        # DeepSeek's: V2 and V3.
        (Ramp(9216, 225e9), each("num_tokens", 0, 75e9, 112.5e9, 225e9, 8.1e12), [2304, 2304, 4608, 5760, 9216, 9216]),
        (Ramp(15360, 469e9), each("num_tokens", 234.5e9, 469e9), [3072, 9216, 15360]),
        (Ramp(32, 8, unit="steps", granularity=8), [{}] * 9, [8, 8, 16, 16, 24, 24, 24, 32, 32, 32]),
        (Ramp(2, 3, unit="steps"), [{}] * 4, [8, 6, 4, 2, 2]),
    ],
    "CriticalBatchWarmup": [
        (CriticalBatchWarmup(sizes), each("num_tokens", 99, 100, 299, 300, 10**12), [8, 8, 16, 16, 32, 32])
        for sizes in ({100: 16, 300: 32}, [(100, 16), (300, 32)])
    ],
    "LossChange": [
        # The published rule at each epoch's end: 1.1 with fewer than five losses, and at a mean change of 0.01 or more
        # (1, 0.75, 0.5 and 0.25), else half (0, 0.00975), then 0.02.
        (
            by_epochs(),
            epochs_of(*([loss] for loss in (5.0, 4.0, 3.0, 2.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.039, 1.080))),
            [100, 110, 121, 133, 146, 161, 177, 195, 214, 107, 54, 59],
        ),
        # The loss of an epoch is the mean of its steps': 2 and 2 stand still; 2 and 2.5 do not.
        (by_epochs(2), epochs_of([1.0, 3.0], [2.5, 2.5, 1.0]), [100, 100, 110, 110, 110, 55]),
        (by_epochs(2), epochs_of([1.0, 3.0], [2.5, 2.5, 2.5]), [100, 100, 110, 110, 110, 121]),
        # Of two epochs together: 2, then 2.
        (by_epochs(2, interval=2), epochs_of([1.0], [3.0], [0.0], [4.0], [9.0]), [100, 100, 110, 110, 55, 55]),
        *[(by_steps(2), losses(1.0, then), [8, 9, size]) for then, size in ((1.009, 4), (1.011, 10))],
        # 4 · 1.1 rounds to 4, 4 · 1.21 to 5: small sizes grow in the end.
        (by_steps(2), losses(5, 4, 3, 2), [4, 4, 5, 5, 6]),
        # It does not wind up where growth is bounded.
        (by_steps(2, growth=2.0, max_growth=1.25), losses(0, 1, 2, 3, 3), [16, 20, 25, 31, 38, 19]),
        # What is no number is left out.
        (by_steps(2), losses(1.0, math.nan, math.inf, 2.0), [100, 110, 110, 110, 121]),
    ],
    "SmoothedLossChange": [
        # A rising loss is no plateau.
        (smoothed(decay=0.0), losses(1.0, 2.0), [8, 8, 8]),
        # Shrinking on a plateau and growing otherwise is the published direction.
        (smoothed(on_plateau="shrink", otherwise=1.5, decay=0.0), losses(4.0, 4.0, 1.0, 1.0), [8, 8, 4, 6, 3]),
        # The threshold is relative.
        *[(smoothed(), losses(4.0 * unit, 3.7 * unit, 1.0 * unit), [8, 8, 16, 16]) for unit in (1.0, 1e-6, 1e6)],
        (smoothed(interval=3), losses(*[1.0] * 9), [8] * 6 + [16] * 3 + [32]),
        (smoothed(interval=2, unit="epochs"), each("num_epochs_done", 0, 2, 3, 4, 4, loss=1.0), [8] * 4 + [16, 16]),
        # An interval without a loss decides nothing.
        (smoothed(), losses(1.0, math.nan, math.inf, 1.0), [8, 8, 8, 8, 16]),
        (smoothed(factor=1.1), losses(*[1.0] * 4), [4, 4, 4, 5, 5]),  # fractions are kept
        # The gradient norm has to stand still too.
        (
            smoothed(gradient_norm=True, decay=0.0),
            each("gradient_norm", 1, 2, 2.1, math.nan, loss=1),
            [8, 8, 8, 16, 16],
        ),
        # No decision while the learning rate rises, if that is asked for.
        (smoothed(after_warmup=True), each("learning_rate", 0.25, 0.5, 1, 1, 0.9, loss=1.0), [8] * 4 + [16, 32]),
        (smoothed(), each("learning_rate", 0.25, 0.5, loss=1.0), [8, 8, 16]),
    ],
    "NoiseScale": [
        # Smoothed first, then divided: (1/3 · 1 + 2/3 · 4) = 3 and (1/3 · 30 + 2/3 · 120) = 90.
        (noisy(**PLAIN), [noise(1.0, 24.0), noise(4.0, 123.0)], [8, 24, 30]),
        # The same, measured only when it decides; what is not measured does not fade the averages.
        (noisy(**PLAIN, interval_steps=2), [{}, noise(1.0, 24.0), {}, noise(4.0, 123.0), {}], [8, 8, 24, 24, 30, 30]),
        (noisy(0.5), [noise(2.0, 40.0)], [8, 10]),  # a share of it
        # Powers of two are the nearest by ratio.
        *[
            (NoiseScale(interval_steps=1, max_growth=None), [noise(1.0, scale)], [8, expected])
            for scale, expected in ((1e-9, 1), (11.3, 8), (11.4, 16), (16.0, 16), (22.7, 32))
        ],
        (NoiseScale(interval_steps=1), [noise(1.0, 1000.0)] * 4, [8, 16, 32, 64, 128]),  # no more than twice at once
        (NoiseScale(interval_steps=2), [{}, {}, noise(1.0, 64.0), {}], [8, 8, 8, 8, 16]),
        # It holds where there is no estimate, but a negative one counts in the average.
        *[(noisy(), [noise(norm, 64.0)] * 2, [8, 8, 8]) for norm in (0.0, -1.0, math.nan, math.inf)],
        (noisy(**PLAIN), [noise(4.0, 40.0), noise(-0.5, 40.0)], [8, 10, 40]),
    ],
    "NormTest": [
        # It grows until the test passes, and never shrinks.
        *[
            (NormTest(0.5, max_growth=None), [noise(norm, variance)], [8, expected])
            for norm, variance, expected in ((1.0, 2.0, 8), (1.0, 2.01, 9), (0.25, 10.0, 160), (-1.0, 9.0, 8))
        ],
        (NormTest(0.5, max_growth=None), [noise(1, 10), noise(1, 1), {}, noise(1, 12)], [8, 40, 40, 40, 48]),
        # After the second measurement the variance is (1/3 · 0 + 2/3 · 15) = 10.
        (NormTest(0.5, 0.5, max_growth=None), [noise(1.0, 0.0), noise(1.0, 15.0)], [8, 8, 40]),
        (NormTest(0.5), [noise(1.0, 1000.0)] * 3, [8, 16, 32, 64]),
    ],
}


@pytest.mark.parametrize(
    ("schedule", "shown", "expected"),
    [pytest.param(*course, id=f"{name}{k}") for name, courses in COURSES.items() for k, course in enumerate(courses)],
)
def test_sizes(schedule: Schedule, shown: Shown, expected: list[int]) -> None:
    assert sizes_of(schedule, shown, 8 if isinstance(schedule, Function) else expected[0]) == expected


OPTIONS: dict[Callable[..., Schedule], dict[str, tuple[Any, ...]]] = {
    AdaBatch: {"every": (0, math.nan), "factor": (1.0, math.inf), "unit": ("days",)},
    Ramp: {"over": (0, math.inf), "final": (0, 64.0)},
    by_epochs: {"window": (1, 2.0), "threshold": (-1.0, math.nan), "interval": (0, 1.5, True), "unit": ("epoch",)},
    smoothed: {"threshold": (-0.1,), "decay": (1.0,), "interval": (0,), "on_plateau": ("hold",), "factor": (0.5,)},
    Seesaw: {"factor": (1.0, math.nan, math.inf)},
    NoiseScale: {"share": (0.0, math.nan), "decay": (1.0,), "interval_steps": (0,)},
    NormTest: {"interval_steps": (0,), "eta": (0.0, math.nan, math.inf)},
}
NEEDED: dict[Any, dict[str, Any]] = {AdaBatch: {"every": 1}, Ramp: {"final": 64, "over": 1}, Seesaw: {"maximum": 64}}


@pytest.mark.parametrize("make", OPTIONS)
def test_options_out_of_range_are_refused_with_what_they_must_be(make: Callable[..., Schedule]) -> None:
    for option, values in OPTIONS[make].items():
        for value in values:
            with refused(option, kind=(ValueError, TypeError)):
                make(**{**NEEDED.get(make, {}), option: value})


REFUSED: list[tuple[Callable[..., Schedule], Any, type[Exception], str]] = [
    *[(Constant, (given,), error, "batch_size") for given, error in ((0, ValueError), (8.0, TypeError))],
    (Function, (3,), TypeError, "function"),
    (AdaBatch, {}, ValueError, "points"),
    *[(AdaBatch, {"points": points}, ValueError, "points") for points in ([], [0, 2], [2, 2])],
    (AdaBatch, {"points": [0.5, 1.5], "unit": "progress"}, ValueError, "points"),
    (Ramp, {"final": 66, "over": 1, "granularity": 4}, ValueError, "final"),
    *[(CriticalBatchWarmup, (sizes,), ValueError, "points") for sizes in ({}, [(2, 16), (1, 32)])],
    (CriticalBatchWarmup, ({1: 16, 2: 16},), ValueError, "sizes"),
    (CriticalBatchWarmup, {"sizes": {1: 8}, "initial": 8}, ValueError, "sizes"),
    (CriticalBatchWarmup, ({1e9: 16.0},), TypeError, "size at 1e+09 tokens"),
    (CriticalBatchWarmup, {"sizes": {1: 128}, "maximum": 64}, ValueError, "size at 1 tokens"),
    (by_epochs, {"shrink": 0.0}, ValueError, "shrink"),
    (smoothed, {"otherwise": 0.0}, ValueError, "factor"),
]


@pytest.mark.parametrize(("make", "given", "error", "option"), REFUSED)
def test_arguments_that_cannot_be_are_refused(make, given, error, option) -> None:
    with refused(option, kind=error):
        make(**given) if isinstance(given, dict) else make(*given)


def test_constant_holds_and_leaves_a_size_that_was_set_by_hand() -> None:
    schedule = Constant(8)
    found = [schedule.start(8), schedule.update(observe(3, 8)), schedule.update(observe(4, 24))]
    assert found == [BatchDecision(8), BatchDecision(8), BatchDecision(24)]


class TestFunction:
    def test_it_is_called_with_the_step_and_the_last_size_but_not_when_the_run_is_over(self) -> None:
        calls: list[Any] = []
        schedule = Function(lambda step, batch_size: calls.append((step, batch_size)) or 12)  # type: ignore[func-returns-value]
        schedule.start(8)
        assert schedule.update(observe(1, 12, progress=0.99)).batch_size == 12
        assert schedule.update(observe(2, 10, progress=1.0)).batch_size == 10
        assert calls == [(0, 8), (1, 12)]
        for returned in (16.0, np.int64(16), np.float32(16.0)):
            size = Function(lambda step, batch_size, returned=returned: returned).start(8).batch_size
            assert (size, type(size)) == (16, int)

    @pytest.mark.parametrize(
        ("returned", "error"),
        [
            *[(value, ValueError) for value in (0, -8, math.nan, math.inf, 8.5)],
            *[(value, TypeError) for value in (True, np.True_, None, "16", np.array([16]), 16 + 0j)],
        ],
        ids=repr,
    )
    def test_what_is_no_size_is_refused_with_the_step(self, returned: Any, error: type[Exception]) -> None:
        schedule = Function(lambda step, batch_size: 8 if step < 5 else returned)
        schedule.start(8)
        schedule.update(observe(4))
        with refused("batch_size", kind=error) as caught:
            schedule.update(observe(5))
        assert repr(returned) in str(caught.value)


def test_a_default_first_size_above_those_of_a_warm_up_is_refused() -> None:
    schedule = CriticalBatchWarmup({1: 16})
    schedule.start(64)
    with refused("sizes"):
        schedule.update(observe(1, 64))


class TestLossChange:
    def test_it_does_not_wind_up_at_the_bounds(self) -> None:
        rising, falling = losses(*range(40), 39.0), losses(*[1.0] * 40, 2.0)
        assert sizes_of(by_steps(2, maximum=16), rising)[-2:] == [16, 8]
        assert sizes_of(by_steps(2, minimum=8, maximum=16), falling)[-2:] == [8, 9]

    def test_it_goes_on_from_a_size_that_was_set_by_hand(self) -> None:
        schedule = by_steps(2)
        schedule.start(8)
        schedule.update(observe(1, 8, loss=1.0))
        assert schedule.update(observe(2, 100, loss=2.0)).batch_size == pytest.approx(110)

    def test_the_mean_of_finite_losses_is_finite(self) -> None:
        schedule = by_epochs(2)
        sizes_of(schedule, epochs_of([1.7e308, 1.7e308, 1.7e308]))
        assert schedule.state_dict()["losses"] == [pytest.approx(1.7e308)]


def test_the_newest_loss_weighs_1_two_thirds_and_four_sevenths() -> None:
    second = 4.0 / 3 + 3.7 * 2 / 3  # 3.8, a change of 0.05
    third = second * 3 / 7 + 1.0 * 4 / 7  # 2.2, a change of 0.42
    schedule = smoothed()
    assert sizes_of(schedule, losses(4.0, 3.7, 1.0)) == [8, 8, 16, 16]
    assert schedule.state_dict()["trends"]["loss"]["value"] == pytest.approx(third)


ROOT, K = 0.5**0.5, np.arange(8.0)


def followed(schedule: Seesaw, rates: Sequence[float]) -> tuple[list[float], list[float]]:
    """Sizes and learning rates (the run's own times the factor) for each of the run's own rates."""
    assert schedule.start(8) == BatchDecision(8, 1.0)
    decisions = [schedule.update(observe(step, learning_rate=rate)) for step, rate in enumerate(rates, start=1)]
    made = [rate * (decision.learning_rate_factor or 0.0) for rate, decision in zip(rates, decisions, strict=True)]
    return [decision.batch_size for decision in decisions], made


class TestSeesaw:
    @pytest.mark.parametrize(
        ("options", "own", "sizes", "rates"),
        [
            # Where a step schedule halves the rate.
            ({}, [1, 0.5, 0.5, 0.25, 0.125], [8, 16, 16, 32, 64], [1, ROOT, ROOT, 0.5, 0.125**0.5]),
            # Between cuts the rate is constant.
            ({}, [1, 0.8, 0.51, 0.5, 0.3, 0.2], [8, 8, 8, 16, 16, 32], [1, 1, 1, ROOT, ROOT, 0.5]),
            # A warm-up is left alone, and a rate of nothing stays nothing.
            ({}, [0, 0.25, 0.5, 1, 0.5, 0.25], [8, 8, 8, 8, 16, 32], [0, 0.25, 0.5, 1, ROOT, 0.5]),
            ({}, [0, 0], [8, 8], [0, 0]),
            ({}, [1, 0], [8, 512], [1, 0]),
            # The maximum is 3 times the initial size: its cut is at 1/3, where the rate begins at 3^(-1/2).
            ({"maximum": 24}, [1, 0.5, 0.34, 1 / 3, 0.3], [8, 16, 16, 24, 24], [1, ROOT, ROOT, 3**-0.5, 0.3 * 3**0.5]),
            # No room to grow leaves the run its own rate.
            ({"maximum": 8}, [1, 0.5, 0.1], [8, 8, 8], [1, 0.5, 0.1]),
            # Restarts take nothing back.
            ({"maximum": 32}, [1, 0.5, 1, 0.5, 0.1, 1], [8, 16, 16, 16, 32, 32], [1, ROOT, ROOT, ROOT, 0.2, 0.5]),
            # Smooth multiplies the run's own rate by the root.
            ({"maximum": 32, "smooth": True}, [1, 0.6, 0.5, 0.25, 0], [8, 8, 16, 32, 32], [1, 0.6, ROOT, 0.5, 0]),
            # Cuts that fall on a step are not put off by rounding.
            *[({"factor": x, "maximum": 2**50}, x**-K, 8 * x**K, x ** (-K / 2)) for x in (1.1, 1.5, 3.0, 10.0)],
        ],
    )
    def test_by_hand(self, options: Any, own: list[float], sizes: list[float], rates: list[float]) -> None:
        found = followed(Seesaw(**{"maximum": 512, **options}), own)
        assert found == (pytest.approx(sizes), pytest.approx(rates))

    def test_a_cosine(self) -> None:
        """Cuts where (1 + cos πt)/2 is 1/2, 1/4, ...: t = 1/2, 2/3, 0.7699, and the maximum at 1/16: t = 0.8391."""
        own = 0.5 + 0.5 * np.cos(math.pi * np.arange(1_001) / 1_000)
        sizes, rates = (np.array(values) for values in followed(Seesaw(maximum=128), own.tolist()))
        assert [int(np.argmax(sizes >= size)) for size in (16, 32, 64, 128)] == [500, 667, 770, 840]
        np.testing.assert_allclose(rates[:840], (sizes[:840] / 8) ** -0.5)
        np.testing.assert_allclose(rates[840:], 4 * own[840:], atol=1e-15)
        assert np.diff(rates).max() <= 1e-12

    def test_a_rate_that_is_not_known_changes_no_size(self) -> None:
        sizes, _ = followed(Seesaw(maximum=64), [1.0, 0.5, math.nan, -1.0, math.inf, 0.5])
        assert sizes == [8, 16, 16, 16, 16, 16]
